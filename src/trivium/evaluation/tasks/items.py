"""Passages of held-out documents (`evaluation_items.jsonl`), and how they are cut into questions."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from trivium.errors import DataError
from trivium.evaluation.tasks.readers import refuse_halves
from trivium.jsonlines import read_rows

_SENTENCE_START = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")


class Item(NamedTuple):
    """A passage of a held-out document."""

    id: str
    document: str
    text: str


def read_items(path: Path) -> list[Item]:
    """Return the passages of a file of JSON lines {id, document, text}. Raises DataError, naming the line."""
    rows = read_rows(path, remedy="run `trivium corpus harvest` again")
    items = [_item(path, number, row) for row, number in rows]
    if not items:
        raise DataError(f"{path} holds no evaluation items; give more text, or run `trivium corpus harvest` again")
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise DataError(f"{path} gives the id {item.id!r} twice; every item needs its own")
        seen.add(item.id)
    return items


def _item(path: Path, number: int, row: Any) -> Item:
    values: list[Any] = [row.get(name) for name in Item._fields] if isinstance(row, dict) else []
    if not values or not all(isinstance(v, str) and v.strip() for v in values):
        raise DataError(
            f"{path}, line {number}: {str(row)[:60]!r} is not {{id, document, text}}; "
            "run `trivium corpus harvest` again"
        )
    for name, value in zip(Item._fields, values, strict=True):
        try:
            refuse_halves(value)
        except ValueError as error:
            raise DataError(f"{path}, line {number}, {name}: {error}") from None
    return Item(*values)


def tail(text: str, characters: int) -> str:
    """Return the end of a text: full words of at most `characters` letters, but at least one word."""
    text = " ".join(text.split())
    if len(text) <= characters:
        return text
    first = text.find(" ", len(text) - characters - 1)
    return text[first + 1 :] if first >= 0 else text[text.rfind(" ") + 1 :]


def head(text: str, characters: int) -> str:
    """Return the beginning of a text: full words of at most `characters` letters, but at least one word."""
    text = " ".join(text.split())
    if len(text) <= characters:
        return text
    last = text.rfind(" ", 0, characters + 1)
    return text[:last] if last > 0 else text.split(" ", 1)[0]


def cut_last_sentence(text: str) -> tuple[str, str] | None:
    """Split a text before its last sentence; None for a single sentence."""
    starts = list(_SENTENCE_START.finditer(text))
    return (text[: starts[-1].start()], text[starts[-1].end() :]) if starts else None
