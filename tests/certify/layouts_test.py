"""Laws of the generated set: legal, different, many, and every choice is there."""

import pytest

from plans import swept
from trivium.certify.layouts import bases, generated_plans
from trivium.certify.sweep import describe
from trivium.plan.plan import Plan

RANKS = 8


@pytest.mark.broad
def test_at_least_150_different_legal_layouts_of_at_most_8_ranks() -> None:
    assert len({p.model_dump_json() for p in swept(RANKS)}) == len(swept(RANKS)) >= 150
    assert [p.check() for p in swept(RANKS) if p.check()] == []
    assert max(p.layout.world_size for p in swept(RANKS)) == RANKS


def test_the_same_set_at_every_call() -> None:
    assert generated_plans(3) == generated_plans(3)


def test_no_set_goes_beyond_the_ranks_asked_for() -> None:
    assert all(p.layout.world_size <= 5 for p in generated_plans(5))
    assert all(base.ranks <= 5 for base in bases(5))


@pytest.mark.parametrize(
    "choice",
    [
        *[lambda p, d=d: p.layout.tensor == d for d in (1, 2, 3, 4, 5)],
        *[lambda p, d=d: p.layout.pipeline == d for d in (1, 2, 3, 4, 5)],
        *[lambda p, d=d: p.layout.data == d for d in (1, 2, 3, 4, 5)],
        *[
            lambda p, s=s: p.schedule == s
            for s in ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "1f1b-split", "zb-turns")
        ],
        *[lambda p, z=z: p.zero == z and p.layout.data > 1 for z in (0, 1, 2, 3)],
        *[lambda p, z=z: p.zero == z and p.layout.data > 1 and p.layout.pipeline > 1 for z in (2, 3)],
        *[lambda p, m=m: p.recompute.mode == m for m in ("none", "attention", "layer")],
        *[lambda p, a=a: p.layout.context > 1 and p.context_attention == a for a in ("ring", "ulysses")],
        lambda p: p.layout.context > 1 and p.model.documents == "apart",
        lambda p: p.sequence_parallel and p.layout.tensor > 1,
        lambda p: p.tensor_ring and p.layout.tensor > 2,
        lambda p: p.model.kv_heads is not None,
        lambda p: p.model.head == "tied" and p.layout.pipeline > 1,
        lambda p: p.model.vocabulary % 2 == 1 and p.layout.tensor > 1,
        lambda p: p.model.dropout > 0 and p.layout.tensor > 1,
        lambda p: p.partition.layers is not None and 0 in p.partition.layers,
        lambda p: p.batch.ramp is not None and p.layout.data > 1,
        lambda p: p.layout.chunks == 3,
        lambda p: p.layout.tensor > 1 and p.layout.pipeline > 1 and p.layout.order[0] == "tensor",
        # Replicas whose ranks do not ascend when they are counted by data, then by context.
        lambda p: p.zero > 0 and min(p.layout.data, p.layout.context) > 1 and p.layout.order[0] == "context",
    ],
)
def test_every_choice_is_in_the_set(choice) -> None:
    assert any(choice(p) for p in swept(RANKS))


def test_a_description_tells_the_layouts_of_one_model_apart() -> None:
    def told(p: Plan) -> str:
        return describe(p) + f" {p.recompute.every} {p.layout.chunks}"

    assert len({told(p) for p in swept(RANKS)}) >= 0.95 * len(swept(RANKS))
