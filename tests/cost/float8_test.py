"""The price of 8-bit products: their peak, the passes that round operands, and the bytes of gathers."""

from typing import Any

import pytest

from plans import small
from trivium.cost.case import case_of
from trivium.cost.constants import prior_constants
from trivium.cost.hardware import machine_named
from trivium.cost.kernels import Device
from trivium.cost.layer import layer_work
from trivium.cost.stack import stack_named
from trivium.plan.plan import Plan

LARGE = {"layers": 4, "hidden": 8192, "heads": 64, "sequence": 2048, "vocabulary": 32000}


def plan_of(float8: dict[str, Any] | None, **more: Any) -> Plan:
    precision = {"weights": "bf16", "float8": float8}
    return small(model=LARGE, batch={"sequences": 4, "micro": 4}, precision=precision, compiled=True, **more)


def seconds(plan: Plan, machine: str) -> tuple[float, float]:
    case, found = case_of(plan), machine_named(machine)
    device = Device(found, prior_constants(), case.weight_bytes, case.fp16)
    work = layer_work(case, device, stack_named("trivium"))
    return float(work.forward), float(work.backward)


def test_products_take_half_as_long_where_a_machine_has_8_bit_units_and_rounding_costs_something() -> None:
    wide, narrow = (seconds(plan_of(f), "h100") for f in (None, {"keep": []}))
    for before, after in zip(wide, narrow, strict=True):
        assert 0.5 < after / before < 0.8
    without, with_rounding = (seconds(plan_of(f), "a100-80") for f in (None, {"keep": []}))
    assert all(after > before for before, after in zip(without, with_rounding, strict=True))


def test_kept_layers_and_weight_gradients_cost_what_they_did() -> None:
    every, some = (seconds(plan_of(f), "h100") for f in ({"keep": []}, {"keep": ["first", "last"]}))
    exact = seconds(plan_of(None), "h100")
    for all_of_them, half, none in zip(every, some, exact, strict=True):
        assert half == pytest.approx((all_of_them + none) / 2)
    high = seconds(plan_of({"keep": [], "weight_gradients": False}), "h100")
    assert high[0] == every[0] and every[1] < high[1] < exact[1]


def test_peak_of_8_bits_is_known_for_hopper_and_blackwell() -> None:
    peaks = {name: machine_named(name).peak.float8 for name in ("dgx-h100", "dgx-h200", "dgx-b200", "selene")}
    assert peaks == {"dgx-h100": 1979e12, "dgx-h200": 1979e12, "dgx-b200": 4500e12, "selene": None}
