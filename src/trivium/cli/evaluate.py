"""`trivium evaluate`: a checkpoint on tasks made from held-out documents, or on published ones."""

import inspect
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli.benchmarks import (
    Asked,
    about_newest,
    config_of,
    cut_line,
    evaluate_target,
    kept,
    refuse_bad_place,
    tell,
)
from trivium.cli.model_argument import asked_model, model_path
from trivium.cli.options import (
    DEFAULT_OUT,
    AskedAdapter,
    Out,
    Preset,
    Reads,
    Redo,
    Sets,
    given_for,
    open_run,
    with_options_of,
)
from trivium.cli.paths import local_path
from trivium.cli.settings import App, Command, shows
from trivium.cli.show import percent, percent_range, progress_of, say, table
from trivium.cli.stage import Result, Run, Stage, perform
from trivium.errors import ConfigError
from trivium.evaluation.config import BenchmarkConfig
from trivium.progress import Progress
from trivium.provenance import fingerprint, write_json
from trivium.report.verdicts import significant_scores
from trivium.units import counted, listed

app = App()


Target = Annotated[
    Path | None,
    typer.Argument(
        parser=model_path,
        metavar="MODEL",
        help="Evaluate this run, checkpoint, Hugging Face folder or hf:ORG/NAME on published tasks. Without it, "
        "evaluate the run of --out on tasks made from its held-out documents.",
    ),
]
Tasks = Annotated[
    str, typer.Option("--tasks", metavar="NAMES", help="Published tasks by commas; mt-nlg is all of the paper's.")
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data", parser=local_path, metavar="DIR", help="Local JSON lines, a folder a task. Default: from the Hub."
    ),
]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Questions of each task.")]
Shots = Annotated[str | None, typer.Option("--shots", metavar="0,1,few", help="Solved examples before each question.")]
Json = Annotated[
    Path | None, typer.Option("--json", parser=local_path, metavar="FILE", help="Write the results here too.")
]


_OF_PUBLISHED_TASKS = (
    "for published tasks, which are asked of what is named: `trivium evaluate MODEL --tasks …`; leave it out for the "
    "tasks made of the run's own held-out documents"
)
_OF_HELD_OUT_TASKS = (
    "for the tasks made of a run's own held-out documents: `trivium evaluate --out RUN`; leave it out where published "
    "tasks are asked of what is named"
)

_OF_MODELS = "for a model that is asked; a file of predictions holds the answers already: leave it out"


class _EitherWay(Command):
    """The verb's options, and those of the station of a run, which works when no target is named."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._station = typer.main.get_command(_station)
        own = {p.name for p in self.params}
        self.params += [p for p in self._station.params if p.name not in own]

    def invoke(self, ctx: Any) -> Any:
        """Hand each function the options that are its own; ConfigError for one that only the other has."""
        alone = ctx.params["target"] is None
        function = _evaluate_run if alone else evaluate
        names = inspect.signature(function).parameters
        self._refuse_others(ctx, names, _OF_PUBLISHED_TASKS if alone else _OF_HELD_OUT_TASKS)
        if not alone and ctx.params["target"].is_file():
            self._refuse_others(ctx, ("target", "data", "json"), _OF_MODELS)
        return ctx.invoke(function, **{k: v for k, v in ctx.params.items() if k in names})

    def _refuse_others(self, ctx: Any, names: Collection[str], why: str) -> None:
        others = [p for p in self.params if p.name not in names]
        given = [p.opts[0] for p in others if ctx.get_parameter_source(p.name).name == "COMMANDLINE"]
        if given:
            raise ConfigError(f"{', '.join(given)}: {why}")


_station = App()


@_station.command()
def _evaluate_run(out: Out = DEFAULT_OUT, preset: Preset = None, sets: Sets = None, redo: Redo = False) -> None:
    Reads("evaluate", EVALUATE.sections).check(sets)
    perform(EVALUATE, open_run(out, given_for(out, preset, sets)), redo=redo)


@dataclass
class _Asked:
    """The options of `evaluate` for a model that is named."""

    target: Target = None
    tasks: Tasks = "mt-nlg"
    data: Data = None
    limit: Limit = None
    shots: Shots = None
    json: Json = None
    every: Annotated[bool, typer.Option("--every", help="Every checkpoint of the run: accuracy against tokens.")] = (
        False
    )
    adapter: AskedAdapter = None
    sets: Sets = None


@app.command(cls=_EitherWay)
@shows("seed", "wording", "layout", root=BenchmarkConfig)
@with_options_of(_Asked)
def evaluate(given: _Asked) -> None:
    """Score held-out tasks zero- and few-shot; or published ones, beside the paper's figures.

    Without MODEL, --set overrides the fields that `trivium config explain evaluation` lists.
    MODEL may also be a file of predictions for HANS (0 or 1 a pair), which takes no --set.
    """
    target, data, json = given.target, given.data, given.json
    assert target is not None, "without a target the station of the run works"
    refuse_bad_place(json)
    if target.is_file():
        _score_predictions(target, data, json)
        return
    from trivium.interchange.target import opened

    asked, target = (
        Asked(given.tasks, data, config_of(given.shots, given.limit, given.sets or ()), given.every),
        asked_model(target),
    )
    results, places = None, []
    with opened(target, asked.config.tokenizer, given.adapter) as found, progress_of("evaluate") as progress:
        keeping = kept(found, asked, json)
        for results in evaluate_target(found, asked, progress):
            places = keeping.write(results)
    if results is not None:
        tell(results)
    for place in places:
        say(f"  results in {place}")


def _score_predictions(predictions: Path, data: Path | None, json: Path | None) -> None:
    from trivium.evaluation.hans import HEURISTICS, read_blocks, read_predictions, score_predictions, table_of

    if data is None:
        raise ConfigError(f"predictions in {predictions} need --data DIR with hans/official_pairid_map.json")
    blocks = read_blocks(data / "hans" / "official_pairid_map.json")
    found = score_predictions(read_predictions(predictions), blocks)
    for line in table(table_of(found), header=("gold label", *HEURISTICS)):
        say(line)
    say(f"  {found['n']:,} pairs, {100 * found['accuracy']:.1f} % right")
    if json is not None:
        write_json(json, found)


def open_scorer(run: Run) -> Any:
    """A scorer of the newest checkpoint; imports torch."""
    from trivium.evaluation.answer import NativeScorer

    return NativeScorer.open(run.at.checkpoints, run.tokenizer)


def _evaluate(run: Run, out: Path, progress: Progress) -> Result:
    from trivium.evaluation.run import evaluate, unigram_scorer
    from trivium.tokens.manifest import token_counts
    from trivium.tokens.tokenizer import load_tokenizer

    found: dict[str, Any] = evaluate(
        run.config.evaluation,
        open_scorer(run),
        run.folder("harvest") / "evaluation_items.jsonl",
        seed=run.config.seed,
        unigram=unigram_scorer(load_tokenizer(run.tokenizer), token_counts(run.folder("tokens"), "train")),
        progress=progress,
    )
    found["model"] = about_newest(run.at.checkpoints)
    write_json(out / "results.json", found)
    return found


def _versions(run: Run) -> dict[str, str]:
    """A task of another version asks something else."""
    from trivium.evaluation.tasks.passages import VERSIONS

    return {"versions": fingerprint({name: VERSIONS[name] for name in run.config.evaluation.tasks})}


def _lines(result: Result) -> list[str]:
    every = [(task, shots, s) for task, by_shots in result["tasks"].items() for shots, s in by_shots.items()]
    better = significant_scores(result["tasks"])
    scores = [each for each in every if each[:2] in better]
    rows = [
        (
            *(task, shots, percent(s["accuracy"]), percent_range(s["interval"])),
            *(percent(s["chance"]), percent(s["unigram"])),
            f"{s['nats_per_byte']:.3f} ({s['unigram_nats_per_byte']:.3f})",
            *(s["n"], percent(s["truncated_fraction"])),
        )
        for task, shots, s in scores
    ]
    header = ("task", "shots", "accuracy", "interval", "chance", "unigram", "nats/byte (unigram)", "n", "cut")
    lines = table(rows, header=header) if rows else []
    if others := [
        f"{task} with {counted(int(shots), 'shot')}" for task, shots, _ in every if (task, shots) not in better
    ]:
        many = f"corrected for {counted(len(every), 'score')}"
        lines.append(
            f"  not significantly better than chance and token frequencies, {many}: {listed(others, len(others))}"
        )
    lines += [f"  SKIPPED {task}: {why}" for task, why in result["skipped"].items()]
    if any(s["truncated_fraction"] for _, _, s in every):
        lines.append(cut_line("so many of the prompts", result["model"]))
    return lines


EVALUATE = Stage(
    name="evaluate",
    verb="evaluate",
    folder="evaluation",
    sections=("evaluation",),
    reads=("harvest", "tokens", "training"),
    work=_evaluate,
    summary=_lines,
    outside=_versions,
)
