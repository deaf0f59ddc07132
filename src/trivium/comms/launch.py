"""Start ranks, or find this process's place among those of torchrun. Only this module reads RANK and the like."""

import contextlib
import ctypes
import datetime
import gc
import json
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch.cuda import nccl

from trivium.comms.devices import SHARE, Taken, environment_of_gpus, environment_of_shared, identity, lacking, wrong_in
from trivium.comms.meeting import meet_at, nobody_asks, pause_seconds, wait_until_open
from trivium.comms.route import route_to
from trivium.comms.terms import NO_TERMS, Terms, disagreement
from trivium.errors import NOT_WORTH_REPEATING, ConfigError, Preempted, TriviumError
from trivium.units import counted, plain

COLLECTIVE_TIMEOUT_SECONDS = 120.0
MEETING_SECONDS = 600.0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3)
_MAX_INT = (1 << 31) - 1
_MAX_PORT = (1 << 16) - 1
_BY_TORCHRUN = "env://"
_REACHES_THE_FIRST = "reaches the first host"  # key in the store: the address of a host that reaches the first one
# Parts of torch's errors in a rank that was forked after torch had initialised CUDA, or autograd on a host with GPUs.
_OF_A_LATE_FORK = ("in combination with fork-based multiprocessing", "in forked subprocess")
_TOO_LATE = (
    "torch had begun with this host's accelerators before the ranks were forked; start the ranks before anything else "
    "in a new Python or, where they are to compute on the processor, with CUDA_VISIBLE_DEVICES= in its environment\n"
)


@dataclass(frozen=True)
class Place:
    """This process among the ranks. `rendezvous` is a torch init method: file://… or env://.

    local_ranks: how many ranks this host has.
    """

    rank: int
    world_size: int
    local_rank: int
    rendezvous: str
    local_ranks: int = 1

    @property
    def hosts(self) -> int:
        """Number of hosts, each with as many ranks as this one."""
        return -(-self.world_size // self.local_ranks)

    @property
    def device(self) -> torch.device:
        """A GPU for each rank of this host if it has enough, otherwise the CPU for all of them.

        Ranks that torchrun or a scheduler started may each see only their own GPU. They use the GPU they see, and
        `connected` rejects ranks that share one. TRIVIUM_DEVICES=shared lets them share it, and forked ranks too. Do
        not read this property in a process that forks ranks later: without NVML, counting GPUs initialises CUDA, which
        then fails in the forked processes.
        """
        found = torch.cuda.device_count()
        if found and (self.by_others or self.local_ranks <= found or chosen_devices() == "shared"):
            return torch.device("cuda", self.local_rank % found)
        return torch.device("cpu")

    @property
    def by_others(self) -> bool:
        """Whether torchrun or a scheduler started the ranks."""
        return self.rendezvous == _BY_TORCHRUN


ALONE = Place(0, 1, 0, "")  # a single process


class RankFailed(TriviumError):
    """A rank failed. rank: the first that did. exits: exit code of each rank, negative for the signal that killed it.

    report: the rank's error message. where: text after the rank's number, as " in step 7". The exit code of this error
    is the rank's if it means that a config, machine, data or checkpoint is wrong.
    """

    def __init__(self, rank: int, exits: dict[int, int | None], report: str, where: str = "") -> None:
        self.rank, self.exits, self.report = rank, exits, report
        code = exits.get(rank)
        self.signal = -code if code is not None and code < 0 else None
        killed = f"killed by {signal.Signals(self.signal).name}" if self.signal else ""
        self.cause = killed or report or f"exit code {code}"
        if code in NOT_WORTH_REPEATING:
            self.exit_code = code
        super().__init__(f"rank {rank} of {len(exits)}{where}: {self.cause}")


def torchrun_place() -> Place | None:
    """Return the place torchrun gave this process, or None if torchrun did not start it.

    Raises ConfigError if the environment lacks the address of the store or has an invalid rank.
    """
    environment = os.environ
    if "TORCHELASTIC_RUN_ID" not in environment and not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environment.keys():
        return None
    missing = [k for k in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not environment.get(k)]
    if missing:
        raise ConfigError(
            f"torchrun's environment lacks {' and '.join(missing)}; set it as torchrun does, or unset RANK and "
            f"WORLD_SIZE to start without"
        )
    numbers = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
    given = {k: environment.get(k, environment["RANK"]) for k in numbers}
    given["LOCAL_WORLD_SIZE"] = environment.get("LOCAL_WORLD_SIZE", "1")
    wrong = [f"{k}={value}" for k, value in given.items() if not value.isdecimal()]
    if wrong:
        raise ConfigError(f"torchrun's environment has {' and '.join(wrong)}: must be whole numbers from 0")
    rank, world_size = int(given["RANK"]), int(given["WORLD_SIZE"])
    if rank >= world_size:
        raise ConfigError(
            f"RANK={rank}, WORLD_SIZE={world_size}: ranks are 0 to {world_size - 1}; set RANK to one of them"
        )
    for name, most in (("MASTER_PORT", _MAX_PORT), ("LOCAL_WORLD_SIZE", world_size)):
        if not 1 <= int(given[name]) <= most:
            raise ConfigError(f"torchrun's environment has {name}={given[name]}: must be 1 to {most}")
    return Place(rank, world_size, int(given["LOCAL_RANK"]), _BY_TORCHRUN, int(given["LOCAL_WORLD_SIZE"]))


@contextlib.contextmanager
def connected(
    place: Place,
    *,
    timeout_seconds: float = COLLECTIVE_TIMEOUT_SECONDS,
    meeting_seconds: float = MEETING_SECONDS,
    device: torch.device | None = None,
    asked: Callable[[], bool] = nobody_asks,
    terms: Terms = NO_TERMS,
    records: str | None = None,
) -> Iterator[None]:
    """Create the process group of all ranks, and destroy it at the end; a single process needs none.

    device: of this rank's tensors, by default that of its place; it decides between NCCL and gloo. timeout_seconds: of
    each collective. The other arguments concern ranks that torchrun or a scheduler started. meeting_seconds: the
    longest wait for all of them to connect. After it, TriviumError names the missing ranks; it also names hosts that
    lack GPUs. asked: returns whether this rank received a request to end. If one does while they wait for each other,
    all end with Unmet. terms: must be the same on all ranks; otherwise every rank raises the error that says what
    differs on which host. records: prefix of the files for the messages of ranks on GPUs before a failure.
    """
    _keep_freed_memory()
    is_given = device is not None
    if device is None:
        device = place.device
        _say_if_there_are_too_few(place, device)
    if device.type == "cuda":
        _set_unless_set(environment_of_gpus(records))
    meets: dict[str, Any] = {"init_method": place.rendezvous}
    if place.by_others and place.world_size > 1:
        taken = "" if is_given else Taken(socket.gethostname(), identity(device, place.rank)).words
        meets = {"store": _met(place, meeting_seconds, taken, terms, asked)}
    elif not is_given and chosen_devices() != "any":
        shared = chosen_devices() == "shared"
        wrong = lacking(socket.gethostname(), torch.cuda.device_count(), place.local_ranks, shared=shared)
        if wrong is not None:
            raise wrong
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if place.world_size == 1:
        yield
        return
    # One thread per rank: ranks on one machine share its cores, and their order of summation stays fixed.
    torch.set_num_threads(1)
    if device.type == "cuda" and chosen_devices() == "shared":
        _set_unless_set(environment_of_shared(nccl.version()[:3], place.rank, place.hosts))
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        rank=place.rank,
        world_size=place.world_size,
        timeout=datetime.timedelta(seconds=timeout_seconds),
        **meets,
    )
    yield
    dist.destroy_process_group()


def _set_unless_set(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def _met(place: Place, seconds: float, taken: str, terms: Terms, asked: Callable[[], bool]) -> Any:
    """Return the store of ranks that torchrun or a scheduler started, after all have connected to it and reported
    their devices and terms.

    Each attempt of torchrun has its own prefix in the store, because the addresses of an earlier attempt are stale.
    """
    host, port, attempt = meeting_point()
    opens = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
    if not opens:
        wait_until_open(host, port, seconds, asked, pause=pause_seconds(place.rank, place.world_size))
    limit = datetime.timedelta(seconds=seconds)
    whole = dist.TCPStore(host, port, is_master=opens, timeout=limit, wait_for_workers=False, multi_tenant=True)
    store = dist.PrefixStore(f"trivium/{attempt}", whole)
    route = route_to(host, port) if place.hosts > 1 else None
    if route is not None:
        store.set(_REACHES_THE_FIRST, route.address)
    store.set(f"terms/{place.rank}", terms.words)
    says = json.dumps([socket.gethostname(), taken, terms.digest])
    find_wrong = partial(_wrong_in, store=store)
    here = place.rank, place.world_size, seconds
    meet_at(store, "here", *here, says=says, find_wrong=find_wrong, asked=asked)
    if route is None and place.hosts > 1 and store.check([_REACHES_THE_FIRST]):
        route = route_to(store.get(_REACHES_THE_FIRST).decode(), port)  # the route from the first host to another one
    if route is not None:
        # By default gloo uses the address of this host's name, which other hosts often cannot reach.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", route.interface)
    return store


def _wrong_in(said: Sequence[str], store: Any) -> TriviumError | None:
    """Return why ranks with these reports cannot work together, or None. store: has their terms."""
    hosts, taken, digests = zip(*map(json.loads, said), strict=True)
    chosen = chosen_devices()
    return wrong_in(taken, wanted=chosen == "accelerators", shared=chosen == "shared") or disagreement(
        hosts, digests, lambda rank: Terms.of(store.get(f"terms/{rank}").decode())
    )


def _say_if_there_are_too_few(place: Place, chosen: torch.device) -> None:
    """Warn, on the first rank only, if GPUs stay idle because there are more ranks than GPUs."""
    found = torch.cuda.device_count() if place.rank == 0 and chosen.type == "cpu" else 0
    if found:
        idle = (
            f"{place.local_ranks} ranks, and {counted(found, 'GPU')}: all compute on the processor, over gloo; "
            f"{SHARE}, which is slow"
        )
        print(plain(f"warning: {idle}"), file=sys.stderr, flush=True)


def _keep_freed_memory() -> None:
    """Let the C library keep freed memory, because the next step allocates the same blocks again.

    By default glibc returns large blocks to the kernel, which clears each page when it is used again. In a step of a
    small pipeline that causes ten to seventeen thousand page faults and takes 5 to 8 % of the time.
    """
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):  # musl has no mallopt
            library = ctypes.CDLL(None)
            library.mallopt(_M_TRIM_THRESHOLD, _MAX_INT)
            if not library.mallopt(_M_MMAP_THRESHOLD, _MAX_INT):
                library.mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the limit of older versions of glibc


def lends_memory() -> bool:
    """Return whether CPU ranks of one host may read each other's memory instead of sending messages: yes, unless
    TRIVIUM_MESSAGES is "network"."""
    chosen = os.environ.get("TRIVIUM_MESSAGES", "memory")
    if chosen not in ("memory", "network"):
        raise ConfigError(f"TRIVIUM_MESSAGES={chosen}: must be memory (the default) or network")
    return chosen == "memory"


def chosen_devices() -> Literal["any", "accelerators", "shared"]:
    """Return the devices on which ranks may compute, from TRIVIUM_DEVICES.

    any: GPUs if each rank has its own, else CPUs. accelerators: a rank without a GPU of its own is an error, as in job
    files for machines with GPUs. shared: each rank needs a GPU, which others may use too.
    """
    chosen = os.environ.get("TRIVIUM_DEVICES", "any")
    match chosen:
        case "any" | "accelerators" | "shared":
            return chosen
    raise ConfigError(f"TRIVIUM_DEVICES={chosen}: must be any (the default), accelerators or shared")


@dataclass
class Ranks:
    """Forked ranks of one job on this machine."""

    processes: list[ForkProcess]
    directory: tempfile.TemporaryDirectory[str]

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(p.pid or 0 for p in self.processes)

    def wait(self, timeout_seconds: float | None = None, watch: Callable[[], None] | None = None) -> None:
        """Wait for all ranks. If one fails, kill the others at once and raise RankFailed, which names the first.

        A rank that exits with the code of a preemption has not failed: all ranks agreed to end, and the others will
        follow. watch: is called repeatedly; an exception that it raises also kills the ranks.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        try:
            while any(p.is_alive() for p in self.processes):
                failed = [r for r, p in enumerate(self.processes) if p.exitcode not in (None, 0)]
                if any(self.processes[r].exitcode != Preempted.exit_code for r in failed):
                    raise self._failure(failed)
                if deadline is not None and time.monotonic() > deadline:
                    stuck = [r for r, p in enumerate(self.processes) if p.is_alive()]
                    raise TriviumError(f"ranks {stuck} did not finish within {timeout_seconds:.0f} s: they hang")
                if watch is not None:
                    watch()
                time.sleep(0.02)
            failed = [r for r, p in enumerate(self.processes) if p.exitcode != 0]
            if failed:
                raise self._failure(failed)
        finally:
            self.end()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the ranks that still run."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid or 0, number) if process.is_alive() else None

    def end(self) -> None:
        """Kill the ranks that still run, so that none outlives the launcher."""
        for process in self.processes:
            if process.is_alive():
                process.kill()
        for process in self.processes:
            process.join()
        self.directory.cleanup()

    def _failure(self, failed: list[int]) -> RankFailed:
        # The rank that failed first wrote its report first; the others fail because they lost it.
        time.sleep(0.1)
        folder = Path(self.directory.name)
        reports = sorted(folder.glob("failed-*"), key=lambda p: p.stat().st_mtime_ns)
        killed = [r for r in failed if (self.processes[r].exitcode or 0) < 0]
        if killed:
            first, report = killed[0], ""
        elif reports:
            first, report = int(reports[0].name.removeprefix("failed-")), reports[0].read_text()
            self.processes[first].join(timeout=5)  # it ends right after its report; the kind of error is its exit code
        else:
            first, report = failed[0], ""
        return RankFailed(first, {r: p.exitcode for r, p in enumerate(self.processes)}, report)


def start_ranks(function: Callable[..., None], world_size: int, *arguments: Any) -> Ranks:
    """Fork `world_size` ranks on this machine, each calling `function(place, *arguments)`.

    They are forked even where another start method is the default: forked ranks share the imported torch, so eight
    start in about a second.
    """
    context = get_context("fork")
    directory = tempfile.TemporaryDirectory(prefix="trivium-ranks-")
    rendezvous = f"file://{directory.name}/rendezvous"
    processes = []
    _give_back_what_is_free()
    for rank in range(world_size):
        place = Place(rank, world_size, rank, rendezvous, world_size)
        process = context.Process(
            target=_enter, args=(function, place, arguments, directory.name, os.getpid(), rank), name=f"rank-{rank}"
        )
        process.start()
        processes.append(process)
    return Ranks(processes, directory)


class Seats(NamedTuple):
    """The ranks of this host among those of several hosts: their numbers, and the store at which all meet."""

    first: int
    here: int
    world_size: int
    address: str
    port: int
    attempt: int


def start_seats(function: Callable[..., None], seats: Seats, *arguments: Any) -> Ranks:
    """Fork the ranks of this host with the environment that torchrun would set, each calling
    `function(place, *arguments)`."""
    context, directory = get_context("fork"), tempfile.TemporaryDirectory(prefix="trivium-ranks-")
    processes = []
    _give_back_what_is_free()
    for local_rank in range(seats.here):
        process = context.Process(
            target=_take_seat,
            args=(function, seats, local_rank, arguments, directory.name, os.getpid()),
            name=f"rank-{seats.first + local_rank}",
        )
        process.start()
        processes.append(process)
    return Ranks(processes, directory)


def _take_seat(
    function: Callable[..., None],
    seats: Seats,
    local_rank: int,
    arguments: tuple[Any, ...],
    directory: str,
    launcher: int,
) -> None:
    rank = seats.first + local_rank
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(seats.world_size),
        LOCAL_RANK=str(local_rank),
        LOCAL_WORLD_SIZE=str(seats.here),
        MASTER_ADDR=seats.address,
        MASTER_PORT=str(seats.port),
        TORCHELASTIC_RESTART_COUNT=str(seats.attempt),
    )
    place = Place(rank, seats.world_size, local_rank, _BY_TORCHRUN, seats.here)
    _enter(function, place, arguments, directory, launcher, local_rank)


def run_ranks(
    function: Callable[..., None], world_size: int, *arguments: Any, timeout_seconds: float | None = None
) -> None:
    """Start ranks and wait for them."""
    start_ranks(function, world_size, *arguments).wait(timeout_seconds)


def _give_back_what_is_free() -> None:
    """Collect garbage and return free memory to the system, so that forked ranks do not inherit it."""
    gc.collect()
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):  # musl has no malloc_trim
            ctypes.CDLL(None).malloc_trim(0)


def _enter(
    function: Callable[..., None], place: Place, arguments: tuple[Any, ...], directory: str, launcher: int, number: int
) -> None:
    """Run a forked rank. number: its index among the ranks that this launcher forked."""
    gc.freeze()  # otherwise the collector would write to, and so copy, every page shared with the launcher
    end_with(launcher)
    torch.set_num_threads(1)
    code = 0
    try:
        function(place, *arguments)
    except BaseException as error:  # any error must be reported to the launcher
        with contextlib.suppress(OSError), open(f"{directory}/failed-{number}", "w") as file:
            known = isinstance(error, TriviumError)
            told = str(error) if known else traceback.format_exc()
            file.write(told + (_TOO_LATE if any(words in told for words in _OF_A_LATE_FORK) else ""))
        code = getattr(error, "exit_code", 1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # skip the parent's exit handlers, and do not wait for communicators whose peers are gone


def meeting_point() -> tuple[str, int, str]:
    """Return host and port of the store of ranks that others started, and the name of torchrun's current attempt."""
    environment = os.environ
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return environment["MASTER_ADDR"], int(environment["MASTER_PORT"]), attempt


def end_with_launcher() -> None:
    """Under torchrun, end when its agent on this host dies. Do nothing for ranks that a user or a scheduler started."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with(os.getppid())


def end_with(launcher: int) -> None:
    """Ask the kernel to kill this rank when its launcher dies (Linux), so that no orphan is left."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(1)
