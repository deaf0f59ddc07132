"""Laws of a half of experts, each of a small layer in one process."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from plans import small
from trivium.certify.reduce import reduced
from trivium.comms.group import Group
from trivium.comms.mesh import Mesh
from trivium.errors import ConfigError
from trivium.kernels import arithmetic, grouped
from trivium.kernels.arithmetic import Arithmetic
from trivium.model.initialise import initial_values
from trivium.model.inputs import Inputs
from trivium.model.layers.mlp_experts import MlpExperts
from trivium.model.layers.routing import Router
from trivium.model.loads import Averaging, Loads
from trivium.model.stage import Stage, build_stages
from trivium.parallel.expert import network
from trivium.parallel.expert.rows import Rows
from trivium.plan.experts import Experts
from trivium.plan.parameters import Box, parameters

S, B, H, F = 8, 3, 24, 12
GATED: dict[str, Any] = {"layers": 1, "bias": "none", "norm": "rms_norm", "positions": "rotary", "ffn": F}
DEEPSEEK: dict[str, Any] = {
    "scores": "sigmoid",
    "groups": 4,
    "chosen_groups": 2,
    "group_score": "two_largest",
    "scale": 2.5,
    "shared": 10,
    "bias_rate": 0.001,
}
Tensor = torch.Tensor
Gradients = dict[str, Tensor]


def stage_of(feed_forward: str = "experts", weights: str = "fp64", **more: Any) -> Stage:
    model = {**GATED, "feed_forward": feed_forward, **more.pop("model", {})}
    plan = small(model=model, precision={"weights": weights}, **more)
    stage = build_stages(plan, Mesh.single(), seed=3)[0].train()
    for name, parameter in stage.named_parameters():
        parameter.requires_grad_(not name.endswith("router.bias"))
        if name.endswith("router.weight"):
            parameter.data.mul_(8)  # scores that differ
    return stage


def half_of(**experts: Any) -> MlpExperts:
    found = stage_of(model={"experts": {"count": 8, "chosen": 2, **experts}}).layers["0"].mlp
    assert isinstance(found, MlpExperts)
    return found


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


INPUTS = Inputs(tokens=torch.zeros(S, B, dtype=torch.long))


def run(half: torch.nn.Module, x: Tensor) -> tuple[Tensor, Gradients]:
    """Return the result, and the gradients of x and of every parameter."""
    x = x.clone().requires_grad_()
    y = half(x, INPUTS)
    wanted = {"x": x, **{name: p for name, p in half.named_parameters() if p.requires_grad and "norm" not in name}}
    return y, dict(zip(wanted, torch.autograd.grad(y, list(wanted.values()), torch.cos(3 * y.detach())), strict=True))


def same(here: Gradients, there: Gradients) -> bool:
    return all(torch.allclose(here[name], there[name], rtol=1e-11, atol=1e-13) for name in there)


def test_a_rank_draws_the_values_of_its_own_experts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those that it has in any other layout; the memory is that of its own and of one more expert."""
    model = small(model={**GATED, "feed_forward": "experts", "experts": {"count": 8, "chosen": 2}}).model
    row = next(row for row in parameters(model) if row.name.endswith("experts.up.weight"))
    whole = initial_values(row, model, 3, Box((0, 0, 0, 0), row.shape))
    drawn: list[int] = []
    monkeypatch.setattr(torch, "randn", counting(torch.randn, drawn))
    own = initial_values(row, model, 3, Box((4, 0, 6, 0), (2, 2, 6, H)))
    assert torch.equal(own, whole[4:6, :, 6:]) and drawn == [2 * F * H] * 2
    assert not torch.equal(whole[0], whole[1]) and abs(float(whole.std()) / model.std - 1) < 0.05


def counting(function: Callable[..., Tensor], found: list[int]) -> Callable[..., Tensor]:
    def counted(*given: Any, **how: Any) -> Tensor:
        value = function(*given, **how)
        found.append(value.numel())
        return value

    return counted


def test_one_expert_is_the_dense_half_to_the_bit() -> None:
    dense, one = stage_of("gated").layers["0"].mlp, half_of(count=1, chosen=1)
    one.experts.up.weight.data.copy_(dense.up.weight.data[None])
    one.experts.down.weight.data.copy_(dense.down.weight.data[None])
    (y, found), (expected, gradients) = run(one, random(S, B, H)), run(dense, random(S, B, H))
    assert torch.equal(y, expected) and torch.equal(found["x"], gradients["x"])
    assert torch.equal(found["experts.up.weight"][0], gradients["up.weight"])
    assert torch.equal(found["experts.down.weight"][0], gradients["down.weight"])
    assert not found["router.weight"].any()


@pytest.mark.parametrize("experts", [{"chosen": 3}, {"chosen": 2, "scores": "sigmoid", "groups": 2}])
def test_equal_experts_with_normalized_weights_are_the_dense_half(experts: dict[str, Any]) -> None:
    dense, equal = stage_of("gated").layers["0"].mlp, half_of(**experts)
    equal.experts.up.weight.data.copy_(dense.up.weight.data.expand_as(equal.experts.up.weight))
    equal.experts.down.weight.data.copy_(dense.down.weight.data.expand_as(equal.experts.down.weight))
    (y, found), (expected, gradients) = run(equal, random(S, B, H)), run(dense, random(S, B, H))
    assert torch.allclose(y, expected, rtol=1e-12) and torch.allclose(found["x"], gradients["x"], rtol=1e-10)
    assert torch.allclose(found["experts.up.weight"].sum(0), gradients["up.weight"])


@pytest.mark.parametrize("experts", [{}, {"normalized": False, "scale": 16.0}, {"scores": "sigmoid", "bias_rate": 0.1}])
def test_the_order_of_experts_changes_nothing(experts: dict[str, Any]) -> None:
    half, turn = half_of(**experts), torch.randperm(8, generator=torch.Generator().manual_seed(0))
    if half.router.bias is not None:
        half.router.bias.data.copy_(random(8) / 4)
    y, before = run(half, random(S, B, H))
    for parameter in half.router.parameters():
        parameter.data = parameter.data[turn]
    for matrices in (half.experts.up, half.experts.down):
        matrices.weight.data = matrices.weight.data[turn]
    again, after = run(half, random(S, B, H))
    turned = {name: g[turn] if name.startswith(("router", "experts")) else g for name, g in before.items()}
    assert torch.allclose(again, y, rtol=1e-12) and same(after, turned)


@pytest.mark.parametrize("count, chosen", [(8, 2), (5, 5), (1, 1), (16, 3)])
def test_every_choice_of_a_token_has_one_row_among_those_of_its_expert(count: int, chosen: int) -> None:
    choices = random(S * B, count).topk(chosen).indices
    rows = Rows.of(choices, count)
    assert int(rows.groups.counts.sum()) == S * B * chosen and rows.dropped == 0
    assert torch.equal(rows.groups.counts, torch.bincount(choices.flatten(), minlength=count))
    expert_of_row = torch.arange(count).repeat_interleave(rows.groups.counts)
    assert torch.equal(expert_of_row[rows.places], choices)
    x = random(S * B, H)
    assert torch.allclose(rows.summed(rows.spread(x)), chosen * x)


def test_equal_scores_send_as_many_tokens_to_every_expert() -> None:
    for experts in ({}, {"scores": "sigmoid", "groups": 2, "chosen_groups": 2}):
        router = Router(Experts.model_validate({"count": 8, "chosen": 2, **experts}), H)
        router.weight.data.zero_()
        chosen, weights = router(random(16, H).float(), torch.arange(16))
        assert (torch.bincount(chosen.flatten(), minlength=8) == 4).all(), experts
        assert torch.equal(weights, torch.full_like(weights, 0.5))


def test_the_router_computes_in_fp32_what_16_bits_would_confuse() -> None:
    router = Router(Experts(count=4, chosen=1), H).bfloat16()
    router.weight.data.copy_(torch.randn(4, H, generator=torch.Generator().manual_seed(2)))
    x = torch.randn(4096, H, generator=torch.Generator().manual_seed(3)).bfloat16()
    exact = x.double() @ router.weight.double().T
    found = router(x, torch.arange(len(x)))
    assert torch.equal(found.chosen.flatten(), exact.argmax(1)) and found.weights.dtype == torch.float32
    assert not torch.equal((x @ router.weight.T).argmax(1), exact.argmax(1))


def test_a_recomputed_layer_routes_as_its_first_forward_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second forward would choose others, as it would after a change in the last bit of two near scores."""
    chosen: list[Tensor] = []
    choice = Router.choice

    def other_each_time(self: Router, scores: Tensor, numbers: Tensor) -> Tensor:
        chosen.append(choice(self, scores * (-1) ** len(chosen), numbers))
        return chosen[-1]

    def gradients(mode: str) -> Gradients:
        alone = Group("context", (0,), 0, None)
        stage = stage_of(model={"experts": {"count": 8, "chosen": 2}}, recompute={"mode": mode})
        loads = Loads(Averaging(S, S * B, 1, 1.0, alone, alone), B)
        tokens = INPUTS.tokens + torch.arange(S)[:, None]
        inputs = Inputs(tokens, targets=tokens, loads=loads)
        chosen.clear()
        stage(None, inputs)["loss"].backward()
        return {name: p.grad.to_dense() for name, p in stage.named_parameters() if p.grad is not None}

    monkeypatch.setattr(Router, "choice", other_each_time)
    assert same(gradients("layer"), gradients("none"))
    assert len(chosen) == 1


def test_an_expert_without_room_drops_the_last_tokens() -> None:
    choices = torch.tensor([[0, 1], [0, 2], [0, 1], [0, 3]])
    rows = Rows.of(choices, 4, capacity=1.0)  # two rows each
    assert rows.groups.ends.tolist() == [2, 4, 5, 6] and rows.dropped == 2
    x = random(4, H)
    assert torch.equal(rows.spread(x), x[[0, 1, 0, 2, 1, 3]])
    assert torch.allclose(rows.summed(rows.spread(x)), x * torch.tensor([2, 2, 1, 1])[:, None])
    assert rows.in_order(torch.arange(8).view(4, 2)).tolist() == [0, 2, 1, 5, 3, 7]


@pytest.mark.parametrize("capacity", [None, 1.0])
def test_rows_between_those_of_experts_change_no_sum(capacity: float | None) -> None:
    rows = Rows.of(random(S * B, 8).topk(3).indices, 8, capacity)
    padded, moved = rows.padded(4)
    assert not (padded.groups.counts % 4).any() and ((padded.groups.counts - rows.groups.counts) < 4).all()
    assert torch.equal(padded.order[moved], rows.order) and padded.dropped == rows.dropped
    for here, there in zip(padded.groups.slices, rows.groups.slices, strict=True):
        assert set(padded.order[here].tolist()) == set(rows.order[there].tolist())
    made = random(len(padded.order), H)
    assert torch.equal(padded.summed(made), rows.summed(made[moved]))


@pytest.mark.parametrize("most", [1, 60 * (H + 3 * F), 1 << 20])
@pytest.mark.parametrize("multiple", [1, 4])
@pytest.mark.parametrize("experts", [{"count": 5, "chosen": 3}, {"count": 8, "chosen": 2, "capacity": 1.0}])
def test_how_many_rows_are_computed_at_once_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, experts: dict[str, Any], multiple: int, most: int
) -> None:
    half, x = half_of(**experts), random(S, B, H)
    expected, gradients = run(half, x)
    computed: list[tuple[int, int]] = []

    def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, into: Tensor | None = None) -> Tensor:
        computed.append((len(x), weight.shape[0]))
        return arithmetic.product(x, weight, bias, into=into)

    monkeypatch.setattr(grouped, "MAX_ELEMENTS_AT_ONCE", most)
    monkeypatch.setattr(network, "MIN_MULTIPLES", 0)
    counted = Arithmetic(product=product, multiple=lambda dtype: multiple)
    half.region = replace(half.region, arithmetic=counted)
    for linear in (half.experts.up, half.experts.down):
        linear.use(counted)
    y, found = run(half, x)
    assert torch.allclose(y, expected, rtol=1e-12, atol=1e-14) and same(found, gradients)
    assert computed and not any(rows % multiple for rows, _ in computed)


def test_a_half_with_room_for_all_is_dropless_and_one_without_leaves_tokens_alone() -> None:
    x = random(S, B, H)
    dropless, roomy, narrow = half_of(), half_of(capacity=8.0), half_of(capacity=0.04)  # one row for each expert
    (y, before), (again, after) = run(dropless, x), run(roomy, x)
    assert torch.equal(y, again) and same(after, before)
    left = run(narrow, x)[0].flatten(0, 1).abs().sum(1) == 0
    assert left.sum() >= S * B - 8


def test_certify_refuses_dropped_tokens_by_name() -> None:
    model = {**GATED, "feed_forward": "experts", "experts": {"count": 8, "chosen": 2, "capacity": 1.25}}
    with pytest.raises(ConfigError, match=r"plan\.model\.experts\.capacity is 1\.25.*depends on how tokens"):
        reduced(small(model=model))
    assert reduced(small(model={**model, "experts": {**model["experts"], "capacity": None}}))


def test_recorded_steps_are_refused_with_experts() -> None:
    experts = {**GATED, "feed_forward": "experts", "experts": {"count": 8, "chosen": 2}}
    with pytest.raises(ConfigError, match=r"plan\.cuda_graphs is true and plan\.model\.feed_forward is 'experts'"):
        small(model=experts, cuda_graphs=True)
    assert small(model=experts, cuda_graphs=False)


@pytest.mark.parametrize("experts", [{}, DEEPSEEK])
def test_deferred_gradients_of_experts_are_those_of_autograd(experts: dict[str, Any]) -> None:
    half, x = half_of(**experts), random(S, B, H).requires_grad_()
    expected = run(half, x.detach())[1]
    later = half.region.weight_gradients
    later.separate = True
    done: list[int] = []
    with later.put_off("key"):
        y = half(x, INPUTS)
        y.backward(torch.cos(3 * y.detach()))
    assert half.experts.up.weight.grad is None
    later.finish("key", lambda parameter: done.append(id(parameter)))
    found = {"x": x.grad, **{name: p.grad for name, p in half.named_parameters() if p.grad is not None}}
    assert same(found, expected) and sorted(done) == sorted(set(done))
