"""Average the weights of several checkpoints into a new checkpoint, piece by piece."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from trivium.checkpoint.format import step_name
from trivium.checkpoint.load import Checkpoint, widest_kind
from trivium.checkpoint.pieces import TORCH_DTYPES, Part
from trivium.checkpoint.reshard import parts_of, write_whole
from trivium.config import build, differences, first_lines
from trivium.errors import CheckpointError, ConfigError
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import Box

# keys that are copied from the manifest of the checkpoint with the most steps
KEPT = ("samples", "tokens_seen", "seed", "plan", "training", "data")


def average(sources: Sequence[Checkpoint], root: Path) -> Path:
    """Write the mean of the weights of `sources` under `root`, with the largest step among them; returns its directory.

    Master weights are averaged if there are any. Sums are in fp64, and the mean is stored in fp32, or in fp64 if a
    source is. Optimizer states are not stored, so training can only start from the weights. Raises ConfigError for
    fewer than two sources, for a source that is named twice, and if `root` contains that step already;
    CheckpointError if models or tokenizers differ, if they have adapters, or if writing fails.
    """
    named = [source.directory for source in sources]
    places = [place.resolve() if isinstance(place, Path) else place for place in named]
    twice = [str(place) for n, place in enumerate(places) if place in places[:n]]
    if len(sources) < 2 or twice:
        told = f"{twice[0]} is named twice" if twice else f"{len(sources)} is named"
        raise ConfigError(f"average needs two checkpoints or more, each named once, but {told}")
    for one, other in pairwise(sources):
        _refuse_others(one, other)
    if any(".adapter." in name for name in sources[0].names):
        raise CheckpointError(
            f"{sources[0].directory} has adapters, and the product of averaged factors is not the average of the "
            f"products; run `trivium checkpoint merge` on each checkpoint, and average the results"
        )
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
    """Yield all weights in parts, whose values are computed when they are written."""
    for name in (name for name in sources[0].names if name.startswith("weights/")):
        copies = [(source, _widest(source, name)) for source in sources]
        dtypes = {TORCH_DTYPES[source.manifest["tensors"][widest]["dtype"]] for source, widest in copies}
        dtype = torch.float64 if torch.float64 in dtypes else torch.float32
        for part in parts_of(sources[0], name):
            yield part._replace(dtype=dtype, values=partial(_mean, copies, part.box, dtype))


def _mean(copies: Sequence[tuple[Checkpoint, str]], box: Box, dtype: torch.dtype) -> torch.Tensor:
    """Return the mean of a box over the sources, each with its name of the tensor."""
    total = torch.zeros(box.shape, dtype=torch.float64)
    for source, name in copies:
        total += source.read(name, box, torch.float64)
    return (total / len(copies)).to(dtype)


def _widest(source: Checkpoint, name: str) -> str:
    """Return the name of the most precise copy of a tensor of weights."""
    parameter = name.removeprefix("weights/")
    return f"{widest_kind(source, parameter)}/{parameter}"


def _refuse_others(one: Checkpoint, other: Checkpoint) -> None:
    """Raise CheckpointError if the two are checkpoints of different models or tokenizers."""
    found = differences(_about_weights(one), _about_weights(other))
    if found:
        raise CheckpointError(
            f"{other.directory} is of another model or tokenizer than {one.directory} (there -> here):\n"
            f"{first_lines(found)}\n"
            f"only checkpoints of one model and one tokenizer can be averaged; name only those"
        )


def _about_weights(source: Checkpoint) -> dict[str, Any]:
    tensors: Mapping[str, Any] = source.manifest["tensors"]
    shapes = {n: list(t["shape"]) for n, t in tensors.items() if n.startswith("weights/")}
    plan = source.manifest.get("plan")
    model = build(ModelShape, plan["model"]).of_weights() if plan else {}
    words = source.manifest.get("data", {}).get("tokenizer_sha256")
    return {**shapes, "plan.model": model, "tokenizer_sha256": words}
