"""Results that are of another input than the one this report shows: stamps name the keys of what a station read, and
results of a model its checkpoint."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from trivium.untrusted import read_json

Stamps = Mapping[str, Mapping[str, Any]]

_STEP = re.compile(r"step-(\d{8,})")  # docs/formats/checkpoint.md

# What a station's folder holds, as the page says it.
_WORDS = {"harvest": "another harvest", "curated": "another corpus", "training": "another training"}


def outdated(stations: Sequence[str], stamps: Stamps, there: Collection[str]) -> dict[str, str]:
    """Stations, in the order of the path, whose input is another now, or is outdated itself; and that input.

    stamps: of the finished stations. there: stations that have a folder; of an input that is gone nothing is said.
    """
    found: dict[str, str] = {}
    for name in stations:
        read = stamps.get(name, {}).get("inputs")
        for earlier, key in read.items() if isinstance(read, dict) else ():
            other = stamps.get(earlier, {}).get("key") != key
            if earlier in there and (other or earlier in found):
                found.setdefault(name, earlier)
    return found


def of_another_plan(priced: object, trained: object) -> bool:
    """Whether a training ran under another plan than the one that was priced; of fields that one of the two versions
    did not know, nothing is said."""
    if isinstance(priced, Mapping) and isinstance(trained, Mapping):
        return any(of_another_plan(priced[name], trained[name]) for name in priced.keys() & trained.keys())
    return priced != trained


def newest_checkpoint(run: Path) -> dict[str, Any] | None:
    """`step` and `sha256` of the newest checkpoint of a run, None where it has none any more."""
    folders = (run / "training" / "checkpoints").glob("step-*/manifest.json")
    named = [(int(step[1]), path) for path in folders if (step := _STEP.fullmatch(path.parent.name))]
    if not named:
        return None
    number, path = max(named)
    try:
        hashed = read_json(path).get("sha256")
    except (OSError, ValueError, AttributeError):  # whoever resumes from it says that it is damaged
        hashed = None
    return {"step": number, "sha256": hashed}


def older(models: Mapping[str, Any], newest: Mapping[str, Any] | None) -> dict[str, dict[str, int]]:
    """Results of another checkpoint than the run's newest: {name: the `step` they are of, and that of the `newest`}.

    models: of each name what its results say of their checkpoint; of what names no step nothing is said.
    """
    found = {}
    for name, model in models.items():
        step = model.get("step") if isinstance(model, Mapping) else None
        if newest is None or not isinstance(step, int):
            continue
        hashes = {model.get("sha256"), newest["sha256"]} - {None}
        if step != newest["step"] or len(hashes) > 1:
            found[name] = {"step": step, "newest": newest["step"]}
    return found


def told_older(steps: Mapping[str, int], verb: str) -> str:
    """The same of results of another checkpoint."""
    of, now = f"{steps['step']:,}", f"{steps['newest']:,}"
    what = f"step {of}, and the newest is of step {now}"
    if of == now:
        what = f"step {of} of another training than this report's"
    return f"of the checkpoint of {what}; `trivium {verb}` does it again"


def told(earlier: str, verb: str) -> str:
    """That results are of another input, and what does them again."""
    return f"of {_WORDS.get(earlier, f'other {earlier}')} than this report's; `trivium {verb}` does it again"
