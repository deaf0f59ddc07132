"""Conditions that all ranks of a job must share. They are compared when ranks connect; an error names what differs and
where."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from trivium.errors import ConfigError, DataError, MachineError, TriviumError
from trivium.provenance import fingerprint
from trivium.units import listed

_MAX_LISTED_DIFFERENCES = 8
_MAX_VALUE_CHARACTERS = 80


class Terms(NamedTuple):
    """The settings, versions and data with which a rank was started. Each mapping goes from a name that a user knows to
    the value as text."""

    settings: Mapping[str, str]
    versions: Mapping[str, str]
    data: Mapping[str, str]

    @property
    def digest(self) -> str:
        """A hash of the terms."""
        return fingerprint(self._asdict())

    @property
    def words(self) -> str:
        """The text in which a rank stores its terms for the first rank."""
        return json.dumps(self)

    @classmethod
    def of(cls, words: str) -> "Terms":
        """Return the terms that another rank stored."""
        return cls(*json.loads(words))


NO_TERMS = Terms({}, {}, {})
_ERRORS: Mapping[str, type[TriviumError]] = {"settings": ConfigError, "versions": MachineError, "data": DataError}


def disagreement(hosts: Sequence[str], digests: Sequence[str], terms_of: Callable[[int], Terms]) -> TriviumError | None:
    """Return an error that names what differs and on which hosts, or None where all ranks agree.

    hosts, digests: of every rank. terms_of: the terms of a rank, read only where digests differ.
    """
    ranks_of: dict[str, list[int]] = defaultdict(list)
    for rank, digest in enumerate(digests):
        ranks_of[digest].append(rank)
    if len(ranks_of) == 1:
        return None
    found = {digest: terms_of(ranks[0]) for digest, ranks in ranks_of.items()}
    lines, kind = list[str](), TriviumError
    for section, error in _ERRORS.items():
        told = {digest: getattr(terms, section) for digest, terms in found.items()}
        for name in sorted({name for values in told.values() for name in values}):
            ranks_with: dict[str, list[int]] = defaultdict(list)
            for digest, values in told.items():
                ranks_with[values.get(name, "absent")] += ranks_of[digest]
            if len(ranks_with) > 1:
                lines.append(f"{name}: {'; '.join(_where(v, r, hosts) for v, r in ranks_with.items())}")
                kind = error if kind is TriviumError else kind
    more = len(lines) - _MAX_LISTED_DIFFERENCES
    lines[_MAX_LISTED_DIFFERENCES:] = [f"and {more} more"] if more > 0 else []
    return kind(
        "the ranks of this job were started differently; give every host the same command, code and data, and start "
        "again\n" + "\n".join(lines)
    )


def _where(value: str, ranks: Sequence[int], hosts: Sequence[str]) -> str:
    short = value if len(value) <= _MAX_VALUE_CHARACTERS else f"{value[:_MAX_VALUE_CHARACTERS]}…"
    names = list(dict.fromkeys(hosts[rank] for rank in sorted(ranks)))
    more = f" and {len(names) - _MAX_LISTED_DIFFERENCES} more hosts" if len(names) > _MAX_LISTED_DIFFERENCES else ""
    which = "ranks" if len(ranks) > 1 else "rank"
    return f"{short} on {', '.join(names[:_MAX_LISTED_DIFFERENCES])}{more} ({which} {listed(sorted(ranks))})"
