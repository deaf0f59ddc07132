"""Ask a judge about items, and record every answer, so that nothing is asked twice.

The record is a file of JSON lines. An answer belongs to the model, the messages and the settings that it was asked
with; a command that is run again, or with more items or samples, takes what is recorded and asks for the rest.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from trivium.config import Config, build
from trivium.errors import ConfigError, DataError
from trivium.evaluation.judges.config import JudgeConfig
from trivium.evaluation.judges.parse import Parsed
from trivium.evaluation.judges.prompts import Message, Prompt
from trivium.evaluation.judges.ratings import Item, mean_of
from trivium.finite import dumps
from trivium.jsonlines import read_rows
from trivium.progress import Progress, silent
from trivium.provenance import fingerprint
from trivium.seeds import seed_for
from trivium.untrusted import open_regular

ANSWERS = "answers.jsonl"
_SEEDS = 1 << 31  # endpoints read 32 bits


class Question(NamedTuple):
    """Messages, the settings that are sent with them, and the key of their answer in the record. item: for errors."""

    key: str
    messages: tuple[Message, ...]
    settings: Mapping[str, Any]
    item: Item

    @property
    def about(self) -> str:
        """The item as an error names it."""
        return f"system {self.item.system!r}, segment {self.item.segment!r}"


@dataclass(frozen=True)
class Answer:
    """An answer, and the tokens of prompt, answer and reasoning, None if they are unknown. The answer's tokens include
    those of its reasoning. cut: whether the answer reached the limit."""

    text: str
    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    reasoning_tokens: int | None = None
    cut: bool = False


class _Recorded(Config):
    """An answer as it is recorded."""

    text: str
    prompt_tokens: int | None
    answer_tokens: int | None
    reasoning_tokens: int | None
    cut: bool


class Backend(Protocol):
    """Anything that answers questions."""

    def answer(self, questions: Sequence[Question]) -> Iterator[tuple[Question, Answer]]:
        """Yield each question with its answer, in any order."""
        ...


class NoBackend:
    """Takes answers from the record alone."""

    def answer(self, questions: Sequence[Question]) -> Iterator[tuple[Question, Answer]]:
        """Raise DataError, as an answer is missing."""
        raise DataError(
            f"the record lacks {len(questions):,} of the answers, the first about {questions[0].about}; give "
            f"--endpoint or --model to ask for them, and the --model-name and settings of the recorded answers"
        )
        yield


@dataclass
class Record:
    """Recorded answers by key. New ones are appended to the file at once."""

    path: Path
    answers: dict[str, Answer] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)

    @classmethod
    def open(cls, path: Path) -> "Record":
        """Read the record, or begin one. A last line that was cut by a crash is removed; its answer is asked for again.
        Raises DataError for other damage."""
        found = cls(path)
        if path.exists():
            _drop_partial_line(path)
            for row, number in read_rows(path, remedy="remove the line, and its answer is asked for again"):
                try:
                    key, model, answer = row["key"], row["model"], build(_Recorded, row["answer"])
                except (TypeError, KeyError, ConfigError):
                    raise DataError(
                        f"{path}, line {number} is no recorded answer; remove it, and it is asked for again"
                    ) from None
                found.answers[str(key)] = Answer(**dict(answer))
                found.models.add(str(model))
        return found

    def only_model(self) -> str:
        """Return the model of all answers. Raises ConfigError if there are several or none."""
        if len(self.models) != 1:
            told = f"answers of {', '.join(sorted(self.models))}" if self.models else "no answers"
            raise ConfigError(
                f"{self.path} contains {told}; give --model-name to say whose to use, or --endpoint or --model"
            )
        return next(iter(self.models))

    def add(self, question: Question, answer: Answer, model: str) -> None:
        """Record an answer."""
        self.answers[question.key] = answer
        line = {"key": question.key, "model": model, "settings": dict(question.settings), "answer": asdict(answer)}
        with open(self.path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(dumps(line, ensure_ascii=False) + "\n")


def _drop_partial_line(path: Path) -> None:
    with open_regular(path) as file:
        size = file.seek(0, 2)
        keep = size
        while keep:
            begin = max(0, keep - 65536)
            file.seek(begin)
            block = file.read(keep - begin)
            if b"\n" in block:
                keep = begin + block.rindex(b"\n") + 1
                break
            keep = begin
    if keep < size:
        os.truncate(path, keep)


@dataclass
class Judged:
    """A judge's result for an item: a parsed answer for each sample, and the tokens and attempts spent."""

    item: Item
    samples: list[Parsed]
    answer_tokens: int = 0
    reasoning_tokens: int | None = None
    attempts: int = 0
    has_tokens: bool = True

    @property
    def score(self) -> float | None:
        """The mean over the samples that could be parsed, None if there are none."""
        return self.score_with(None)

    def score_with(self, instead: float | None) -> float | None:
        """The mean with a value in place of samples that could not be parsed; None leaves them out."""
        return mean_of([instead if parsed.score is None else parsed.score for parsed in self.samples])

    def line(self) -> dict[str, Any]:
        """Return the line of the file of scores."""
        return {
            "system": self.item.system,
            "segment": self.item.segment,
            "score": self.score,
            "scores": [parsed.score for parsed in self.samples],
            "reasons": sorted({parsed.reason for parsed in self.samples if parsed.reason}),
            "errors": [dict(parsed.errors) for parsed in self.samples if parsed.errors],
            "attempts": self.attempts,
            "answer_tokens": self.answer_tokens if self.has_tokens else None,
            "reasoning_tokens": self.reasoning_tokens,
        }


def settings_of(config: JudgeConfig, sample: int, attempt: int) -> dict[str, Any]:
    """Return what is sent with a question. Each sample and attempt has its own seed, and each further attempt a higher
    temperature."""
    found: dict[str, Any] = {"max_tokens": config.max_tokens, "top_p": config.top_p}
    if config.temperature is not None:
        found["temperature"] = round(min(config.temperature + attempt * config.temperature_step, 2.0), 6)
    if config.reasoning_effort is not None:
        found["reasoning_effort"] = config.reasoning_effort
    return {**found, "seed": seed_for(config.seed, "judge", sample, attempt) % _SEEDS}


def judge(
    items: Sequence[Item],
    prompt: Prompt,
    backend: Backend,
    record: Record,
    config: JudgeConfig,
    *,
    model: str,
    progress: Progress = silent,
) -> list[Judged]:
    """Return one result per item, in order. An answer that cannot be parsed is asked for again, up to
    `config.attempts` times."""
    conversations = prompt.conversations(items)
    found = [Judged(item, [Parsed(None, "not asked")] * config.samples) for item in items]
    open_ones = [(number, sample) for number in range(len(items)) for sample in range(config.samples)]
    for attempt in range(config.attempts):
        questions: dict[tuple[int, int], Question] = {}
        for number, sample in open_ones:
            settings = settings_of(config, sample, attempt)
            messages = conversations[number]
            key = fingerprint([model, [list(message) for message in messages], settings])
            questions[number, sample] = Question(key, messages, settings, items[number])
        new = {q.key: q for q in questions.values() if q.key not in record.answers}
        note = "answers" if attempt == 0 else f"answers, attempt {attempt + 1}"
        for done, (question, answer) in enumerate(backend.answer(list(new.values())) if new else (), 1):
            record.add(question, answer, model)
            progress(done, len(new), note)
        for (number, sample), question in questions.items():
            answer, judged = record.answers[question.key], found[number]
            judged.samples[sample] = prompt.parse(answer.text, config, cut=answer.cut)
            judged.attempts += 1
            judged.has_tokens &= answer.answer_tokens is not None
            judged.answer_tokens += answer.answer_tokens or 0
            if answer.reasoning_tokens is not None:
                judged.reasoning_tokens = (judged.reasoning_tokens or 0) + answer.reasoning_tokens
        open_ones = [(n, s) for n, s in open_ones if found[n].samples[s].score is None]
        if not open_ones:
            break
    return found
