"""Errors of usage: what was typed is shown without secrets and terminal commands, and an unknown option that is a field
of the config is answered with the --set that works."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from trivium.units import plain

_OTHER_UNITS = ("_tokens", "_fraction", "recompute.mode", "precision.weights")  # than steps, rates and switches
_MOST_FIELDS = 3  # that an unknown option may mean


@contextmanager
def usage_errors_told(words: Sequence[str]) -> Iterator[None]:
    """Complete the error of usage that is raised inside. words: what was typed."""
    try:
        yield
    except Exception as error:  # typer keeps the class of these errors private
        if getattr(error, "message", None) and hasattr(error, "format_message"):
            _complete(error, words)
        raise


def _complete(error: Any, words: Sequence[str]) -> None:
    option = str(getattr(error, "option_name", None) or "")
    fields = _fields(error, option) if option else []
    error.message = plain(error.message)
    if fields:
        error.possibilities = None
        value = _value_of(option, words)
        commands = [
            shlex.join([*error.ctx.command_path.split(), "--set", f"{field}={_for(field, value)}"]) for field in fields
        ]
        error.message += f". Fields of the config are given with --set: {plain(' or '.join(commands))}"


def _fields(error: Any, option: str) -> list[str]:
    ctx = getattr(error, "ctx", None)
    takes_set = ctx is not None and any("--set" in p.opts for p in ctx.command.params)
    if not takes_set or not option.startswith("--"):
        return []
    from trivium.cli.run_config import RunConfig
    from trivium.config import field_paths

    return list(RunConfig.meant(option, field_paths(RunConfig)))[:_MOST_FIELDS]


def _for(field: str, value: str) -> str:
    """The value that was typed, unless the field has another unit than what others call like it."""
    return "VALUE" if field.endswith(_OTHER_UNITS) else value


def _value_of(option: str, words: Sequence[str]) -> str:
    """What follows an option: after its =, or as the next word."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else after if after and not after.startswith("--") else "VALUE"
    return "VALUE"
