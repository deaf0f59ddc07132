"""The feed-forward half of experts, from its definition: every expert computes every token, and a matrix of weights,
zero for experts that were not chosen, adds them up.

Legend: B sequences, S positions, H hidden, E experts, F columns of an expert.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F

from trivium.certify.oracle.float8 import Scaled
from trivium.certify.oracle.terms import AdaptedWeights, Rule, Settings, Tensor, Twin, Weights, linear, linear_of_each
from trivium.plan.experts import Experts


def _experts(s: Settings) -> Experts:
    assert s.form.experts is not None, "a half of experts has their settings"
    return s.form.experts


def _rules(s: Settings, at: str) -> Iterator[tuple[str, Rule]]:
    own, H = _experts(s), s.form.hidden
    columns = own.columns or s.form.ffn or (8 * H + 191) // 192 * 64
    yield f"{at}.router.weight", s.matrix(own.count, H)
    if own.bias_rate is not None:
        yield f"{at}.router.bias", Rule((own.count,))
    yield f"{at}.experts.up.weight", s.matrix(own.count, 2, columns, H)._replace(by_expert=True)
    down = s.matrix(own.count, H, columns, residual=True)
    yield f"{at}.experts.down.weight", down._replace(by_expert=True)
    if own.shared:
        yield f"{at}.shared.up.weight", s.matrix(2, own.shared, H)
        yield f"{at}.shared.down.weight", s.matrix(H, own.shared, residual=True)
    if own.shared_gate:
        yield f"{at}.shared_gate.weight", s.matrix(1, H)


def _compute(weights: Weights, s: Settings, x: Tensor, at: str) -> Tensor:
    own = _experts(s)
    scores = scores_of(own, x @ weights[f"{at}.router.weight"].T)
    share = scores * chosen(own, scores, weights.get(f"{at}.router.bias"))
    if own.normalized:
        share = share / (share.sum(-1, keepdim=True) + (1e-20 if own.scores == "sigmoid" else 0.0))
    if isinstance(weights, AdaptedWeights) and weights.scaled is not None:
        y = _in_rows(weights, weights.scaled, x, own.scale * share, f"{at}.experts")
    else:
        given = x.unsqueeze(-2).expand(*x.shape[:2], own.count, -1)
        gate, up = linear_of_each(weights, given, f"{at}.experts.up").unbind(-2)
        each = linear_of_each(weights, F.silu(gate) * up, f"{at}.experts.down")
        y = own.scale * torch.einsum("bse,bseh->bsh", share, each)
    if not own.shared:
        return y
    gate, up = linear(weights, x, f"{at}.shared.up").unbind(-2)
    shared = linear(weights, F.silu(gate) * up, f"{at}.shared.down")
    return y + shared * (torch.sigmoid(linear(weights, x, f"{at}.shared_gate")) if own.shared_gate else 1.0)


def _in_rows(weights: AdaptedWeights, scaled: Scaled, x: Tensor, share: Tensor, at: str) -> Tensor:
    """Return the sum of each token's experts [B, S, H]. Each expert computes the tokens that visit it together, and
    their shares multiply what its second matrix reads. share [B, S, E]."""
    found = torch.zeros_like(x)
    up, down = (f"{at}.{name}.weight" for name in ("up", "down"))
    for together in scaled.sets:
        where = [torch.tensor(samples) for samples in together]
        tokens, shares = (torch.cat([t[n].transpose(0, 1).flatten(0, 1) for n in where]) for t in (x, share))
        y = torch.zeros_like(tokens)
        for e in range(share.shape[-1]):
            (rows,) = torch.nonzero(shares[:, e], as_tuple=True)
            first, second = (
                weights.products.get(f"{name}.{e}", partial(scaled.of_rows, name, weights[name][e]))
                for name in (up, down)
            )
            gate, inner = first(tokens[rows]).unbind(1)
            y = y.index_add(0, rows, second(F.silu(gate) * inner * shares[rows, e : e + 1]))
        for n, part in zip(where, torch.split(y, [len(n) * x.shape[1] for n in where]), strict=True):
            found = found.index_copy(0, n, part.view(x.shape[1], len(n), -1).transpose(0, 1))
    return found


def scores_of(own: Experts, logits: Tensor) -> Tensor:
    """Return the scores [B, S, E] of the router's logits."""
    return torch.softmax(logits, -1) if own.scores == "softmax" else 1 / (1 + torch.exp(-logits))


def chosen(own: Experts, scores: Tensor, bias: Tensor | None) -> Tensor:
    """Return 1 for the experts that each token visits, and 0 for the others: [B, S, E]."""
    order = (scores if bias is None else scores + bias).detach()
    if own.groups > 1:
        best = order.view(*order.shape[:-1], own.groups, -1).sort(-1, descending=True).values
        of_group = best[..., 0] if own.group_score == "largest" else best[..., 0] + best[..., 1]
        open_ = _best(of_group, own.chosen_groups).repeat_interleave(own.count // own.groups, -1)
        order = torch.where(open_ > 0, order, -torch.inf)
    return _best(order, own.chosen)


def _best(values: Tensor, count: int) -> Tensor:
    """Return 1 at the `count` largest values, and 0 elsewhere. Among equal ones, as those of a token whose numbers are
    all dropped, torch chooses, here and in the engine."""
    return torch.zeros_like(values).scatter(-1, values.topk(count).indices, 1.0)


MLP_EXPERTS = Twin(_rules, _compute)
