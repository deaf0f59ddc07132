"""The losses of routers and the biases that follow from loads, from their definitions.

Legend: B sequences, S positions, H hidden, E experts.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from trivium.certify.oracle.layers import settings_of
from trivium.certify.oracle.mlp_experts import chosen, scores_of
from trivium.certify.oracle.terms import Tensor, Weights
from trivium.plan.experts import Experts
from trivium.plan.model_shape import ModelShape
from trivium.plan.optimizer import Group


class Routed(NamedTuple):
    """The results of a layer's router for a batch, each [B, S, E]: logits, probabilities, and 1 for chosen experts."""

    experts: Experts
    logits: Tensor
    probabilities: Tensor
    visits: Tensor

    def of_sequences(self, first: int, count: int) -> "Routed":
        """The same of some sequences."""
        return self._replace(
            logits=self.logits[first : first + count],
            probabilities=self.probabilities[first : first + count],
            visits=self.visits[first : first + count],
        )


def router_losses(weights: Weights, model: ModelShape, heard: Mapping[int, Tensor], micro: int) -> dict[str, Tensor]:
    """Return the losses of the routers of a batch by name. heard: what each layer's feed-forward half reads, [B, S, H].
    micro: sequences of a micro-batch."""
    layers = [routed for _, routed in _routers(weights, model, heard)]
    found: dict[str, Tensor] = {}
    balanced = [routed for routed in layers if routed.experts.balance_loss]
    if balanced:
        pooled = any(routed.experts.balance_convention == "transformers" for routed in balanced)
        found["balance_loss"] = (
            _balance(balanced, micro)
            if pooled
            else sum((_balance([each], micro) for each in balanced), torch.zeros(()))
        )
    squares = [
        routed.experts.router_z_loss * routed.logits.exp().sum(-1).log().square().mean()
        for routed in layers
        if routed.experts.router_z_loss
    ]
    return found | ({"router_z_loss": torch.stack(squares).sum()} if squares else {})


def _balance(layers: list[Routed], micro: int) -> Tensor:
    """Return the mean over sets of tokens of factor E sum_e (share of visits to e) (mean probability of e), over the
    tokens of all these layers. A visit counts 1 / k in Megatron's convention."""
    experts, sequences = layers[0].experts, len(layers[0].logits)
    together = {"micro_batch": micro, "sequence": 1, "global_batch": sequences}[experts.balance_scope]
    per_visit = 1 / experts.chosen if experts.balance_convention == "megatron" else 1.0
    found = []
    for first in range(0, sequences, together):
        here = [routed.of_sequences(first, together) for routed in layers]
        visits = torch.cat([routed.visits.flatten(0, 1) for routed in here]).mean(0) * per_visit
        probabilities = torch.cat([routed.probabilities.flatten(0, 1) for routed in here]).mean(0)
        found.append(experts.balance_loss * experts.count * (visits.detach() * probabilities).sum())
    return torch.stack(found).mean()


@torch.no_grad()
def moved_biases(
    weights: Weights, model: ModelShape, heard: Mapping[int, Tensor], groups: Mapping[str, Group]
) -> dict[str, Tensor]:
    """Return the biases after a step, given the weights with which it was computed: those of experts with more visits
    than the mean go down, of those with fewer up."""
    found = {}
    for name, (experts, _, _, visits) in _routers(weights, model, heard):
        bias = f"{name}.bias"
        if experts.bias_rate is None or model.adapters or not groups[bias].trainable:
            continue
        loads = visits.sum((0, 1)).long()
        mean = int(loads.sum()) / experts.count
        steps = torch.tensor([(load < mean) - (load > mean) for load in loads.tolist()], dtype=torch.float64)
        found[bias] = weights[bias] + experts.bias_rate * steps
    return found


def _routers(weights: Weights, model: ModelShape, heard: Mapping[int, Tensor]) -> Iterator[tuple[str, Routed]]:
    for layer, x in heard.items():
        form, name = settings_of(model, layer).form, f"layers.{layer}.mlp.router"
        if form.feed_forward != "experts" or form.experts is None:
            continue
        logits = x @ weights[f"{name}.weight"].T
        scores = scores_of(form.experts, logits)
        visits = chosen(form.experts, scores, weights.get(f"{name}.bias"))
        yield name, Routed(form.experts, logits, scores / scores.sum(-1, keepdim=True), visits)
