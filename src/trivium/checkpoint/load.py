"""Read any box of any tensor of a checkpoint; nothing is used before it was verified, nothing is unpickled."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from trivium.checkpoint.agree import found_by_first, problem_of_any
from trivium.checkpoint.format import MANIFEST, published, read_manifest
from trivium.checkpoint.pieces import TORCH_DTYPES
from trivium.checkpoint.verify import refuse_not_finite, verify
from trivium.comms.mesh import Mesh
from trivium.config import build
from trivium.errors import CheckpointError, ConfigError
from trivium.plan.parameters import Box, parameters
from trivium.plan.plan import Plan
from trivium.provenance import unheard
from trivium.untrusted import check_regular


@dataclass(frozen=True)
class Checkpoint:
    """A published checkpoint, open for reading. traffic: bytes of tensors read from each file."""

    directory: Path
    manifest: dict[str, Any]
    traffic: Counter[str] = field(default_factory=Counter, compare=False)

    @classmethod
    def open(cls, directory: str | Path) -> "Checkpoint":
        """Open without reading tensors; CheckpointError when there is none or its manifest is damaged."""
        return cls(Path(directory), read_manifest(Path(directory)))

    @property
    def step(self) -> int:
        """Optimizer steps done when it was written."""
        return int(self.manifest["step"])

    @property
    def plan(self) -> Plan:
        """What it was trained under; CheckpointError where that is no plan, or it has not the weights of that model: a
        manifest can say ten thousand layers, of which a table would be made before the first of them is missed."""
        tensors = self.manifest["tensors"]
        try:
            plan = build(Plan, self.manifest["plan"])
        except ConfigError as error:
            raise CheckpointError(
                f"{self.directory}: {MANIFEST} holds no plan: {error}; use an older checkpoint"
            ) from None
        if plan.model.layers > len(tensors):
            raise CheckpointError(
                f"{self.directory}: {MANIFEST} says plan.model.layers {plan.model.layers}, and names {len(tensors)} "
                f"tensors; use an older checkpoint"
            )
        for row in parameters(plan.model):
            held = tensors.get(f"weights/{row.name}", {}).get("shape")
            if held != list(row.shape):
                raise CheckpointError(
                    f"{self.directory}: {row.name} is {held or 'not there'}, and the plan in {MANIFEST} makes it "
                    f"{list(row.shape)}; use an older checkpoint"
                )
        return plan

    @property
    def names(self) -> list[str]:
        """The unsplit tensors in it."""
        return sorted(self.manifest["tensors"])

    def verify(self, share: int = 0, shares: int = 1, alive: Callable[[], None] = unheard) -> None:
        """Every `shares`-th file and tensor; CheckpointError names the first that is not as the manifest has it."""
        verify(self.directory, self.manifest, share, shares, alive)

    def refuse_not_finite(self, share: int = 0, shares: int = 1, alive: Callable[[], None] = unheard) -> None:
        """Raise CheckpointError naming the first tensor in every `shares`-th file that holds a NaN or an infinity."""
        refuse_not_finite(self.directory, self.manifest, share, shares, alive)

    @classmethod
    def open_together(cls, directory: str | Path, mesh: Mesh, alive: Callable[[], None] = unheard) -> "Checkpoint":
        """Open and verify, the ranks sharing the work; every rank raises CheckpointError when one finds damage, or a
        value that is not finite.

        The first rank alone reads the manifest, which has many megabytes where there are thousands of ranks. alive:
        called as the work goes on.
        """
        place = Path(directory)
        opened = cls(place, found_by_first(lambda: read_manifest(place), mesh, CheckpointError))

        def look() -> None:
            opened.verify(mesh.rank, mesh.layout.world_size, alive)
            opened.refuse_not_finite(mesh.rank, mesh.layout.world_size, alive)

        problem = problem_of_any(look, mesh, alive)
        if problem:
            raise CheckpointError(problem)
        return opened

    def read(self, name: str, wanted: Box, dtype: torch.dtype) -> torch.Tensor:
        """The values of a box, put together from whatever pieces hold them."""
        if name not in self.manifest["tensors"]:
            raise CheckpointError(f"{self.directory} has no tensor '{name}' among its {len(self.names)}")
        out, filled = torch.empty(wanted.shape, dtype=dtype), 0
        for piece in self.manifest["tensors"][name]["pieces"]:
            box = Box(tuple(piece["start"]), tuple(piece["shape"]))
            common = box.intersect(wanted)
            if common is not None:
                out[common.within(wanted)] = self._slice(piece, common.within(box)).to(dtype)
                filled += common.elements
                self.traffic[piece["file"]] += common.elements * self._item_bytes(name)
        if filled != prod(wanted.shape):
            raise CheckpointError(f"{name}: {filled} of {prod(wanted.shape)} wanted elements are in {self.directory}")
        return out

    def _item_bytes(self, name: str) -> int:
        return int(TORCH_DTYPES[self.manifest["tensors"][name]["dtype"]].itemsize)

    def _slice(self, piece: dict[str, Any], region: tuple[slice, ...]) -> torch.Tensor:
        try:
            handle = self._file(piece["file"])
            held = handle.get_slice(piece["key"])
            if held.get_shape() != piece["shape"]:
                raise CheckpointError(
                    f"{self.directory / piece['file']}: {piece['key']} is {held.get_shape()}, and {MANIFEST} says "
                    f"{piece['shape']}; use an older checkpoint"
                )
            found: torch.Tensor = held[region] if region else handle.get_tensor(piece["key"])
            return found
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{self.directory / piece['file']}: {piece['key']} cannot be read: {error}") from None

    @cached_property
    def _open_files(self) -> dict[str, Any]:
        return {}

    def _file(self, name: str) -> Any:
        if name not in self._open_files:
            check_regular(self.directory / name)
            self._open_files[name] = safe_open(str(self.directory / name), framework="pt")
        return self._open_files[name]


def widest_kind(checkpoint: Checkpoint, name: str) -> str:
    """Return the widest copy that is kept of a parameter: its master, or its weights where it has none."""
    return "master" if f"master/{name}" in checkpoint.manifest["tensors"] else "weights"


def first_intact(
    paths: Sequence[Path], mesh: Mesh, warn: Callable[[str], None], alive: Callable[[], None] = unheard
) -> tuple[Checkpoint | None, list[str]]:
    """The first of some checkpoints that verifies, the ranks sharing the work, and what is wrong with those before it,
    which is told loudly; every rank must ask. alive: called as the work goes on."""
    problems: list[str] = []
    for path in paths:
        try:
            return Checkpoint.open_together(path, mesh, alive), problems
        except CheckpointError as error:
            problems.append(str(error))
            if mesh.rank == 0:
                warn(f"PASSING OVER A DAMAGED CHECKPOINT: {error}")
    return None, problems


def newest_good(
    root: Path,
    mesh: Mesh,
    warn: Callable[[str], None],
    alive: Callable[[], None] = unheard,
    abandoned: Collection[str] = (),
) -> Checkpoint | None:
    """The newest checkpoint that verifies, the ranks sharing the work; None if there is none at all. alive: called as
    the work goes on. abandoned: names of those that are none of these.

    A damaged one is passed over loudly. When all are damaged: CheckpointError, nothing is silently restarted.
    """
    names = found_by_first(lambda: [path.name for path in reversed(published(root))], mesh, CheckpointError)
    candidates = [root / name for name in names if name not in abandoned]
    found, problems = first_intact(candidates, mesh, warn, alive)
    if problems and found is None:
        raise CheckpointError(
            f"none of the {len(candidates)} checkpoints under {root} is intact ({problems[0]}); move them to start anew"
        )
    return found
