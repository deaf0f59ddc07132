"""Check whether a host has the memory and the speed for a training, and find nearby settings that it can run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import floor
from typing import NamedTuple

from trivium.cost.estimate import estimate
from trivium.cost.hardware import USABLE_MEMORY_SHARE, Machine, this_machine
from trivium.cost.memory import memory_of_rank
from trivium.plan.plan import Plan
from trivium.units import counted, format_bytes, format_seconds

DAY_SECONDS = 86_400.0
LONGEST_SECONDS = 10 * DAY_SECONDS
PROCESS_BYTES = 150 << 20  # memory of a process with torch before any tensor (Pss, torch 2.11 without CUDA)


@dataclass(frozen=True)
class Host:
    """Free resources of a host. accelerators: name and bytes of memory of each usable device. first_rank, ranks: the
    ranks of the job that this host runs; 0 ranks: all of them. first_rank None: unknown; the memory of the fullest
    ranks is needed."""

    cores: int
    memory_bytes: int
    accelerators: tuple[tuple[str, int], ...] = ()
    first_rank: int | None = 0
    ranks: int = 0

    def ranks_of(self, plan: Plan) -> int:
        """Return how many ranks of the plan this host runs."""
        return min(self.ranks or plan.layout.world_size, plan.layout.world_size)

    def computes_on_accelerators(self, plan: Plan) -> bool:
        """Whether every local rank has an accelerator. Otherwise all of them compute on the cores."""
        return len(self.accelerators) >= self.ranks_of(plan) > 0


class Verdict(NamedTuple):
    """needed_bytes: of all local ranks on cores, or of the fullest on an accelerator. seconds: of all steps, or None
    where the speed of the accelerators is not known. where: the cores or accelerators that compute."""

    needed_bytes: int
    free_bytes: int
    seconds: float | None
    where: str
    line: str
    problems: tuple[str, ...]


def judge(
    plan: Plan, steps: int, host: Host, planned: Machine, share: float = USABLE_MEMORY_SHARE, forward_passes: int = 0
) -> Verdict:
    """Price `steps` steps of a legal plan on this host. planned: the machine of the config, whose speed is taken for
    accelerators. share: of an accelerator's memory that the plan may use. forward_passes: before each step."""
    ranks, held = host.ranks_of(plan), _bytes_of_hosts(plan, host)
    if host.computes_on_accelerators(plan):
        name, smallest = min(host.accelerators, key=lambda found: found[1])
        needed, free = max(here for ranks_held in held for here, _ in ranks_held), floor(share * smallest)
        seconds = None if planned.generation == "cpu" else steps * _step_seconds(plan, planned, forward_passes)
        where, each = f"{counted(len(host.accelerators), 'accelerator')} ({name})", " each"
    else:
        needed, free = max(sum(map(sum, each)) for each in held) + ranks * PROCESS_BYTES, host.memory_bytes
        seconds = steps * _step_seconds(plan, _cores_of_all_hosts(plan, host), forward_passes)
        without = "no accelerator" if not host.accelerators else f"{len(host.accelerators)} accelerators are too few"
        where, each = f"{counted(host.cores, 'core')}, {without}", " together"
    processes = f"{counted(ranks, 'rank')} of this plan need{'s' * (ranks == 1)}"
    need = f"{format_bytes(needed)}{each} of {format_bytes(free)} free"
    long = "" if seconds is None else f"; {counted(steps, 'step')} take about {format_seconds(seconds)}"
    problems, offloaded = [], max(sum(there for _, there in each) for each in held)
    if offloaded > host.memory_bytes:
        problems.append(
            f"plan.offload lets the host keep {format_bytes(offloaded)}, and {format_bytes(host.memory_bytes)} is free "
            f"here"
        )
    if needed > free:
        problems.append(f"{processes} {format_bytes(needed)}{each}, and {format_bytes(free)} is free here")
    if seconds is not None and seconds > LONGEST_SECONDS:
        problems.append(
            f"{counted(steps, 'step')} would take about {format_seconds(seconds)}, and the limit is "
            f"{format_seconds(LONGEST_SECONDS)}"
        )
    return Verdict(needed, free, seconds, where, f"{where}: {processes} {need}{long}", tuple(problems))


class Change(NamedTuple):
    """Settings to change: of --set, and of --ranks, or None to keep the layout."""

    ranks: int | None
    sets: tuple[str, ...]


Judge = Callable[[Change], Verdict | None]


def nearest_change(plan: Plan, steps: int, rank_choices: tuple[int, ...], judged: Judge) -> Change | None:
    """Return the first change, those that change least first, under which the host can run the plan; None if there is
    none. judged: the verdict on a change, or None where the changed config is not legal."""
    for change in _changes(plan, rank_choices):
        verdict = judged(change)
        if verdict is None or verdict.needed_bytes > verdict.free_bytes:
            continue
        if not verdict.problems:
            return change
        assert verdict.seconds is not None, "a plan that fits is only refused for its seconds"
        fewer = floor(0.95 * steps * LONGEST_SECONDS / verdict.seconds)
        shorter = Change(change.ranks, (*change.sets, f"training.steps={fewer}"))
        if fewer >= 1 and (found := judged(shorter)) is not None and not found.problems:
            return shorter
    return None


def _changes(plan: Plan, rank_choices: tuple[int, ...]) -> Iterator[Change]:
    micro = [n for n in (plan.batch.micro, 8, 4, 2, 1) if n <= plan.batch.micro]
    for batch in (None, 64, 8, 1):
        if batch is not None and batch >= plan.batch.sequences:
            continue
        smaller = () if batch is None else (f"plan.batch.sequences={batch}", "plan.batch.ramp=null")
        for ranks in (None, *rank_choices):
            for n in dict.fromkeys(micro):
                sets = () if n == plan.batch.micro else (f"plan.batch.micro={n}",)
                for mode in dict.fromkeys((plan.recompute.mode, "layer")):
                    again = () if mode == plan.recompute.mode else (f"plan.recompute.mode={mode}",)
                    yield Change(ranks, (*smaller, *sets, *again))


def _bytes_of_hosts(plan: Plan, host: Host) -> list[list[tuple[int, int]]]:
    """Return the bytes of each local rank, and those that the host keeps of them, for each set of ranks that may be the
    local ones. Ranks of one pipeline stage hold the same."""
    layout, of_stage = plan.layout, dict[int, tuple[int, int]]()

    def bytes_of(rank: int) -> tuple[int, int]:
        at = layout.coordinate(rank)
        if at.pipeline not in of_stage:
            memory = memory_of_rank(plan, at)
            of_stage[at.pipeline] = int(memory.total), int(memory.host)
        return of_stage[at.pipeline]

    size, here = layout.world_size, host.ranks_of(plan)
    firsts = range(0, size, here) if host.first_rank is None else [host.first_rank]
    return [[bytes_of(rank) for rank in range(first, min(size, first + here))] for first in firsts]


def _cores_of_all_hosts(plan: Plan, host: Host) -> Machine:
    """All hosts of the job, taken to be like this one, as one machine of cores."""
    hosts = -(-plan.layout.world_size // host.ranks_of(plan))
    return this_machine(hosts * host.cores, max(hosts * host.memory_bytes, hosts * host.cores))


def _step_seconds(plan: Plan, machine: Machine, forward_passes: int) -> float:
    room = max(machine.nodes, -(-plan.layout.world_size // machine.devices_per_node))
    nodes = machine if machine.sharing == "shared" else machine.with_nodes(room)
    return estimate(plan, nodes, method="closed form", forward_passes=forward_passes).seconds
