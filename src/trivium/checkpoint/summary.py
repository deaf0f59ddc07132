"""What a checkpoint is, by its manifest alone. No torch: listing a few must take no longer than reading them."""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from trivium.checkpoint.format import read_manifest, step_of
from trivium.checkpoint.verify import refuse_not_finite, verify
from trivium.errors import CheckpointError
from trivium.provenance import fingerprint

LONGEST = 8  # figures that are shown one by one


def summary(path: Path, *, verified: bool = False) -> dict[str, Any]:
    """Step, size, layout, dtype and state of a checkpoint. One that is damaged or not finite is described, not refused.

    verified: read and hash its files too, and look for values that are not finite.
    """
    row: dict[str, Any] = {"step": step_of(path.name), "path": str(path)}
    state = "damaged"
    try:
        manifest = read_manifest(path)
        if verified:
            verify(path, manifest)
            state = "not finite"
            refuse_not_finite(path, manifest)
    except CheckpointError as error:
        return {**row, "state": state, "problem": str(error)}
    plan = manifest.get("plan") or {}
    return {
        **row,
        "step": int(manifest["step"]),
        "state": "verified" if verified else "not read",
        "bytes": sum(f["bytes"] for f in manifest["files"].values()),
        "files": len(manifest["files"]),
        "tensors": len(manifest["tensors"]),
        "parameters": sum(prod(t["shape"]) for n, t in manifest["tensors"].items() if n.startswith("weights/")),
        "kinds": sorted({n.split("/")[0] for n in manifest["tensors"]}),
        "dtype": (plan.get("precision") or {}).get("weights"),
        "layout": plan.get("layout"),
        "tokens_seen": manifest.get("tokens_seen"),
    }


def brief(tree: Mapping[str, Any]) -> dict[str, Any]:
    """What people read of a manifest: of the losses of many steps, and other such figures, their number and hash."""

    def shown(value: Any) -> Any:
        if isinstance(value, Mapping):
            return brief(value)
        figures = isinstance(value, list) and len(value) > LONGEST and isinstance(value[0], float)
        return f"{len(value)} figures, hash {fingerprint(value)}" if figures else value

    return {key: shown(value) for key, value in tree.items()}
