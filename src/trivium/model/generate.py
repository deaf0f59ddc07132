"""Draw tokens from a model, one at a time; the draw is keyed, so a seed gives the same text everywhere."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from trivium.model.whole import WholeModel
from trivium.seeds import generator_for


@dataclass(frozen=True)
class Choice:
    """How the next token is chosen. temperature 0: the most likely one. top_k 0, top_p 1: from all."""

    temperature: float
    top_k: int
    top_p: float
    seed: int


def continue_text(
    model: WholeModel,
    prompt: Sequence[int],
    *,
    max_tokens: int,
    choice: Choice,
    done: Callable[[list[int]], bool],
) -> list[int]:
    """The tokens that follow `prompt`, at most `max_tokens`; `done` sees them so far and may end it.

    A prompt longer than the model's sequence is cut on the left.
    """
    drawn: list[int] = []
    context = list(prompt)
    while len(drawn) < max_tokens and not done(drawn):
        window = context[-model.model.sequence :]
        logits = model.logits([window])[0, -1].double().cpu()
        token = pick(logits, choice, uniform=_uniform(choice.seed, len(drawn)))
        drawn.append(token)
        context.append(token)
    return drawn


def pick(logits: torch.Tensor, choice: Choice, *, uniform: float) -> int:
    """The token at `uniform` in [0, 1) of the cumulative distribution over the allowed tokens; logits [V]."""
    if choice.temperature == 0:
        return int(logits.argmax())
    probabilities, order = torch.softmax(logits / choice.temperature, dim=-1).sort(
        descending=True, stable=True
    )
    if choice.top_k:
        probabilities = probabilities[: choice.top_k]
    # Nucleus: the fewest most likely tokens whose probabilities reach top_p (arXiv 1904.09751).
    reached = probabilities.cumsum(0)
    allowed = int((reached < choice.top_p).sum()) + 1
    kept = probabilities[:allowed].cumsum(0)
    index = int(torch.searchsorted(kept, torch.tensor(uniform, dtype=kept.dtype) * kept[-1], right=True))
    return int(order[min(index, len(kept) - 1)])


def _uniform(seed: int, position: int) -> float:
    return float(generator_for(seed, "generate", position).random())
