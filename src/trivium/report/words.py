"""Format figures as text for the tables of the page."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

Tree = dict[str, Any]


def moment_text(finished: Any) -> str:
    """Format an ISO time as 2026-01-31 12:00 UTC; other text is unchanged."""
    try:
        return datetime.fromisoformat(str(finished)).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return str(finished or "unknown")


def layout_text(layout: Mapping[str, Any]) -> str:
    """Format a layout as tensor 2 x pipeline 2 (2 chunks) x data 2 (expert 2)."""
    chunks = layout.get("chunks", 1)
    held = f" ({chunks} chunks)" if chunks not in (None, 1) else ""
    axes = [
        f"{axis} {layout[axis]}{held if axis == 'pipeline' else ''}"
        for axis in ("tensor", "pipeline", "data", "context")
        if axis in layout and (axis != "context" or layout[axis] != 1)
    ]
    expert = layout.get("expert", 1)
    divided = f" (expert {expert})" if expert not in (None, 1) else ""
    return f"{' x '.join(axes)}{divided}" if axes else "an unknown layout"


def layouts_text(parts: Sequence[Mapping[str, Any]]) -> str:
    """Format the layouts of a training as tensor 2 x data 2, then (after step 40) data 2."""
    first, *others = parts
    then = [f"then (after step {part['after']:,}) {layout_text(part['layout'])}" for part in others]
    return ", ".join([layout_text(first["layout"]), *then])


def killed_text(killed: dict[str, Any]) -> str:
    """Format a kill as rank 7, by SIGKILL, at step 166."""
    words = (("rank", "rank {}"), ("signal", "by {}"), ("step", "at step {}"))
    return ", ".join(text.format(killed[key]) for key, text in words if key in killed) or "unknown"


def scores_of(tasks: Tree) -> list[tuple[str, str, Tree]]:
    """Return (task, shots, score) of all scores in {task: {shots: score}}."""
    return [(task, shots, score) for task, by_shots in tasks.items() for shots, score in by_shots.items()]


def level_text(scores: list[Tree]) -> str:
    """Return the heading of intervals, such as 95% interval."""
    levels = {s["confidence"] for s in scores if isinstance(s.get("confidence"), int | float)}
    return f"{100 * levels.pop():.6g}% interval" if len(levels) == 1 else "interval"


def range_text(bounds: Any, text: Callable[[float], str]) -> str:
    return f"{text(bounds[0])} to {text(bounds[1])}" if bounds else "unknown"


def percent_range(bounds: Any) -> str:
    return range_text(bounds, percent_text)


def nats_text(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f} nats per token"


def chance_text(p: Any) -> str:
    """Format a p-value with three significant digits; below 0.001 they are not meaningful."""
    if not isinstance(p, int | float):
        return "unknown"
    return "< 0.001" if p < 0.001 else f"{p:#.3g}"


def effect_text(value: float | None) -> str:
    """Format an effect, or a bound of its interval, with its sign and three significant digits."""
    return "unknown" if value is None else f"{value:+#.3g}".removesuffix(".")


def number_text(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if isinstance(value, float) else "unknown"


def small_text(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.2g}"


def median_figure(training: Tree, name: str, within: tuple[float, float] | None = None) -> float | None:
    """Return the median of a figure over the steps with the largest batch since the last resume; None if unknown.
    within: the step after which they begin and the last of them, if they are others."""
    after, last = within or (training["resumed_from"], math.inf)
    steps = [s for s in training["curves"]["steps"] if after < s["step"] <= last]
    largest = max((s.get("sequences") or 0 for s in steps), default=0)
    found = [s[name] for s in steps if s.get(name) and (s.get("sequences") or 0) == largest]
    return median(found) if found else None


def bytes_text(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"


def percent_text(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"
