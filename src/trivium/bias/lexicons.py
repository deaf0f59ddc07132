"""Word lists of the bias analyses."""

from importlib import resources
from pathlib import Path

from trivium import untrusted
from trivium.errors import DataError
from trivium.jsonlines import text_lines

MALE = ("male", "man")
FEMALE = ("female", "woman")


def occupations(path: Path | None = None) -> tuple[str, ...]:
    """Read the occupations of a file, or the package's list, which has only gender-neutral occupations.

    Files have one occupation per line. Empty lines, lines that begin with # and duplicates are skipped. Raises
    DataError for a file that is missing, is not UTF-8 text, or has fewer than two occupations.
    """
    if path is None:
        return _lines((resources.files("trivium.bias") / "occupations.txt").read_text(encoding="utf-8"))
    found = _lines(read_text(path, what="bias.occupation_list"))
    if len(found) < 2:
        raise DataError(f"bias.occupation_list: {path} names {len(found)} occupations; give two or more, one per line")
    return found


def read_text(path: Path, *, what: str) -> str:
    """Return a file's text. Raises DataError, which names the config field `what`, if it cannot be read."""
    try:
        return untrusted.read_text(path)
    except OSError as error:
        raise DataError(f"{what}: {path} cannot be read ({error.strerror}); give a file that exists") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{what}: {path} is not UTF-8 text (byte {error.start}); give a text file") from None


def _lines(text: str) -> tuple[str, ...]:
    lines = (" ".join(line.split()) for line in text_lines(text))
    return tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#")))
