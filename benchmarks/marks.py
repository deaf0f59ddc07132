"""Generated lines of a page that is written by hand otherwise, between two marks."""

from collections.abc import Sequence
from pathlib import Path


def write_between_marks(page: Path, lines: Sequence[str], begin: str, end: str) -> bool:
    """Replace what is between two marks of a page, and return whether it has both."""
    before, found_begin, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        return False
    text = "\n".join(lines)
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
    return True
