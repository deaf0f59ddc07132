"""`trivium config`: each value and its origin, and the schema."""

import ast
import inspect
import io
import json
import re
import shutil
import textwrap
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import typer

from trivium.cli.options import Preset, Ranks, Sets
from trivium.cli.run_config import Given, RunConfig, origins, resolve
from trivium.cli.show import say, table
from trivium.config import MOST, Config, leaves, to_tree
from trivium.errors import ConfigError, nearest

app = typer.Typer(help="Show and document configs.", rich_markup_mode=None, add_completion=False)

PIPED, NARROWEST, WIDEST = 100, 80, 120  # columns of a line: where no terminal says, and of any terminal
MIDDLE = 30  # at most of the middle part of a line
Path = Annotated[str, typer.Argument(metavar="PATH", help="A section or a field; default: all.")]


@app.command()
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
        raise ConfigError(f"there is no section or field '{path}'; {nearest(path, {*known, *sections})}")
    return found


def _say_wrapped(rows: Sequence[Sequence[str]], header: Sequence[str]) -> None:
    """A table as wide as the terminal: what is too long goes on in the next line."""
    width = min(max(shutil.get_terminal_size((PIPED, 0)).columns, NARROWEST), WIDEST)
    paths = [_path_lines(row[0], width // 2) for row in rows]
    first = max(len(line) for lines in [[header[0]], *paths] for line in lines)
    rest = width - first - 4
    second = min(MIDDLE, max(len(row[1]) for row in [header, *rows]), 2 * rest // 5)
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


BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
WORDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true, false", "null": "null"}


class Field(NamedTuple):
    """A field by its path: what it may be, and the comment beside or above its definition."""

    path: str
    allowed: str
    meaning: str


def fields_of(model: type[Config], prefix: str = "") -> Iterator[Field]:
    """Every field of a config and of its sections, in their order."""
    schema, meanings = model.model_json_schema(), _comments(model)
    for name, field in model.model_fields.items():
        inner = () if get_origin(field.annotation) is tuple else get_args(field.annotation)
        choices = (field.annotation, *inner)  # `Ramp | None` is a section too, and a list of sections is none
        section = next((c for c in choices if inspect.isclass(c) and issubclass(c, Config)), None)
        if section is not None:
            if type(None) in choices:
                yield Field(prefix + name, "null or the fields below", meanings.get(name, ""))
            yield from fields_of(section, f"{prefix}{name}.")
        else:
            yield Field(prefix + name, _allowed(schema["properties"][name]), meanings.get(name, ""))


def _comments(model: type[Config]) -> dict[str, str]:
    """Return for each field of a class the comments on its lines, or else those right above it."""
    found: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if not (inspect.isclass(owner) and issubclass(owner, Config)):
            continue
        source = textwrap.dedent(inspect.getsource(owner))
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        comments = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
        (body,) = ast.parse(source).body
        for node in body.body if isinstance(body, ast.ClassDef) else ():
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                lines = source.splitlines()
                above = node.lineno - 1
                while above in comments and lines[above - 1].lstrip().startswith("#"):
                    above -= 1
                beside = [comments[n] for n in range(node.lineno, (node.end_lineno or 0) + 1) if n in comments]
                text = " ".join(beside or [comments[n] for n in range(above + 1, node.lineno)])
                found[node.target.id] = re.sub(r"\bNone\b", "null", text)  # as --set and YAML write it
    return found


def _allowed(schema: Mapping[str, Any]) -> str:
    """A JSON schema in words."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_allowed(s) for s in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_allowed(schema['items'])}" if "items" in schema else "list"
    if kind == "object" or kind not in WORDS:
        return "mapping"
    bounds = {name: sign for name, sign in BOUNDS.items() if schema.get(name, MOST) != MOST}
    return " ".join([WORDS[kind], *(f"{sign} {schema[name]:g}" for name, sign in bounds.items())])
