"""`trivium incontext`: accuracy, calibration and score distributions against the shots in front of a question."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trivium.cli.benchmarks import Kept, about_checkpoint, answered, cut_line, refuse_bad_place
from trivium.cli.evaluate import Data, Json
from trivium.cli.model_argument import asked_model, model_path
from trivium.cli.options import Sets
from trivium.cli.settings import App, shows
from trivium.cli.show import percent, progress_of, say, table
from trivium.config import build, merge, parse_assignments, to_tree
from trivium.errors import ConfigError
from trivium.evaluation.config import IncontextConfig
from trivium.progress import Progress
from trivium.report.words import effect_text

if TYPE_CHECKING:
    from trivium.evaluation.incontext import Study
    from trivium.interchange.target import Target

FOLDER = "incontext"  # folder in a run directory

app = App()


@app.command()
@shows("seed", "wording", "layout", root=IncontextConfig)
def incontext(
    targets: Annotated[
        list[Path],
        typer.Argument(
            parser=model_path,
            metavar="MODEL",
            help="Runs, checkpoints, Hugging Face folders or hf:ORG/NAME; several are compared.",
        ),
    ],
    task: Annotated[str, typer.Option("--task", metavar="NAME", help="A multiple-choice task.")] = "hans",
    data: Data = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Questions.")] = None,
    shots: Annotated[str | None, typer.Option("--shots", metavar="0,1,2,4", help="Numbers of shots.")] = None,
    every: Annotated[bool, typer.Option("--every", help="Every checkpoint of each run.")] = False,
    json: Json = None,
    sets: Sets = None,
) -> None:
    """Accuracy and calibration against number, order, balance and source of shots, wording, checkpoint and size.

    --set overrides compare_at, draws, orders, confidence and tokenizer too.
    """
    from trivium.evaluation.incontext import FORMAT
    from trivium.evaluation.joined import loses_study
    from trivium.families.common.hf_config import is_model_folder
    from trivium.interchange.target import opened, run_of

    refuse_bad_place(json)
    targets = [asked_model(target) for target in targets]
    config = _config(shots, limit, sets or [])
    study = _study(task, data, config)
    models: list[dict[str, Any]] = []
    places: list[Path] = []
    of_runs = [run for place in targets if not is_model_folder(place) and (run := run_of(place))]
    last = of_runs[-1] if of_runs else None
    keeping = Kept(last, FOLDER, json, lambda earlier, found: found, loses_study)
    for place in targets:
        with opened(place, config.tokenizer) as target, progress_of("incontext") as progress:
            for model in _measured(target, study, every, progress):
                models.append({"target": str(place), **model})
                tree = {"format": FORMAT, "task": task, "config": to_tree(config), "models": models}
                places = keeping.write(tree)  # at once: what was measured is not lost with a later one
    for model in models:
        _tell(task, model)
    for path in places:
        say(f"  results in {path}")


def _config(shots: str | None, limit: int | None, sets: list[str]) -> IncontextConfig:
    given: dict[str, Any] = {} if limit is None else {"limit": limit}
    if shots is not None:
        parts = [p.strip() for p in shots.split(",") if p.strip()]
        if not parts or not all(p.isdecimal() for p in parts):
            raise ConfigError(f"--shots {shots!r} are no numbers of shots; write some by commas, as 0,1,2,4")
        given["shots"] = [int(p) for p in parts]
    return build(IncontextConfig, merge(parse_assignments(sets, IncontextConfig), given))


def _study(task: str, data: Path | None, config: IncontextConfig) -> "Study":
    from trivium.evaluation.incontext import study_of
    from trivium.evaluation.tasks.definition import definition

    of = definition(task)
    if data is None:
        from trivium.evaluation.tasks.rows import hub_rows

        rows = hub_rows(of)
    else:
        from trivium.evaluation.tasks.rows import local_rows

        rows = local_rows(of, data)
    return study_of(of, rows, config)


def _measured(target: "Target", study: "Study", every: bool, progress: Progress) -> Iterator[dict[str, Any]]:
    """Return the results of each checkpoint; none on ranks of torchrun other than the first."""
    from trivium.evaluation.incontext import measure

    for checkpoint in target.checkpoints if every else (target.newest,):
        result = answered(
            lambda scorer: measure(study, scorer, progress), checkpoint, target.tokenizer, study.config.layout
        )
        if result is not None:
            yield {"model": about_checkpoint(checkpoint), **result}


def _tell(task: str, found: Mapping[str, Any]) -> None:
    model = found["model"]
    which = f"{model['parameters']:,} parameters, {model['checkpoint']} of {found['target']}"
    say(f"  {task}, {found['n']} questions, {which}")
    measured = [
        (kind, name, m)
        for kind in ("shots", "order", "balance", "source", "template")
        for name, m in found[kind].items()
        if m is not None
    ]
    rows = [
        (
            *(kind, name, percent(m["accuracy"]), percent(m["threshold_accuracy"])),
            *(percent(m["contextual_accuracy"]), f"{m['calibration_error']:.3f}"),
            *("-" if m[key] is None else effect_text(m[key]) for key in ("majority_bias", "recency_bias")),
            percent(m["truncated_fraction"]),
        )
        for kind, name, m in measured
    ]
    header = (
        "varied",
        "value",
        "accuracy",
        "by threshold",
        "contextual",
        "calibration error",
        "majority",
        "recency",
        "cut",
    )
    for line in table(rows, header=header):
        say(line)
    if any(m["truncated_fraction"] for _, _, m in measured):
        say(cut_line("so many of the prompts", model))
    for kind, reasons in found["left_out"].items():
        for name, reason in reasons.items():
            say(f"  left out: {kind} {name}: {reason}")
    if found["order_complete"]:
        say(f"  order: all {len(found['order'])} orders of the same shots were measured")
