"""Read conversations and preference pairs from JSON lines, JSON and Parquet."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trivium.errors import DataError
from trivium.jsonlines import read_rows


class Turn(NamedTuple):
    """A message. role: system, user, assistant or tool."""

    role: str
    content: str


class Conversation(NamedTuple):
    """A conversation that ends with an answer. name: FILE:LINE, the document of its tokens in the lineage."""

    turns: tuple[Turn, ...]
    name: str


class Pair(NamedTuple):
    """Two continuations of a prompt, of which `chosen` is preferred. name: FILE:LINE."""

    prompt: tuple[Turn, ...]
    chosen: tuple[Turn, ...]
    rejected: tuple[Turn, ...]
    name: str


def read_conversations(path: Path) -> Iterator[Conversation]:
    """Yield the conversations of a file or folder. Raises DataError with file, line and reason for invalid rows."""
    for row in read_rows(path, remedy="correct this line"):
        try:
            turns = tuple(Turn(one["role"], one["content"]) for one in row.value["messages"])
        except (KeyError, TypeError):
            raise DataError(f"{path}:{row.number} has no messages; give each row a list called messages") from None
        yield Conversation(turns, f"{path.name}:{row.number}")


def read_pairs(path: Path) -> Iterator[Pair]:
    """Yield the preference pairs of a file or folder. Raises DataError with file, line and reason for invalid rows."""
    for row in read_rows(path, remedy="correct this line"):
        prompt, chosen, rejected = (row.value[name] for name in ("prompt", "chosen", "rejected"))
        answers = [(Turn("assistant", text),) for text in (chosen, rejected)]
        yield Pair((Turn("user", prompt),), answers[0], answers[1], f"{path.name}:{row.number}")
