"""The refusal of commands that do not exist, with the nearest that do."""

from collections.abc import Iterable, Mapping
from typing import Any

from trivium.errors import nearest
from trivium.units import shown


def refuse_unknown(ctx: Any, name: str, commands: Mapping[str, Any], more: Iterable[str] = ()) -> None:
    """Fail if a group has no such command, and name the nearest: by its name, or one whose help begins with this word.
    more: further names that the group takes."""
    if name in commands or name in more or name.startswith("-") or ctx.resilient_parsing:
        return
    helps = {each: command.get_short_help_str().lower().replace(",", "") for each, command in commands.items()}
    also = [each for each, told in helps.items() if told.startswith(f"{name.lower()} ")]
    ctx.fail(f"'{shown(name)}': no such command; {nearest(name, (*commands, *more), also=also)}")
