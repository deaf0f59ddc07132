"""The progress of a training in one line."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from trivium.cli.price import host_found, machine_of
from trivium.cli.run_config import HERE, RunConfig
from trivium.plan.plan import Plan
from trivium.units import format_count, format_seconds

Note = Callable[[Sequence[Mapping[str, Any]]], str]  # describes the metrics of the newest steps, oldest first


def loss_note(newest: Sequence[Mapping[str, Any]]) -> str:
    """Return `loss 4.213`; empty where there is no step."""
    return f"loss {newest[-1]['loss']:.3f}" if newest else ""


def note_of(plan: Plan, steps: int, peak: float | None) -> Note:
    """Return a function that describes the newest steps of a training of `steps` steps: the step, its loss, the
    remaining time at their median speed, that speed, and its share of `peak` in FLOP/s unless that is None."""
    last = plan.batch.at(steps - 1)
    tokens = plan.tokens(last.first_sample + last.sequences)

    def note(newest: Sequence[Mapping[str, Any]]) -> str:
        timed = [record for record in newest if record.get("tokens_per_second", 0) > 0]
        if not timed:
            return f"step 0 of {steps}"
        record, speed = timed[-1], median(each["tokens_per_second"] for each in timed)
        left = max(0, tokens - record.get("tokens", 0)) / speed
        time = f"{format_seconds(max(1, round(left)))} left" if left else "done"
        parts = [f"step {record['step']} of {steps}", loss_note(timed), time, f"{format_count(speed)} tokens/s"]
        if peak is not None:
            flops = median(each.get("model_flops_per_second", 0) for each in timed)
            parts.append(f"{100 * flops / peak:.3g} % of peak")
        return ", ".join(parts)

    return note


def peak_here(config: RunConfig) -> float | None:
    """Return the peak in FLOP/s of the devices on which the ranks of a plan compute, which is that of the config's
    machine. None where the config names no machine, or one with GPUs while the ranks compute on cores."""
    if config.machine == HERE:
        return None
    machine, host = machine_of(config.machine), host_found()
    if machine.generation != "cpu" and host is not None and not host.computes_on_accelerators(config.plan):
        return None
    return machine.peak_flops_per_second(config.plan.precision.weights, config.plan.layout.world_size)
