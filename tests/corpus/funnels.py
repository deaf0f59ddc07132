"""Checks of funnels, for tests."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any


def balances(funnel: Sequence[dict[str, Any]]) -> bool:
    """Return whether every step's documents are those of the step before, plus added, minus dropped and quarantined."""
    return all(
        before["documents"] + here["added"] == here["documents"] + sum(here["dropped"].values()) + here["quarantined"]
        for before, here in pairwise(funnel)
    )
