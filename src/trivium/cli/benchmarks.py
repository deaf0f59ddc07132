"""What `trivium evaluate TARGET` does: published benchmarks over one checkpoint or all of a run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trivium.cli.answers import answered, refuse_layout
from trivium.cli.kept import Kept
from trivium.cli.options import refuse_no_place_for
from trivium.cli.show import STANDARD_OUTPUT, percent, percent_range, say, table
from trivium.config import build, merge, parse_assignments, to_tree
from trivium.errors import ConfigError, DataError
from trivium.evaluation.config import BenchmarkConfig
from trivium.progress import Progress

if TYPE_CHECKING:
    from trivium.interchange.target import Target

FOLDER = "tasks"  # of a run directory


@dataclass(frozen=True)
class Asked:
    """What a user wants to know. field: what names the tasks."""

    tasks: str
    data: Path | None
    config: BenchmarkConfig
    every: bool = False
    field: str = "--tasks"


def config_of(shots: str | None, limit: int | None, sets: Sequence[str]) -> BenchmarkConfig:
    """The options as a config; ConfigError names what cannot be."""
    given: dict[str, Any] = {}
    if shots is not None:
        given["shots"] = [_shots(part.strip()) for part in shots.split(",") if part.strip()]
    if limit is not None:
        given["limit"] = limit
    return build(BenchmarkConfig, merge(parse_assignments(sets, BenchmarkConfig), given))


def rows_of(asked: Asked) -> tuple[list[Any], dict[str, str]]:
    """Benchmarks ready to be asked, and those that were not found, with the reason.

    A task named itself must be there; of a group, those that are there are asked. DataError when none is.
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
    """The results tree after each checkpoint, so that none is lost with a later one; on ranks of torchrun that have
    nothing to say there is none."""
    from trivium.evaluation.benchmark import FORMAT, evaluate_benchmarks, series_of

    refuse_layout(_checkpoints(target, asked)[0], asked.config.layout)  # before rows are read: from the Hub
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
    """Which model it is: plain data for results."""
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
        "sequence": shape.sequence,
        "sha256": manifest["sha256"],
    }


def about_newest(checkpoints: Path) -> dict[str, Any]:
    """The same of the newest checkpoint of a run."""
    from trivium.checkpoint.format import published

    return about_checkpoint(published(checkpoints)[-1])


def refuse_bad_place(json: Path | None) -> None:
    """Where --json names no file that could be written: found before the work, not after it."""
    if json == STANDARD_OUTPUT:
        raise ConfigError("--json -: the table goes to standard output; name a file")
    if json is not None:
        with suppress(OSError):  # what cannot be made is named below
            json.parent.mkdir(parents=True, exist_ok=True)
    refuse_no_place_for("--json", json)


def kept(target: "Target", asked: Asked, also: Path | None) -> Kept:
    """Where results of published tasks go: into the run, beside those of the same checkpoint, and where the user
    wants them."""
    from trivium.evaluation.joined import joined, loses

    models = [about_checkpoint(checkpoint) for checkpoint in _checkpoints(target, asked)]
    return Kept(target.run, FOLDER, also, lambda earlier, found: joined(earlier, found, models), loses)


def tell(found: Mapping[str, Any]) -> None:
    """Print the table of results, what was left out, and what deserves a warning."""
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
            f"{task} {'/'.join(percent(a) for a in by_shots.values())}" for task, by_shots in point["tasks"].items()
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
    """What became of some prompts; prompts: how many of which."""
    return (
        f"  cut: {prompts}, one for each choice, were longer than the model's {model['sequence']} tokens and lost "
        f"their beginning"
    )


def _in_corpus(result: Mapping[str, Any]) -> str:
    """How many questions stand in the corpus, and how many of the others are right."""
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
    """The questions' n-grams that stand in the corpus of the run; None where there is no corpus."""
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
