"""Compare two checkpoints tensor by tensor, piece by piece."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from trivium.checkpoint.format import STRUCTURE
from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.pieces import TORCH_DTYPES
from trivium.checkpoint.reshard import parts_of
from trivium.checkpoint.verify import abbreviated
from trivium.config import differences


class TensorDifference(NamedTuple):
    """The difference of one tensor: a description, and the largest difference of finite values, absolute and relative
    to the largest value."""

    name: str
    what: str
    absolute: float
    relative: float


def about_differences(a: Checkpoint, b: Checkpoint) -> list[str]:
    """Return the differences of the manifests besides tensors and files, as `path: value in a -> value in b`."""
    one, two = ({k: v for k, v in c.manifest.items() if k not in (*STRUCTURE, "step")} for c in (a, b))
    return differences(abbreviated(one), abbreviated(two))


def tensor_differences(a: Checkpoint, b: Checkpoint) -> Iterator[TensorDifference]:
    """Yield every tensor that is not bitwise equal in both."""
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
    absolute, largest, strange = 0.0, 0.0, 0
    same = ours["dtype"] == theirs["dtype"]
    for part in parts_of(a, name):
        x, y = part.values(), b.read(name, part.box, TORCH_DTYPES[theirs["dtype"]])
        same = same and torch.equal(x.flatten().view(torch.uint8), y.flatten().view(torch.uint8))
        x, y = x.double(), y.double()
        finite = x.isfinite() & y.isfinite()  # max() ignores NaN
        strange += int((~finite).sum())
        absolute = max(absolute, float((x - y).where(finite, 0.0).abs().max()))
        largest = max(largest, *(float(values.where(finite, 0.0).abs().max()) for values in (x, y)))
    if not same:
        kind = "" if ours["dtype"] == theirs["dtype"] else f"{ours['dtype']} -> {theirs['dtype']} "
        rest = f"not finite in one or both: {strange:,} values; the rest " if strange else ""
        relative = absolute / largest if largest else 0.0
        what = f"{kind}{rest}differs by at most {absolute:.3g}, {relative:.3g} of the largest"
        yield TensorDifference(name, what, absolute, relative)
