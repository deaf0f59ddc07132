"""The allowed values of config fields and their meanings, which are the comments beside their definitions."""

import ast
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin

from trivium.config import MAX_COUNT, Config, owner_of

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


def meaning_of(model: type[Config], path: str) -> str:
    """Return what a field means, by its path, up to the end of the first sentence or clause; "" where nothing says it,
    as of a key in a mapping."""
    section, _, name = path.rpartition(".")
    owner = owner_of(model, tuple(section.split(".")) if section else ())
    return "" if owner is None else re.split(r"[;.] ", _comments(owner).get(name, ""))[0]


@cache
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
    bounds = {name: sign for name, sign in BOUNDS.items() if schema.get(name, MAX_COUNT) != MAX_COUNT}
    return " ".join([WORDS[kind], *(f"{sign} {schema[name]:g}" for name, sign in bounds.items())])
