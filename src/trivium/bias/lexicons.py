"""Word lists of the bias analyses."""

from importlib import resources
from pathlib import Path

from trivium import untrusted
from trivium.errors import DataError
from trivium.jsonlines import text_lines

MALE = ("male", "man")
FEMALE = ("female", "woman")


def occupations(path: Path | None = None) -> tuple[str, ...]:
    """Occupations that do not name a gender themselves: those of a user's file, or the list of the package.

    One per line; empty lines and lines that begin with # are left out, and so is what stands there twice. Raises
    DataError for a file that is missing, is not text, or names fewer than two.
    """
    if path is None:
        return _lines((resources.files("trivium.bias") / "occupations.txt").read_text(encoding="utf-8"))
    found = _lines(read_text(path, what="bias.occupation_list"))
    if len(found) < 2:
        raise DataError(
            f"bias.occupation_list: {path} names {len(found)} occupations; give two or more, one per line"
        )
    return found


def read_text(path: Path, *, what: str) -> str:
    """Return a file's text. Raises DataError, with the field `what` that names it, where it cannot be read."""
    try:
        return untrusted.read_text(path)
    except OSError as error:
        raise DataError(
            f"{what}: {path} cannot be read ({error.strerror}); give a file that exists"
        ) from None
    except UnicodeDecodeError as error:
        raise DataError(f"{what}: {path} is not UTF-8 text (byte {error.start}); give a text file") from None


def _lines(text: str) -> tuple[str, ...]:
    lines = (" ".join(line.split()) for line in text_lines(text))
    return tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#")))
