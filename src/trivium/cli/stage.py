"""A stage: one station's work as the command line runs it. Finished stages are recognised and skipped."""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trivium.checkpoint.lease import refuse_if_held
from trivium.cli.run_config import RunConfig
from trivium.cli.show import progress_of, say, seconds_line
from trivium.cli.workspace import Workspace, read_result
from trivium.config import to_tree
from trivium.errors import DataError
from trivium.progress import Progress
from trivium.provenance import STAMP, describe, publishing, stage_key, stamp_hash, write_json

Result = Mapping[str, Any]
CORPUS_PATH = "corpus_path"  # in harvest's stamp: where the user's own text lies
STARTED = "started.json"  # in a folder that is written directly: what the work in it was begun with


@dataclass(frozen=True)
class Run:
    """One invocation: the checked config, the run directory, and input that lies outside of it."""

    config: RunConfig
    at: Workspace
    corpus: Path | None = None  # the user's own text, for harvest
    tokens: Path | None = None  # token shards made elsewhere, for training

    def folder(self, name: str) -> Path:
        """Where a station's output lies in this invocation."""
        return self.tokens if name == "tokens" and self.tokens is not None else self.at.folder(name)

    @property
    def tokenizer(self) -> Path:
        """The tokenizer that the tokens were made with."""
        return self.folder("tokens") / "tokenizer.json"


def _nothing(run: Run) -> dict[str, str]:
    return {}


def _nothing_lasts(run: Run) -> str:
    return ""


def _no_extent(run: Run) -> int:
    return 0


@dataclass(frozen=True)
class Stage:
    """What a station reads, does and reports.

    writes "whole": its folder appears when it is complete. "in place": it is written directly and goes on where
    it was interrupted, as long as `lasting` (a digest of what must not change underneath it) is the same; once
    finished, it goes on only to a larger `extent` (steps). "afresh": it is written directly, and the work empties
    it first.
    """

    name: str
    verb: str  # what a user types to run it alone
    folder: str
    sections: tuple[str, ...]  # of the config, that the output depends on, besides the seed
    reads: tuple[str, ...]  # folders of earlier stages
    work: Callable[[Run, Path, Progress], Result]
    summary: Callable[[Result], list[str]]
    outside: Callable[[Run], dict[str, str]] = _nothing  # inputs that are not in the run directory
    writes: Literal["whole", "in place", "afresh"] = "whole"
    lasting: Callable[[Run], str] = _nothing_lasts
    extent: Callable[[Run], int] = _no_extent

    def config(self, run: Run) -> dict[str, Any]:
        """The part of the config that the output depends on."""
        tree = to_tree(run.config)
        return {"seed": tree["seed"]} | {section: tree[section] for section in self.sections}

    def what(self, run: Run) -> dict[str, Any]:
        """What identifies the output: equal means the same work on the same inputs."""
        return {"verb": self.verb, "config": self.config(run), "inputs": self.inputs(run)}

    def inputs(self, run: Run) -> dict[str, str]:
        """The key of every input; DataError when one is missing or unfinished."""
        found = {name: stamp_hash(run.folder(name)) for name in self.reads}
        for name, key in found.items():
            if not key:
                raise DataError(
                    f"{run.folder(name)} is missing or unfinished, and `trivium {self.verb}` reads it; "
                    f"run `trivium {VERB_OF[name]} --out {run.at.root}` first"
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


def is_current(stage: Stage, run: Run) -> bool:
    """Whether the stage's output is finished and is that of this config and these inputs."""
    return stamp_hash(run.at.folder(stage.folder)) == stage_key(**stage.what(run))


def perform(stage: Stage, run: Run, *, redo: bool = False) -> None:
    """Do a stage's work unless its output is current; print what came out and remember the time it took."""
    what, directory = stage.what(run), run.at.folder(stage.folder)
    if not redo and is_current(stage, run):
        say(f"{stage.name}: up to date in {directory}, skipped")
        return
    run.at.root.mkdir(parents=True, exist_ok=True)
    write_json(run.at.config, to_tree(run.config))
    say(f"{stage.name}: …")
    began = time.monotonic()
    with progress_of(stage.name) as progress:
        if stage.writes == "whole":
            with publishing(directory, **what) as partial:
                result = stage.work(run, partial, progress)
        else:
            if stage.writes == "in place":
                _set_aside_unless_it_goes_on(stage, run, directory, redo=redo)
            directory.mkdir(parents=True, exist_ok=True)
            (directory / STAMP).unlink(missing_ok=True)
            result = stage.work(run, directory, progress)
            write_json(directory / STAMP, describe(**what))
    seconds = time.monotonic() - began
    run.at.record_seconds(stage.name, seconds)
    for line in stage.summary(result):
        say(line)
    say(seconds_line(stage.name, seconds))


def _set_aside_unless_it_goes_on(stage: Stage, run: Run, directory: Path, *, redo: bool) -> None:
    """Leave in place what can be gone on with; set aside what was made with something else."""
    now = {"lasting": stage.lasting(run), "extent": stage.extent(run)}
    started = directory / STARTED
    before = read_result(started) if started.is_file() else {}
    finished = (directory / STAMP).is_file()
    goes_on = before.get("lasting") == now["lasting"] and (
        not finished or before.get("extent", 0) < now["extent"]
    )
    if directory.exists() and any(directory.iterdir()) and (redo or not goes_on):
        refuse_if_held(directory)
        aside = directory.with_name(f"{directory.name}.previous")
        if aside.exists():
            shutil.rmtree(aside)
        directory.rename(aside)
        say(f"  what was in {directory} is now in {aside}")
    directory.mkdir(parents=True, exist_ok=True)
    write_json(started, now)
