"""--gpus: the planner chooses the layout of a run, and its config keeps the choice."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from trivium.cli.price import host_found, machine_of
from trivium.cli.run_config import Given, RunConfig, resolve
from trivium.cli.show import say
from trivium.cli.workspace import Workspace
from trivium.config import Tree, build_named, leaves, merge, parse_assignments, to_tree, written
from trivium.cost.estimate import estimate
from trivium.errors import ConfigError
from trivium.plan.layout import AXES
from trivium.plan.offload import NO_OFFLOAD
from trivium.plan.plan import Plan, recording_problems
from trivium.planner.config import SearchSpace
from trivium.planner.pricing import Winner
from trivium.planner.remedies import does_not_fit
from trivium.planner.search import Found, best_search
from trivium.planner.search_text import because, choice_text
from trivium.units import counted, format_bytes, listed

# Fields of a plan that a search chooses, and the field of the search that restricts each.
_SEARCHED = {
    "plan.layout.tensor": "tensor",
    "plan.layout.pipeline": "pipeline",
    "plan.layout.data": "data",
    "plan.layout.context": "context",
    "plan.layout.expert": "expert",
    "plan.layout.chunks": "chunks",
    "plan.layout.shards": "shards",
    "plan.batch.micro": "micro",
    "plan.schedule": "schedules",
    "plan.recompute.mode": "recompute",
    "plan.recompute.every": "recompute_every",
    "plan.zero": "zero",
    "plan.sequence_parallel": "sequence_parallel",
    "plan.overlap_tensor": "overlap_tensor",
    "plan.compiled": "compiled",
    "plan.cuda_graphs": "cuda_graphs",
}
_FUNCTION_AGAIN = "plan.recompute.activation_function"
# Further fields that a search chooses: the space has no list of values for each of them alone.
_CHOSEN = (_FUNCTION_AGAIN, "plan.offload.optimizer", "plan.offload.activations")
# Fields that a search leaves alone, and that may contradict another layout than their own.
_RESET: Mapping[str, Any] = {
    "plan.rows": None,
    "plan.partition.layers": None,
    "plan.row_chunks": 1,
    "plan.layout.order": list(AXES),
    "plan.context_attention": "ring",
}


def planned(given: Given, gpus: int | None, out: Path | None, tell: Callable[[str], None] = say) -> Given:
    """Return what the user gave, with the layout for `gpus` GPUs as further overrides. The search keeps the user's
    overrides, and a run that was planned for as many GPUs keeps its layout. tell: reports the choice. out: the run
    directory, if there is one."""
    if gpus is None:
        return given
    if given.ranks is not None:
        raise ConfigError(
            f"--gpus {gpus}: --ranks {given.ranks} uses a predefined layout, and --gpus would choose one; give "
            "one of the two"
        )
    stated = dict(leaves(parse_assignments(given.assignments, RunConfig)))
    wanted = resolve(given)
    plan = _kept(wanted, gpus, out)
    if plan is not None:
        tell(f"layout for {counted(gpus, 'GPU')}: that of the run in {out}")
        return _without_ramp(_overridden(given, _values(plan, (*_SEARCHED, *_CHOSEN, *_RESET)), stated), stated, tell)
    found = _found(wanted, gpus, stated, tell)

    def with_layout(winner: Winner) -> Given:
        return _overridden(given, {**_RESET, **_values(winner.plan, (*_SEARCHED, *_CHOSEN))}, stated)

    winners = [found.chosen, *found.ranking.winners(len(found.ranking.simulated))]
    winner = next((one for one in winners if not _plan_of(with_layout(one), stated).check()), None)
    if winner is None:
        raise ConfigError("\n".join(_plan_of(with_layout(winners[0]), stated).check()))
    tell(_priced(found, winner, _plan_of(with_layout(winner), stated), gpus))
    return _without_ramp(with_layout(winner), stated, tell)


def _plan_of(given: Given, stated: Mapping[str, Any]) -> Plan:
    return resolve(_without_ramp(given, stated, lambda _: None)).plan


def _values(plan: Plan, paths: Iterable[str]) -> dict[str, Any]:
    return {path: value for path, value in leaves(to_tree(plan), "plan.") if path in paths}


def _priced(found: Found, winner: Winner, plan: Plan, gpus: int) -> str:
    """Return what a layout costs, in one line. plan: that of the winner with what the user set besides. Raises
    ConfigError if it does not fit because of that."""
    machine, batch = found.machine, winner.plan.batch.model_copy(update={"ramp": plan.batch.ramp})
    layout = f"layout for {counted(gpus, 'core' if machine.generation == 'cpu' else 'GPU')} of {machine.name}"
    besides = _besides(winner.plan.model_copy(update={"batch": batch}), plan)
    if not besides:
        return f"{layout}: {because(found) if winner.plan == found.chosen.plan else choice_text(winner)}"
    price = estimate(plan, machine, share=found.space.memory_fraction)
    if not price.fits:
        raise ConfigError(
            f"--gpus {gpus}: a search does not vary {listed(besides)}, and with what is set there the layout that it "
            f"found does not fit: a rank needs {format_bytes(price.memory.total)} of "
            f"{format_bytes(price.memory_limit)}; leave that out, or set the layout yourself"
        )
    own = replace(winner, plan=plan, seconds=price.seconds, memory_bytes=price.memory.total, joules=price.joules)
    return f"{layout}: {choice_text(own)}, with {listed(besides)} as set, which the search did not vary"


def _besides(searched: Plan, plan: Plan) -> list[str]:
    """Return the fields in which a plan differs from the one that was searched."""
    before = dict(leaves(to_tree(searched), "plan."))
    return [path for path, value in leaves(to_tree(plan), "plan.") if before.get(path) != value]


def pinned(stated: Mapping[str, Any]) -> Tree:
    """Return the restrictions of a search to the choices that the user made. stated: values of overrides by path."""
    # A search may always leave activation functions alone; it recomputes them only where it must.
    never = {"activation_function": False} if stated.get(_FUNCTION_AGAIN) is False else {}
    return never | {_SEARCHED[path]: [value] for path, value in stated.items() if path in _SEARCHED}


def _kept(wanted: RunConfig, gpus: int, out: Path | None) -> Plan | None:
    """Return the plan of the run in `out`, if it is one of the same model on as many GPUs."""
    stored = None if out is None else Workspace(out).config
    if stored is not None and stored.is_file():
        with suppress(ConfigError):
            plan = resolve(Given(str(stored))).plan
            if plan.layout.world_size == gpus and plan.model == wanted.plan.model:
                return plan
    return None


def _found(wanted: RunConfig, gpus: int, stated: Mapping[str, Any], tell: Callable[[str], None]) -> Found:
    """Search for the layout. stated: values of overrides by path."""
    restrictions, has_machine = {**_allowed(wanted, stated), **pinned(stated)}, "machine" in stated
    space = build_named(SearchSpace, merge(to_tree(wanted.search), restrictions), "--gpus, search")
    machine = machine_of(wanted.machine)
    if not has_machine and machine.sharing == "exclusive" and (host := host_found()) and not host.accelerators:
        tell(f"this host has no GPU: the layout is planned for {machine.name} (--machine names another)")
    away = {name: share for name, share in leaves(to_tree(wanted.plan.offload)) if f"plan.offload.{name}" in stated}
    found = best_search(wanted.plan, machine, gpus, space, away)
    if not len(found.ranking.order):
        raise ConfigError(f"--gpus {gpus}: {does_not_fit(found)}")
    return found


def _allowed(wanted: RunConfig, stated: Mapping[str, Any]) -> Tree:
    """Return the restrictions of a search to ZeRO stages and schedules that allow what the user set of other fields."""
    allowed: Tree = {}
    if stated.get("plan.cuda_graphs"):
        same = wanted.plan.model, wanted.plan.precision
        allowed["zero"] = [
            zero for zero in wanted.search.zero if not recording_problems(*same, zero, NO_OFFLOAD, recorded=True)
        ]
    if chunks := stated.get("plan.layout.chunks"):
        space, layers = wanted.search.model_copy(update={"chunks": (chunks,)}), wanted.plan.model.layers
        allowed["schedules"] = [name for name in space.schedules if chunks in space.chunks_for(name, layers)]
    return {name: choices for name, choices in allowed.items() if choices}


def _overridden(given: Given, values: Mapping[str, Any], stated: Iterable[str]) -> Given:
    added = tuple(f"{path}={written(value)}" for path, value in values.items() if path not in stated)
    return given._replace(assignments=(*given.assignments, *added))


def _without_ramp(given: Given, stated: Mapping[str, Any], tell: Callable[[str], None]) -> Given:
    """Leave out a preset's batch ramp that the chosen layout cannot divide, and say so."""
    plan = resolve(given).plan
    if plan.batch.ramp is None or not (problems := plan.check()) or any("ramp" in path for path in stated):
        return given
    full = plan.model_copy(update={"batch": plan.batch.model_copy(update={"ramp": None})})
    if full.check():
        return given
    tell(f"plan.batch.ramp is left out: {problems[0]}")
    return _overridden(given, {"plan.batch.ramp": None}, stated)
