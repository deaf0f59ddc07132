"""Word lists of the bias analyses."""

from importlib import resources

MALE = ("male", "man")
FEMALE = ("female", "woman")


def occupations() -> tuple[str, ...]:
    """Occupations that do not name a gender themselves, one per line in `occupations.txt`."""
    text = (resources.files("trivium.bias") / "occupations.txt").read_text(encoding="utf-8")
    return tuple(line.strip() for line in text.splitlines() if line.strip())
