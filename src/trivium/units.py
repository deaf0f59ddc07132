"""Format and parse quantities with units, and sanitise text for the terminal."""

import math
import re
from collections.abc import Sequence

from trivium.errors import ConfigError
from trivium.redact import redact

# Control characters, Unicode's bidirectional marks, and line ends other than the line feed.
_OBEYED = (*range(0x20), *range(0x7F, 0xA0), 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = {n: f"\\u{n:04x}" for n in _OBEYED if chr(n) not in "\t\n"}
_SHOWN_CHARACTERS = 120
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("", "K", "M", "B", "T", "Q")
_FLOPS = ("", "K", "M", "G", "T", "P", "E")
_ENERGY = ("", "k", "M", "G", "T")
_JOULES_PER_WATT_HOUR = 3600.0
_ROUNDED_UP = 999.5  # Values from here on would need a fourth digit.
_PARSE = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "Q": 1e15, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def plain(text: str) -> str:
    """Make a text safe for a terminal.

    Documents, file names and generated text may contain characters that move the cursor, set the title or write to
    the clipboard. They are shown as JSON escapes. Secrets in URLs are hidden.
    """
    return redact(text.translate(_CONTROLS))


def shown(text: str, most: int = _SHOWN_CHARACTERS) -> str:
    """Format a foreign name for one line of a message, as `plain` does but without line feeds, and shortened to
    `most`."""
    return one_line(text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)")


def one_line(text: str) -> str:
    """Format a text for one line, as `shown` does but at full length."""
    return plain(text).replace("\n", "\\n")


def format_bytes(value: float) -> str:
    """Format bytes, such as 1536 -> '1.50 KiB'."""
    return _scaled(value, 1024, _BINARY, space=True)


def format_count(value: float) -> str:
    """Format tokens or parameters, such as 530e9 -> '530B'."""
    return _scaled(value, 1000, _DECIMAL, space=False)


def counted(number: int, noun: str) -> str:
    """Format a count with its noun, such as '1 rank' or '2,240 ranks'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(things: Sequence[object], most: int = 8) -> str:
    """Join a list, such as '3, 5'. Of more than `most` items, only the number of the others is given."""
    more = f" and {len(things) - most:,} more" if len(things) > most else ""
    return ", ".join(map(str, things[:most])) + more


def format_flops(value: float) -> str:
    """Format floating-point operations, such as 3.12e14 -> '312 TFLOP'."""
    return f"{_scaled(value, 1000, _FLOPS, space=True)}FLOP"


def format_seconds(value: float) -> str:
    """Format a duration, such as 0.0123 -> '12.3 ms' and 75 -> '1 min 15 s'."""
    if value * 1e6 < _ROUNDED_UP:
        return f"{value * 1e6:.3g} us"
    if value * 1e3 < _ROUNDED_UP:
        return f"{value * 1e3:.3g} ms"
    if value < 59.95:
        return f"{value:.3g} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    days = value / 86400
    return f"{f'{days:.3g}' if days < _ROUNDED_UP else f'{days:,.0f}'} days"


def format_energy(joules: float) -> str:
    """Format an energy, such as 5.4e6 joules -> '1.5 kWh'."""
    return f"{_scaled(joules / _JOULES_PER_WATT_HOUR, 1000, _ENERGY, space=True)}Wh"


def parse_count(text: str) -> int:
    """Parse a quantity, such as '12B' -> 12_000_000_000 or '4KiB' -> 4096. Raises ConfigError for anything else."""
    match = re.fullmatch(r"\s*([0-9_]*\.?[0-9]+(?:e[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    factor = _PARSE.get(match.group(2).upper()) if match else None
    number = float(match.group(1).replace("_", "")) * factor if match and factor else math.inf
    if not number < 2**63:
        raise ConfigError(
            f"'{text}' is not a quantity below 2**63; write a number with K, M, B, T, KiB, MiB or GiB, as 12B"
        )
    return round(number)


def _scaled(value: float, base: int, names: tuple[str, ...], *, space: bool) -> str:
    step = 0
    scaled = float(value)
    while abs(scaled) >= base and step < len(names) - 1:
        scaled /= base
        step += 1
    if abs(scaled) >= _ROUNDED_UP and base == 1000 and step < len(names) - 1:
        scaled, step = scaled / base, step + 1  # it would be rounded to 1000 of the smaller unit
    whole = abs(scaled) >= _ROUNDED_UP or (step == 0 and scaled.is_integer())
    return f"{f'{scaled:.0f}' if whole else f'{scaled:.3g}'}{' ' if space else ''}{names[step]}"


def shots_text(shots: int | str) -> str:
    """0 -> '0 shots', '1' -> '1 shot', 'few' -> 'few shots': solved examples before a question."""
    return f"{shots} shot{'' if str(shots) == '1' else 's'}"
