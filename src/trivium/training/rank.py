"""One rank of a training: connects to the others, checks the folder that all share, and runs the observed loop."""

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from trivium.checkpoint.agree import found_by_first, sums, told_by_all
from trivium.comms.launch import Place, connected
from trivium.comms.mesh import Mesh
from trivium.comms.terms import NO_TERMS, Terms
from trivium.errors import ConfigError, MachineError
from trivium.training.config import TrainingConfig
from trivium.training.loop import CHECKPOINTS, Loop, Observer, TrainingJob
from trivium.training.metrics import append_event
from trivium.training.supervision.preemption import exit_at_once, listening
from trivium.training.supervision.pulse import Post
from trivium.training.supervision.watchdog import seconds_to_wait
from trivium.training.terms import terms_of
from trivium.units import listed

# That a file may take to be seen on another host. Its name is new, so no host remembers that it was absent.
SEEN_SECONDS = 10.0
_LOOKING_SECONDS = 0.1


def train_rank(place: Place, job: TrainingJob, post: Post | None = None) -> None:
    """Train as one rank; every rank of the job calls this. Raises Preempted when the job was asked to end.

    post: where heartbeats go, if a launcher of ours looks for them.
    """
    watch, post = job.training.supervision, post or Post()
    wait = seconds_to_wait(watch, "starting", is_first=True)
    with (
        listening(exit_at_once) as requests,
        connected(
            place,
            timeout_seconds=wait,
            meeting_seconds=watch.stall_seconds,
            asked=requests.came,
            terms=_terms(job) if place.by_others else NO_TERMS,
        ),
    ):
        mesh = Mesh.connect(job.plan.layout, place.rank, place.world_size, place.device, wait, job.plan.ends)
        if place.by_others:
            refuse_separate_folders(job.out, place, mesh)
        observers = observers_of(job, mesh, post)
        asks = lambda: requests.came() or post.ends  # noqa: E731
        Loop(job, mesh, observers, asks=asks, alive=post.go_on, hosts=place.hosts).run()


def _terms(job: TrainingJob) -> Terms:
    return terms_of(job.plan, job.training, job.seed, job.tokens, job.questions)


def observers_of(job: TrainingJob, mesh: Mesh, post: Post) -> list[Observer]:
    """Return the observers of a training, in the order in which they are called.

    An observer can be removed by deleting its file. Raises ConfigError if the config then sets what it alone reads.
    """
    config = job.training
    every: list[tuple[str, str, str, Sequence[Any]]] = [
        # file, class, the field that it alone reads, what it is built with
        ("heartbeat", "Heartbeat", "", (post,)),
        ("metrics", "Metrics", "", ()),  # before what looks into metrics.jsonl
        ("profile", "Profile", "profile", (config.profile, job.out)),
        ("slow_ranks", "SlowRanks", "", (mesh,)),
        ("slow_links", "SlowLinks", "", (mesh,)),
        ("spikes", "Spikes", "spikes", ()),  # those below are not called after a step that is rewound
        ("measured_step", "MeasuredStep", "", ()),
        (
            "saves",
            "Saves",
            "",
            (job.out / CHECKPOINTS, config, mesh, partial(append_event, job.out), post.go_on),
        ),
        ("corruption", "Corruption", "", ()),
        ("validation", "Validation", "", (job, mesh)),
    ]
    if job.examiner is not None:
        every.append(("examination", "Examination", "evaluation", (job.examiner,)))
    return [observer for each in every for observer in _observer(config, *each)]


def _observer(
    config: TrainingConfig, file: str, name: str, section: str, given: Sequence[Any]
) -> Iterator[Observer]:
    module = f"trivium.training.observers.{file}"
    try:
        make: Callable[..., Observer] = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        if section and getattr(config, section) != TrainingConfig.model_fields[section].default:
            raise ConfigError(
                f"training.{section} is {getattr(config, section)}, and {module}, which alone reads it, is not "
                f"installed; install it, or leave training.{section} at its default"
            ) from None
        return
    yield make(*given)


def refuse_separate_folders(out: Path, place: Place, mesh: Mesh, seconds: float = SEEN_SECONDS) -> None:
    """Raise MachineError on every rank, with the names of hosts, where `out` is not one folder for all of them.

    One rank of each host writes a file. Every rank looks for that of the first rank, and the first rank for all.
    """
    mark = found_by_first(lambda: f".one-folder-{os.getpid()}-{time.time_ns()}", mesh, MachineError)
    writes = place.local_rank == 0
    flags = [0.0] * place.world_size
    flags[mesh.rank] = float(writes)
    leaders = [rank for rank, flag in enumerate(sums(flags, mesh)) if flag]
    own, problem = out / f"{mark}-{mesh.rank}", ""
    try:
        if writes:
            problem = _written(own)
        sums([0.0], mesh)  # every file has been written
        if not problem and not _is_seen([out / f"{mark}-0"], seconds):
            problem = "a file that the first host wrote there is not seen here"
        if not problem and mesh.rank == 0:
            problem = _unseen(out, mark, leaders, seconds)
        _refuse(out, problem, mesh)
    finally:
        with suppress(OSError):
            own.unlink()


def _written(path: Path) -> str:
    """Why this host cannot write there; nothing where it did. A folder that is absent here must not be made."""
    try:
        path.write_bytes(b"")
    except OSError as error:
        return f"no file can be written there ({error.strerror})"
    return ""


def _is_seen(paths: Sequence[Path], seconds: float, clock: Callable[[], float] = time.monotonic) -> bool:
    deadline = clock() + seconds
    while not all(path.exists() for path in paths):
        if clock() > deadline:
            return False
        time.sleep(_LOOKING_SECONDS)
    return True


def _unseen(out: Path, mark: str, leaders: Sequence[int], seconds: float) -> str:
    if _is_seen([out / f"{mark}-{rank}" for rank in leaders], seconds):
        return ""
    missing = [rank for rank in leaders if not (out / f"{mark}-{rank}").exists()]
    return f"files that ranks {listed(missing)} wrote there are not seen here"


def _refuse(out: Path, problem: str, mesh: Mesh) -> None:
    told = told_by_all(problem and f"{socket.gethostname()} (rank {mesh.rank}): {problem}", mesh)
    if not told:
        return
    raise MachineError(
        f"{out} is not one folder on all hosts, and a training needs one that they share for its checkpoints; give an "
        f"--out on a shared file system, the same on every host\n" + "\n".join(told)
    )
