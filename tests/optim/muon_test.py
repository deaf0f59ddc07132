"""Muon is torch.optim.Muon, of each matrix by itself."""

import inspect
from collections.abc import Callable
from math import prod
from unittest import mock

import pytest
import torch
from torch.optim import _muon

from plans import EXPERTS, small
from ranks import ranks
from trivium.certify.layouts import ROTARY
from trivium.certify.oracle.optimizer import PlainOptimizer, Recipe
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.optim.rules.muon import Muon
from trivium.parallel.sharding.whole_matrices import _exchanged, transformed
from trivium.plan.buckets import bucket_table, slices_of
from trivium.plan.layout import Layout
from trivium.plan.matrices import matrix_shapes, rounds_of_work
from trivium.plan.optimizer import Group
from trivium.plan.parameters import parameters

Tensor = torch.Tensor
MODEL = small(model={**ROTARY, "kv_heads": 2, "hidden": 16, "ffn": 24}).model


def uncast() -> Callable[..., Tensor]:
    """torch's Newton-Schulz function from its own source, whose one cast to bfloat16 is replaced by a copy."""
    source = inspect.getsource(_muon._zeropower_via_newtonschulz)
    assert source.count("grad.bfloat16()") == 1, "torch changed its Muon"
    names = dict(vars(_muon))
    exec(source.replace("grad.bfloat16()", "grad.clone()"), names)
    return names["_zeropower_via_newtonschulz"]


@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (8, 8)])
@pytest.mark.parametrize(
    ("dtype", "iterate_in", "limit"),
    [(torch.float64, "bf16", 1e-12), (torch.float32, "fp32", 1e-4), (torch.float32, "bf16", 2e-2)],
)
def test_updates_are_those_of_torch(
    shape: tuple[int, int], adjust: str, dtype: torch.dtype, iterate_in: str, limit: float
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(shape, dtype=dtype)
    theirs, rule = torch.nn.Parameter(weight.clone()), Muon(adjust=adjust, iterate_in=iterate_in)
    state = {"momentum": torch.zeros_like(weight)}
    in_bf16 = dtype == torch.float32 and iterate_in == "bf16"
    iterate = _muon._zeropower_via_newtonschulz if in_bf16 else uncast()
    with mock.patch.object(_muon, "_zeropower_via_newtonschulz", iterate):
        muon = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.0, adjust_lr_fn=adjust)
        for step in range(1, 5):
            theirs.grad = torch.randn(shape, dtype=dtype)
            muon.step()
            direction = rule.direction(theirs.grad.flatten(), {k: v.flatten() for k, v in state.items()}, step)
            weight -= 0.02 * rule.transform(direction.view(shape))
    assert float((weight - theirs.detach()).norm() / weight.norm()) < limit


def test_the_oracle_is_torchs_muon_of_each_fused_matrix() -> None:
    torch.manual_seed(1)
    recipe = Recipe(0.9, 0.95, 1e-8, 0.1, clips=(0.0,), lrs=(0.02,))
    rows = {p.name: p for p in parameters(MODEL) if len(p.shape) > 1 and p.name.startswith("layers.0.")}
    groups = (Group(match="layers.*.weight", rule="muon"),)
    weights = {name: torch.randn(p.shape, dtype=torch.float64) for name, p in rows.items()}
    theirs = {name: [m.clone() for m in split(name, w)] for name, w in weights.items()}
    plain = PlainOptimizer(weights, recipe, MODEL, groups)
    every = [torch.nn.Parameter(m) for matrices in theirs.values() for m in matrices]
    with mock.patch.object(_muon, "_zeropower_via_newtonschulz", uncast()):
        muon = torch.optim.Muon(every, lr=0.02, weight_decay=0.1)
        for _ in range(3):
            gradients = {name: torch.randn_like(w) for name, w in weights.items()}
            grads = [m for name, g in gradients.items() for m in split(name, g)]
            for parameter, grad in zip(every, grads, strict=True):
                parameter.grad = grad.clone()
            muon.step()
            plain.step(gradients)
    left = iter(every)
    for name, weight in weights.items():
        for ours in split(name, weight):
            torch.testing.assert_close(ours, next(left).detach(), rtol=1e-10, atol=1e-12)


def split(name: str, w: Tensor) -> list[Tensor]:
    """The matrices of a parameter, each contiguous."""
    if name.endswith("qkv.weight"):
        rows = w.view(MODEL.kv, -1, MODEL.head_columns, w.shape[-1])
        return [part.reshape(-1, w.shape[-1]) for part in (rows[:, :-2], rows[:, -2], rows[:, -1])]
    return [w] if w.dim() == 2 else list(w.unbind())


@pytest.mark.parametrize("row", [p for p in parameters(MODEL) if len(p.shape) > 1], ids=lambda p: p.name)
def test_every_matrix_of_a_parameter_is_transformed_by_itself(row) -> None:
    torch.manual_seed(2)
    whole, rule = torch.randn(row.shape, dtype=torch.float64), Muon()
    found = split(row.name, transformed(row, whole, rule))
    assert [m.shape for m in found] == [torch.Size(shape) for shape in matrix_shapes(row)]
    for ours, matrix in zip(found, split(row.name, whole), strict=True):
        torch.testing.assert_close(ours, rule.transform(matrix))


@pytest.mark.parametrize("layout", [{}, {"tensor": 2}, {"data": 4}, {"data": 3, "tensor": 2, "zero": 2}], ids=str)
def test_each_matrix_has_one_rank_and_all_ranks_about_as_much_work(layout: dict) -> None:
    groups = {"groups": [{"match": "*norm*"}, {"match": "layers.*.weight", "rule": "muon"}]}
    batch = {"sequences": 12, "micro": 1}
    plan = small(model={**ROTARY, "layers": 12}, optimizer=groups, batch=batch, **layout)
    rounds = rounds_of_work(plan, bucket_table(plan, 0))
    names = [work.parameter.name for works in rounds for work in works]
    assert sorted(names) == sorted(p.name for p in parameters(plan.model) if p.name[0] == "l" and len(p.shape) > 1)
    ranks = plan.layout.sharers * plan.layout.tensor
    assert all(len({(w.sharer, w.tensor) for w in works}) == len(works) <= ranks for works in rounds)
    assert len(rounds) <= len(names) / ranks + 2


@pytest.mark.parametrize("zero", [0, 1])
def test_the_matrices_of_experts_are_given_out_among_those_who_share_the_same_experts(zero: int) -> None:
    groups = {"groups": [{"match": "*norm*"}, {"match": "layers.*.weight", "rule": "muon"}]}
    plan = small(data=4, tensor=2, expert=2, zero=zero, model={**EXPERTS, "layers": 6}, optimizer=groups)
    rows = bucket_table(plan, 0)
    trained = [row for row in rows if row.trains]
    rounds = rounds_of_work(plan, rows)
    for works in rounds:
        (slices,) = {slices_of(plan, trained[work.bucket]) for work in works}
        (by_expert,) = {trained[work.bucket].by_expert for work in works}
        assert slices == (1 if zero == 0 else 2 if by_expert else 4)
        assert all(0 <= work.sharer < slices for work in works)
    works = [work for works in rounds for work in works]
    assert sorted(work.parameter.name for work in works) == sorted(
        p.name for p in parameters(plan.model) if isinstance(p.owner, int) and len(p.shape) > 1
    )
    for work in works:
        whole = next(p for p in parameters(plan.model) if p.name == work.parameter.name)
        every, here = matrix_shapes(whole), matrix_shapes(work.parameter)
        assert here == (every[: len(every) // 2] if whole.by_expert else every)
        split, shape = work.parameter.split, list(work.parameter.shape)
        shape[split or 0] //= 2 if split is not None else 1
        assert work.shape == tuple(shape) and work.stop - work.start == prod(shape)


@ranks(3)
def test_ranks_that_send_each_other_nothing_exchange_the_rest(place: Place) -> None:
    """This happens if a bucket has fewer matrices than ranks."""
    group = Mesh.connect(Layout(data=3), place.rank, place.world_size).data
    parts = {(0, 1): (2, 3), (0, 2): (1,), (1, 1): (4,), (2, 0): (5, 1)}  # lengths, by sender and receiver
    value = lambda sender, to, n: float(100 * sender + 10 * to + n)  # noqa: E731
    sent = [
        [torch.full((size,), value(place.rank, to, n)) for n, size in enumerate(parts.get((place.rank, to), ()))]
        for to in range(3)
    ]
    sizes = [list(parts.get((sender, place.rank), ())) for sender in range(3)]
    found = _exchanged(sent, sizes, group, torch.zeros(1))
    elements = sum(sum(lengths) for (sender, _), lengths in parts.items() if sender == place.rank)
    assert group.traffic == {"all_to_all": 4 * elements}, "NCCL fails where a size is not what the other rank expects"
    for sender, tensors in enumerate(found):
        assert [len(x) for x in tensors if len(x)] == sizes[sender]
        for n, x in enumerate(x for x in tensors if len(x)):
            assert x.unique().tolist() == [value(sender, place.rank, n)]
