"""A model that writes: many texts side by side, as plain text or token by token."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from trivium.comms.collectives import sum_over_ranks_
from trivium.evaluation.answer import NativeScorer, cut_at
from trivium.evaluation.requests import Request, Sampling, Scored
from trivium.seeds import seed_for
from trivium.serving.config import Drawing
from trivium.serving.unfold import NEAR
from trivium.serving.write import Draft, Finish, Token, write_drafts
from trivium.tokens.tokenizer import Tokenizer

FINISHES: tuple[Finish, ...] = ("stop", "length", "cancelled")


class Written(NamedTuple):
    """A text, the tokens it was drawn as, and why it ends."""

    text: str
    tokens: list[Token]
    finish: Finish


class Writer:
    """Every rank of the model's mesh calls the same methods with the same arguments and gets every answer."""

    def __init__(self, scorer: NativeScorer, *, together: int = 16) -> None:
        self.scorer, self.together = scorer, together
        self.model, self.tokenizer = scorer.model, scorer.tokenizer

    def loglikelihood(self, requests: Sequence[Request]) -> list[Scored]:
        """What the scorer says."""
        return self.scorer.loglikelihood(requests)

    def generate(self, prompts: Sequence[str], *, settings: Sampling) -> list[str]:
        """One continuation per prompt, in order, without the prompt."""
        return [w.text for w in self.write(prompts, Drawing(**settings.model_dump()))]

    def unseen(self, prompts: Sequence[str]) -> list[int]:
        """Of each prompt, how many tokens stand before the last ones, which are all that the model sees of it."""
        return [max(0, len(ids) - self.scorer.sequence) for ids in self.tokenizer.prompt_ids(prompts)]

    def write(
        self, prompts: Sequence[str], settings: Drawing, *, alternatives: int | None = None
    ) -> list[Written]:
        """The same with tokens and their log-probabilities."""
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
        """A text that ends with its document or with one of the texts in `settings.stop`."""
        if alternatives is not None:
            alternatives = min(alternatives, self.tokenizer.vocabulary)
        return Draft(
            prompt, settings, seed, stopper(self.tokenizer, settings.stop, prompt), alternatives, heard
        )

    def written(self, draft: Draft) -> Written:
        """What came of a draft; neither the end of the document nor a stop is part of the text."""
        end = self.tokenizer.end_of_text
        text = self.tokenizer.decode_after(draft.prompt, [i for i in draft.ids if i != end])
        return Written(cut_at(draft.settings.stop, text), draft.tokens, draft.finish or "cancelled")

    def write_drafts(self, drafts: Sequence[Draft]) -> None:
        """Write all to their end; the longest first, those of similar length side by side."""
        order = sorted(range(len(drafts)), key=lambda n: -len(drafts[n].prompt))
        groups = [order[n : n + self.together] for n in range(0, len(order), self.together)]
        mesh = self.model.mesh
        for group in groups[mesh.data.index :: mesh.data.size]:
            write_drafts(self.model, [drafts[n] for n in group])
        if mesh.data.size > 1:
            self._share(drafts)

    def _share(self, drafts: Sequence[Draft]) -> None:
        """What one data rank wrote, every rank knows."""
        mesh = self.model.mesh
        speaks = self.model.predicts and mesh.tensor.index == 0
        most = max((d.alternatives for d in drafts if d.alternatives is not None), default=None)
        width = 1 if most is None else 2 + 2 * most
        mine = [(n, d) for n, d in enumerate(drafts) if speaks and d.finish is not None]
        ends = torch.zeros(len(drafts), 2, dtype=torch.float64)
        for number, draft in mine:
            ends[number] = torch.tensor([len(draft.tokens), FINISHES.index(draft.finish)])
        ends = sum_over_ranks_(ends.to(self.model.device), mesh).cpu()
        longest = int(ends[:, 0].max()) if drafts else 0  # written, however many might have been
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
    """Says of the ids drawn after a prompt whether the text is over, as `Writer.written` will find it.

    Every token is a byte or more, so the end of what was drawn is enough; it is read after what stands before it, as
    some tokenizers spell the first token of a text otherwise, and never begins within a run of bytes that make a
    character together.
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
        before = [*prompt, *drawn[max(0, begin - NEAR) : begin]][-NEAR:]
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
