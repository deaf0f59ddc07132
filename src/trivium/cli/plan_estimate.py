"""The full breakdown of one plan, as text, as data, and as a page with its schedule drawn: see `trivium plan show`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from trivium.cli.show import table
from trivium.config import to_tree
from trivium.cost.case import case_of
from trivium.cost.estimate import strides_of
from trivium.cost.hardware import USABLE_MEMORY_SHARE, Machine
from trivium.cost.saving import NearCopy, near_copy
from trivium.cost.step_time import SCHEDULES, step
from trivium.errors import ConfigError
from trivium.plan.batch import Batch
from trivium.plan.plan import Plan
from trivium.planner.breakdown import Breakdown, break_down, handed_on, held_by_rank, held_over_time, lanes
from trivium.planner.breakdown import traffic_by_axis as by_axis
from trivium.planner.campaign import HOUR, Campaign, Rates, campaign
from trivium.planner.explain import plan_lines
from trivium.planner.interval import Interval, checkpoint_interval
from trivium.planner.stack_file import LearnedStack
from trivium.units import counted, format_bytes, format_count, format_energy, format_seconds, parse_count

Row = tuple[str, ...]
Table = tuple[str, Row, list[Row]]  # title, headings and rows

FEW_RANKS = 8  # rows of a table on the terminal; the page and the data have all
FORMAT = "trivium-estimate-1"
JOULES_PER_KILOWATT_HOUR = 3.6e6


@dataclass(frozen=True)
class Asked:
    """The options: the plan's name, tokens of a training, seconds of a save with hours between failures. share: of a
    device's memory that the plan may use. forward_passes: number before each step."""

    name: str
    tokens: int | None = None
    failures: tuple[float, float] | None = None
    share: float = USABLE_MEMORY_SHARE
    forward_passes: int = 0


@dataclass(frozen=True)
class Told:
    """Everything one estimate says."""

    asked: Asked
    parts: Breakdown
    stack: LearnedStack | None
    interval: Interval | None
    training: Campaign | None
    near: NearCopy | None = None

    @property
    def plan_lines(self) -> list[str]:
        """The plan and its price as text."""
        factor = self.stack.factor if self.stack else 1.0
        return plan_lines(self.parts.plan, self.parts.machine, self.asked.share, self.asked.forward_passes, factor)

    @property
    def seconds(self) -> float:
        """The predicted seconds of a step, times the factor that a finished run taught."""
        return self.parts.price.seconds

    @property
    def near_steps(self) -> int | None:
        """Steps from one copy near the ranks to the next; None if copies were not asked for or there is one rank."""
        if self.near is None or self.asked.failures is None:
            return None
        interval = checkpoint_interval(self.near.stops_seconds, self.asked.failures[1] * HOUR)
        return max(interval.steps(self.seconds), ceil(self.near.sends_seconds / self.seconds))


def token_count(text: str, option: str) -> int:
    try:
        return parse_count(text)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from None


def tell(plan: Plan, machine: Machine, asked: Asked, stack: LearnedStack | None = None) -> Told:
    """Price a plan, and the training and the failures that were asked for. stack: its factor multiplies all seconds."""
    parts = break_down(plan, machine, asked.share, asked.forward_passes, stack.factor if stack else 1.0)
    interval = None
    if asked.failures is not None:
        save, hours = asked.failures
        interval = checkpoint_interval(save, hours * HOUR)
    price, training = parts.price, None
    if asked.tokens is not None:
        devices = machine.devices if machine.sharing == "shared" else plan.layout.world_size
        watts = None if price.joules is None else price.joules / price.seconds / devices
        training = campaign(
            plan,
            asked.tokens,
            seconds_by_batch(plan, machine, price.seconds, asked.forward_passes),
            devices,
            rates=Rates(watts, machine.price_per_hour),
            lost_fraction=interval.wasted_fraction if interval else 0.0,
        )
    near = near_copy(plan, machine) if asked.failures is not None and plan.layout.world_size > 1 else None
    return Told(asked, parts, stack, interval, training, near)


def seconds_by_batch(plan: Plan, machine: Machine, full: float, forward_passes: int = 0) -> Callable[[int], float]:
    """Return a function from sequences to seconds of a step: `full` for the full batch, in the closed form's ratio."""
    case, code = case_of(plan, forward_passes), SCHEDULES[plan.schedule]
    strides = strides_of(plan.layout, machine)

    def closed(sequences: int) -> float:
        fewer = replace(case, micro_batches=plan.batch.micro_batches(plan.layout, sequences))
        return float(step(fewer, machine, schedule=code, strides=strides).parts.seconds)

    whole = closed(plan.batch.sequences)
    return lambda sequences: full * closed(sequences) / whole


def with_batch(plan: Plan, sequences: int) -> Plan:
    """Return the plan of a step with `sequences` sequences; the given plan if these are the full batch."""
    if sequences == plan.batch.sequences:
        return plan
    return plan.model_copy(update={"batch": Batch(sequences=sequences, micro=plan.batch.micro)})


def tree(told: Told) -> dict[str, Any]:
    """All of it as plain data."""
    return {
        "format": FORMAT,
        "name": told.asked.name,
        "plan": to_tree(told.parts.plan),
        "machine": to_tree(told.parts.machine),
        "stack": to_tree(told.stack) if told.stack else None,
        "seconds": told.seconds,
        **told.parts.tree(),
        "interval": vars(told.interval) if told.interval else None,
        "near_copies": {"steps": told.near_steps, **told.near._asdict()} if told.near else None,
        "training": told.training.tree() if told.training else None,
    }


def lines(told: Told) -> list[str]:
    """All of it as text."""
    found = told.plan_lines
    for title, header, rows in tables(told):
        found += ["", f"{title}{_shortened(rows)}", *table(_few(rows), header=header)]
    return [*found, *([""] if more_lines(told) else []), *more_lines(told)]


def tables(told: Told) -> list[Table]:
    """Title, headings and rows: seconds, memory and traffic by pipeline rank."""
    parts = told.parts
    seconds: list[Row] = [
        (str(t.pipeline), *(format_seconds(s) for s in (t.forward, t.backward, t.idle))) for t in parts.times
    ]
    categories = dict.fromkeys(name for held in parts.memory for name in held.categories())
    memory: list[Row] = [
        (str(n), *(format_bytes(held.categories()[c]) for c in categories), format_bytes(held.total))
        for n, held in enumerate(parts.memory)
    ]
    axes = dict.fromkeys(axis for handed in parts.traffic for axis in by_axis(handed))
    traffic: list[Row] = [
        (str(n), *(format_bytes(by_axis(handed).get(axis, 0)) for axis in axes))
        for n, handed in enumerate(parts.traffic)
    ]
    found: list[Table] = [
        ("seconds of a step by pipeline rank", ("rank", "forward", "backward", "idle"), seconds),
        ("memory by pipeline rank, at its largest", ("rank", *categories, "total"), memory),
    ]
    if axes:
        found.append(("bytes handed to collectives in a step, by axis", ("rank", *axes), traffic))
    return found


def more_lines(told: Told) -> list[str]:
    """The stack's factor, the interval between checkpoints, and the training."""
    found = []
    if told.stack:
        s = told.stack
        found.append(
            f"stack         seconds of a step x {s.factor:.3f} (quartiles {s.low:.3f} to {s.high:.3f}, {s.steps} steps "
            f"of {s.run} on {s.machine})"
        )
    if told.interval:
        i = told.interval
        found.append(
            f"checkpoints   every {format_seconds(i.daly_seconds)} of work, "
            f"{counted(i.steps(told.seconds), 'step')} (Daly; Young: "
            f"{format_seconds(i.young_seconds)}); saving and failures add {i.wasted_fraction:.2%}"
        )
    if told.near and told.near_steps:
        found.append(
            f"near copies   every {counted(told.near_steps, 'step')} (training.near.every): each stops training for "
            f"{format_seconds(told.near.stops_seconds)}, and is sent to a second host in "
            f"{format_seconds(told.near.sends_seconds)}"
        )
    if told.training:
        t = told.training
        found.append(
            f"training      {format_count(t.tokens)} token{'s' * (t.tokens != 1)}: {counted(t.steps, 'step')}, "
            f"{format_seconds(t.seconds)}, "
            f"{t.device_hours:,.0f} device-hours on {t.devices:,} devices"
        )
        hours = t.kilowatt_hours
        energy = "the machine file names no watts" if hours is None else format_energy(hours * JOULES_PER_KILOWATT_HOUR)
        price = "the machine file names no price_per_hour" if t.price is None else f"cost {t.price:,.0f}"
        found.append(f"{'':14}{energy}; {price}")
    return found


def chart(told: Told) -> Any:
    """The page's data: what every pipeline rank does and holds over time."""
    from trivium.report.gantt import Chart, Lane, Moved, Titled

    parts = told.parts
    drawn = []
    for rank, row in enumerate(lanes(parts.timeline)):
        held = held_over_time(parts.timeline, rank, held_by_rank(parts.plan, rank))
        drawn.append(Lane(f"pipeline {rank}", row, held))
    return Chart(
        title=f"{told.asked.name} on {parts.machine.name}",
        text=told.plan_lines + more_lines(told),
        lanes=drawn,
        moved=[Moved(*each) for each in handed_on(parts.timeline)],
        memory_limit=parts.price.memory_limit,
        tables=[Titled(title, header, rows) for title, header, rows in tables(told)],
    )


def write_page(path: Path, told: Told) -> None:
    """Write the page of an estimate."""
    from trivium.report.gantt import write_chart

    write_chart(path, chart(told))


def _few(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return rows if len(rows) <= FEW_RANKS else [*rows[: FEW_RANKS - 1], rows[-1]]


def _shortened(rows: list[tuple[str, ...]]) -> str:
    left_out = len(rows) - len(_few(rows))
    return f" ({left_out} ranks before the last not shown; --json and --html have all)" if left_out else ""
