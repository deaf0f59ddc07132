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
    """So many, shared as evenly as can be by at most LAUNCHES launches."""
    launches = max(1, min(LAUNCHES, rounds // FEWEST_ROUNDS))
    return [rounds * (n + 1) // launches - rounds * n // launches for n in range(launches)]


def together(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of results of one contest: medians of seconds, the smallest minimum and the most memory of each side that no
    launch saw fail."""
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
    """Of results of one row that hold their comparisons, or of the first that was not measured; what a row has beside
    them is of the launch whose share saved is the middle one."""
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
    """Of comparisons of one pair, one of each launch: medians of their ratios; the first that failed, if any did."""
    for each in comparisons:
        if each["status"] != "measured":
            return dict(each)
    ratios = [name for name in comparisons[0] if name.startswith("ratio")]
    found = {**comparisons[0], **{n: statistics.median(each[n] for each in comparisons) for n in ratios}}
    target = found["target"]
    return {**found, "reached": None if target is None else found["ratio"] >= target}
