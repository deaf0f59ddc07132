"""A stage: one station's work as the command line runs it. Finished stages are recognised and skipped."""

import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trivium.checkpoint.lease import LEASE, Holder, holding
from trivium.checkpoint.lease import Gone as GoneHosts
from trivium.cli.run_config import RunConfig
from trivium.cli.show import progress_of, say, seconds_line
from trivium.cli.workspace import Workspace, read_result
from trivium.config import Tree, differences, to_tree
from trivium.errors import CheckpointError, ConfigError, DataError, MachineError
from trivium.plan.plan import Plan
from trivium.progress import Progress
from trivium.provenance import (
    STAMP,
    describe,
    finish_discarding,
    publishing,
    stage_key,
    stamp_hash,
    work_of,
    write_json,
)
from trivium.training.metrics import warn

if TYPE_CHECKING:
    from trivium.checkpoint.near import Neighbour

Result = Mapping[str, Any]
State = Literal["current", "goes on", "anew"]  # the state of an output, which decides what has to be done
CORPUS_PATH = "corpus_path"  # in harvest's stamp: where the user's own text lies
TRAINS = ("plan", "training")  # the sections that say what a training is
STARTED = "started.json"  # in a folder that is written directly: what the work in it was begun with


class Gone(NamedTuple):
    """A change of an output after it was finished, in words, and the extent from which it can still resume."""

    what: str
    left: int


@dataclass(frozen=True)
class Met:
    """The agreement of the hosts of an elastic job: the plan, the hosts that are gone, the file that makes ranks end at
    their next checkpoint, and the host that keeps copies for this one."""

    plan: Plan
    gone: GoneHosts
    grow: Path | None = None
    neighbour: "Neighbour | None" = None


@dataclass(frozen=True)
class Run:
    """One invocation: the checked config, the run directory, and input that lies outside of it."""

    config: RunConfig
    at: Workspace
    corpus: Path | str | None = None  # the user's own text, for harvest: a path, or a URL
    corpus_is_typed: bool = False  # in this command; otherwise it is the one that this run directory was harvested from
    tokens: Path | None = None  # token shards made elsewhere, for training
    lease: Holder | None = None  # the lease of the folder that this invocation writes in place
    met: Met | None = None

    @property
    def plan(self) -> Plan:
        """The plan under which this invocation trains."""
        return self.config.plan if self.met is None else self.met.plan

    def folder(self, name: str) -> Path:
        """Return the folder of a stage's output in this invocation."""
        return self.tokens if name == "tokens" and self.tokens is not None else self.at.folder(name)

    @property
    def tokenizer(self) -> Path:
        """The tokenizer that the tokens were made with."""
        return self.folder("tokens") / "tokenizer.json"


@dataclass(frozen=True)
class Stage:
    """A stage of a run: what it reads, does and reports.

    writes "whole": the folder appears when it is complete. "in place": the folder is written directly. An interrupted
    stage resumes if `lasting` is unchanged, the part of its recorded inputs that must stay the same. A finished stage
    resumes if its `extent` (steps) has grown, or from what is left if a part of its output is `gone`; otherwise it is
    current. "afresh": the folder is emptied first and written directly; files that Trivium did not make are set aside.

    check: raises errors that the work would meet, before anything is written or moved. apart: more lines about an
    output that was set aside, given its new folder and what changed. ask: raises ConfigError if an output may not be
    set aside because of what changed and --redo was not given. needed: why an output that is replaced is set aside and
    not deleted, or an empty text if it may be deleted. long_notes: as for `progress_of`.
    """

    name: str
    verb: str  # the command that runs the stage alone
    folder: str
    sections: tuple[str, ...]  # sections of the config on which the output depends, besides the seed
    reads: tuple[str, ...]  # folders of earlier stages
    work: Callable[[Run, Path, Progress], Result]
    summary: Callable[[Result], list[str]]
    outside: Callable[[Run], dict[str, str]] = lambda run: {}  # inputs that are not in the run directory
    writes: Literal["whole", "in place", "afresh"] = "whole"
    lasting: Callable[[Mapping[str, Any]], Tree] = lambda what: {}
    extent: Callable[[Run], int] = lambda run: 0
    gone: Callable[[Run, int], Gone | None] = lambda run, extent: None
    check: Callable[[Run, State], None] = lambda run, state: None
    ask: Callable[[Run, Sequence[str]], None] = lambda run, changed: None
    apart: Callable[[Run, Path, Sequence[str]], list[str]] = lambda run, before, changed: []
    needed: Callable[[Run], str] = lambda run: ""
    long_notes: bool = False

    def config(self, run: Run) -> dict[str, Any]:
        """The part of the config that the output depends on."""
        tree = to_tree(run.config)
        return {"seed": tree["seed"]} | {section: tree[section] for section in self.sections}

    def what(self, run: Run) -> dict[str, Any]:
        """The identity of the output; if it is equal, the work and its inputs are the same."""
        return {"verb": self.verb, "config": self.config(run), "inputs": self.inputs(run)}

    def inputs(self, run: Run) -> dict[str, str]:
        """The key of every input; DataError when one is missing or unfinished."""
        found = {name: stamp_hash(run.folder(name)) for name in self.reads}
        for name, key in found.items():
            if not key:
                raise DataError(
                    f"{run.folder(name)} is missing or unfinished, and `trivium {self.verb}` reads it; "
                    f"run `trivium {VERB_OF[name]} --out {shlex.quote(str(run.at.root))}` first{_OR.get(name, '')}"
                )
        return found | self.outside(run)


VERB_OF: Mapping[str, str] = {
    "harvest": "corpus harvest",
    "curated": "corpus curate",
    "tokens": "tokenize",
    "plan": "plan",
    "training": "train",
    "resume": "prove",
    "evaluation": "evaluate",
    "bias": "bias",
    "generate": "generate",
}

_OR: Mapping[str, str] = {"tokens": "; pairs of .bin and .idx that are there already: `trivium data adopt`"}


def is_current(stage: Stage, run: Run) -> bool:
    """Whether the stage's output is finished, still whole, and that of this very config and these inputs."""
    is_its = stamp_hash(run.at.folder(stage.folder)) == stage_key(**stage.what(run))
    return is_its and gone_from(stage, run) is None


def gone_from(stage: Stage, run: Run) -> Gone | None:
    """Return what is missing from the stage's output, if that was finished."""
    directory = run.at.folder(stage.folder)
    if not (directory / STAMP).is_file():
        return None
    return stage.gone(run, int(_begun_with(directory).get("extent", stage.extent(run))))


def state_of(stage: Stage, run: Run) -> State:
    """Return whether the stage's output is finished and belongs to this run ("current"), resumes, or begins anew."""
    directory = run.at.folder(stage.folder)
    # Read this before the stamp, which is removed before this is written. Otherwise a rank that looks while the first
    # one prepares the folder could take a training that resumes for a finished one.
    before = _begun_with(directory)
    if is_current(stage, run):
        return "current"
    if stage.writes != "in place" or _changed(stage, run, before):
        return "anew"
    if not (directory / STAMP).is_file():
        return "goes on"
    longer, gone = stage.extent(run) - int(before.get("extent", 0)), gone_from(stage, run)
    if longer < 0 or (gone is not None and gone.left == 0):
        return "anew"  # set aside, so that what it tells of itself is not written over from step 0
    return "current" if longer == 0 and gone is None else "goes on"


def _begun_with(directory: Path) -> Mapping[str, Any]:
    return read_result(directory / STARTED) if (directory / STARTED).is_file() else {}


def belongs(stage: Stage, run: Run, directory: Path) -> bool:
    """Whether the work that was begun in a folder is that of this run, so that it could be resumed."""
    return not _changed(stage, run, _begun_with(directory))


def _changed(stage: Stage, run: Run, before: Mapping[str, Any]) -> list[str]:
    """Return why work that was begun with `before` cannot be resumed: a `field: there -> here` line for each change."""
    if "config" not in before:
        return [f"{STARTED} is missing, or names no settings"]
    return differences(stage.lasting(before), stage.lasting(stage.what(run)))


def _why_anew(stage: Stage, run: Run) -> list[str]:
    """Return why a finished or interrupted stage begins anew, as `field: old -> new`; empty if its end is missing."""
    before = _begun_with(run.at.folder(stage.folder))
    if not before or (changed := _changed(stage, run, before)):
        return changed if before else []
    there, here = int(before.get("extent", 0)), stage.extent(run)
    return [f"training.steps: {there} -> {here}"] if here < there else []


def perform(stage: Stage, run: Run, *, redo: bool = False) -> None:
    """Do a stage's work unless its output is current; print what came out and remember the time it took.

    Nothing is written or moved before `stage.check` passed, nor while a job holds the folder (MachineError).
    """
    directory = run.at.folder(stage.folder)
    if not redo and is_current(stage, run):
        finish_discarding(work_of(directory))
        say(f"{stage.name}: up to date in {directory}, skipped")
        return
    state = "anew" if redo else state_of(stage, run)
    stage.check(run, state)
    if state == "current":
        say(
            f"{stage.name}: up to date in {directory}, skipped: what is set otherwise now changes nothing that was "
            f"computed; --redo does it again"
        )
        return
    if state == "anew" and not redo and stage.writes == "in place":
        stage.ask(run, _why_anew(stage, run))
    if not redo and (gone := gone_from(stage, run)) is not None:
        way = f"resumes from step {gone.left}" if state == "goes on" else "starts over"
        say(f"{stage.name}: {gone.what}; {way}")
    say(f"{stage.name}: …")
    began = time.monotonic()
    with (
        progress_of(stage.name, long_notes=stage.long_notes) as progress,
        _output(stage, run, redo=redo) as (holder, out),
        _noted(stage, run),
    ):
        result = stage.work(holder, out, progress)
    seconds = time.monotonic() - began
    run.at.record_seconds(stage.name, seconds)
    for line in stage.summary(result):
        say(line)
    say(seconds_line(stage.name, seconds))


@contextmanager
def _output(stage: Stage, run: Run, *, redo: bool) -> Iterator[tuple[Run, Path]]:
    """Yield the run and the folder that it writes, which is stamped after success."""
    what, directory = stage.what(run), run.at.folder(stage.folder)
    if stage.writes == "whole":
        reason = _why_kept(stage, run)
        keep = _aside(directory) if reason else None
        with publishing(directory, **what, keep=keep) as partial:
            yield run, partial
        if keep is not None:
            say(f"  what was in {directory} is now in {keep}: {reason}")
        return
    with _held(stage, run, redo=redo) as lease:
        (directory / STAMP).unlink(missing_ok=True)
        _write_if_other(directory / STARTED, {**what, "extent": stage.extent(run)})
        yield replace(run, lease=lease), directory
        write_json(directory / STAMP, describe(**what))


def _why_kept(stage: Stage, run: Run) -> str:
    """Return why the old output is set aside and not deleted; empty if it may be deleted or there is none."""
    directory = run.at.folder(stage.folder)
    if not directory.exists() or is_current(stage, run):
        return ""
    return stage.needed(run) if (directory / STAMP).is_file() else f"no {STAMP} says that trivium made it"


def _write_if_other(path: Path, value: Any) -> None:
    """Thousands of ranks may be reading it, over file systems that lose a file which is replaced meanwhile."""
    with suppress(DataError):
        if path.is_file() and read_result(path) == json.loads(json.dumps(value, default=str)):
            return
    write_json(path, value)


@contextmanager
def _noted(stage: Stage, run: Run) -> Iterator[None]:
    """Make the config that of the run directory, for later commands, unless the work rejects the config or its inputs.

    A stage that is written in place has begun even if data, checkpoint or machine stop it, and keeps its config. One
    that only reads a training does not change the settings for which the next training would be set aside.
    """
    refused = ConfigError if stage.writes == "in place" else (ConfigError, MachineError, DataError, CheckpointError)
    path, before = run.at.config, None
    with suppress(DataError):  # there is none, or it is damaged
        before = read_result(path)
    tree = to_tree(run.config)
    if before is not None and "training" in stage.reads:
        tree = before | {name: tree[name] for name in stage.sections if name not in TRAINS}
    _write_if_other(path, tree)
    try:
        yield
    except refused:
        if before is None:
            path.unlink()
        else:
            write_json(path, before)
        raise


@contextmanager
def _held(stage: Stage, run: Run, *, redo: bool) -> Iterator[Holder]:
    """Lock the folder for this process. Its content is continued if it belongs to the run, and set aside otherwise."""
    directory = run.at.folder(stage.folder)
    with holding(directory, warn, run.met.gone if run.met else GoneHosts()) as lease:
        filled = any(path.name != LEASE for path in directory.iterdir())
        if not filled or not (redo or state_of(stage, run) == "anew"):
            yield lease
            return
        if stage.writes == "afresh" and any((directory / name).is_file() for name in (STAMP, STARTED)):
            _empty(directory)
            yield lease
            return
        changed, aside = _changed(stage, run, _begun_with(directory)), _aside(directory)
        directory.rename(aside)
        reason = "it had other settings" if changed else ""
        if stage.writes == "afresh":
            changed, reason = [], f"no {STAMP} says that trivium made it"
        say(f"  what was in {directory} is now in {aside}{f': {reason}' if reason else ''}")
        for line in [*changed, *stage.apart(run, aside, changed)]:
            say(f"    {line}")
    # The lease went with the folder. Whoever takes the new one first has it, so look again.
    with _held(stage, run, redo=False) as lease:
        yield lease


def _empty(directory: Path) -> None:
    """Delete what a folder holds but for its lease. STAMP goes first, so that what is interrupted is not taken for
    finished, and STARTED last, so that it is still known as ours."""
    for path in sorted(directory.iterdir(), key=lambda path: (path.name == STARTED) - (path.name == STAMP)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LEASE:
            path.unlink()


def _aside(directory: Path) -> Path:
    """The first free name of training.previous, training.previous-2, …: what was set aside is never deleted."""
    names = (f"{directory.name}.previous{f'-{number}' if number > 1 else ''}" for number in count(1))
    return next(path for path in map(directory.with_name, names) if not path.exists())
