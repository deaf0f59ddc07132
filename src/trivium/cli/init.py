"""`trivium init`: a config file that says only what differs from a preset."""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli.fields import meaning_of
from trivium.cli.model_argument import MODELS
from trivium.cli.options import DEFAULT_PRESET, Corpus, Sets, refuse_no_place_for
from trivium.cli.paths import local_path, path_or_url
from trivium.cli.plan_search import completed
from trivium.cli.price import machine_of
from trivium.cli.run_config import Given, RunConfig, based_on, resolve
from trivium.cli.settings import App, shows
from trivium.cli.show import say
from trivium.config import Tree, as_value, leaves, parse_assignments, preset_names
from trivium.errors import ConfigError, DataError
from trivium.planner.remedies import does_not_fit
from trivium.planner.search import best_search

app = App()
STEPS = "training.steps"


@app.command()
@shows("seed", "machine", "plan", "training")
def init(
    file: Annotated[
        Path, typer.Argument(parser=local_path, metavar="FILE", help="The file to write.", show_default=True)
    ] = Path("trivium.yaml"),
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset", "--model", metavar="NAME", help=f"What to start from: {MODELS}.", autocompletion=preset_names
        ),
    ] = None,
    corpus: Corpus = None,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", metavar="N", min=1, help="Processes, one per GPU. Default: those of the preset."),
    ] = None,
    sets: Sets = None,
) -> None:
    """Write a config file that says only what differs from a preset, with the meaning of each setting.

    On a terminal it asks for the text, the preset, the processes and the steps, as far as options do not say them. The
    layout of another number of processes is the one that the planner chooses on the machine.
    """
    if file.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"FILE {file}: a config is YAML and known by its name; end it in .yaml")
    if file.exists():
        raise ConfigError(f"FILE {file} is there already; name another, or delete it first")
    refuse_no_place_for("FILE", file)
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    if asks and corpus is None:
        corpus = typer.prompt("Your text: file, folder or URL (empty: the demo's stories)", default="") or None
    text = path_or_url(corpus, "--data") if corpus else None
    if isinstance(text, Path) and not text.exists():
        raise DataError(f"--data {text} does not exist; give a file or folder that does")
    if asks and preset is None:
        preset = typer.prompt("Preset to start from", default=DEFAULT_PRESET)
    preset, given = preset or DEFAULT_PRESET, list(sets or ())
    config = resolve(Given(preset, tuple(given)))
    if asks and ranks is None:
        ranks = typer.prompt("Processes, one for each GPU", default=config.plan.layout.world_size, type=int)
    if asks and not any(path == STEPS for path, _ in leaves(parse_assignments(given, RunConfig))):
        given.append(f"{STEPS}={typer.prompt('Optimizer steps', default=config.training.steps, type=int)}")
        config = resolve(Given(preset, tuple(given)))
    if ranks is not None and ranks != config.plan.layout.world_size:
        config = _divided(config, ranks)
    base, changed = based_on(preset, config.checked(), file.parent)
    file.write_text("\n".join(_lines(file, corpus, base, changed)) + "\n", encoding="utf-8")
    say(f"written to {file}; train with it:")
    for line in _commands(file, corpus):
        say(f"  {line}")


def _divided(config: RunConfig, ranks: int) -> RunConfig:
    """Return the config with the layout that a search chooses for `ranks` ranks on its machine. Raises ConfigError if
    none fits."""
    found = best_search(config.plan, machine_of(config.machine), ranks, config.search)
    if not len(found.ranking.order):
        raise ConfigError(does_not_fit(found))
    return config.model_copy(update={"plan": completed(found.chosen.plan, config)})


def _commands(file: Path, corpus: str | None) -> list[str]:
    """Return the commands that train with the file."""
    name, out = shlex.quote(str(file)), shlex.quote(f"runs/{file.stem}")
    if corpus:
        return [f"trivium train --preset {name} --data {shlex.quote(corpus)} --out {out}"]
    return [f"trivium corpus run {name} --out {out}", f"trivium train --preset {name} --out {out}"]


def _lines(file: Path, corpus: str | None, base: str, changed: Tree) -> Iterator[str]:
    yield "# Only what differs from the base is here; `trivium config explain` lists every setting. Train with:"
    yield from (f"#   {command}" for command in _commands(file, corpus))
    yield f"base: {as_value(base)}"
    yield from _setting_lines(changed)


def _setting_lines(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield f"{indent}{key}:"
            yield from _setting_lines(value, f"{prefix}{key}.")
            continue
        text = as_value(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        meaning = meaning_of(RunConfig, prefix + key)
        yield f"{indent}{key}: {text}{f'  # {meaning}' if meaning else ''}"
