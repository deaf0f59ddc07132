"""Models of ours as judges: they answer prompts, or score outputs by their likelihood."""

from collections.abc import Iterator, Sequence

from trivium.errors import DataError
from trivium.evaluation.answer import NativeScorer
from trivium.evaluation.judges.asking import Answer, Judged, Question
from trivium.evaluation.judges.config import JudgeConfig
from trivium.evaluation.judges.parse import Parsed
from trivium.evaluation.judges.prompts import Prompt
from trivium.evaluation.judges.ratings import Item
from trivium.evaluation.requests import Likelihoods, Request, ask
from trivium.model.generate import Choice, Draft
from trivium.tokens.chat.conversation import Turn
from trivium.tokens.chat.encode import encode_prompt, end_of_turn_ids
from trivium.tokens.chat.template import ChatTemplate


class Native:
    """Answers questions with a checkpoint, in the form of its chat template."""

    def __init__(self, scorer: NativeScorer, template: ChatTemplate, config: JudgeConfig) -> None:
        self._scorer, self._template, self._config = scorer, template, config
        self._ends = (end_of_turn_ids(template, scorer.tokenizer), *([end] for end in scorer.tokenizer.ends))

    def answer(self, questions: Sequence[Question]) -> Iterator[tuple[Question, Answer]]:
        """Yield each question with its answer, a batch at a time. Raises DataError for a prompt that does not fit."""
        for begin in range(0, len(questions), self._config.requests):
            some = questions[begin : begin + self._config.requests]
            drafts = [self._draft(question) for question in some]
            for question, draft, drawn in zip(some, drafts, self._scorer.continue_drafts(drafts), strict=True):
                text, is_done = self._text(draft.prompt, drawn), draft.done(drawn)
                yield question, Answer(text, len(draft.prompt), len(drawn), cut=not is_done)

    def _draft(self, question: Question) -> Draft:
        turns = [Turn(message.role, message.content) for message in question.messages]
        prompt = encode_prompt(turns, self._template, self._scorer.tokenizer).tolist()
        settings, room = question.settings, self._scorer.sequence - len(prompt)
        if room < 1:
            raise DataError(
                f"a prompt has {len(prompt):,} tokens, and the model reads {self._scorer.sequence:,}; give a model "
                f"with a longer sequence, or leave out the row of {question.about}"
            )
        choice = Choice(settings.get("temperature", 1.0), 0, settings["top_p"], settings["seed"])
        return Draft(prompt, choice, self._done, min(room, settings["max_tokens"]))

    def _done(self, drawn: list[int]) -> bool:
        return any(drawn[-len(end) :] == end for end in self._ends)

    def _text(self, prompt: Sequence[int], drawn: list[int]) -> str:
        end = next((end for end in self._ends if drawn[-len(end) :] == end), [])
        return self._scorer.tokenizer.decode_after(prompt, drawn[: len(drawn) - len(end)])


def judge_by_likelihood(items: Sequence[Item], prompt: Prompt, scorer: Likelihoods) -> tuple[list[Judged], int]:
    """Return the log-likelihood per token of each output after its source, and how many prompts were cut."""
    conversations = prompt.conversations(items)
    empty = next((item for item in items if not item.output.strip()), None)
    if empty is not None:
        raise DataError(
            f"the output of system {empty.system!r} for segment {empty.segment!r} is empty, so that it has no "
            f"likelihood; leave the row out"
        )
    requests = [
        Request(messages[-1].content, f" {item.output.strip()}")
        for messages, item in zip(conversations, items, strict=True)
    ]
    answers = ask(scorer, requests)
    judged = [
        Judged(item, [Parsed(answer.loglikelihood / answer.tokens)], answer_tokens=answer.tokens, attempts=1)
        for item, answer in zip(items, answers, strict=True)
    ]
    return judged, sum(answer.truncated for answer in answers)
