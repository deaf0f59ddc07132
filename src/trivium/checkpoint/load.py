"""Read any box of any tensor of a checkpoint. Nothing is used before it is verified, and nothing is unpickled."""

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
from trivium.checkpoint.in_store import RemoteFile
from trivium.checkpoint.pieces import TORCH_DTYPES
from trivium.checkpoint.verify import refuse_not_finite, verify
from trivium.comms.mesh import Mesh
from trivium.config import build
from trivium.errors import CheckpointError, ConfigError
from trivium.plan.parameters import Box, parameters
from trivium.plan.plan import Plan
from trivium.provenance import unheard
from trivium.stores.remote import Location, location_of
from trivium.untrusted import check_regular


@dataclass(frozen=True)
class Checkpoint:
    """A published checkpoint. traffic: bytes of tensors that were read from each file."""

    directory: Location
    manifest: dict[str, Any]
    traffic: Counter[str] = field(default_factory=Counter, compare=False)

    @classmethod
    def open(cls, directory: str | Location) -> "Checkpoint":
        """Open without reading tensors. Raises CheckpointError if it is missing or its manifest is damaged."""
        place = _place(directory)
        return cls(place, read_manifest(place))

    @property
    def step(self) -> int:
        """The number of optimizer steps done."""
        return int(self.manifest["step"])

    @property
    def plan(self) -> Plan:
        """The plan of the training. Raises CheckpointError if it is invalid or the tensors are not those of its model.

        The number of layers is compared before a parameter table of that size is built.
        """
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
        """The names of its unsplit tensors."""
        return sorted(self.manifest["tensors"])

    def refuse_other_tokenizer(self, path: str | Path, sha256: str, vocabulary: int) -> None:
        """Raise CheckpointError if the tokenizer at `path` is not that of the training, or has too many ids."""
        known, most = self.manifest.get("data", {}).get("tokenizer_sha256"), self.plan.model.vocabulary
        remedy = "name the tokenizer.json the model was trained with"
        if vocabulary > most:
            raise CheckpointError(
                f"{path} has {vocabulary} ids, but the model of {self.directory} predicts {most}; {remedy}"
            )
        if known not in (None, sha256):
            raise CheckpointError(
                f"{path} has sha256 {sha256[:12]}…, but {self.directory} was trained with {known[:12]}…: its ids have "
                f"other meanings; {remedy}"
            )

    def verify(self, share: int = 0, shares: int = 1, alive: Callable[[], None] = unheard) -> None:
        """Verify every `shares`-th file and tensor. Raises CheckpointError naming the first that differs."""
        verify(self.directory, self.manifest, share, shares, alive)

    def refuse_not_finite(self, share: int = 0, shares: int = 1, alive: Callable[[], None] = unheard) -> None:
        """Raise CheckpointError naming the first tensor with a NaN or an infinity in every `shares`-th file."""
        refuse_not_finite(self.directory, self.manifest, share, shares, alive)

    @classmethod
    def open_together(cls, directory: str | Location, mesh: Mesh, alive: Callable[[], None] = unheard) -> "Checkpoint":
        """Open and verify; the ranks share the work. All raise CheckpointError if one finds damage or NaN or infinity.

        Only the first rank reads the manifest, which has many megabytes for thousands of ranks. alive: a heartbeat.
        """
        place = _place(directory)
        opened = cls(place, found_by_first(lambda: read_manifest(place), mesh, CheckpointError))

        def check() -> None:
            opened.verify(mesh.rank, mesh.layout.world_size, alive)
            opened.refuse_not_finite(mesh.rank, mesh.layout.world_size, alive)

        problem = problem_of_any(check, mesh, alive)
        if problem:
            raise CheckpointError(problem)
        return opened

    def read(self, name: str, wanted: Box, dtype: torch.dtype) -> torch.Tensor:
        """Return the values of a box, assembled from the pieces that contain them."""
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
            if isinstance(handle, RemoteFile):
                self._refuse_other_shape(piece, handle.shape(piece["key"]))
                return handle.read(piece["key"], region)
            held = handle.get_slice(piece["key"])
            self._refuse_other_shape(piece, held.get_shape())
            found: torch.Tensor = held[region] if region else handle.get_tensor(piece["key"])
            return found
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{self.directory / piece['file']}: {piece['key']} cannot be read: {error}") from None

    def _refuse_other_shape(self, piece: dict[str, Any], shape: list[int] | None) -> None:
        if shape != piece["shape"]:
            raise CheckpointError(
                f"{self.directory / piece['file']}: {piece['key']} is {shape}, and {MANIFEST} says {piece['shape']}; "
                f"use an older checkpoint"
            )

    @cached_property
    def _open_files(self) -> dict[str, Any]:
        return {}

    def _file(self, name: str) -> Any:
        if name not in self._open_files:
            place = self.directory / name
            if isinstance(place, Path):
                check_regular(place)
                self._open_files[name] = safe_open(str(place), framework="pt")
            else:
                self._open_files[name] = RemoteFile(place)
        return self._open_files[name]


def _place(directory: str | Location) -> Location:
    return location_of(directory) if isinstance(directory, str) else directory


def widest_kind(checkpoint: Checkpoint, name: str) -> str:
    """Return "master" if the parameter has master weights, otherwise "weights"."""
    return "master" if f"master/{name}" in checkpoint.manifest["tensors"] else "weights"


def first_intact(
    paths: Sequence[Location], mesh: Mesh, warn: Callable[[str], None], alive: Callable[[], None] = unheard
) -> tuple[Checkpoint | None, list[str]]:
    """Collective. Return the first intact checkpoint of `paths`, and the problems of those before it, which are also
    passed to `warn`. alive: a heartbeat."""
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
    root: Location,
    mesh: Mesh,
    warn: Callable[[str], None],
    alive: Callable[[], None] = unheard,
    abandoned: Collection[str] = (),
) -> Checkpoint | None:
    """Collective. Return the newest intact checkpoint under `root`; None if there are no checkpoints.

    alive: a heartbeat. abandoned: names that are ignored. `warn` is called about each damaged one. Raises
    CheckpointError if all are damaged, so that training does not silently restart.
    """
    names = found_by_first(lambda: [path.name for path in reversed(published(root))], mesh, CheckpointError)
    candidates = [root / name for name in names if name not in abandoned]
    found, problems = first_intact(candidates, mesh, warn, alive)
    if problems and found is None:
        raise CheckpointError(
            f"none of the {len(candidates)} checkpoints under {root} is intact ({problems[0]}); move them away to "
            f"begin at step 0"
        )
    return found
