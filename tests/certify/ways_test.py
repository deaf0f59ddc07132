"""Laws of the ways: each limit is one that the engine has, and under them a reduced model goes where large ones go."""

from collections import Counter
from typing import Any

import pytest

from plans import small
from trivium.certify.certificate import certificate, examine
from trivium.certify.courses import STEPS
from trivium.certify.reference import compute_reference
from trivium.certify.ways import LARGE, NARROW, WAYS, Replaced, Way
from trivium.comms.mesh import Mesh
from trivium.kernels.cpu import fused_attention as processor_kernel
from trivium.kernels.cpu import gelu, product
from trivium.parallel.sharding.buckets import Bucket
from trivium.parallel.sharding.zero import ShardedOptimizer
from trivium.parallel.tensor import vocabulary

EVERY = [each for way in WAYS for each in way.replaced]


@pytest.mark.parametrize("each", EVERY, ids=lambda e: f"{getattr(e.owner, '__name__', '')}.{e.attribute}")
def test_what_is_replaced_is_there_and_is_put_back(each: Replaced) -> None:
    """A limit under another name would be replaced for nothing. An attribute of a bucket is set when it is made."""
    before = vars(each.owner).get(each.attribute)
    assert each.attribute in vars(each.owner) or each.owner is Bucket
    with pytest.raises(KeyError), each.applied():
        assert vars(each.owner)[each.attribute] is each.value
        raise KeyError("inside")
    assert vars(each.owner).get(each.attribute) is before


def counted(patch: pytest.MonkeyPatch, owner: Any, name: str, calls: Counter[str]) -> None:
    right = getattr(owner, name)

    def count(*given: Any, **named: Any) -> Any:
        calls[name] += 1
        return right(*given, **named)

    patch.setattr(owner, name, count)


def calls_of(way: Way, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often each function of a step was called, by name; the certificate must pass."""
    calls: Counter[str] = Counter()
    plan = small(model={"head": "tied"})
    reference = compute_reference(plan)
    with monkeypatch.context() as patch, way.taken():
        for owner, name in (
            (gelu, "_gelu_of"),
            (product, "_by_one_dnn"),
            (product, "_rows_of_gradient"),
            (vocabulary, "_loss_of"),
            (processor_kernel, "attend"),
            (Bucket, "__init__"),
        ):
            counted(patch, owner, name, calls)
        found = examine(plan, Mesh.single(), reference, way)
    assert certificate(plan, found.deviations).passed
    return calls


def test_a_reduced_model_goes_the_way_of_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, large, narrow = (calls_of(way, monkeypatch) for way in (WAYS[0], LARGE, NARROW))
    assert usual["_gelu_of"] == usual["_by_one_dnn"] == usual["attend"] == 0 and usual["__init__"] == 2
    assert large["_gelu_of"] > large["attend"] > 0  # several pieces of each
    assert large["_rows_of_gradient"] > 0 and large["__init__"] > 10
    assert large["_loss_of"] > 3 * usual["_loss_of"]
    assert narrow["_gelu_of"] == narrow["attend"] == 0 and narrow["__init__"] > 10


def test_an_update_is_refused_and_the_next_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, calls = small(), Counter[str]()
    with monkeypatch.context() as patch, NARROW.taken():
        for name in ("step", "_update"):
            counted(patch, ShardedOptimizer, name, calls)
        found = examine(plan, Mesh.single(), compute_reference(plan), NARROW)
    assert certificate(plan, found.deviations).passed
    assert calls == {"step": STEPS + 1, "_update": STEPS}
