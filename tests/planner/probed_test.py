from dataclasses import replace

import numpy as np
import pytest

from trivium.cost.case import case_of
from trivium.cost.hardware import Link, believed, machine_from_file, machine_named, this_machine
from trivium.cost.step_time import step
from trivium.plan.plan import Plan
from trivium.planner.measured import Attention, Exchange, Measured, Product, SmallStep, Stream, Update
from trivium.planner.probed import between_ranks, on_device, probed, write_machine

SHAPES = [(n, n, n) for n in (128, 256, 512, 1024)] + [(1024, 512, k) for k in (16, 64, 256)]
TRUE = {
    "gemm_cpu": 0.9,
    "gemm_ramp": 12.0,
    "memory": 0.5,
    "operation_seconds": 9e-6,
    "flash_cpu": 0.35,
    "eager_traffic": 2.4,
    "launch_seconds": 0.0,
    "core_share": 0.4,
}
LINK = Link(bandwidth=2e9, efficiency=1.0, latency_seconds=3e-4, start_seconds=1e-4)
PEAK = 95e9


def empty():
    """Every measurement, its seconds still to be told."""
    shape = {"layers": 2, "hidden": 64, "heads": 2, "vocabulary": 256, "sequence": 64}
    return Measured(
        device="CPU core",
        is_cpu=True,
        devices=2,
        memory_bytes=8 << 30,
        products=tuple(Product(d, *s, 1.0, 1.0) for d in ("fp32", "bf16") for s in SHAPES),
        streams=(Stream(1 << 22, 12 * 2**22 / 20e9),),
        attentions=(Attention(4, 256, 4, 32, 1.0, 1.0), Attention(2, 512, 4, 64, 1.0, 1.0)),
        updates=(Update(1 << 20, 1e-3),),
        exchanges=tuple(
            Exchange(kind, n, size, 1.0, 0.0)
            for kind in ("all_reduce", "all_gather", "reduce_scatter", "send")
            for n in (2, 4, 8)
            for size in (1 << 10, 1 << 16, 1 << 22)
        ),
        steps=tuple(
            SmallStep({**shape, "layers": n, "hidden": h}, {"sequences": 8, "micro": 4}, 1.0)
            for n, h in ((2, 64), (6, 64), (2, 192), (3, 256))
        ),
        split_steps=tuple(
            SmallStep({**shape, "hidden": 256, "heads": 8}, {"sequences": 8, "micro": 8}, 1.0, {"tensor": n})
            for n in (2, 4, 8)
        ),
    )


def synthetic(noise=0.0):
    """Return the measurements of a machine that obeys the cost model."""
    rates = {"fp32": PEAK, "bf16": 4 * PEAK, "fp64": PEAK / 2, "fp16": PEAK}
    here = this_machine(2, 16 << 30)
    true = here.model_copy(
        update={
            "constants": TRUE,
            "node_link": LINK,
            "memory_bandwidth": 20e9,
            "peak": here.peak.model_copy(update=rates),
        }
    )
    random = np.random.default_rng(2)
    seconds = (
        float(c.predicted * np.exp(noise * random.standard_normal()))
        for c in (*on_device(true, empty()), *between_ranks(true, empty()))
    )
    told = empty()
    products = [replace(p, seconds=next(seconds), gradients=next(seconds)) for p in told.products]
    told = replace(told, products=tuple(products))
    attentions = [replace(a, forward=next(seconds), backward=next(seconds)) for a in told.attentions]
    told = replace(told, attentions=tuple(attentions))
    told = replace(told, steps=tuple(replace(s, seconds=next(seconds)) for s in told.steps))
    exchanges = [replace(e, seconds=next(seconds)) for e in told.exchanges]
    busy = [replace(e, busy_seconds=TRUE["core_share"] * e.seconds / true.crowding(e.ranks)) for e in exchanges]
    told = replace(told, exchanges=tuple(busy))
    told = replace(told, split_steps=tuple(replace(s, seconds=next(seconds)) for s in told.split_steps))
    return true, told


def test_the_machine_file_repeats_what_a_lawful_machine_showed():
    _, told = synthetic()
    found = probed(told, "here")
    for kind in ("product", "attention", "step", "exchange"):
        assert found.error_of(kind) < 0.03, kind


def test_noise_of_a_tenth_moves_no_prediction_of_another_plan_by_much():
    true, told = synthetic(noise=0.1)
    machine = probed(told, "here").machine
    shape = {"layers": 4, "hidden": 128, "heads": 4, "vocabulary": 2048, "sequence": 128}
    for layout in ({}, {"tensor": 2}, {"pipeline": 2}, {"data": 4}, {"tensor": 2, "pipeline": 2, "data": 2}):
        plan = Plan.model_validate({"model": shape, "layout": layout, "batch": {"sequences": 64, "micro": 8}})
        case = case_of(plan)
        expected = float(step(case, true).parts.seconds)
        assert float(step(case, machine).parts.seconds) == pytest.approx(expected, rel=0.12), layout


def test_the_share_of_a_core_is_read_where_every_rank_had_one():
    true, told = synthetic()
    crowded = tuple(
        replace(e, busy_seconds=e.busy_seconds * (1 if true.crowding(e.ranks) == 1 else 0.1)) for e in told.exchanges
    )
    found = probed(replace(told, exchanges=crowded), "here").machine
    assert found.constants["core_share"] == pytest.approx(TRUE["core_share"], rel=1e-3)


def test_steps_over_ranks_are_repeated_and_named():
    _, told = synthetic()
    machine = probed(told, "here").machine
    found = [c for c in between_ranks(machine, told) if c.what.startswith("step")]
    assert [c.what for c in found] == [f"step of 2 layers, hidden 256, over {n} tensor ranks" for n in (2, 4, 8)]
    assert all(abs(c.error) < 0.05 for c in found)


def test_a_few_wild_measurements_are_outvoted():
    _, told = synthetic()
    wild = tuple(replace(e, seconds=e.seconds * (40 if n % 9 == 0 else 1)) for n, e in enumerate(told.exchanges))
    found = probed(replace(told, exchanges=wild), "here")
    assert found.error_of("exchange") < 0.15


def test_the_file_gives_back_the_machine_and_says_when_it_was_measured(tmp_path):
    machine = probed(synthetic()[1], "here").machine
    write_machine(tmp_path / "here.yaml", machine)
    again = machine_from_file(tmp_path / "here.yaml")
    assert again.devices == 2 and again.memory_bytes == 8 << 30
    assert again.constants == pytest.approx(machine.constants, rel=1e-3)
    assert again.node_link.latency_seconds == pytest.approx(machine.node_link.latency_seconds, rel=1e-3)
    assert "measured on" in again.sources["constants"]


@pytest.mark.broad
def test_the_file_of_a_machine_that_was_held_up_can_be_read(tmp_path):
    """No constants explain it, and what is written must be a machine all the same."""
    told = synthetic()[1]
    slow = tuple(replace(s, seconds=s.seconds * 60) for s in told.steps)
    held_up = replace(told, steps=slow, streams=tuple(replace(s, seconds=s.seconds * 8) for s in told.streams))
    write_machine(tmp_path / "here.yaml", probed(held_up, "here").machine)
    constants = machine_from_file(tmp_path / "here.yaml").constants
    assert constants["eager_traffic"] == pytest.approx(believed("eager_traffic")[1], rel=0.01)


@pytest.mark.broad
def test_a_gpu_keeps_the_figures_of_its_data_sheet_and_its_links_when_it_is_alone():
    _, told = synthetic()
    alone = replace(told, device="NVIDIA H100 80GB HBM3", is_cpu=False, devices=1, exchanges=())
    machine = probed(alone, "h100").machine
    sheet = machine_named("dgx-h100")
    assert machine.peak == sheet.peak and machine.node_link == sheet.node_link
    assert machine.generation == "hopper" and machine.sharing == "exclusive" and machine.nodes == 1


def test_attention_is_priced_in_the_numbers_it_was_measured_in():
    machine = machine_named("selene")
    told = replace(empty(), is_cpu=False, attentions=(
        Attention(8, 1024, 16, 64, 1.0, 1.0, dtype="bf16"), Attention(8, 1024, 16, 64, 1.0, 1.0),
    ))  # fmt: skip
    found = [c.predicted for c in on_device(machine, told) if c.what.startswith("attention")]
    ratio = machine.peak.bf16 / machine.peak.fp32
    assert found[2] / found[0] == pytest.approx(found[3] / found[1], rel=0.2) == pytest.approx(ratio, rel=0.2)
