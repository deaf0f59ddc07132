"""What a run lost most of its text to, and the settings that would have kept it."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trivium.units import format_bytes

LARGE_SHARE = 0.2  # of the text, or of the records: a larger loss to one reason is said at the end of a run
_EXTRACT = "extract"


def losses_in(funnel: Path) -> list[str]:
    """The `loss_lines` of a funnel.json; none where the file is not there."""
    return loss_lines(json.loads(funnel.read_text(encoding="utf-8"))) if funnel.is_file() else []


def loss_lines(funnel: Iterable[Mapping[str, Any]]) -> list[str]:
    """One line for each reason that took more than a fifth of the text, with the setting that changes it.

    Pages are measured as HTML up to their extraction, and texts as they are after it.
    """
    lines: list[str] = []
    whole = 0
    for step in funnel:
        before = step["documents"] + step["quarantined"]
        if step["quarantined"] > LARGE_SHARE * before:
            lines.append(
                f"{step['quarantined']:,} of {before:,} records could not be read; rejects.jsonl.gz says why"
            )
        for reason, size in sorted(
            step.get("dropped_bytes", {}).items(), key=lambda pair: (-pair[1], pair[0])
        ):
            if size > LARGE_SHARE * whole:
                remedy = step.get("remedies", {}).get(reason)
                change = f"change this with --set curate.{remedy}" if remedy else "no setting changes this"
                lines.append(
                    f"{100 * size / whole:.0f} % of the text ({format_bytes(size)} of {format_bytes(whole)}) was "
                    f"dropped by '{step['step']}': {reason}; {change}"
                )
        if step["step"] == _EXTRACT or not whole:
            whole = step["bytes"]
    return lines
