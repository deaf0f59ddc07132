"""What is measured of single texts: figures that no threshold changes, so that thresholds are tuned without them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from trivium.provenance import fingerprint

Found = tuple[Any, ...]  # figures of one text: numbers, texts, bytes, and lists of numbers


class Measure(NamedTuple):
    """A pure function of single texts: `of(texts, **settings)` has the figures of each text.

    It gets nothing but these settings, so they are all that its figures depend on beside the text.
    """

    name: str
    of: Callable[..., Sequence[Found]]
    settings: Mapping[str, Any]

    def __call__(self, texts: Sequence[str]) -> Sequence[Found]:
        """The figures of each text."""
        return self.of(texts, **self.settings)

    @property
    def key(self) -> str:
        """Equal for measures that find the same figures."""
        return f"{self.name}-{fingerprint(dict(self.settings))}"


Ask = Callable[[Measure, Sequence[str]], Sequence[Found]]


def measured(measure: Measure, texts: Sequence[str]) -> Sequence[Found]:
    """The figures of each text, by measuring it."""
    return measure(texts)
