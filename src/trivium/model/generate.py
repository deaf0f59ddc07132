"""Draw tokens from a model, prompts side by side; each draw is keyed, so a seed gives the same text everywhere.

Legend: B texts side by side, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from trivium.errors import DataError
from trivium.model.rows import Rows
from trivium.model.whole import WholeModel
from trivium.seeds import generator_for


@dataclass(frozen=True)
class Choice:
    """How the next token is chosen. temperature 0: the most likely one. top_k 0, top_p 1: from all.

    repetition_penalty: applied to tokens that the text already has, see `penalised`; 1 is none.
    """

    temperature: float
    top_k: int
    top_p: float
    seed: int
    repetition_penalty: float = 1.0


class Writing(Protocol):
    """A text being generated: prompt and tokens so far, whether it continues, and how many tokens may follow."""

    @property
    def text(self) -> list[int]: ...
    @property
    def goes_on(self) -> bool: ...
    @property
    def left(self) -> int: ...


AnyWriting = TypeVar("AnyWriting", bound=Writing)
# logits [B, V] (None except on the last stage) and the texts -> the next id of each, added to those that continue
Chooser = Callable[[torch.Tensor | None, Sequence[AnyWriting]], list[int]]


@dataclass
class Draft:
    """A prompt, how its tokens are chosen, and those drawn so far; `done` sees them and may end it."""

    prompt: Sequence[int]
    choice: Choice
    done: Callable[[list[int]], bool]
    max_tokens: int
    drawn: list[int] = field(default_factory=list)

    @property
    def text(self) -> list[int]:
        """The prompt and what follows it."""
        return [*self.prompt, *self.drawn]

    @property
    def goes_on(self) -> bool:
        """Whether another token is wanted."""
        return self.left > 0 and not self.done(self.drawn)

    @property
    def left(self) -> int:
        """Tokens that may still be drawn."""
        return self.max_tokens - len(self.drawn)


def continue_drafts(model: WholeModel, drafts: Sequence[Draft]) -> None:
    """Write every draft to its end, side by side."""
    write_together(model, drafts, partial(_choose, model))


class Batch(Generic[AnyWriting]):
    """Texts that are written side by side. Others may join between two tokens; texts leave when they end, or when they
    have as many tokens as the model's sequence."""

    def __init__(self, rows: Rows, choose: Chooser[AnyWriting]) -> None:
        self._rows, self._choose = rows, choose
        self._sequence = rows.model.model.sequence
        self.texts: list[AnyWriting] = []
        self._logits: torch.Tensor | None = None

    def join(self, texts: Sequence[AnyWriting]) -> None:
        """Read texts that continue. Equal texts are read once."""
        if not texts:
            return
        self._keep(self._going())
        ids = [tuple(text.text) for text in texts]
        distinct = list(dict.fromkeys(ids))
        number = {text: n for n, text in enumerate(distinct)}
        read = [*self._rows.lengths, *map(len, ids)]
        self.texts += texts
        more = max(min(text.left, self._sequence - n) for text, n in zip(self.texts, read, strict=True))
        logits = self._rows.prefill(distinct, [number[text] for text in ids], more)
        self._logits = logits if self._logits is None or logits is None else torch.cat([self._logits, logits])

    def step(self) -> None:
        """Add a token to each text, and read it where the text continues."""
        ids = self._choose(self._logits, self.texts)
        going = self._going()
        has_full = len(going) < sum(text.goes_on for text in self.texts)
        # Copying the cache costs more than reading a few rows that have ended.
        if has_full or 2 * len(going) <= len(self.texts):
            self._keep(going)
            ids = [ids[n] for n in going]
        if self.texts:
            self._logits = self._rows.decode(ids)

    def clear(self) -> None:
        """Remove all texts."""
        self._keep([])

    def _going(self) -> list[int]:
        lengths = self._rows.lengths
        return [n for n, text in enumerate(self.texts) if text.goes_on and lengths[n] < self._sequence]

    def _keep(self, rows: list[int]) -> None:
        if len(rows) == len(self.texts):
            return
        self._rows.keep(rows)
        self.texts = [self.texts[n] for n in rows]
        self._logits = None if self._logits is None or not rows else self._logits[rows]


def write_together(model: WholeModel, texts: Sequence[AnyWriting], choose: Chooser[AnyWriting]) -> None:
    """Write every text to its end. Each token is read once, with the keys and values of the others cached.

    If a text outgrows the model's sequence, its last tokens are read again for each next one.
    """
    sequence = model.model.sequence
    batch = Batch(Rows(model), choose)
    batch.join([text for text in texts if text.goes_on and len(text.text) <= sequence])
    while batch.texts:
        batch.step()
    for text in texts:
        while text.goes_on:
            choose(Rows(model).prefill([text.text[-sequence:]], [0], 0), [text])
    model.finish()


def finite(logits: torch.Tensor) -> torch.Tensor:
    """Return the logits [B, V] unchanged. Raises DataError if any is not finite, as after damaged weights."""
    if not logits.amax(-1).isfinite().all():
        raise DataError(
            "the model's scores of the next token are not finite: its weights are damaged or training diverged; use "
            "an earlier checkpoint"
        )
    return logits


def pick(logits: torch.Tensor, choice: Choice, *, uniform: float) -> int:
    """Return the token at `uniform` in [0, 1) of the cumulative distribution of allowed tokens, by id; logits [V]."""
    if choice.temperature == 0:
        return int(logits.argmax())
    scores = logits.double().cpu().numpy()
    with np.errstate(over="ignore"):  # at a temperature near 0, all but the likeliest weigh nothing
        weights = np.exp((scores - scores.max()) / choice.temperature)
    cumulative = np.where(weights >= _least(weights, choice), weights, 0.0).cumsum()
    found = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return min(found, int(np.flatnonzero(weights)[-1]))


def penalised(logits: torch.Tensor, texts: Sequence[Sequence[int]], penalties: Sequence[float]) -> torch.Tensor:
    """Return logits [B, V] with those of tokens that are in the text lowered (Keskar et al. 2019, arXiv 1909.05858).

    A positive score is divided by the penalty, a negative one multiplied: either way it falls.
    """
    if all(p == 1 for p in penalties):
        return logits
    logits = logits.clone()
    for row, text, penalty in zip(logits, texts, penalties, strict=True):
        if penalty != 1:
            ids = torch.tensor(sorted(set(text)), device=row.device)
            found = row[ids]
            row[ids] = torch.where(found > 0, found / penalty, found * penalty)
    return logits


def _least(weights: NDArray[np.float64], choice: Choice) -> float:
    """Return the least weight of a token that may be drawn. top_k keeps the likeliest tokens; of these, top_p keeps the
    fewest that reach its share of their weight (nucleus, arXiv 1904.09751). The order is that of other libraries."""
    if not choice.top_k and choice.top_p == 1:
        return 0.0
    falling = np.sort(weights)[::-1]
    reached = falling.cumsum()
    most = min(choice.top_k or len(falling), len(falling)) - 1
    return float(falling[min(int(np.searchsorted(reached, choice.top_p * reached[most])), most)])


def _choose(model: WholeModel, logits: torch.Tensor | None, drafts: Sequence[Draft]) -> list[int]:
    """Return the next token of every draft, and add it to those that continue. logits: [B, V] on the last stage."""
    ids = torch.zeros(len(drafts), dtype=torch.long, device=model.device)
    if logits is not None:
        logits = finite(logits)
        if any(d.choice.repetition_penalty != 1 for d in drafts):
            logits = penalised(logits, [d.text for d in drafts], [d.choice.repetition_penalty for d in drafts])
        if all(d.choice.temperature == 0 for d in drafts):
            ids = logits.argmax(-1)
        else:
            drawn = [pick(row, d.choice, uniform=_uniform(d)) for row, d in zip(logits, drafts, strict=True)]
            ids = torch.tensor(drawn, device=model.device)
    found: list[int] = model.told(ids).tolist()
    for draft, token in zip(drafts, found, strict=True):
        if draft.goes_on:
            draft.drawn.append(token)
    return found


def _uniform(draft: Draft) -> float:
    return float(generator_for(draft.choice.seed, "generate", len(draft.drawn)).random())
