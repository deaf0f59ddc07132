"""Faults of dispatch to the ranks that hold experts, of the shared expert, and of experts' gradients and adapters."""

from typing import Any

import torch

from faults.balance import balanced
from faults.mutant import fault, plan
from trivium.adapters.lora import Lora
from trivium.model.layers.linear import Added
from trivium.model.layers.mlp_experts import MlpExperts
from trivium.parallel.expert import dispatch, network
from trivium.parallel.expert.dispatch import Dispatch
from trivium.parallel.expert.rows import Rows
from trivium.parallel.tensor.regions import Region
from trivium.plan import buckets

Tensor = torch.Tensor

EXPERTS = balanced(balance_loss=0.0)
SHARED = balanced(shared=8, balance_loss=0.0)
ADAPTED = {**SHARED, "adapters": [{"settings": {"r": 3, "alpha": 6.0}}]}
DORA = {**EXPERTS, "adapters": [{"match": "*.experts.*", "kind": "dora", "settings": {"r": 3, "alpha": 6.0}}]}
NOISY = {**EXPERTS, "adapters": [{"match": "*.experts.*", "kind": "lora_ggpo", "settings": {"r": 3, "sigma": 0.3}}]}


class _Scaled(torch.autograd.Function):
    """x, whose gradient is multiplied."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.factor, None


@fault(dispatch, "summed", plan(data=2, expert=2, model=EXPERTS), plan(context=2, expert=2, model=EXPERTS))
def rows_returned_in_another_order(original, mesh):
    """The results of experts come back in the order of the ranks that sent them, and are taken for those of other
    tokens."""
    return lambda x, rows: original(x.roll(1, 0), rows)


@fault(dispatch, "send_rows", plan(data=2, expert=2, model=EXPERTS))
def gradients_of_routes_times_ranks(original, mesh):
    """The gradients of the weights with which experts are added up come from every expert rank, and are added."""

    def send_rows(x: Tensor, *more: Any) -> Any:
        return original(_Scaled.apply(x, mesh.expert.size) if x.dim() == 1 else x, *more)

    return send_rows


@fault(
    network._Product,
    "add_gradients",
    plan(data=2, expert=2, model=EXPERTS),
    plan(data=2, expert=2, zero=3, model=SHARED),
)
def gradients_of_experts_averaged_over_expert_ranks(original, mesh):
    """The gradients of experts, which have the tokens of all expert ranks already, are divided by their number."""
    return lambda self, part, grad, *more: original(self, part, grad / mesh.expert.size, *more)


@fault(Dispatch, "arrived", plan(data=2, expert=2, model=EXPERTS))
def tokens_that_arrive_taken_as_sorted(original, mesh):
    """The tokens that arrive from several ranks are taken in their order, though each rank sorted its own alone."""

    def arrived(self: Dispatch) -> Any:
        x, weights, here = original(self)
        places = torch.arange(len(here.order)).unsqueeze(1)
        return x, weights, Rows(places.flatten(), places, here.groups)

    return arrived


@fault(MlpExperts, "_shared", plan(tensor=2, model=SHARED), plan(tensor=2, data=2, expert=2, model=SHARED))
def shared_expert_once_per_tensor_rank(original, mesh):
    """What the shared expert computes is added once for each tensor rank."""
    return lambda self, x, inputs: original(self, x, inputs) * mesh.tensor.size


@fault(MlpExperts, "_shared", plan(data=2, expert=2, model=SHARED))
def shared_expert_divided_by_expert_ranks(original, mesh):
    """The shared expert counts as one of those that expert ranks divide."""
    return lambda self, x, inputs: original(self, x, inputs) / mesh.expert.size


@fault(buckets, "partial_over", plan(tensor=2, model=ADAPTED))
def a_of_experts_left_partial(original, mesh):
    """The gradient of the A of experts is that of this tensor rank's columns alone."""
    return lambda plan, p: () if p.name.endswith("experts.up.adapter.a") else original(plan, p)


@fault(buckets, "partial_over", plan(tensor=2, model=ADAPTED))
def b_of_experts_left_partial(original, mesh):
    """The gradient of the B of experts is that of this tensor rank's columns of what A reads."""
    return lambda plan, p: () if p.name.endswith("experts.down.adapter.b") else original(plan, p)


@fault(Lora, "factors", plan(model=ADAPTED))
def scale_left_out_beside_experts(original, mesh):
    """What is added beside experts lacks the factor s."""
    return lambda self, linear, added: original(self, linear, added)._replace(scale=1.0)


@fault(network._Product, "__init__", plan(model=ADAPTED), plan(data=2, expert=2, model=ADAPTED))
def one_a_for_all_experts(original, mesh):
    """All experts of a rank compute with the A of the first."""

    def init(self: Any, *given: Any) -> None:
        original(self, *given)
        if self.factors:
            a, b = self.factors
            self.factors = [a[:1].expand_as(a), b]

    return init


@fault(Region, "summed", plan(tensor=2, model=DORA), plan(tensor=2, data=2, expert=2, model=DORA))
def norms_of_own_columns_of_experts(original, mesh):
    """DoRA divides the rows of the second matrices of experts by the norms of this rank's columns."""
    return lambda self, x: x


@fault(buckets, "partial_over", plan(tensor=2, model=DORA))
def magnitudes_of_experts_left_partial(original, mesh):
    """The gradient of DoRA's magnitudes of experts is that of this tensor rank's part of their results."""
    return lambda plan, p: () if p.name.endswith("experts.down.adapter.m") else original(plan, p)


@fault(network._Product, "gradient_before", plan(model=DORA), plan(data=2, expert=2, model=DORA))
def factors_of_experts_missing_in_the_backward(original, mesh):
    """The gradient of what DoRA multiplies beside experts lacks its factors."""

    def gradient_before(self: Any, part: Any, grad: Tensor, y: Tensor) -> Tensor:
        original(self, part, grad, y)
        return grad

    return gradient_before


@fault(Added, "_normal_of_one", plan(data=2, expert=2, model=NOISY), plan(context=2, expert=2, model=NOISY))
def noise_of_experts_by_their_number_on_the_rank(original, mesh):
    """Each expert rank draws the noise of its experts as if they were the first ones."""
    here = EXPERTS["experts"]["count"] // mesh.expert.size
    return lambda self, weight, key, *expert: original(self, weight, key, *(number % here for number in expert))
