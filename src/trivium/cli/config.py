"""`trivium config`: each value and its origin, the schema, differences, and the presets."""

import json
from typing import Annotated

import typer

from trivium.cli.options import Preset, Ranks, Sets
from trivium.cli.run_config import Given, RunConfig, origins, resolve
from trivium.cli.show import say, table
from trivium.config import differences, leaves, preset_names, to_tree
from trivium.errors import ConfigError

app = typer.Typer(
    help="Show, compare and document configs and presets.", rich_markup_mode=None, add_completion=False
)


@app.command()
def show(preset: Preset = None, sets: Sets = None, ranks: Ranks = None) -> None:
    """Print every value with where it came from, and every problem."""
    given = Given(preset or "demo", tuple(sets or ()), ranks)
    config, where = resolve(given), origins(given)
    rows = [(path, json.dumps(value), where[path]) for path, value in leaves(to_tree(config))]
    for line in table(rows, header=("field", "value", "from"), indent=0):
        say(line)
    problems = config.problems()
    if problems:
        raise ConfigError("\n".join(problems))


@app.command()
def schema() -> None:
    """Print the JSON Schema of a run's config."""
    say(json.dumps(RunConfig.model_json_schema(), indent=1))


@app.command()
def diff(
    old: Annotated[str, typer.Argument(metavar="A", help="A preset or a YAML/JSON file.")],
    new: Annotated[str, typer.Argument(metavar="B", help="Another one, such as DIR/config.json.")],
) -> None:
    """Print the fields in which two configs differ."""
    lines = differences(to_tree(resolve(Given(old))), to_tree(resolve(Given(new))))
    for line in lines or ["no field differs"]:
        say(line)


@app.command()
def presets() -> None:
    """List the shipped presets."""
    for name in preset_names():
        plan = resolve(Given(name)).plan
        say(
            f"{name:14} {plan.model.layers} layers, hidden {plan.model.hidden}, {plan.layout.world_size} ranks"
        )
