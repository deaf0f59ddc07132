"""Generate many texts in batches, as plain text or token by token."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from trivium.comms.collectives import sum_over_ranks_
from trivium.evaluation.answer import NativeScorer, cut_at
from trivium.evaluation.requests import Request, Sampling, Scored
from trivium.seeds import seed_for
from trivium.serving.config import Drawing
from trivium.serving.unfold import CONTEXT_TOKENS
from trivium.serving.write import Draft, Finish, Token, write_drafts
from trivium.tokens.tokenizer import Tokenizer

FINISHES: tuple[Finish, ...] = ("stop", "length", "cancelled")


class Written(NamedTuple):
    """A generated text, its tokens, and why it ended."""

    text: str
    tokens: list[Token]
    finish: Finish


class Writer:
    """Every rank of the model's mesh calls the same methods with the same arguments and gets all results."""

    def __init__(self, scorer: NativeScorer, *, together: int = 16) -> None:
        self.scorer, self.together = scorer, together
        self.model, self.tokenizer = scorer.model, scorer.tokenizer

    def loglikelihood(self, requests: Sequence[Request]) -> list[Scored]:
        """Return the scorer's log-likelihoods."""
        return self.scorer.loglikelihood(requests)

    def generate(self, prompts: Sequence[str], *, settings: Sampling) -> list[str]:
        """Return one continuation per prompt, in order, without the prompt."""
        return [w.text for w in self.write(prompts, Drawing(**settings.model_dump()))]

    def unseen(self, prompts: Sequence[str]) -> list[int]:
        """Return for each prompt the number of leading tokens that are cut off, because the prompt exceeds the
        sequence."""
        return [max(0, len(ids) - self.scorer.sequence) for ids in self.tokenizer.prompt_ids(prompts)]

    def write(self, prompts: Sequence[str], settings: Drawing, *, alternatives: int | None = None) -> list[Written]:
        """Generate after each prompt; returns texts, tokens and log-probabilities."""
        ids = self.tokenizer.prompt_ids(prompts)
        drafts = [
            self.draft(prompt, settings, seed=seed_for(settings.seed, "prompt", n), alternatives=alternatives)
            for n, prompt in enumerate(ids)
        ]
        self.write_drafts(drafts)
        return [self.written(d) for d in drafts]

    def draft(
        self,
        prompt: list[int],
        settings: Drawing,
        *,
        seed: int,
        alternatives: int | None = None,
        heard: Callable[[Token], bool] | None = None,
    ) -> Draft:
        """Create a draft that ends with the document or with one of the texts in `settings.stop`."""
        if alternatives is not None:
            alternatives = min(alternatives, self.tokenizer.vocabulary)
        return Draft(prompt, settings, seed, stopper(self.tokenizer, settings.stop, prompt), alternatives, heard)

    def written(self, draft: Draft) -> Written:
        """Return the text of a draft, without the end of the document and without stop texts."""
        end = self.tokenizer.end_of_text
        text = self.tokenizer.decode_after(draft.prompt, [i for i in draft.ids if i != end])
        return Written(cut_at(draft.settings.stop, text), draft.tokens, draft.finish or "cancelled")

    def write_drafts(self, drafts: Sequence[Draft]) -> None:
        """Generate all drafts to their end, the longest first, in batches of similar length."""
        order = sorted(range(len(drafts)), key=lambda n: -len(drafts[n].prompt))
        groups = [order[n : n + self.together] for n in range(0, len(order), self.together)]
        mesh = self.model.mesh
        for group in groups[mesh.data.index :: mesh.data.size]:
            write_drafts(self.model, [drafts[n] for n in group])
        if mesh.data.size > 1:
            self._share(drafts)

    def _share(self, drafts: Sequence[Draft]) -> None:
        """Send the texts of each data rank to all ranks."""
        mesh = self.model.mesh
        speaks = self.model.predicts and mesh.tensor.index == 0
        most = max((d.alternatives for d in drafts if d.alternatives is not None), default=None)
        width = 1 if most is None else 2 + 2 * most
        mine = [(n, d) for n, d in enumerate(drafts) if speaks and d.finish is not None]
        ends = torch.zeros(len(drafts), 2, dtype=torch.float64)
        for number, draft in mine:
            ends[number] = torch.tensor([len(draft.tokens), FINISHES.index(draft.finish)])
        ends = sum_over_ranks_(ends.to(self.model.device), mesh).cpu()
        longest = int(ends[:, 0].max()) if drafts else 0  # the longest generated text, which may be far below the limit
        table = torch.zeros(len(drafts), longest, width, dtype=torch.float64)
        for number, draft in mine:
            for place, token in enumerate(draft.tokens):
                row = _row(token)
                table[number, place, : len(row)] = torch.tensor(row)
        table = sum_over_ranks_(table.to(self.model.device), mesh).cpu()
        for draft, rows, (count, finish) in zip(drafts, table.tolist(), ends.tolist(), strict=True):
            draft.tokens = [_token(row, draft.alternatives) for row in rows[: int(count)]]
            draft.finish = FINISHES[int(finish)]


def stopper(tokenizer: Tokenizer, stops: Sequence[str], prompt: Sequence[int]) -> Callable[[list[int]], bool]:
    """Return the predicate that decides from the sampled ids whether the text is over, consistently with
    `Writer.written`.

    A token has at least one byte, so only the last ids are decoded. They are decoded after their predecessors,
    because some tokenizers spell the first token of a text differently, and never from within a run of byte tokens
    that form a character together.
    """
    end, bytes_alone = tokenizer.end_of_text, tokenizer.byte_tokens
    reach = max((len(s.encode()) for s in stops), default=0) + 1

    def done(drawn: list[int]) -> bool:
        if drawn and drawn[-1] == end:
            return True
        if not stops:
            return False
        begin = max(0, len(drawn) - reach)
        while begin and drawn[begin] in bytes_alone and drawn[begin - 1] in bytes_alone:
            begin -= 1
        before = [*prompt, *drawn[max(0, begin - CONTEXT_TOKENS) : begin]][-CONTEXT_TOKENS:]
        text = tokenizer.decode_after(before, drawn[begin:])
        return any(s in text for s in stops)

    return done


def _row(token: Token) -> list[float]:
    if token.logprob is None:
        return [token.id]
    return [token.id, token.logprob, *(x for pair in token.top for x in pair)]


def _token(row: Sequence[float], alternatives: int | None) -> Token:
    if alternatives is None:
        return Token(int(row[0]))
    top = tuple((int(row[2 + 2 * k]), row[3 + 2 * k]) for k in range(alternatives))
    return Token(int(row[0]), row[1], top)
