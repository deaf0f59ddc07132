"""`trivium config`: each value and its origin, and the schema."""

import json
import shutil
import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from typing import Annotated

import typer

from trivium.cli.fields import fields_of
from trivium.cli.options import Preset, Ranks, Sets
from trivium.cli.run_config import Given, RunConfig, origins, resolve
from trivium.cli.settings import App, shows
from trivium.cli.show import say, table
from trivium.config import field_paths, leaves, to_tree
from trivium.errors import ConfigError, nearest

app = App(help="Show and document configs.")

PIPED_COLUMNS, MIN_COLUMNS, MAX_COLUMNS = 100, 80, 120  # columns of a line: where no terminal says, and of any terminal
MAX_MIDDLE_COLUMNS = 30  # of the middle part of a line
Path = Annotated[str, typer.Argument(metavar="PATH", help="A section or a field; default: all.")]


@app.command()
@shows("seed", "machine", "plan", "training")
def show(path: Path = "", preset: Preset = None, sets: Sets = None, ranks: Ranks = None) -> None:
    """Print every value with where it came from, and every problem."""
    given = Given(preset or "demo", tuple(sets or ()), ranks)
    config, where = resolve(given), origins(given)
    values = dict(leaves(to_tree(config)))
    rows = [(p, where[p], json.dumps(values[p], ensure_ascii=False)) for p in _under(path, list(values))]
    _say_wrapped(rows, ("field", "from", "value"))
    problems = config.problems()
    if problems:
        raise ConfigError("\n".join(problems))


@app.command()
def explain(
    path: Path = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON Schema of a whole config instead.")] = False,
) -> None:
    """Print what each field may be, and what it means."""
    if as_json:
        if path:
            raise ConfigError(f"PATH {path}: --json prints the schema of a whole config; leave one of the two out")
        say(json.dumps(RunConfig.model_json_schema(), indent=1))
        return
    found = {field.path: field for field in fields_of(RunConfig)}
    _say_wrapped([found[p] for p in _under(path, list(found))], ("field", "may be", "meaning"))


def _under(path: str, known: Sequence[str]) -> list[str]:
    """The fields of a section, or the one that is named."""
    found = [p for p in known if not path or p == path or p.startswith(f"{path}.")]
    if not found:
        sections = {p.rpartition(".")[0] for p in known} - {""}
        meant = list(RunConfig.meant(path, field_paths(RunConfig)))
        hint = nearest(path, () if meant else {*known, *sections}, also=meant, listed=RunConfig.model_fields)
        raise ConfigError(f"there is no section or field '{path}'; {hint}")
    return found


def _say_wrapped(rows: Sequence[Sequence[str]], header: Sequence[str]) -> None:
    """Print a table as wide as the terminal, with long cells wrapped."""
    width = min(max(shutil.get_terminal_size((PIPED_COLUMNS, 0)).columns, MIN_COLUMNS), MAX_COLUMNS)
    paths = [_path_lines(row[0], width // 2) for row in rows]
    first = max(len(line) for lines in [[header[0]], *paths] for line in lines)
    rest = width - first - 4
    second = min(MAX_MIDDLE_COLUMNS, max(len(row[1]) for row in [header, *rows]), 2 * rest // 5)
    wrapped = []
    for path, row in zip(paths, rows, strict=True):
        middle, last = (textwrap.wrap(text, room) for text, room in zip(row[1:], (second, rest - second), strict=True))
        wrapped += list(zip_longest(path, middle, last, fillvalue=""))
    for line in table(wrapped, header=header, indent=0):
        say(line)


def _path_lines(path: str, width: int) -> list[str]:
    """A path in one line, or its section and below it its field."""
    section, _, field = path.rpartition(".")
    return [path] if len(path) <= width else [f"{section}.", f"  {field}"]
