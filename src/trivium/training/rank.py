"""One rank of a training: connects to the others, checks the folder that all share, and runs the observed loop."""

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from trivium.checkpoint.agree import found_by_first, messages_of_ranks, sums
from trivium.checkpoint.near import host_folder, life_of, promote
from trivium.comms.launch import Place, connected
from trivium.comms.mesh import Mesh
from trivium.comms.terms import NO_TERMS
from trivium.errors import ConfigError, MachineError
from trivium.training.config import TrainingConfig
from trivium.training.loop import Loop, Observer, TrainingJob
from trivium.training.metrics import append_event, warn
from trivium.training.record import CHECKPOINTS
from trivium.training.supervision.heartbeats import RankHeartbeat
from trivium.training.supervision.preemption import exit_at_once, listening
from trivium.training.supervision.watchdog import seconds_to_wait
from trivium.training.terms import terms_of
from trivium.units import listed

OBSERVERS_PACKAGE = "trivium.training.observers"
# By file, in the order in which they are called.
OBSERVERS = {
    "energy": "Energy",  # before that which writes its figures
    "metrics": "Metrics",  # before those that read metrics.jsonl
    "profile": "Profile",
    "slow": "Slow",
    "spikes": "Spikes",  # the observers below are not called after a step that is rewound
    "measured_step": "MeasuredStep",
    "saves": "Saves",
    "mirror": "Mirror",
    "corruption": "Corruption",
    "near": "Near",  # after the comparison of replicas
    "validation": "Validation",
    "examination": "Examination",
}
OWN_SECTIONS = {
    "profile": "profile",
    "spikes": "spikes",
    "examination": "evaluation",
    "near": "near",
    "mirror": "store",
}  # sections of `training`
RECORDS = "messages-of-rank-"  # files of a training on GPUs that failed
# That a file may take to appear on another host. Its name is new, so no host has cached that it was absent.
SEEN_SECONDS = 10.0
_POLL_SECONDS = 0.1


def train_rank(place: Place, job: TrainingJob, heartbeat: RankHeartbeat | None = None) -> None:
    """Train as one rank; every rank of the job calls this. Raises Preempted if the job was asked to end."""
    watch, heartbeat = job.training.supervision, heartbeat or RankHeartbeat()
    wait = seconds_to_wait(watch, "starting", is_first=True)
    what = (job.plan, job.training, job.seed, job.tokens, job.questions)
    with (
        listening(exit_at_once) as requests,
        connected(
            place,
            timeout_seconds=wait,
            meeting_seconds=watch.stall_seconds,
            asked=requests.came,
            terms=terms_of(*what) if place.by_others else NO_TERMS,
            records=str(job.out / RECORDS),
        ),
    ):
        mesh = Mesh.connect(job.plan.layout, place.rank, place.world_size, place.device, wait, job.plan.ends)
        if place.by_others:
            refuse_separate_folders(job.out, place, mesh)
        observers = observers_of(job, mesh, heartbeat.alive)
        if job.training.near.every:
            resume_near(job, place, mesh, heartbeat.alive)
        Loop(job, mesh, observers, heartbeat=heartbeat, asked=requests.came, hosts=place.hosts).run()


def near_home(job: TrainingJob, mesh: Mesh) -> Path:
    """Return where this host keeps the copies of this training."""
    life: str = found_by_first(lambda: life_of(job.out), mesh, MachineError)
    return host_folder(job.training.near.folder) / life


def resume_near(job: TrainingJob, place: Place, mesh: Mesh, alive: Callable[[], None]) -> None:
    """Publish the copy near the ranks if it is newer than every checkpoint."""
    told = promote(near_home(job, mesh), job.out / CHECKPOINTS, mesh, is_first_here=place.local_rank == 0, alive=alive)
    if told and mesh.rank == 0:
        warn(told)
        append_event(job.out, {"event": "near copy", "cause": told})


def observers_of(job: TrainingJob, mesh: Mesh, alive: Callable[[], None]) -> list[Observer]:
    """Return the observers of a training, in the order in which they are called.

    Raises ConfigError if the config has a setting that only a missing observer reads.
    """
    config, classes = job.training, observer_classes()
    for name, section in OWN_SECTIONS.items():
        if name not in classes and getattr(config, section) != TrainingConfig.model_fields[section].default:
            raise ConfigError(
                f"training.{section} is {getattr(config, section)}, and {OBSERVERS_PACKAGE}.{name}, which alone reads "
                f"it, is not installed; install it, or leave training.{section} at its default"
            )
    arguments: dict[str, Sequence[Any]] = {
        "profile": (config.profile, job.out),
        "energy": (mesh,),
        "slow": (mesh,),
        "saves": (job.checkpoints, config, mesh, partial(append_event, job.out), alive),
        "near": (config.near.every, mesh, near_home(job, mesh), job.neighbour) if config.near.every else (),
        "mirror": (config.store, job.out, mesh),
        "validation": (job, mesh),
        "examination": (job.examiner,),
    }
    unwanted = {"examination"} if job.examiner is None else set()
    unwanted |= set() if config.near.every else {"near"}
    wanted = [name for name in classes if name not in unwanted]
    return [classes[name](*arguments.get(name, ())) for name in wanted]


def observer_classes() -> dict[str, Callable[..., Observer]]:
    """Import the observers, and return the class of each by its file, without those whose file was deleted.

    A launcher calls this before it forks ranks, so that those of a later restart run the same code.
    """
    classes: dict[str, Callable[..., Observer]] = {}
    for name, class_name in OBSERVERS.items():
        module = f"{OBSERVERS_PACKAGE}.{name}"
        try:
            classes[name] = getattr(import_module(module), class_name)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
    return classes


def refuse_separate_folders(out: Path, place: Place, mesh: Mesh, seconds: float = SEEN_SECONDS) -> None:
    """Raise MachineError on every rank, with the names of hosts, if `out` is not the same folder for all of them.

    One rank of each host writes a file. Every rank looks for that of the first rank, and the first rank for all.
    """
    mark = found_by_first(lambda: f".one-folder-{os.getpid()}-{time.time_ns()}", mesh, MachineError)
    flags = [float(place.local_rank == 0 and rank == mesh.rank) for rank in range(place.world_size)]
    files = {rank: out / f"{mark}-{rank}" for rank, writes in enumerate(sums(flags, mesh)) if writes}
    problem = ""
    try:
        if mesh.rank in files:
            try:
                files[mesh.rank].write_bytes(b"")  # does not create a missing folder
            except OSError as error:
                problem = f"no file can be written there ({error.strerror})"
        sums([0.0], mesh)  # every file has been written
        problem = problem or _unseen(files if mesh.rank == 0 else {0: files[0]}, seconds)
        told = messages_of_ranks(problem and f"{socket.gethostname()} (rank {mesh.rank}): {problem}", mesh)
    finally:
        with suppress(OSError):
            (out / f"{mark}-{mesh.rank}").unlink()
    if told:
        raise MachineError(
            f"{out} is not one folder on all hosts, and a training needs one that they share for its checkpoints; "
            f"give an --out on a shared file system, the same on every host\n" + "\n".join(told)
        )


def _unseen(files: Mapping[int, Path], seconds: float) -> str:
    """Wait until all files are there; return which are not after the time, or an empty string."""
    deadline = time.monotonic() + seconds
    while missing := [rank for rank, path in files.items() if not path.exists()]:
        if time.monotonic() > deadline:
            return f"what rank {listed(missing)} wrote there is not seen here"
        time.sleep(_POLL_SECONDS)
    return ""
