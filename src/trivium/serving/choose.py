"""Select the next token of each text, with its log-probability.

Legend: B texts in a batch, V vocabulary, K alternatives.
"""

from collections.abc import Sequence

import torch

from trivium.model.generate import Choice, pick
from trivium.serving.config import Drawing

Tensor = torch.Tensor


def choose(logits: Tensor, settings: Sequence[Drawing], uniforms: Sequence[float]) -> Tensor:
    """Sample ids [B] from logits [B, V]: the token at `uniforms` in [0, 1) of each text's cumulative distribution."""
    if all(s.temperature == 0 for s in settings):
        return logits.argmax(-1)
    choices = [Choice(s.temperature, s.top_k, s.top_p, 0) for s in settings]
    drawn = [pick(row, c, uniform=u) for row, c, u in zip(logits, choices, uniforms, strict=True)]
    return torch.tensor(drawn, device=logits.device)


def told(logits: Tensor, ids: Tensor, alternatives: int | None) -> Tensor:
    """Return the id, its log-probability in nats, the K most likely ids and their log-probabilities: [B, 2 + 2K],
    fp64.

    Log-probabilities are those of the model, before temperature and penalty. If alternatives is None, return only
    the ids [B, 1].
    """
    if alternatives is None:
        return ids.double().unsqueeze(1)
    logs = logits.float().log_softmax(-1)
    own = logs.gather(1, ids.unsqueeze(1))
    best, best_ids = logs.topk(min(alternatives, logs.shape[-1]), dim=-1)
    return torch.cat([ids.unsqueeze(1).double(), own.double(), best_ids.double(), best.double()], dim=1)
