"""Several launches of one contest as one result.

Where a process's memory happens to lie makes its steps up to a tenth longer or shorter for as long as it lives: two
sides with the same kernels differ by that, and other launches have it the other way round.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

LAUNCHES = 3
FEWEST_ROUNDS = 4  # of a launch, but where there are fewer in all


def rounds_of_launches(rounds: int) -> list[int]:
    """Return the rounds of each launch: `rounds` divided as evenly as possible over at most LAUNCHES launches."""
    launches = max(1, min(LAUNCHES, rounds // FEWEST_ROUNDS))
    return [rounds * (n + 1) // launches - rounds * n // launches for n in range(launches)]


def together(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine results of one contest from several launches: for each side that failed in none, the medians of seconds,
    the smallest minimum and the largest memory."""
    failed = {name: why for each in reversed(results) for name, why in each["failed"].items()}
    names = [name for name in results[0]["seconds"] if name not in failed]
    found = {
        **results[0],
        "rounds": sum(each["rounds"] for each in results),
        "launches": len(results),
        "failed": failed,
        "seconds": {
            name: {
                what: (min if what == "min" else statistics.median)(each["seconds"][name][what] for each in results)
                for what in results[0]["seconds"][name]
            }
            for name in names
        },
    }
    if "memory" in found:
        found["memory"] = {
            name: {what: max(each["memory"][name][what] for each in results) for what in results[0]["memory"][name]}
            for name in names
        }
    return found


def compared(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine results of one row with their comparisons; the first result that was not measured is returned alone. The
    extra of the row is that of the launch with the median share saved."""
    for each in results:
        if each["status"] != "measured":
            return dict(each)
    found = together(results)
    found["comparisons"] = [
        over_launches(pair) for pair in zip(*(each["comparisons"] for each in results), strict=True)
    ]
    if "extra" in found:
        found["extra"] = sorted((each["extra"] for each in results), key=lambda x: x["share_saved"])[
            (len(results) - 1) // 2
        ]
    return found


def over_launches(comparisons: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine comparisons of one pair from several launches: medians of their ratios, or the first that failed."""
    for each in comparisons:
        if each["status"] != "measured":
            return dict(each)
    ratios = [name for name in comparisons[0] if name.startswith("ratio")]
    found = {**comparisons[0], **{n: statistics.median(each[n] for each in comparisons) for n in ratios}}
    target = found["target"]
    return {**found, "reached": None if target is None else found["ratio"] >= target}
