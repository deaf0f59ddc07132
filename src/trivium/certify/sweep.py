"""Certification of many plans. Ranks are forked once and reused, and references are computed once per model."""

import json
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

import torch
import torch._dynamo  # by every rank that recomputes, otherwise: seconds each

from trivium import __version__
from trivium.certify.certificate import Certificate, Deviation, Findings, certificate, coverage, examine, not_finished
from trivium.certify.courses import Course
from trivium.certify.reference import Reference, compute_reference, read_reference, reference_key, write_reference
from trivium.certify.ways import AS_IT_IS, Way
from trivium.comms.launch import Place, connected, run_ranks, start_ranks
from trivium.comms.mesh import Mesh
from trivium.errors import TriviumError
from trivium.objectives.objective import terms_of
from trivium.plan.layout import AXES
from trivium.plan.model_shape import ModelShape
from trivium.plan.plan import Plan
from trivium.progress import Progress, silent
from trivium.provenance import code_commit

REFERENCE_PROCESSES = 2
PLANS_TOGETHER = 24  # plans that the same ranks run in turn; if one plan fails, each runs again in new ranks
CPU = torch.device("cpu")  # the reference's, and with its random numbers for dropout


def _keep_quiet(number: int, found: Certificate) -> None:
    """Ignore a certificate; the default for `on_known`."""


def certify(
    plans: Sequence[Plan],
    *,
    ways: Sequence[Way] = (AS_IT_IS,),
    progress: Progress = silent,
    on_known: Callable[[int, Certificate], None] = _keep_quiet,
    timeout_seconds: float = 150,
) -> list[Certificate]:
    """A certificate for each plan, in order. A plan whose ranks fail or hang has one that says so.

    ways: of the engine, one for each plan in turn. on_known: called with the number of a plan and its certificate as
    soon as its ranks are done, while others still run. timeout_seconds: for each plan, on average over those that run
    together.
    """
    way_of = [ways[n % len(ways)] for n in range(len(plans))]
    plans = [way.shaped(plan) for plan, way in zip(plans, way_of, strict=True)]
    results: dict[int, Certificate] = {}

    def keep(number: int, found: Certificate) -> None:
        results[number] = found
        on_known(number, found)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_references(list(zip(plans, way_of, strict=True)), folder)
        for together in _batches(plans, way_of):
            chosen = {n: plans[n].checked() for n in together}
            note = _noted(progress, len(results), len(plans), way_of[together[0]], list(chosen.values()))
            _certify_together(_Batch(chosen, way_of[together[0]], folder, keep, note), timeout_seconds)
    return [results[n] for n in range(len(plans))]


def write_references(plans: Sequence[tuple[Plan, Way]], folder: Path) -> None:
    """The reference of each plan and way in a file of its own, where `reference_of` finds it.

    In processes of their own: the launcher never computes, so that it can be forked.
    """
    distinct = {reference_key(p, way.course): (p, way.course) for p, way in plans}
    run_ranks(_reference_rank, min(REFERENCE_PROCESSES, len(distinct)), distinct, folder)


def reference_of(plan: Plan, way: Way, folder: Path) -> Reference:
    """Read the reference of a plan and a way that `write_references` wrote."""
    return read_reference(folder / f"{reference_key(plan, way.course)}.safetensors")


def collect(plan: Plan, folder: Path, name: str, way: Way = AS_IT_IS) -> Certificate:
    """The certificate from what each rank wrote under `name`; the files are removed."""
    found = [_read(folder / f"{name}-{rank}.json") for rank in range(plan.layout.world_size)]
    deviations = [d for f in found for d in f.deviations]
    return certificate(plan, deviations + coverage(plan, [f.updated for f in found]), way)


def versions() -> dict[str, str]:
    """Return the versions of the software that computed a certificate."""
    return {
        "trivium": __version__,
        "torch": version("torch"),
        "python": platform.python_version(),
        "commit": code_commit(),
    }


def describe(plan: Plan) -> str:
    """A plan in a few words."""
    x = plan.layout
    words = [f"tensor {x.tensor} pipeline {x.pipeline} data {x.data}"]
    words += [f"context {x.context} {plan.context_attention}"] if x.context > 1 else []
    words += [plan.schedule, *_parts(plan.model)]
    words += [f"kv heads {plan.model.kv_heads} of {plan.model.heads}"] if plan.model.kv_heads is not None else []
    words += [f"head width {plan.model.head_width}"] if plan.model.head_width is not None else []
    words += [f"qk norm {plan.model.qk_norm}"] if plan.model.qk_norm != "none" else []
    words += ["norms after"] if plan.model.norm_position == "after" else []
    words += [_window_words(plan.model)] if plan.model.window is not None else []
    words += [f"rope {plan.model.rope_scaling.kind}"] if plan.model.rope_scaling is not None else []
    words += [f"chunks {x.chunks}"] if x.chunks > 1 else []
    words += ["sequence parallel" + " in a ring" * plan.overlap_tensor] if plan.sequence_parallel else []
    words += [f"zero {plan.zero}" + (f" over {x.shards}" if x.shards is not None else "")]
    words += [f"expert {x.expert}"] if x.expert > 1 else []
    words += [f"recompute {plan.recompute.mode}"] if plan.recompute.mode != "none" else []
    words += ["activation function again"] if plan.recompute.activation_function else []
    words += [plan.offload.words] if plan.offload.is_used else []
    words += [f"layers {list(plan.partition.layers)}"] if plan.partition.layers is not None else []
    words += [f"vocabulary {plan.model.vocabulary}", plan.model.head]
    words += [f"dropout {plan.model.dropout:g}"] if plan.model.dropout else []
    words += map(str, terms_of(plan.model))
    words += ["documents apart"] if plan.model.documents == "apart" else []
    words += ["ramp"] if plan.batch.ramp is not None else []
    words += [f"ranks by {', '.join(x.order)}"] if x.order != AXES else []
    return ", ".join(words)


def _parts(model: ModelShape) -> list[str]:
    """The names of parts that are not the default ones."""
    names = ("norm", "attention", "feed_forward", "activation", "positions", "rope_pairs", "wiring")
    parts = [getattr(model, name) for name in names if getattr(model, name) != _default_of(name)]
    return parts + ([f"bias {model.bias}"] if model.bias != _default_of("bias") else [])


def _default_of(name: str) -> object:
    """The default of a setting of layers."""
    return ModelShape.model_fields[name].default


def _window_words(model: ModelShape) -> str:
    without = [str(n) for n in range(model.layers) if model.form_of(n).window is None]
    return f"window {model.window}" + (f" but in layers {' '.join(without)}" if without else "")


def _reference_rank(place: Place, plans: dict[str, tuple[Plan, Course]], folder: Path) -> None:
    for key in sorted(plans)[place.rank :: place.world_size]:
        write_reference(folder / f"{key}.safetensors", compute_reference(*plans[key]))


def _batches(plans: Sequence[Plan], way_of: Sequence[Way]) -> Iterator[list[int]]:
    """Numbers of plans of one world size and way, some at a time."""
    kinds = [(p.layout.world_size, way.name) for p, way in zip(plans, way_of, strict=True)]
    for kind in sorted(set(kinds)):
        numbers = [n for n, each in enumerate(kinds) if each == kind]
        yield from (numbers[k : k + PLANS_TOGETHER] for k in range(0, len(numbers), PLANS_TOGETHER))


@dataclass
class _Batch:
    """Plans by number, of one world size and way, that ranks certify one after the other. keep: takes the certificate
    of each as soon as it is known. note: takes the number of those that are known."""

    plans: dict[int, Plan]
    way: Way
    folder: Path
    keep: Callable[[int, Certificate], None]
    note: Callable[[int], None]
    known: set[int] = field(default_factory=set)

    def collect(self) -> None:
        """Take what all ranks of a plan have written."""
        for number, plan in self.plans.items():
            if number in self.known:
                continue
            ranks = range(plan.layout.world_size)
            if not all((self.folder / f"{number}-{rank}.json").exists() for rank in ranks):
                break
            self._keep(number, collect(plan, self.folder, str(number), self.way))
        self.note(len(self.known))

    def fail(self, number: int, error: TriviumError) -> None:
        """Keep a certificate that says what the ranks of a plan failed with."""
        self._keep(number, not_finished(self.plans[number], str(error), self.way))

    def _keep(self, number: int, found: Certificate) -> None:
        self.known.add(number)
        self.keep(number, found)


def _certify_together(batch: _Batch, timeout_seconds: float) -> None:
    """Certify the plans of a batch. Where ranks fail, each plan that is left runs in ranks of its own."""
    size = next(iter(batch.plans.values())).layout.world_size
    ranks = start_ranks(_certify_rank, size, batch.plans, batch.way, batch.folder)
    try:
        ranks.wait(timeout_seconds * len(batch.plans), batch.collect)
        batch.collect()
    except TriviumError as error:
        batch.collect()
        for unfinished in batch.folder.glob("*.json*"):
            unfinished.unlink()
        left = [number for number in batch.plans if number not in batch.known]
        if len(batch.plans) == 1 or not left:  # after the last certificate, ranks fail in ending
            batch.fail(list(batch.plans)[-1], error)
            return
        for number in left:
            _certify_together(replace(batch, plans={number: batch.plans[number]}), timeout_seconds)


def _certify_rank(place: Place, plans: dict[int, Plan], way: Way, folder: Path) -> None:
    with way.taken(), connected(place, device=CPU):
        references: dict[str, Reference] = {}
        for number, plan in plans.items():
            key = reference_key(plan, way.course)
            if key not in references:
                references[key] = reference_of(plan, way, folder)
            if (
                plan.compiled
            ):  # after some variants of one function, those of other plans too, it would be left as it is
                torch.compiler.reset()
            mesh = connect_mesh(plan, place, way)
            found = examine(plan, mesh, references[key], way)
            mesh.disconnect()
            write_findings(folder, str(number), place.rank, found)


def connect_mesh(plan: Plan, place: Place, way: Way) -> Mesh:
    """Return this rank's mesh, connected for a plan and a way of the engine."""
    ranks = place.rank, place.world_size
    return Mesh.connect(plan.layout, *ranks, CPU, ends=plan.ends, by_memory=way.by_memory)


def _noted(progress: Progress, before: int, total: int, way: Way, plans: Sequence[Plan]) -> Callable[[int], None]:
    """Return a function that reports how many plans of a mode the ranks have certified, and which one is next."""

    def note(known: int) -> None:
        progress(before + known, total, f"mode {way.name}: {describe(plans[min(known, len(plans) - 1)])}")

    return note


def write_findings(folder: Path, name: str, rank: int, found: Findings) -> None:
    """Write a rank's findings under `name`, from where `collect` reads those of all ranks."""
    path = folder / f"{name}-{rank}.json"
    unfinished = path.with_suffix(".json.part")
    unfinished.write_text(json.dumps(found))
    unfinished.rename(path)  # so that a reader sees the complete file or none


def _read(path: Path) -> Findings:
    deviations, updated = json.loads(path.read_text())
    path.unlink()
    return Findings([Deviation(*d) for d in deviations], updated)
