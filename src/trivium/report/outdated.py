"""Detect outdated results. Stamps contain the keys of a stage's inputs, and results of a model describe its
checkpoint."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from trivium.untrusted import read_json

Stamps = Mapping[str, Mapping[str, Any]]

_STEP = re.compile(r"step-(\d{8,})")  # docs/formats/checkpoint.md

# The content of a stage's folder, as the page calls it.
_CONTENTS = {"harvest": "another harvest", "curated": "another corpus", "training": "another training"}


def outdated(stages: Sequence[str], stamps: Stamps, there: Collection[str]) -> dict[str, str]:
    """Return {stage: input} for the stages whose input has changed since, or is outdated itself.

    stamps: of the finished stages. there: stages that have a folder; deleted inputs are not reported.
    """
    found: dict[str, str] = {}
    for name in stages:
        read = stamps.get(name, {}).get("inputs")
        for earlier, key in read.items() if isinstance(read, dict) else ():
            other = stamps.get(earlier, {}).get("key") != key
            if earlier in there and (other or earlier in found):
                found.setdefault(name, earlier)
    return found


def of_another_plan(priced: object, trained: object) -> bool:
    """Whether a training used another plan than the priced one. Fields that only one of the two has are ignored."""
    if isinstance(priced, Mapping) and isinstance(trained, Mapping):
        return any(of_another_plan(priced[name], trained[name]) for name in priced.keys() & trained.keys())
    return priced != trained


def newest_checkpoint(run: Path) -> dict[str, Any] | None:
    """Return `step` and `sha256` of the newest checkpoint of a run; None if it has no checkpoint."""
    folders = (run / "training" / "checkpoints").glob("step-*/manifest.json")
    named = [(int(step[1]), path) for path in folders if (step := _STEP.fullmatch(path.parent.name))]
    if not named:
        return None
    number, path = max(named)
    try:
        hashed = read_json(path).get("sha256")
    except (OSError, ValueError, AttributeError):  # resuming from it will report the damage
        hashed = None
    return {"step": number, "sha256": hashed}


def is_of(model: Mapping[str, Any], checkpoint: Mapping[str, Any]) -> bool:
    """Whether results describe this checkpoint; hashes are compared if both have one."""
    hashes = {model.get("sha256"), checkpoint["sha256"]} - {None}
    return model.get("step") == checkpoint["step"] and len(hashes) <= 1


def older(models: Mapping[str, Any], newest: Mapping[str, Any] | None) -> dict[str, dict[str, int]]:
    """Return {name: {step, newest}} for results that are not of the newest checkpoint.

    models: descriptions of the results' checkpoints by name; one without a step is ignored.
    """
    found = {}
    for name, model in models.items():
        step = model.get("step") if isinstance(model, Mapping) else None
        if newest is None or not isinstance(step, int):
            continue
        if not is_of(model, newest):
            found[name] = {"step": step, "newest": newest["step"]}
    return found


def older_text(steps: Mapping[str, int], verb: str) -> str:
    """Say that results are of an older checkpoint, and which command updates them."""
    of, now = f"{steps['step']:,}", f"{steps['newest']:,}"
    what = f"step {of}, and the newest is of step {now}"
    if of == now:
        what = f"step {of} of another training than this report's"
    return f"of the checkpoint of {what}; `trivium {verb}` does it again"


def outdated_text(earlier: str, verb: str) -> str:
    """Say that results are of another input, and which command updates them."""
    return f"of {_CONTENTS.get(earlier, f'other {earlier}')} than this report's; `trivium {verb}` does it again"
