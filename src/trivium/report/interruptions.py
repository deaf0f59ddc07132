"""Interruptions of a training run, read from its events: failures, preemptions, spikes, and changes of layout."""

from collections.abc import Iterable, Mapping
from typing import Any

from trivium.report.words import layout_text

Tree = Mapping[str, Any]
MAX_CAUSE_CHARACTERS = 200  # a cause may be a full traceback


def interruptions(events: Iterable[Tree]) -> list[dict[str, Any]]:
    """Return {step, what} of every event that interrupted the training or changed its layout, in order."""
    found = []
    for event in events:
        text = _text(event)
        if text is not None:
            found.append({"step": event.get("step"), "what": text})
    return found


def resumed_from(events: Iterable[Tree]) -> int:
    """Return the step after which the last part of the training began. Only this part surely has its layout and
    hosts."""
    after = 0
    for event in events:
        if event.get("event") == "resumed" and isinstance(event.get("step"), int):
            after = event["step"]
    return after


def _text(event: Tree) -> str | None:
    cause = " ".join(str(event.get("cause", "unknown")).split())[:MAX_CAUSE_CHARACTERS]
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
