"""What a training went through besides its steps, as its events tell: failures, rests, spikes, other layouts."""

from collections.abc import Iterable, Mapping
from typing import Any

from trivium.report.words import layout_text

Tree = Mapping[str, Any]
SHOWN = 200  # of a cause, which may be a whole traceback


def interruptions(events: Iterable[Tree]) -> list[dict[str, Any]]:
    """{step, what} of every event that interrupted a training or changed its layout, in their order."""
    found = []
    for event in events:
        text = _text(event)
        if text is not None:
            found.append({"step": event.get("step"), "what": text})
    return found


def resumed_from(events: Iterable[Tree]) -> int:
    """After which step the last part of a training began, which alone is of its layout and hosts for certain."""
    after = 0
    for event in events:
        if event.get("event") == "resumed" and isinstance(event.get("step"), int):
            after = event["step"]
    return after


def _text(event: Tree) -> str | None:
    cause = " ".join(str(event.get("cause", "unknown")).split())[:SHOWN]
    match event.get("event"):
        case "rank failed":
            return f"failed: {cause}"
        case "resumed":
            layout = event.get("layout")
            return f"went on from the checkpoint, {layout_text(layout if isinstance(layout, dict) else {})}"
        case "preempted":
            return "asked to end as it started" if event.get("in") == "starting" else "asked to end; saved"
        case "save failed":
            return f"a save failed: {cause}"
        case "spike":
            return f"refused: {cause}; policy {event.get('policy', 'unknown')}"
    return None
