"""Results that are of another input than the one this report shows: stamps name the keys of what a station read."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

Stamps = Mapping[str, Mapping[str, Any]]

# What a station's folder holds, as the page says it.
_WORDS = {"harvest": "another harvest", "curated": "another corpus", "training": "another training"}


def outdated(stations: Sequence[str], stamps: Stamps, there: Collection[str]) -> dict[str, str]:
    """Stations, in the order of the path, whose input is another now, or is outdated itself; and that input.

    stamps: of the finished stations. there: stations that have a folder; of an input that is gone nothing is said.
    """
    found: dict[str, str] = {}
    for name in stations:
        read = stamps.get(name, {}).get("inputs")
        for earlier, key in read.items() if isinstance(read, dict) else ():
            other = stamps.get(earlier, {}).get("key") != key
            if earlier in there and (other or earlier in found):
                found.setdefault(name, earlier)
    return found


def told(earlier: str, verb: str) -> str:
    """That results are of another input, and what does them again."""
    return f"of {_WORDS.get(earlier, f'other {earlier}')} than this report's; `trivium {verb}` does it again"
