"""`trivium evaluate TARGET`: published benchmarks over one checkpoint or all of a run."""

import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trivium.cli.ending import ended_by_signals
from trivium.cli.options import refuse_no_place_for
from trivium.cli.show import STANDARD_OUTPUT, percent, percent_range, say, table
from trivium.config import build, merge, parse_assignments, to_tree
from trivium.errors import ConfigError, DataError
from trivium.evaluation.config import BenchmarkConfig
from trivium.plan.layout import Layout
from trivium.progress import Progress
from trivium.provenance import write_json
from trivium.untrusted import parse_json, read_bytes, read_json

if TYPE_CHECKING:
    from trivium.interchange.target import Target

FOLDER = "tasks"  # folder in a run directory


Tree = Mapping[str, Any]
Join = Callable[[Tree, Tree], Tree]
Loses = Callable[[Tree, Tree], bool]


class Kept:
    """The files of one call's results: `RUN/name/results.json`, and the user's file with the results of this call only.

    join: merges earlier results with new ones. loses: whether the merged results lack something of the earlier ones.
    The earlier file is then renamed to `results.previous.json`, `results.previous-2.json`, …, and a message says so.
    """

    def __init__(self, run: Path | None, name: str, also: Path | None, join: Join, loses: Loses) -> None:
        self._own = None if run is None else run / name / "results.json"
        self._also, self._join, self._loses = also, join, loses
        self._earlier: Tree | None = None
        self._is_there = False  # whether there is a file that this call did not write
        self._written: bytes | None = None

    def write(self, found: Tree) -> list[Path]:
        """Write the results so far, and return the paths of the files."""
        places = []
        if self._own is not None:
            self._own.parent.mkdir(parents=True, exist_ok=True)
            with _alone_in(self._own.parent):
                self._keep(self._own, found)
            places.append(self._own)
        if self._also is not None:
            self._also.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._also, found)
            places.append(self._also)
        return places

    def _keep(self, place: Path, found: Tree) -> None:
        there = _bytes(place)
        if there != self._written:  # written by an earlier or a concurrent call
            self._earlier, self._is_there = _tree(there), there is not None
        try:
            tree = found if self._earlier is None else self._join(self._earlier, found)
            lost = self._is_there and (self._earlier is None or self._loses(self._earlier, tree))
        except (KeyError, TypeError, AttributeError):  # results of an older version, or edited by hand
            tree, lost = found, True
        if lost:
            to = _free(place)
            place.rename(to)
            say(f"  earlier results, of another checkpoint or asked otherwise, are now in {to}")
            self._is_there = False
        write_json(place, tree)
        self._written = _bytes(place)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Lock a folder, so that no other call joins its results with those of the folder at the same time. File systems
    without locks cannot prevent that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _free(place: Path) -> Path:
    names = (f"{place.stem}.previous{f'-{n}' if n > 1 else ''}{place.suffix}" for n in count(1))
    return next(path for path in map(place.with_name, names) if not path.exists())


def _bytes(place: Path) -> bytes | None:
    """Return the content of a file: None if there is none, empty if it cannot be read."""
    try:
        return read_bytes(place) if place.is_file() else None
    except OSError:
        return b""


def _tree(found: bytes | None) -> Tree | None:
    """Return the results in a file's bytes; None if they are not JSON of an object."""
    try:
        tree = parse_json(found or b"")
    except ValueError:
        return None
    return tree if isinstance(tree, dict) else None


Ask = Callable[[Any], dict[str, Any]]


def refuse_layout(checkpoint: Path, layout: Layout) -> None:
    """Raise ConfigError, as a training would, if the model does not fit the layout; called before ranks start."""
    from trivium.checkpoint.format import read_manifest
    from trivium.config import build
    from trivium.model.whole import answering_plan
    from trivium.plan.plan import Plan

    plan = build(Plan, read_manifest(checkpoint)["plan"])
    answering_plan(plan.model, layout, plan.precision.weights)


def answered(work: Ask, checkpoint: Path, tokenizer: Path, layout: Layout) -> dict[str, Any] | None:
    """Run `work` with a scorer of this checkpoint, on ranks that are forked here or were started by torchrun.

    Returns plain data; None on ranks of torchrun other than the first. Raises ConfigError if the model does not fit.
    """
    from trivium.comms.launch import connected, run_ranks, torchrun_place
    from trivium.comms.mesh import Mesh
    from trivium.evaluation.answer import NativeScorer

    refuse_layout(checkpoint, layout)
    place = torchrun_place()
    if place is None and layout.world_size == 1:
        return work(NativeScorer.open(checkpoint, tokenizer))

    def on_rank(place: Any, out: Path) -> None:
        if not place.by_others:
            ended_by_signals()
        with connected(place):
            mesh = Mesh.connect(layout, place.rank, place.world_size, place.device)
            found = work(NativeScorer.open(checkpoint, tokenizer, mesh=mesh))
            if place.rank == 0:
                out.write_text(json.dumps(found), encoding="utf-8")  # keys in the order in which `work` made them

    with tempfile.TemporaryDirectory(prefix="trivium-answers-") as folder:
        out = Path(folder) / "found.json"
        if place is None:
            run_ranks(on_rank, layout.world_size, out)
        else:
            if place.world_size != layout.world_size:
                raise ConfigError(
                    f"torchrun started {place.world_size} ranks, and layout has {layout.world_size}; "
                    "set layout.tensor, layout.pipeline and layout.data so that their product is that"
                )
            on_rank(place, out)
        return read_json(out) if out.is_file() else None


@dataclass(frozen=True)
class Asked:
    """The tasks that a user asks for. field: the option that names the tasks."""

    tasks: str
    data: Path | None
    config: BenchmarkConfig
    every: bool = False
    field: str = "--tasks"


def config_of(shots: str | None, limit: int | None, sets: Sequence[str]) -> BenchmarkConfig:
    """Return the options as a config. Raises ConfigError for invalid values."""
    given: dict[str, Any] = {}
    if shots is not None:
        given["shots"] = [_shots(part.strip()) for part in shots.split(",") if part.strip()]
    if limit is not None:
        given["limit"] = limit
    return build(BenchmarkConfig, merge(parse_assignments(sets, BenchmarkConfig), given))


def rows_of(asked: Asked) -> tuple[list[Any], dict[str, str]]:
    """Return the benchmarks that are ready to run, and the missing ones with the reason.

    A task that is named itself must exist; of a group, the existing ones are used. Raises DataError if none exists.
    """
    from trivium.evaluation.benchmark import prepare
    from trivium.evaluation.tasks.definition import chosen, definition
    from trivium.evaluation.tasks.rows import local_rows

    read: Callable[..., Any]
    if asked.data is None:
        from trivium.evaluation.tasks.rows import hub_rows

        read = hub_rows
    else:
        folder = asked.data
        read = lambda of: local_rows(of, folder)  # noqa: E731
    ready, missing = [], {}
    for name, named in chosen(asked.tasks, asked.field).items():
        of = definition(name)
        try:
            rows = read(of)
        except DataError as error:
            if named:
                raise
            missing[name] = str(error)
            continue
        ready.append(prepare(of, rows, asked.config))
    if not ready:
        raise DataError("\n".join(dict.fromkeys(missing.values())))
    return ready, missing


def evaluate_target(target: "Target", asked: Asked, progress: Progress) -> Iterator[dict[str, Any]]:
    """Yield the results after each checkpoint, so that a failure at a later one loses none. Ranks of torchrun other
    than the first yield nothing."""
    from trivium.evaluation.benchmark import FORMAT, evaluate_benchmarks, series_of

    refuse_layout(_checkpoints(target, asked)[0], asked.config.layout)  # before rows are downloaded from the Hub
    ready, missing = rows_of(asked)
    overlap = _overlap(target, ready)
    series: list[dict[str, Any]] = []

    def work(scorer: Any) -> dict[str, Any]:
        return evaluate_benchmarks(ready, scorer, asked.config, overlap=overlap, progress=progress)

    for checkpoint in _checkpoints(target, asked):
        found = answered(work, checkpoint, target.tokenizer, asked.config.layout)
        if found is None:
            continue
        model = about_checkpoint(checkpoint)
        series.append({**model, "tasks": series_of(found)})
        yield {
            "format": FORMAT,
            "model": model,
            "config": to_tree(asked.config),
            "tasks": found,
            "skipped": missing,
            "series": series if asked.every else [],
            **_seen(target),
        }


def _checkpoints(target: "Target", asked: Asked) -> Sequence[Path]:
    return target.checkpoints if asked.every else (target.newest,)


def about_checkpoint(checkpoint: Path) -> dict[str, Any]:
    """Return which model answered, as plain data for results."""
    from trivium.checkpoint.format import read_manifest
    from trivium.plan.model_shape import ModelShape
    from trivium.plan.parameters import count

    manifest = read_manifest(checkpoint)
    shape = build(ModelShape, manifest["plan"]["model"])
    return {
        "checkpoint": checkpoint.name,
        "step": int(manifest["step"]),
        "tokens": int(manifest.get("tokens_seen", 0)),
        "parameters": count(shape),
        "sequence": shape.in_use.sequence,
        "sha256": manifest["sha256"],
    }


def about_newest(checkpoints: Path) -> dict[str, Any]:
    """Return the same for the newest checkpoint of a run."""
    from trivium.checkpoint.format import published

    return about_checkpoint(published(checkpoints)[-1])


def refuse_bad_place(json: Path | None) -> None:
    """Raise ConfigError before the work if the file of --json cannot be written."""
    if json == STANDARD_OUTPUT:
        raise ConfigError("--json -: the table goes to standard output; name a file")
    if json is not None:
        with suppress(OSError):  # a folder that cannot be created is named below
            json.parent.mkdir(parents=True, exist_ok=True)
    refuse_no_place_for("--json", json)


def kept(target: "Target", asked: Asked, also: Path | None) -> Kept:
    """Return the files of results of published tasks: in the run, joined with those of the same checkpoint, and the
    user's file."""
    from trivium.evaluation.joined import joined, loses

    models = [about_checkpoint(checkpoint) for checkpoint in _checkpoints(target, asked)]
    return Kept(target.run, FOLDER, also, lambda earlier, found: joined(earlier, found, models), loses)


def tell(found: Mapping[str, Any]) -> None:
    """Print the table of results, the skipped tasks, and warnings."""
    rows = [
        (
            *(task, shots, percent(r["accuracy"]), percent_range(r["interval"]), percent(r["chance"]), r["n"]),
            *(percent(r["published"]), r["normalisation"], r["truncated"], _in_corpus(r)),
        )
        for task, by_shots in found["tasks"].items()
        for shots, r in by_shots.items()
    ]
    header: tuple[str, ...] = ("task", "shots", "accuracy", "interval", "chance", "n", "MT-NLG 530B", "by")
    header += ("cut", "in corpus")
    for line in table(rows, header=header):
        say(line)
    for point in found["series"]:
        headline = ", ".join(
            f"{task} {'/'.join(percent(s['accuracy']) for s in by_shots.values())}"
            for task, by_shots in point["tasks"].items()
        )
        say(f"  step {point['step']:,}, {point['tokens']:,} tokens: {headline}")
    results = [r for by_shots in found["tasks"].values() for r in by_shots.values()]
    cut, asked = (sum(r[kind] for r in results) for kind in ("truncated", "requests"))
    if cut:
        say(cut_line(f"{cut:,} of {asked:,} prompts", found["model"]))
    if any(r.get("contamination") for r in results):
        say("  in corpus: questions that stand in the run's documents, and how many of the others are right")
    for name, why in found["skipped"].items():
        say(f"  SKIPPED {name}: {why}")


def cut_line(prompts: str, model: Mapping[str, Any]) -> str:
    """Return a line about truncated prompts. prompts: number and kind of all."""
    return (
        f"  cut: {prompts}, one for each choice, were longer than the model's {model['sequence']} tokens and lost "
        f"their beginning"
    )


def _in_corpus(result: Mapping[str, Any]) -> str:
    """Return how many questions occur in the corpus, and how many of the others are answered correctly."""
    found = result.get("contamination")
    if found is None:
        return "-"
    clean = found["clean"]
    return f"{found['n']} ({percent(clean and clean['accuracy'])})"


def _shots(text: str) -> int | str:
    if text == "few" or text.isdecimal():
        return text if text == "few" else int(text)
    raise ConfigError(f"--shots: {text!r} is no number of shots; write numbers from 0, or few, by commas")


def _overlap(target: "Target", ready: Sequence[Any]) -> Any:
    """Return the n-grams of questions that occur in the corpus of the run; None if it has no corpus."""
    if target.documents is None:
        return None
    from trivium.corpus.config import DecontaminationConfig
    from trivium.evaluation.contamination import scan_corpus

    examples = [e for b in ready for e in b.task.examples]
    return scan_corpus(target.documents, examples, DecontaminationConfig())


def _seen(target: "Target") -> dict[str, Any]:
    from trivium.evaluation.contamination import seen_while_curating

    path = target.run / "curated" / "decontamination.json" if target.run else None
    if path is None or not path.is_file():
        return {}
    return {"cut_from_corpus": len(seen_while_curating(path))}
