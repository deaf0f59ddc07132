"""The mean of the weights of several checkpoints as a checkpoint of its own, a piece at a time."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from trivium.checkpoint.format import step_name
from trivium.checkpoint.load import Checkpoint, widest_kind
from trivium.checkpoint.pieces import TORCH_DTYPES
from trivium.checkpoint.reshard import Part, parts_of, write_whole
from trivium.config import build, differences, first_lines
from trivium.errors import CheckpointError, ConfigError
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import Box

KEPT = ("samples", "tokens_seen", "seed", "plan", "training", "data")  # of the manifest of the one that did most


def average(sources: Sequence[Checkpoint], root: Path) -> Path:
    """Write the mean of the weights of `sources` under `root`, as a checkpoint of the most steps among them.

    Where weights are a narrow copy of masters, of those. It is added up in fp64 and kept in fp32, or in fp64 where
    that is what they are in. Moments are not kept: a training begins with it as with any weights. Returns its
    directory. Raises ConfigError for fewer than two, or the same one twice, or when `root` holds that step already;
    CheckpointError when they are of different models or tokenizers, or it cannot be written.
    """
    places = [source.directory.resolve() for source in sources]
    twice = [str(place) for n, place in enumerate(places) if place in places[:n]]
    if len(sources) < 2 or twice:
        told = f"{twice[0]} is named twice" if twice else f"{len(sources)} is named"
        raise ConfigError(f"a mean is of two checkpoints or more, each named once, and {told}")
    for one, other in pairwise(sources):
        _refuse_others(one, other)
    most = max(sources, key=lambda source: source.step)
    final = root / step_name(most.step)
    if final.exists():
        raise ConfigError(f"{final} exists already; choose another --to, or remove it first")
    about = {k: most.manifest[k] for k in KEPT if k in most.manifest}
    about["average_of"] = [
        {"directory": str(s.directory), "step": s.step, "sha256": s.manifest["sha256"]} for s in sources
    ]
    return write_whole(root, most.step, about, [list(_means(sources))])


def _means(sources: Sequence[Checkpoint]) -> Iterator[Part]:
    """Every tensor of weights, in parts whose values are computed when their turn comes."""
    for name in (name for name in sources[0].names if name.startswith("weights/")):
        held = [(source, _widest(source, name)) for source in sources]
        dtypes = {TORCH_DTYPES[source.manifest["tensors"][widest]["dtype"]] for source, widest in held}
        dtype = torch.float64 if torch.float64 in dtypes else torch.float32
        for part in parts_of(sources[0], name):
            yield part._replace(dtype=dtype, values=partial(_mean, held, part.box, dtype))


def _mean(held: Sequence[tuple[Checkpoint, str]], box: Box, dtype: torch.dtype) -> torch.Tensor:
    """Of a box of one tensor in each."""
    total = torch.zeros(box.shape, dtype=torch.float64)
    for source, name in held:
        total += source.read(name, box, torch.float64)
    return (total / len(held)).to(dtype)


def _widest(source: Checkpoint, name: str) -> str:
    """The masters of a tensor of weights, where it has any."""
    parameter = name.removeprefix("weights/")
    return f"{widest_kind(source, parameter)}/{parameter}"


def _refuse_others(one: Checkpoint, other: Checkpoint) -> None:
    """CheckpointError when weights of the two mean different things."""
    found = differences(_about_weights(one), _about_weights(other))
    if found:
        raise CheckpointError(
            f"{other.directory} is of another model or tokenizer than {one.directory} (there -> here):\n"
            f"{first_lines(found)}\n"
            f"a mean is of checkpoints of one model and one tokenizer; name only those"
        )


def _about_weights(source: Checkpoint) -> dict[str, Any]:
    tensors: Mapping[str, Any] = source.manifest["tensors"]
    shapes = {n: list(t["shape"]) for n, t in tensors.items() if n.startswith("weights/")}
    plan = source.manifest.get("plan")
    model = build(ModelShape, plan["model"]).of_weights() if plan else {}
    words = source.manifest.get("data", {}).get("tokenizer_sha256")
    return {**shapes, "plan.model": model, "tokenizer_sha256": words}
