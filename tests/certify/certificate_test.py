"""Laws of the verdict."""

import json

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from plans import small
from trivium.certify.certificate import TOLERANCE, Deviation, _tensor, certificate, coverage
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
    assert json.loads(json.dumps(tree, allow_nan=False))["worst"] == "nan"
    assert certificate(PLAN, [Deviation("loss", "", TOLERANCE)]).as_tree()["first"] is None


def test_a_parameter_that_nobody_or_everybody_updates_is_a_deviation() -> None:
    once = {p.name: p.elements for p in parameters(PLAN.model)}
    halves = [{k: n - n // 2 for k, n in once.items()}, {k: n // 2 for k, n in once.items()}]
    assert max(d.value for d in coverage(PLAN, halves)) == 0
    missing = {k: n for k, n in once.items() if k != "head.norm.weight"}
    assert [d.parameter for d in coverage(PLAN, [missing]) if d.value] == ["head.norm.weight"]
    assert min(d.value for d in coverage(PLAN, [once, once])) == 1


def test_a_tensor_of_an_accelerator_is_compared_where_the_reference_lies() -> None:
    """Without an accelerator its numbers cannot be read, which is as far as this comes."""
    whole = {"w": torch.ones(2, 3, dtype=torch.float64)}
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(DataDependentOutputException):
        here = torch.ones(6, dtype=torch.float64, device="cuda")
        _tensor("weights", "w", here, whole, Box((0, 0), (2, 3)))
