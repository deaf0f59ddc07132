"""Laws of the verdict."""

import json
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from plans import small
from trivium.certify.certificate import (
    IN_FP64,
    TOLERANCE,
    Deviation,
    Least,
    _tensor,
    certificate,
    compare,
    coverage,
    examine,
    in_fp64,
    train_alone,
)
from trivium.certify.layouts import ROTARY
from trivium.certify.reference import compute_reference
from trivium.comms.mesh import Mesh
from trivium.plan.parameters import Box, parameters

PLAN = small()


def test_the_first_wrong_step_is_told_with_all_quantities_that_deviate_there() -> None:
    found = certificate(
        PLAN,
        [
            Deviation("loss", "", 1e-15, 0),
            Deviation("gradient", "a", 0.5, 2),
            Deviation("gradient norm", "", 0.1, 1),
            Deviation("gradient", "b", 0.2, 1),
            Deviation("gradient", "a", 0.1, 1),
        ],
    )
    assert not found.passed and found.first is not None
    assert (found.first.step, found.first.quantities) == (1, ("gradient norm", "gradient"))
    assert (found.first.parameter, found.first.value) == ("b", 0.2)
    assert (found.worst, found.worst_parameter) == (0.5, "gradient: a")


def test_a_verdict_is_json_even_when_numbers_are_not() -> None:
    tree = certificate(PLAN, [Deviation("loss", "", float("nan"))]).as_tree()
    assert not tree["passed"], "what is not finite never passes"
    assert json.loads(json.dumps(tree, allow_nan=False))["worst"] == "nan"
    assert certificate(PLAN, [Deviation("loss", "", TOLERANCE)]).as_tree()["first"] is None


def test_a_parameter_that_nobody_or_everybody_updates_is_a_deviation() -> None:
    once = {p.name: p.elements for p in parameters(PLAN.model)}
    halves = [{k: n - n // 2 for k, n in once.items()}, {k: n // 2 for k, n in once.items()}]
    assert max(d.value for d in coverage(PLAN, halves)) == 0
    missing = {k: n for k, n in once.items() if k != "head.norm.weight"}
    assert [d.parameter for d in coverage(PLAN, [missing]) if d.value] == ["head.norm.weight"]
    assert min(d.value for d in coverage(PLAN, [once, once])) == 1


TINY = {"model": {"layers": 1, "hidden": 8, "heads": 2}, "batch": {"sequences": 4, "micro": 2}}


def test_one_process_compared_with_itself_in_its_own_precision_deviates_by_nothing() -> None:
    plan, cpu = small(**TINY, precision={"weights": "bf16"}), torch.device("cpu")
    reference = train_alone(plan, cpu)
    found = compare(plan, Mesh.single(cpu), reference)
    quantities = {d.quantity for d in found.deviations}
    assert {"initial values", "loss", "validation loss", "gradient", "gradient norm", "weights"} <= quantities
    assert max(d.value for d in found.deviations) == 0
    untrained = replace(reference, weights=reference.initial)
    for least in (IN_FP64, Least(1e-2, 1e-2)):
        wrong = compare(plan, Mesh.single(cpu), untrained, least=least).deviations
        assert {d.quantity for d in wrong if d.value} == {"weights"}


def test_the_engine_in_one_process_computes_the_reference_that_the_plain_model_does() -> None:
    plan = in_fp64(small(**TINY))
    reference = train_alone(plan, torch.device("cpu"))
    for here, there in zip(reference.losses, compute_reference(plan).losses, strict=True):
        assert here == pytest.approx(there, rel=TOLERANCE)
    assert certificate(plan, examine(plan, Mesh.single(), reference).deviations).passed


def test_a_gradient_that_is_zero_by_theory_deviates_from_nothing() -> None:
    """In the second step no token that counts attends to two different keys, so the gradients of query and key
    norms are zero. Their rounding noise, 1e-17, depends on the order of summation and must not count."""
    few = {"documents": "apart", "end_of_text": 3, "vocabulary": 5, "vocabulary_multiple": 1, "sequence": 10}
    sizes = {"layers": 2, "hidden": 8, "heads": 2, "head": "untied", "ffn": 7}
    plan = small(model={**ROTARY, "qk_norm": "each_head", **few, **sizes}, batch={"sequences": 2, "micro": 1})
    reference = compute_reference(plan)
    norms = [g for name, g in reference.gradients[1].items() if name.endswith(("query_norm.weight", "key_norm.weight"))]
    assert len(norms) == 4 and max(g.abs().max() for g in norms) < 1e-15
    assert certificate(plan, examine(plan, Mesh.single(), reference).deviations).passed


def test_a_tensor_of_an_accelerator_is_compared_where_the_reference_lies() -> None:
    """Without a GPU the values of the fake tensor cannot be read, so the comparison ends with that error."""
    whole = {"w": torch.ones(2, 3, dtype=torch.float64)}
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(DataDependentOutputException):
        here = torch.ones(6, dtype=torch.float64, device="cuda")
        _tensor("weights", "w", here, whole, Box((0, 0), (2, 3)))
