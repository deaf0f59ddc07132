"""Every command that README and docs show is one: its verbs, options and arguments are there, its values may be."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from trivium.cli.main import command_line

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
NUMBERS = re.compile(r"^[A-Z]$")  # as N, where a number stands
ENDS_COMMAND = {"|", "||", "&&", ";", ">", ">>", "<", "&"}


class Shown(NamedTuple):
    """A command as a page shows it. whole: in a block, and without an ellipsis or a choice: to be typed as it is."""

    place: str
    text: str
    whole: bool


def shown(page: Path) -> Iterator[Shown]:
    inside, block = False, ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        place = f"{page.relative_to(ROOT)}:{number}"
        if line.lstrip().startswith("```"):
            inside = not inside
        elif inside:
            block += line.strip().removesuffix("\\")
            if not line.endswith("\\"):
                if block.startswith("trivium "):
                    yield Shown(place, block, not re.search(r"…|\w\|\w", block))
                block = ""
        else:
            for text in re.findall(r"`(trivium [^`]*)`", line):
                yield Shown(place, text, False)


def variants(text: str) -> Iterator[list[str]]:
    """The words of a command, once for each alternative of `ls|verify|show`, placeholders for numbers as numbers."""
    words = []
    for word in shlex.split(text.replace("\\|", "|"), comments=True):
        if word in ENDS_COMMAND:
            break
        words.append(word.removesuffix(";"))
        if word.endswith(";"):
            break
    choices = next((word.split("|") for word in words if re.fullmatch(r"[a-z-]+(\|[a-z-]+)+", word)), [""])
    for choice in choices:
        one = [choice if choice and choice in word.split("|") else word for word in words[1:]]
        yield ["1" if NUMBERS.match(word) else word for word in map(plain, one) if word and "…" not in word]


def plain(word: str) -> str:
    """Return a word without the brackets of optional parts and the dots of repeated ones."""
    word = word.removeprefix("[") if word.count("[") > word.count("]") or word[:2] == "[-" else word
    word = word.removesuffix("]") if word.count("]") > word.count("[") else word
    return word.removesuffix("...").removesuffix("…")


def parsed(command: Any, name: str, words: list[str], parent: Any = None) -> None:
    """Parses as `main` does, and runs nothing."""
    context = command.make_context(name, words, parent=parent)
    if hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        if rest:
            name, command, rest = command.resolve_command(context, rest)
            parsed(command, name, rest, context)


COMMANDS = [one for page in PAGES for one in shown(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_command_of_a_page_is_one(page: Path) -> None:
    wrong = []
    for one in (c for c in COMMANDS if c.place.rpartition(":")[0] == str(page.relative_to(ROOT))):
        for words in variants(one.text):
            try:
                parsed(command_line(), "trivium", words)
            except SystemExit:  # --install-completion does its work while options are parsed
                continue
            except Exception as error:
                kind = type(error).__name__
                if kind in ("Exit", "NoArgsIsHelpError") or kind == "MissingParameter" and not one.whole:
                    continue
                wrong.append(f"{one.place} {one.text}: {kind} {getattr(error, 'message', error)}")
    assert wrong == []


def test_commands_are_found_on_the_pages() -> None:
    assert len(COMMANDS) > 100 and sum(one.whole for one in COMMANDS) > 30


@pytest.mark.parametrize(
    "text", ["trivium trane", "trivium train --rate 1", "trivium plan show a b", "trivium data show"]
)
def test_what_is_no_command_is_found(text: str) -> None:
    with pytest.raises(Exception, match="[Nn]o such|unexpected|Missing"):
        parsed(command_line(), "trivium", next(variants(text)))
