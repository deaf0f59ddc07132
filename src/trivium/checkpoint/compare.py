"""What a checkpoint is, and how two differ: tensor by tensor, a piece at a time."""

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trivium.checkpoint.format import step_of
from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.pieces import TORCH_DTYPES
from trivium.checkpoint.reshard import STRUCTURE, parts_of
from trivium.config import differences
from trivium.errors import CheckpointError
from trivium.provenance import fingerprint

LONGEST = 8  # figures that are shown one by one


class TensorDifference(NamedTuple):
    """How one tensor differs: `what` in words; the largest difference, absolute and of the larger value."""

    name: str
    what: str
    absolute: float
    relative: float


def summary(path: Path, *, verify: bool = False) -> dict[str, Any]:
    """Step, size, layout, dtype and state of a checkpoint; a damaged one is described, not refused."""
    row: dict[str, Any] = {"step": step_of(path.name), "path": str(path)}
    try:
        checkpoint = Checkpoint.open(path)
        if verify:
            checkpoint.verify()
    except CheckpointError as error:
        return {**row, "state": "damaged", "problem": str(error)}
    manifest = checkpoint.manifest
    plan = manifest.get("plan") or {}
    return {
        **row,
        "step": checkpoint.step,
        "state": "verified" if verify else "not read",
        "bytes": sum(f["bytes"] for f in manifest["files"].values()),
        "files": len(manifest["files"]),
        "tensors": len(manifest["tensors"]),
        "parameters": sum(
            prod(t["shape"]) for n, t in manifest["tensors"].items() if n.startswith("weights/")
        ),
        "kinds": sorted({n.split("/")[0] for n in manifest["tensors"]}),
        "dtype": (plan.get("precision") or {}).get("weights"),
        "layout": plan.get("layout"),
        "tokens_seen": manifest.get("tokens_seen"),
    }


def about_differences(a: Checkpoint, b: Checkpoint) -> list[str]:
    """`path: there -> here` of everything in the manifests besides tensors and files."""
    one, two = ({k: v for k, v in c.manifest.items() if k not in (*STRUCTURE, "step")} for c in (a, b))
    return differences(brief(one), brief(two))


def brief(tree: Mapping[str, Any]) -> dict[str, Any]:
    """What people read of a manifest: of the losses of many steps, and other such figures, their number and hash."""

    def shown(value: Any) -> Any:
        if isinstance(value, Mapping):
            return brief(value)
        figures = isinstance(value, list) and len(value) > LONGEST and isinstance(value[0], float)
        return f"{len(value)} figures, hash {fingerprint(value)}" if figures else value

    return {key: shown(value) for key, value in tree.items()}


def tensor_differences(a: Checkpoint, b: Checkpoint) -> Iterator[TensorDifference]:
    """Every tensor that is not bitwise the same in both."""
    ours, theirs = a.manifest["tensors"], b.manifest["tensors"]
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs:
            yield TensorDifference(name, f"only in {(a if name in ours else b).directory}", 0.0, 0.0)
        elif tuple(ours[name]["shape"]) != tuple(theirs[name]["shape"]):
            yield TensorDifference(name, f"shape {ours[name]['shape']} -> {theirs[name]['shape']}", 0.0, 0.0)
        else:
            yield from _values_differ(name, a, b, ours[name], theirs[name])


def _values_differ(
    name: str, a: Checkpoint, b: Checkpoint, ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Iterator[TensorDifference]:
    absolute = largest = 0.0
    same = ours["dtype"] == theirs["dtype"]
    for part in parts_of(a, name):
        x, y = part.values(), b.read(name, part.box, TORCH_DTYPES[theirs["dtype"]])
        same = (
            same and torch.equal(x.view(torch.uint8), y.view(torch.uint8)) if x.dim() else torch.equal(x, y)
        )
        x, y = x.double(), y.double()
        absolute = max(absolute, float((x - y).abs().max()))
        largest = max(largest, float(x.abs().max()), float(y.abs().max()))
    if not same:
        kind = "" if ours["dtype"] == theirs["dtype"] else f"{ours['dtype']} -> {theirs['dtype']} "
        what = f"{kind}differs by at most {absolute:.3g}, {absolute / largest if largest else 0.0:.3g} of the largest"
        yield TensorDifference(name, what, absolute, absolute / largest if largest else 0.0)
