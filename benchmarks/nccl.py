"""Several ranks over NCCL on one GPU, compared with one process on the same GPU.

    python benchmarks/nccl.py --json out.json [--report folder] [--only 'pipeline*'] [--cpu]

This shows whether ranks ask NCCL for the right things in the right order, and what its sums are; it shows no speed, as
ranks that share a GPU take turns on it (TRIVIUM_DEVICES=shared). Every plan is compared in fp64 with the plain model of
the certificate, and in fp32 and bf16 with the engine in one process. A check that takes longer than its limit fails,
and the whole script ends within its own limit: what there was no time for is listed as not run, and the script fails.

--cpu runs the same checks over gloo on processors, where no step is recorded.
"""

import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from needed import require

require("numpy", "pyarrow", "pydantic", "PyYAML", "safetensors", "tiktoken", "tokenizers")

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # for chaos.scene
import torch
import torch._dynamo  # before ranks are forked, which would each take seconds for it
from circumstances import circumstances
from gpu_page import where_it_goes, write

from chaos import scene
from trivium.certify.certificate import (
    IN_FP64,
    TOLERANCE,
    Deviation,
    Least,
    certificate,
    compare,
    coverage,
    train_alone,
)
from trivium.certify.courses import Course
from trivium.certify.reference import compute_reference, read_reference, reference_key, write_reference
from trivium.certify.ways import Replaced, Way
from trivium.comms.collectives import all_reduce_
from trivium.comms.launch import Place, Ranks, connected, run_ranks
from trivium.comms.mesh import Mesh
from trivium.config import Tree, merge
from trivium.errors import TriviumError
from trivium.plan.layout import Layout
from trivium.plan.plan import Plan
from trivium.training.metrics import EVENTS, METRICS, read
from trivium.training.recorded_step import RecordedStep
from trivium.training.supervision.job import start

WHOLE_SECONDS = 450.0  # the script is to end within 8 minutes
COLLECTIVE_SECONDS = 60.0
# Ranks take turns on the GPU. With plan.overlap_tensor a step has hundreds of messages, one after the other, and each
# waits for several turns of about 2 ms.
SECONDS_PER_RANK, SECONDS_PER_RANK_OF_A_RING = 15.0, 30.0
BASE: Tree = {
    "model": {
        "layers": 4,
        "hidden": 64,
        "heads": 4,
        "vocabulary": 61,
        "vocabulary_multiple": 4,
        "sequence": 16,
        "head": "untied",
    },
    "batch": {"sequences": 8, "micro": 2},
}
RECORDED: Tree = {"cuda_graphs": True}
# The plans by name, the most telling first, in case that the time does not suffice for all of them.
CASES: Mapping[str, Tree] = {
    "tensor 2, sequences split": {"layout": {"tensor": 2}, "sequence_parallel": True},
    "tensor 4, ring": {"layout": {"tensor": 4}, "sequence_parallel": True, "overlap_tensor": True},
    "data 2, ZeRO 1": {"layout": {"data": 2}, "zero": 1},
    "pipeline 2, 1F1B": {"layout": {"pipeline": 2}, "schedule": "1f1b"},
    "context 2, ring": {"layout": {"context": 2}, "context_attention": "ring"},
    "pipeline 2, interleaved": {"layout": {"pipeline": 2, "chunks": 2}, "schedule": "interleaved"},
    "data 2, ZeRO 3": {"layout": {"data": 2}, "zero": 3},
    "tensor 2, recorded": {"layout": {"tensor": 2}, **RECORDED},
    "tensor 2, ring, recorded": {
        "layout": {"tensor": 2},
        "sequence_parallel": True,
        "overlap_tensor": True,
        **RECORDED,
    },
    "pipeline 2, recorded": {"layout": {"pipeline": 2}, "schedule": "1f1b", **RECORDED},
    "data 2, recorded": {"layout": {"data": 2}, "zero": 1, **RECORDED},
    "context 2, recorded": {"layout": {"context": 2}, "context_attention": "ring", **RECORDED},
    "context 2, Ulysses": {"layout": {"context": 2}, "context_attention": "ulysses"},
    "pipeline 2, ZB-H1": {"layout": {"pipeline": 2}, "schedule": "zb-h1"},
    "pipeline 2, ZB-V": {"layout": {"pipeline": 2, "chunks": 2}, "schedule": "zb-v"},
    "pipeline 2, heads in turns": {"layout": {"pipeline": 2, "chunks": 2}, "schedule": "zb-turns"},
    "pipeline 2, GPipe": {"layout": {"pipeline": 2}, "schedule": "gpipe"},
    "pipeline 2, 1F1B, backward split": {"layout": {"pipeline": 2}, "schedule": "1f1b-split"},
    "data 2, ZeRO 2": {"layout": {"data": 2}, "zero": 2},
    "data 2, ZeRO 0": {"layout": {"data": 2}, "zero": 0},
    "tensor 2, sequences whole, tied head": {"layout": {"tensor": 2}, "model": {"head": "tied"}},
    "pipeline 2, tied head": {"layout": {"pipeline": 2}, "model": {"head": "tied"}},
    "tensor 2, pipeline 2, data 2": {
        "layout": {"tensor": 2, "pipeline": 2, "data": 2},
        "sequence_parallel": True,
        "zero": 1,
    },
}
STEPS, STEPS_RECORDED = 3, 5  # the first two are not replayed: one to run before, and one that is measured


class Bound(NamedTuple):
    """tolerance: the largest deviation that passes. least: what a parameter's gradients and weights count for at
    least."""

    tolerance: float
    least: Least


BOUNDS: Mapping[str, Bound] = {
    "fp64": Bound(TOLERANCE, IN_FP64),
    "fp32": Bound(1e-4, Least(gradient=1e-2, weight=1e-2)),
    "bf16": Bound(1e-1, Least(gradient=1e-1, weight=1e-1)),
}
# Every part of a training that goes on under another layout, each of so many steps.
PARTS: tuple[Tree, ...] = ({"tensor": 2}, {"data": 2, "zero": 3}, {"pipeline": 2})
STEPS_OF_PART = 4
KILLED_RANK, KILLED_AFTER = 1, 3  # and the step


class Failed(TriviumError):
    """A check found something wrong, which its message says."""


@dataclass(frozen=True)
class Setting:
    """Where a check works, and until when."""

    folder: Path
    until: float
    on_gpu: bool

    @property
    def left(self) -> float:
        return max(1.0, self.until - time.monotonic())

    def watch(self, ranks: Ranks, step: int) -> None:
        """End a training that takes too long."""
        if time.monotonic() > self.until:
            raise Failed(f"the training did not get beyond step {step} in time")


class Check(NamedTuple):
    """run: says what was found, or raises. limit_seconds: that it may take. needed: without it no other is worth its
    time."""

    name: str
    run: Callable[[Setting], str]
    limit_seconds: float
    needed: bool = False


def checks() -> list[Check]:
    """Every check in order."""
    plans = [Check(name, partial(_compared, name), _limit_seconds(planned(name, "fp32"))) for name in CASES]
    return [
        Check("two ranks sum", _summed, 60.0, needed=True),
        Check("references of one process", _references, 60.0, needed=True),
        *plans[:6],
        Check("a killed rank is named", _killed, 60.0),
        Check("a training resumes in other layouts", _resumed, 120.0),
        *plans[6:],
    ]


def _limit_seconds(plan: Plan) -> float:
    each = SECONDS_PER_RANK_OF_A_RING if plan.overlap_tensor else SECONDS_PER_RANK
    return max(60.0, each * plan.layout.world_size)


def main(arguments: list[str]) -> int:
    """Run the checks. Exit code 1 where one fails or has no time, and 3 where there is no GPU."""
    parser = where_it_goes(__doc__)
    parser.add_argument("--cpu", action="store_true", help="over gloo on processors")
    parser.add_argument("--only", default="*", help="checks whose names match, and those that they need")
    options = parser.parse_args(arguments)
    os.environ["TRIVIUM_DEVICES"] = "any" if options.cpu else "shared"
    if options.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    chosen = [check for check in checks() if check.needed or fnmatchcase(check.name, options.only)]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(_tell_device, 1, Path(folder), timeout_seconds=60.0)
        device = json.loads((Path(folder) / "device").read_text())
        if not (device["nccl"] or options.cpu):
            print("error: torch finds no CUDA device; --cpu runs the checks on processors", file=sys.stderr)
            return 3
        rows = list(_rows(chosen, Path(folder), begin + WHOLE_SECONDS, on_gpu=not options.cpu))
    record = {
        **circumstances("benchmarks/nccl.py", arguments),
        **device,
        "seconds": round(time.monotonic() - begin, 1),
        "checks": rows,
    }
    write("nccl", record, options, page)
    print(page(record))
    return 0 if all(row["status"] == "passed" for row in rows) else 1


def _rows(chosen: list[Check], folder: Path, deadline: float, *, on_gpu: bool) -> Iterator[dict[str, Any]]:
    """The result of each check."""
    reason = ""
    for number, check in enumerate(chosen):
        begin = time.monotonic()
        if not reason and begin >= deadline:
            reason = f"no time was left of {WHOLE_SECONDS:.0f} s"
        if reason:
            yield {"check": check.name, "status": "not run", "seconds": 0.0, "found": reason}
            continue
        setting = Setting(folder, min(deadline, begin + check.limit_seconds), on_gpu)
        try:
            status, found = "passed", check.run(setting)
        except TriviumError as error:
            status, found = "failed", str(error)
        except Exception:
            status, found = "failed", traceback.format_exc()
        if status == "failed" and check.needed:
            reason = f"the check '{check.name}' failed"
        seconds = round(time.monotonic() - begin, 1)
        print(f"{number + 1} of {len(chosen)}: {check.name}: {status}, {seconds} s", file=sys.stderr, flush=True)
        yield {"check": check.name, "status": status, "seconds": seconds, "found": found[-4000:]}


def _tell_device(place: Place, folder: Path) -> None:
    """Say what the ranks compute on. A process that has asked cannot fork ranks, so one of them does."""
    on_gpu = place.device.type == "cuda"
    told = {
        "device": torch.cuda.get_device_name(place.device) if on_gpu else "processor",
        "cuda": torch.version.cuda if on_gpu else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else None,
    }
    (folder / "device").write_text(json.dumps(told))


def planned(name: str, weights: str) -> Plan:
    """The plan of a case in a precision."""
    tree = merge(merge(BASE, CASES[name]), {"precision": {"weights": weights}})
    return Plan.model_validate(tree).checked()


def _way(name: str) -> Way:
    return Way("nccl", course=Course(STEPS_RECORDED if CASES[name].get("cuda_graphs") else STEPS))


def _reference_path(name: str, weights: str, folder: Path) -> Path:
    return folder / f"{reference_key(planned(name, weights), _way(name).course)}-{weights}.safetensors"


def _summed(setting: Setting) -> str:
    run_ranks(_sum_rank, 2, setting.on_gpu, timeout_seconds=setting.left)
    return "1 + 2 = 3"


def _sum_rank(place: Place, on_gpu: bool) -> None:
    with connected(place, timeout_seconds=COLLECTIVE_SECONDS):
        if (place.device.type == "cuda") != on_gpu:
            raise Failed(f"rank {place.rank} computes on {place.device}")
        mesh = Mesh.connect(Layout(data=2), place.rank, place.world_size, place.device)
        found = float(all_reduce_(torch.full((1,), 1.0 + place.rank, device=place.device), mesh.data))
        if found != 3.0:
            raise Failed(f"rank {place.rank} found 1 + 2 = {found}")


def _references(setting: Setting) -> str:
    run_ranks(_reference_rank, 1, setting.folder, timeout_seconds=setting.left)
    return f"{len(list(setting.folder.glob('*.safetensors')))} of them"


def _reference_rank(place: Place, folder: Path) -> None:
    """In fp64 by the plain model, otherwise by the engine in this one process."""
    for name in CASES:
        for weights in BOUNDS:
            path, plan, course = (_reference_path(name, weights, folder), planned(name, weights), _way(name).course)
            if not path.exists():
                alone = weights != "fp64"
                write_reference(
                    path, train_alone(plan, place.device, course) if alone else compute_reference(plan, course)
                )


def _compared(name: str, setting: Setting) -> str:
    size = planned(name, "fp32").layout.world_size
    run_ranks(_compared_rank, size, name, setting.folder, timeout_seconds=setting.left)
    told = [json.loads((setting.folder / f"{name}-{rank}").read_text()) for rank in range(size)]
    found, wrong = [], []
    for weights, bound in BOUNDS.items():
        plan, here = planned(name, weights), [each[weights] for each in told]
        deviations = [Deviation(*d) for each in here for d in each["deviations"]]
        deviations += coverage(plan, [each["updated"] for each in here])
        verdict = certificate(plan, deviations, _way(name), bound.tolerance)
        found.append(f"{weights} {verdict.worst:.1e} ({verdict.worst_parameter})")
        if not verdict.passed:
            wrong.append(f"{weights}: {verdict.first}")
        least = STEPS_RECORDED - 2 if plan.cuda_graphs and setting.on_gpu else 0
        if any(each["replays"] < least for each in here):
            wrong.append(f"{weights}: replays by rank {[each['replays'] for each in here]}, not {least}")
    if wrong:
        raise Failed("; ".join(wrong))
    return ", ".join(found)


def _compared_rank(place: Place, name: str, folder: Path) -> None:
    told, plan = {}, planned(name, "fp32")
    with connected(place, timeout_seconds=COLLECTIVE_SECONDS):
        ranks = place.rank, place.world_size
        mesh = Mesh.connect(plan.layout, *ranks, place.device, ends=plan.ends)
        for weights, bound in BOUNDS.items():
            reference = read_reference(_reference_path(name, weights, folder))
            with _replays() as replays:
                found = compare(planned(name, weights), mesh, reference, _way(name), bound.least)
            told[weights] = {**found._asdict(), "replays": len(replays)}
    (folder / f"{name}-{place.rank}").write_text(json.dumps(told))


@contextmanager
def _replays() -> Iterator[list[int]]:
    """Inside, every replay of a step is noted."""
    seen: list[int] = []
    replay = RecordedStep.replay

    def noted(step: RecordedStep, inputs: Any) -> Any:
        seen.append(step.sequences)
        return replay(step, inputs)

    with Replaced(RecordedStep, "replay", noted).applied():
        yield seen


def _tokens(folder: Path) -> Path:
    """Return the tokens of the small training that is killed and resumed. They are written once."""
    home = folder / "corpus"
    return home / "tokens" if home.exists() else scene.write_tokens(home)


def _resumed(setting: Setting) -> str:
    """Compare every step of a training in parts, each in another layout, with a training in one process."""
    tokens, steps = _tokens(setting.folder), STEPS_OF_PART * len(PARTS)
    alone, parts = setting.folder / "alone", setting.folder / "parts"
    start(scene.job(tokens, alone, scene.plan({}), steps=steps), watch=setting.watch)
    for number, layout in enumerate(PARTS):
        until = STEPS_OF_PART * (number + 1)
        start(scene.job(tokens, parts, scene.plan(layout), steps=until), watch=setting.watch)
    resumed = [event["step"] for event in read(parts / EVENTS) if event["event"] == "resumed"]
    expected = [STEPS_OF_PART * number for number in range(1, len(PARTS))]
    if resumed != expected:
        raise Failed(f"resumed at steps {resumed}, not {expected}")
    one, other = (
        {m["step"]: (m["loss"], m["gradient_norm"]) for m in read(out / METRICS) if "loss" in m}
        for out in (alone, parts)
    )
    if one.keys() != other.keys() or len(one) != steps:
        raise Failed(f"steps {sorted(other)}, not {sorted(one)}")
    away = {
        step: max(abs(x - right) / abs(right) for x, right in zip(other[step], one[step], strict=True)) for step in one
    }
    worst = max(away, key=away.__getitem__)
    if not away[worst] <= TOLERANCE:
        raise Failed(f"step {worst} is off by {away[worst]:.2g}, more than {TOLERANCE:g}")
    return f"{steps} steps in fp64, off by at most {away[worst]:.1e}"


def _killed(setting: Setting) -> str:
    """Kill a rank in the middle of a training, and see who is named."""
    killed: list[float] = []

    def watch(ranks: Ranks, step: int) -> None:
        setting.watch(ranks, step)
        if not killed and step >= KILLED_AFTER:
            killed.append(time.monotonic())
            os.kill(ranks.pids[KILLED_RANK], signal.SIGKILL)

    job = scene.job(_tokens(setting.folder), setting.folder / "killed", scene.plan({"data": 2, "zero": 1}))
    try:
        start(job, watch=watch)
    except TriviumError as error:
        if not re.fullmatch(rf"rank {KILLED_RANK} of 2 in step \d+.*: killed by SIGKILL", str(error)):
            raise Failed(f"rank {KILLED_RANK} was killed, and the error was: {error}") from error
        return f"{error}; after {time.monotonic() - killed[0]:.1f} s"
    raise Failed("the training ended as if no rank had been killed")


def page(record: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    rows = record["checks"]
    passed = sum(row["status"] == "passed" for row in rows)
    over = f"NCCL {record['nccl']}, CUDA {record['cuda']}" if record["nccl"] else "gloo, without a GPU"
    bounds = ", ".join(f"{bound.tolerance:g} in {weights}" for weights, bound in BOUNDS.items())
    return "\n".join(
        [
            f"# Several ranks on one device, {record['date'][:10]}",
            "",
            f"- {passed} of {len(rows)} checks passed, in {record['seconds']:.0f} s",
            f"- device: {record['device']}; ranks talk over {over}",
            f"- torch {record['torch']}, Python {record['python']}",
            f"- commit {record['commit']}{' with uncommitted changes' if record['changed'] else ''}",
            f"- command: `{record['command']}`",
            "",
            "Ranks take turns on the device: the seconds are no measure of speed. The deviations are the largest of "
            f"losses, gradients, norms and weights; the most that passes is {bounds}.",
            "",
            "| check | result | seconds | found |",
            "|---|---|---:|---|",
            *(f"| {r['check']} | {r['status']} | {r['seconds']:.1f} | {_cell(r['found'])} |" for r in rows),
            "",
        ]
    )


def _cell(text: str) -> str:
    """The last line, which of a traceback is the error; the figures have all of it."""
    lines = text.strip().splitlines() or [""]
    return lines[-1].replace("|", "/")[-500:]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    sys.exit(main(sys.argv[1:]))
