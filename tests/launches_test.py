"""Several launches of a contest are one result: of what differs from launch to launch it tells the median."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture()
def launches(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parent.parent / "benchmarks"))
    import launches

    return launches


def launch(ours: float, peer: float, fails: str | None = None) -> dict[str, Any]:
    seconds, failed = {"ours": ours, "peer": peer}, {} if fails is None else {"peer": fails}
    return {
        "name": "row",
        "rounds": 4,
        "failed": failed,
        "seconds": {n: {"median": s, "min": s / 2, "cpu": s} for n, s in seconds.items() if n not in failed},
        "memory": {n: {"above_imports": int(100 * s)} for n, s in seconds.items() if n not in failed},
    }


@pytest.mark.parametrize(("rounds", "shared"), [(1, [1]), (3, [3]), (8, [4, 4]), (12, [4, 4, 4]), (40, [13, 13, 14])])
def test_launches_share_the_rounds(launches: ModuleType, rounds: int, shared: list[int]) -> None:
    assert launches.rounds_of_launches(rounds) == shared


def test_a_slow_launch_decides_nothing(launches: ModuleType) -> None:
    found = launches.together([launch(1.0, 1.2), launch(3.0, 0.9), launch(1.1, 1.0)])
    assert found["seconds"] == {
        "ours": {"median": 1.1, "min": 0.5, "cpu": 1.1},
        "peer": {"median": 1.0, "min": 0.45, "cpu": 1.0},
    }
    assert found["memory"] == {"ours": {"above_imports": 300}, "peer": {"above_imports": 120}}
    assert (found["rounds"], found["launches"], found["name"]) == (12, 3, "row")


def test_who_fails_once_has_failed(launches: ModuleType) -> None:
    found = launches.together([launch(1.0, 1.2), launch(1.0, 1.2, fails="it ended")])
    assert found["failed"] == {"peer": "it ended"}
    assert found["seconds"].keys() == found["memory"].keys() == {"ours"}


def test_a_ratio_is_the_median_of_those_of_launches(launches: ModuleType) -> None:
    """Each of sides that ran together, and not of medians of different launches."""
    measured = {"status": "measured", "target": 1.0, "peer": "peer"}
    each = [{**measured, "ratio": r, "ratio_of_cpu": r + 1, "reached": r >= 1} for r in (0.9, 1.1, 1.3)]
    found = launches.over_launches(each)
    assert found == {**measured, "ratio": 1.1, "ratio_of_cpu": 2.1, "reached": True}
    failed = {**measured, "status": "failed", "reason": "losses differ"}
    assert launches.over_launches([each[0], failed]) == failed


def test_a_row_has_the_median_of_each_pair_and_what_the_middle_launch_saved(launches: ModuleType) -> None:
    def row(ratio: float, saved: float) -> dict[str, Any]:
        pairs = [{"status": "measured", "target": None, "peer": p, "ratio": r} for p, r in (("a", ratio), ("b", 2))]
        return {
            **{k: v for k, v in launch(1.0, ratio).items() if k != "memory"},
            "status": "measured",
            "comparisons": pairs,
            "extra": {"share_saved": saved, "of": ratio},
        }

    found = launches.compared([row(1.3, 0.1), row(0.9, 0.3), row(1.1, 0.2)])
    assert [(c["peer"], c["ratio"]) for c in found["comparisons"]] == [("a", 1.1), ("b", 2)]
    assert found["extra"] == {"share_saved": 0.2, "of": 1.1} and "memory" not in found
    failed = {"name": "row", "status": "failed", "reason": "it ended", "comparisons": []}
    assert launches.compared([row(1.3, 0.1), failed]) == failed
