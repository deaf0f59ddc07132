"""Draw tokens from a model, prompts side by side; each draw is keyed, so a seed gives the same text everywhere.

Legend: B prompts side by side, S positions, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from trivium.errors import DataError
from trivium.model.kv_cache import KVCache
from trivium.model.whole import WholeModel
from trivium.seeds import generator_for


@dataclass(frozen=True)
class Choice:
    """How the next token is chosen. temperature 0: the most likely one. top_k 0, top_p 1: from all.

    repetition_penalty: of tokens that stand in the text already, see `penalised`; 1 is none.
    """

    temperature: float
    top_k: int
    top_p: float
    seed: int
    repetition_penalty: float = 1.0


class Writing(Protocol):
    """A text being written: its prompt with what was drawn, whether it goes on, and how many tokens may come."""

    @property
    def text(self) -> list[int]: ...
    @property
    def goes_on(self) -> bool: ...
    @property
    def left(self) -> int: ...


AnyWriting = TypeVar("AnyWriting", bound=Writing)
# hidden [B, H] (None but on the last stage) and the texts -> the next id of each [B], added to those that go on
Chooser = Callable[[torch.Tensor | None, Sequence[AnyWriting]], torch.Tensor]


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


def write_together(model: WholeModel, drafts: Sequence[AnyWriting], choose: Chooser[AnyWriting]) -> None:
    """Write every text to its end: each token is read once, with the keys and values of the others remembered.

    Where a text outgrows the model's sequence, its last tokens are read anew for each next one.
    """
    while fitting := [d for d in drafts if d.goes_on and len(d.text) < model.model.sequence]:
        _write_remembering(model, fitting, choose)
    for draft in drafts:
        while draft.goes_on:
            window = draft.text[-model.model.sequence :]
            hidden = model.hidden(torch.tensor(window, device=model.device).unsqueeze(1))
            choose(None if hidden is None else hidden[-1], [draft])
    model.finish()


def finite(logits: torch.Tensor) -> torch.Tensor:
    """The logits [B, V] of a model; DataError where they are none, as those of damaged weights."""
    if not logits.amax(-1).isfinite().all():
        raise DataError(
            "the model's scores of the next token are not finite: its weights are damaged or training diverged; use "
            "an earlier checkpoint"
        )
    return logits


def pick(logits: torch.Tensor, choice: Choice, *, uniform: float) -> int:
    """The token at `uniform` in [0, 1) of the cumulative distribution over the allowed tokens, by id; logits [V]."""
    if choice.temperature == 0:
        return int(logits.argmax())
    scores = logits.double().cpu().numpy()
    with np.errstate(over="ignore"):  # at a temperature that is hardly any, all but the likeliest weigh nothing
        weights = np.exp((scores - scores.max()) / choice.temperature)
    cumulative = np.where(weights >= _least(weights, choice), weights, 0.0).cumsum()
    found = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return min(found, int(np.flatnonzero(weights)[-1]))


def penalised(logits: torch.Tensor, texts: Sequence[Sequence[int]], penalties: Sequence[float]) -> torch.Tensor:
    """logits [B, V] with those of tokens that stand in the text lowered (Keskar et al. 2019, arXiv 1909.05858).

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
    """The weight of the last token that may be drawn, the likeliest first: top_k of them, and of these no more than
    together reach top_p of what they weigh (nucleus, arXiv 1904.09751); in this order, as elsewhere."""
    if not choice.top_k and choice.top_p == 1:
        return 0.0
    falling = np.sort(weights)[::-1]
    reached = falling.cumsum()
    most = min(choice.top_k or len(falling), len(falling)) - 1
    return float(falling[min(int(np.searchsorted(reached, choice.top_p * reached[most])), most)])


def _write_remembering(model: WholeModel, drafts: list[AnyWriting], choose: Chooser[AnyWriting]) -> None:
    """Until all are done or one reaches the end of the model's sequence. Equal prompts are read once."""
    texts = [tuple(d.text) for d in drafts]
    distinct = list(dict.fromkeys(texts))
    number = {text: n for n, text in enumerate(distinct)}
    whose = torch.tensor([number[t] for t in texts], device=model.device)
    width = max(len(t) for t in distinct)
    lengths = torch.tensor([len(t) for t in distinct], device=model.device)
    steps = min(max(d.left for d in drafts), model.model.sequence - width + 1)
    cache = KVCache(width + steps)
    padded = torch.tensor([[*t, *[0] * (width - len(t))] for t in distinct], device=model.device)
    hidden = model.hidden(padded.T.contiguous(), cache=cache)
    cache.keep(width)
    if hidden is not None:
        hidden = hidden[lengths - 1, torch.arange(len(distinct), device=model.device)][whose]  # B H
    if len(distinct) < len(drafts):
        cache.only(whose)
    lengths = lengths[whose]
    mask = _mask(model, lengths, width, width + steps)
    for step in range(steps):
        ids = choose(hidden, drafts)
        going = [n for n, d in enumerate(drafts) if d.goes_on]
        if not going or step + 1 == steps:
            return
        if len(going) <= len(drafts) // 2:
            rows = torch.tensor(going, device=model.device)
            cache.only(rows)
            drafts = [drafts[n] for n in going]
            lengths, mask, ids = lengths[rows], mask[rows], ids[rows]
        cache.mask = mask[:, None, None, : cache.used + 1]
        hidden = model.hidden(ids.unsqueeze(0), positions=(lengths + step).unsqueeze(0), cache=cache)
        cache.keep(1)
        hidden = None if hidden is None else hidden[0]


def _mask(model: WholeModel, lengths: torch.Tensor, width: int, slots: int) -> torch.Tensor:
    """[B, slots]: prompts are padded on the right, and nobody looks at the padding."""
    behind = torch.arange(slots, device=model.device)
    hides = (behind >= lengths.unsqueeze(1)) & (behind < width)
    mask = torch.zeros(hides.shape, device=model.device, dtype=model.dtype)
    return mask.masked_fill_(hides, -torch.inf)


def _choose(model: WholeModel, hidden: torch.Tensor | None, drafts: Sequence[Draft]) -> torch.Tensor:
    """The next token of every draft, added to those that go on; hidden [B, H] on the last stage."""
    ids = torch.zeros(len(drafts), dtype=torch.long, device=model.device)
    if hidden is not None:
        logits = finite(model.predict(hidden))
        if any(d.choice.repetition_penalty != 1 for d in drafts):
            logits = penalised(logits, [d.text for d in drafts], [d.choice.repetition_penalty for d in drafts])
        if all(d.choice.temperature == 0 for d in drafts):
            ids = logits.argmax(-1)
        else:
            drawn = [pick(row, d.choice, uniform=_uniform(d)) for row, d in zip(logits, drafts, strict=True)]
            ids = torch.tensor(drawn, device=model.device)
    ids = model.told(ids)
    for draft, token in zip(drafts, ids.tolist(), strict=True):
        if draft.goes_on:
            draft.drawn.append(token)
    return ids


def _uniform(draft: Draft) -> float:
    return float(generator_for(draft.choice.seed, "generate", len(draft.drawn)).random())
