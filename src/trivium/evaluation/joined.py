"""Merge the results of several calls that evaluated the same checkpoint."""

from collections.abc import Mapping, Sequence
from typing import Any

Tree = Mapping[str, Any]
COMPARABLE = ("prompt_hash", "version", "normalisation")  # results are comparable only where these are equal


def is_same(one: Tree, other: Tree) -> bool:
    """Whether two descriptions are of the same checkpoint; hashes are compared if both have one."""
    both = {"step", "tokens", "parameters"} | ({"sha256"} & one.keys() & other.keys())
    return all(one.get(key) == other.get(key) for key in both)


def joined(earlier: Tree, found: Tree, asked: Sequence[Tree]) -> dict[str, Any]:
    """Merge `found` into earlier task results. `asked`: descriptions of this call's checkpoints.

    Earlier results are kept only if they are of one of these checkpoints and used the same tokenizer. Then other
    tasks and other numbers of shots are kept; a task with the same number of shots is replaced. Accuracies in the
    series are kept unless this call asks other questions of the same task and number of shots. While the earlier
    checkpoint has not been evaluated in this call yet, its results stay the headline.
    """
    if not any(is_same(earlier["model"], model) for model in asked) or not _alike(earlier, found):
        return dict(found)
    earlier = {**earlier, "tasks": _comparable(earlier["tasks"], found["tasks"])}
    points = [{**point, "tasks": _comparable(point["tasks"], found["tasks"])} for point in earlier.get("series", [])]
    series = _series([point for point in points if point["tasks"]], found["series"])
    if is_same(earlier["model"], found["model"]):
        tasks = _merged(earlier["tasks"], found["tasks"])
        skipped = {**earlier.get("skipped", {}), **found["skipped"]}
        left_out = {name: why for name, why in skipped.items() if name not in tasks}
        return {**found, "tasks": tasks, "skipped": left_out, "series": series}
    comes_later = earlier["model"]["step"] > found["model"]["step"]
    return {**(earlier if comes_later and earlier["tasks"] else found), "series": series}


def loses(earlier: Tree, tree: Tree) -> bool:
    """Whether `tree` lacks a point of the series of `earlier`, or a result for the same checkpoint, tokenizer and
    questions."""
    if not is_same(earlier["model"], tree["model"]) or not _alike(earlier, tree):
        return True
    for task, by_shots in earlier["tasks"].items():
        for shots, result in by_shots.items():
            now = tree["tasks"].get(task, {}).get(shots, {})
            if any(now.get(key) != result.get(key) for key in COMPARABLE):
                return True
    points = {point["step"]: point["tasks"] for point in tree["series"]}
    return any(
        points.get(point["step"], {}).get(task, {}).get(shots) != score
        for point in earlier.get("series", [])
        for task, by_shots in point["tasks"].items()
        for shots, score in by_shots.items()
    )


def loses_study(earlier: Tree, tree: Tree) -> bool:
    """Whether a `trivium-incontext-1` lacks a model of the earlier one, or is of another task or configuration."""
    if any(earlier[key] != tree[key] for key in ("format", "task", "config")):
        return True
    now = [found["model"] for found in tree["models"]]
    return not all(any(is_same(found["model"], model) for model in now) for found in earlier["models"])


def _alike(earlier: Tree, found: Tree) -> bool:
    return bool(earlier["config"].get("tokenizer") == found["config"].get("tokenizer"))


def _merged(earlier: Tree, found: Tree) -> dict[str, Any]:
    """Merge two {task: {shots: …}}; `found` takes precedence."""
    tasks = dict.fromkeys([*earlier, *found])
    return {task: {**earlier.get(task, {}), **found.get(task, {})} for task in tasks}


def _comparable(earlier: Tree, found: Tree) -> dict[str, Any]:
    """Return {task: {shots: …}} of `earlier` without the results of which `found` has others that are not
    comparable."""

    def is_kept(task: str, shots: str, result: Tree) -> bool:
        now = found.get(task, {}).get(shots)
        return now is None or all(now[key] == result[key] for key in COMPARABLE)

    kept = {t: {s: r for s, r in by_shots.items() if is_kept(t, s, r)} for t, by_shots in earlier.items()}
    return {task: by_shots for task, by_shots in kept.items() if by_shots}


def _series(earlier: Sequence[Tree], found: Sequence[Tree]) -> list[dict[str, Any]]:
    points: dict[int, dict[str, Any]] = {point["step"]: dict(point) for point in earlier}
    for point in found:
        before = points.get(point["step"])
        points[point["step"]] = dict(point)
        if before is not None and is_same(before, point):
            points[point["step"]]["tasks"] = _merged(before["tasks"], point["tasks"])
    return [points[step] for step in sorted(points)]
