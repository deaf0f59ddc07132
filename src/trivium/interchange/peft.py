"""Adapters in PEFT's format: a folder with adapter_config.json and adapter_model.safetensors.

Where we store several matrices as one, such as queries, keys and values of a Llama, PEFT may have an adapter of rank r
for each. They are read as one adapter: their A lie one above the other, and B is block-diagonal, which computes the
same and needs no other kind of layer than an adapter of ours. Written, A is the same for each matrix, B is cut into
their rows, and the ranks that a matrix does not use are left out, so that what was read is written again.

The adapters of experts are stacked in PEFT since transformers has their matrices in one parameter: A of all experts one
above the other, B side by side. Folders from before have an adapter for each matrix of each expert. Both are read, and
the first is written.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open

from trivium.checkpoint.base import BASE_HASH, base_sha256
from trivium.checkpoint.format import STRUCTURE, step_name
from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.pieces import Entry, Part, write_pieces
from trivium.checkpoint.reshard import parts_of, write_whole
from trivium.config import Tree, to_tree
from trivium.errors import CheckpointError, ConfigError, DataError
from trivium.families.common.family import Family
from trivium.families.common.hf_config import ADAPTER_CONFIG as CONFIG
from trivium.interchange.merge import adapted_layers, added_tensors
from trivium.interchange.names import Twin, families_of, family_of, twin_of, twins
from trivium.interchange.peft_experts import Stack, stacks, stacks_by_layer
from trivium.plan.adapters import ADAPTER, Adapted, AdapterGroup
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import Box
from trivium.provenance import publishing_new, write_json
from trivium.untrusted import check_regular, read_json

Tensor = torch.Tensor

WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
A, B, MAGNITUDE = "lora_A.weight", "lora_B.weight", "lora_magnitude_vector"
# Fields that change what is computed, and the values with which nothing else is. PEFT's other fields do not matter to a
# reader of the tensors.
_MUST: Mapping[str, tuple[Any, ...]] = MappingProxyType({
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "modules_to_save": (None, []),
    "lora_bias": (False, None),
    "use_qalora": (False, None),
    "trainable_token_indices": (None, []),
    "layer_replication": (None, []),
    "alora_invocation_tokens": (None, []),
    "use_bdlora": (None, False),
    "arrow_config": (None,),
})  # fmt: skip
# Initialisations that change the weights of the base, so that an adapter fits only the changed base.
_CHANGES_BASE = re.compile(r"pissa|olora|corda|loftq|lora_ga", re.IGNORECASE)
MAX_PATTERN_CHARACTERS, MAX_REPEATS = 200, 3  # limits of a pattern in a file, so that matching stays fast
_REPEATED_GROUP, _REPEAT = re.compile(r"\)[*+{?]"), re.compile(r"[*+{]")


class _Module(NamedTuple):
    """An adapter of one matrix of theirs: scale (x A^T) B^T is added. magnitude: the norms of the rows, of DoRA."""

    a: Tensor
    b: Tensor
    scale: float
    magnitude: Tensor | None


class _OfExperts(NamedTuple):
    """The adapter of a matrix of all experts: A [experts, r, inputs], B [experts, outputs, r], their factor, and
    DoRA's magnitudes [experts, outputs]."""

    a: Tensor
    b: Tensor
    scale: float
    magnitudes: Tensor | None = None


class _Linear(NamedTuple):
    """An adapter of ours: the number of its layer, the name of the linear layer within it, kind, settings, and
    parameters by name."""

    layer: int
    name: str
    kind: str
    settings: Tree
    added: dict[str, Tensor]


class Adapters(NamedTuple):
    """The adapters of a PEFT folder for a model. tensors: by the names of our parameters."""

    groups: tuple[AdapterGroup, ...]
    tensors: dict[str, Tensor]


def base_named_by(folder: Path) -> str:
    """Return the base model that a PEFT folder names. Raises DataError if it names none."""
    named = _read_config(folder).get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        raise DataError(
            f"{folder / CONFIG}: base_model_name_or_path is {named!r}, and the adapter needs its base model; name the "
            f"base as MODEL and give --adapter {folder}"
        )
    return named


def with_adapters(base: Checkpoint, folder: Path, root: Path) -> Path:
    """Write the weights of `base` and the adapters of a PEFT folder as a checkpoint under `root`.

    Returns its directory. Raises DataError if the folder does not fit the base, and CheckpointError if it says that it
    was trained on another one.
    """
    model = base.plan.model
    if model.adapters:
        raise ConfigError(
            f"{base.directory} has adapters already, and {folder} would be others; merge them first: "
            f"`trivium checkpoint merge {base.directory} --to DIR`"
        )
    found = read_adapters(folder, model)
    known, here = _metadata(folder / WEIGHTS).get(BASE_HASH), base_sha256(base)
    if known is not None and known != here:
        raise CheckpointError(
            f"{folder} was trained on a base whose weights have sha256 {known[:12]}…, and those of {base.directory} "
            f"have {here[:12]}…; name the base of the adapter"
        )
    about = {k: v for k, v in base.manifest.items() if k not in STRUCTURE}
    about |= {
        BASE_HASH: here,
        "plan": {**about["plan"], "model": to_tree(model.model_copy(update={"adapters": found.groups}))},
    }
    parts = [p for name in base.names if name.startswith("weights/") for p in parts_of(base, name)]
    for name, values in found.tensors.items():
        shape = tuple(values.shape)
        box = Box(tuple(0 for _ in shape), shape)
        parts.append(Part(f"weights/{name}", shape, box, values.dtype, partial(_given, values)))
    if (root / step_name(base.step)).exists():
        raise ConfigError(f"{root / step_name(base.step)} exists already; choose another --to")
    return write_whole(root, base.step, about, [parts])


def read_adapters(folder: Path, model: ModelShape) -> Adapters:
    """Read a PEFT folder for a model without adapters. Raises DataError if it does not fit, or computes something that
    this engine does not."""
    config = _read_config(folder)
    _refuse_other_kinds(config, folder / CONFIG)
    tensors = _read_tensors(folder / WEIGHTS)
    source = _Read(folder, config, tensors)
    family = _family(model, tensors)
    found = [linear for twin in _linear_twins(model, family) if (linear := source.joined(twin, family, model))]
    found += [linear for stack in stacks(model, family) if (linear := source.of_experts(stack))]
    unused = sorted(tensors.keys() - source.used)
    if unused:
        raise DataError(
            f"{folder / WEIGHTS} has {len(unused)} tensors of no linear layer in a layer of the base, the first "
            f"'{unused[0]}'; adapters are on linear layers of attention and of feed-forward halves, not on routers, "
            f"embeddings or the head: train the adapter without that module, or name its own base"
        )
    if not found:
        raise DataError(f"{folder / WEIGHTS} has no adapter of a layer of the base; download the folder again")
    named = {f"layers.{x.layer}.{x.name}.{ADAPTER}.{part}": v for x in found for part, v in x.added.items()}
    return Adapters(_groups(found, model), named)


class _Read:
    """A PEFT folder that is being read. used: the names of the tensors read so far."""

    def __init__(self, folder: Path, config: Tree, tensors: Mapping[str, Tensor]) -> None:
        self.folder, self.config, self.tensors = folder, config, tensors
        self.used: set[str] = set()

    def joined(self, twin: Twin, family: Family, model: ModelShape) -> _Linear | None:
        """Return the adapter of a linear layer, made of those of the matrices that are stored together in it; None if
        none of these has one."""
        names = [name.removesuffix(".weight") for name in twin.theirs]
        shapes = [_shape(x, family, model) for x in twin.to_hf(torch.empty(twin.ours.shape, device="meta"))]
        found = [self._module(name, *shape) for name, shape in zip(names, shapes, strict=True)]
        some = [module for module in found if module is not None]
        if not some:
            return None
        dora = [module.magnitude is not None for module in some]
        if any(dora) and (not all(dora) or len(some) < len(found)):
            raise DataError(
                f"{self.folder / WEIGHTS}: DoRA is on some of {', '.join(names)}, and not on all; they are one matrix "
                f"here: train the adapter on all of them, or on none"
            )
        scale = some[0].scale
        a, pieces = _as_one(found, [shape[0] for shape in shapes], scale)
        r = len(a)
        added = {"a": a, "b": _of_columns(twin, r, family, model).from_hf(tuple(pieces))}
        if any(dora):
            magnitudes = tuple(m.magnitude.unsqueeze(1) for m in some if m.magnitude is not None)
            added["m"] = _of_columns(twin, 1, family, model).from_hf(magnitudes).squeeze(-1)
        settings = self._settings(r, scale)
        if self.config.get("lora_dropout"):
            settings["dropout"] = self.config["lora_dropout"]
        assert isinstance(twin.ours.owner, int), "linear layers are in layers"
        return _Linear(twin.ours.owner, _short(twin), "dora" if any(dora) else "lora", settings, added)

    def of_experts(self, stack: Stack) -> _Linear | None:
        """Return the adapter of all experts; None if none has one. Dropout is left out, which training does not have
        beside experts."""
        found = self._stacked(stack) or self._of_each(stack)
        if found is None:
            return None
        a, b, scale, magnitudes = found
        added = {"a": a, "b": b.view(*stack.row.shape[:-1], -1)}
        if magnitudes is not None:
            added["m"] = magnitudes.view(stack.row.shape[:-1])
        kind = "lora" if magnitudes is None else "dora"
        return _Linear(stack.layer, stack.name, kind, self._settings(a.shape[1], scale), added)

    def _stacked(self, stack: Stack) -> _OfExperts | None:
        """Return the adapter of a parameter that holds all experts."""
        for place in stack.places:
            keys = [f"{PREFIX}{place}.{part}" for part in (A, B)]
            if not all(key in self.tensors for key in keys):
                continue
            if self.config.get("use_dora"):
                raise DataError(
                    f"{self.folder / CONFIG}: use_dora is true, and {stack.theirs} is in target_parameters, beside "
                    f"which PEFT has no DoRA; train the adapter without one of them"
                )
            a, b = (self.tensors[key] for key in keys)
            r = len(a) // stack.experts
            if r and a.shape == (stack.experts * r, stack.inputs) and b.shape == (stack.outputs, len(a)):
                self.used |= {*keys}
                by_rank = b.view(stack.outputs, r, stack.experts)
                return _OfExperts(a.view(stack.experts, r, -1), by_rank.permute(2, 0, 1), self._scale(stack.theirs, r))
        return None

    def _of_each(self, stack: Stack) -> _OfExperts | None:
        """Return the same, from the matrices of each expert. If ranks differ, smaller ones are padded with zeros."""
        rows = stack.outputs // len(stack.of_each[0])
        every = [[self._module(name, rows, stack.inputs) for name in names] for names in stack.of_each]
        some = [module for found in every for module in found if module is not None]
        if not some:
            return None
        dora = self.config.get("use_dora")
        if dora and any(module is None for found in every for module in found):
            raise DataError(
                f"{self.folder / WEIGHTS}: DoRA is on some of the experts' modules such as {stack.of_each[0][0]}, and "
                f"not on all; they are one parameter here: train the adapter on all of them, or on none"
            )
        magnitudes = torch.stack([torch.cat([m.magnitude for m in found if m is not None and m.magnitude is not None])
                                  for found in every]) if dora else None  # fmt: skip
        scale, nothing = some[0].scale, some[0].a.new_zeros(0, stack.inputs)
        both = [_as_one(found, [rows] * len(found), scale) if any(x is not None for x in found) else None
                for found in every]  # fmt: skip
        ones = [(nothing, [nothing.new_zeros(rows, 0)] * len(every[0])) if one is None else one for one in both]
        r = max(len(a) for a, _ in ones)
        return _OfExperts(
            torch.stack([F.pad(a, (0, 0, 0, r - len(a))) for a, _ in ones]),
            torch.stack([F.pad(torch.cat(pieces), (0, r - len(a))) for a, pieces in ones]),
            scale,
            magnitudes,
        )

    def _settings(self, r: int, scale: float) -> Tree:
        if self.config.get("use_rslora"):
            return {"r": r, "alpha": scale * math.sqrt(r), "rslora": True}
        return {"r": r, "alpha": scale * r}

    def _module(self, name: str, outputs: int, inputs: int) -> _Module | None:
        keys = {part: f"{PREFIX}{name}.{part}" for part in (A, B, MAGNITUDE)}
        here = {part: self.tensors[key] for part, key in keys.items() if key in self.tensors}
        if not here:
            return None
        self.used |= {keys[part] for part in here}
        wanted = {A, B, *((MAGNITUDE,) if self.config.get("use_dora") else ())}
        if here.keys() != wanted:
            raise DataError(
                f"{self.folder / WEIGHTS} has {', '.join(sorted(here))} of {name}, and must have "
                f"{', '.join(sorted(wanted))}; download the folder again"
            )
        r = len(here[A])
        rights = {A: (r, inputs), B: (outputs, r), MAGNITUDE: (outputs,)}
        for part, tensor in here.items():
            if tuple(tensor.shape) != rights[part] or r == 0:
                raise DataError(
                    f"{self.folder / WEIGHTS}: '{keys[part]}' is {tuple(tensor.shape)}, and for the base it must be "
                    f"{rights[part]}; name the base of the adapter"
                )
        return _Module(here[A], here[B], self._scale(name, r), here.get(MAGNITUDE))

    def _scale(self, name: str, r: int) -> float:
        """Return the factor of B A of a module."""
        alpha = self._by_pattern("alpha_pattern", name, self.config.get("lora_alpha", 8))
        said = self._by_pattern("rank_pattern", name, self.config.get("r", 8))
        if said != r or not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 < alpha < math.inf:
            raise DataError(
                f"{self.folder / CONFIG}: {name} has rank {said!r} and alpha {alpha!r}, and its tensors have rank {r}; "
                f"alpha must be a number above 0: correct the file, or download the folder again"
            )
        return alpha / (math.sqrt(r) if self.config.get("use_rslora") else r)

    def _by_pattern(self, field: str, name: str, default: Any) -> Any:
        """Return the value of the first pattern that matches a module, as PEFT does."""
        patterns = self.config.get(field) or {}
        if not isinstance(patterns, dict):
            raise DataError(f"{self.folder / CONFIG}: {field} is {patterns!r}, and must be an object of patterns")
        for pattern, value in patterns.items():
            if pattern == name or self._compiled(field, pattern).match(name):
                return value
        return default

    def _compiled(self, field: str, pattern: str) -> re.Pattern[str]:
        repeats = len(_REPEAT.findall(pattern))
        if len(pattern) <= MAX_PATTERN_CHARACTERS and repeats <= MAX_REPEATS and not _REPEATED_GROUP.search(pattern):
            try:
                return re.compile(rf"(.*\.)?({pattern})$")
            except re.error:
                pass
        raise DataError(
            f"{self.folder / CONFIG}: {field} has the pattern {pattern[:MAX_PATTERN_CHARACTERS]!r}, which is no "
            f"regular expression, or has a repeated group or more than {MAX_REPEATS} repeats; write the names of "
            f"modules instead"
        )


@dataclass
class _Written:
    """The contents of a PEFT folder to be written. ranks, alphas: by the name of a module."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    alphas: dict[str, float] = field(default_factory=dict)
    stacks: list[str] = field(default_factory=list)

    def add_experts(self, each: Adapted, added: Mapping[str, Tensor], stack: Stack, place: str) -> None:
        """Add the adapters of all experts, which are stacked in the module `place`."""
        adapter: Any = each.adapter
        a, b = added["a"], added["b"].flatten(1, -2)
        used = b.any(dim=1).any(dim=0) if b.any() else torch.ones(adapter.r, dtype=torch.bool)
        self._told(stack.theirs, int(used.sum()), adapter)
        self.stacks.append(stack.theirs)
        self.tensors[f"{PREFIX}{place}.{A}"] = a[:, used].flatten(0, 1).contiguous()
        self.tensors[f"{PREFIX}{place}.{B}"] = b[..., used].permute(1, 2, 0).flatten(1).contiguous()

    def _told(self, name: str, rank: int, adapter: Any) -> None:
        self.ranks[name] = rank
        self.alphas[name] = adapter.scale * (math.sqrt(rank) if adapter.rslora else rank)

    def add(self, each: Adapted, added: Mapping[str, Tensor], twin: Twin, family: Family, model: ModelShape) -> None:
        """Add the adapters of the matrices that are stored together in a linear layer."""
        names = [name.removesuffix(".weight") for name in twin.theirs]
        adapter: Any = each.adapter
        pieces = _of_columns(twin, adapter.r, family, model).to_hf(added["b"])
        magnitudes: tuple[Tensor | None, ...] = (None,) * len(pieces)
        if "m" in added:
            magnitudes = tuple(
                x.squeeze(-1) for x in _of_columns(twin, 1, family, model).to_hf(added["m"].unsqueeze(-1))
            )
        for name, b, magnitude in zip(names, pieces, magnitudes, strict=True):
            used = b.any(dim=0)
            if not added["b"].any():
                used = torch.ones_like(used)  # B has not been trained, so it shows nothing
            if not used.any():
                if magnitude is None:
                    continue
                used[0] = True  # DoRA scales the rows of a matrix that LoRA leaves alone
            self._told(name, int(used.sum()), adapter)
            self.tensors[f"{PREFIX}{name}.{A}"] = added["a"][used].contiguous()
            self.tensors[f"{PREFIX}{name}.{B}"] = b[:, used].contiguous()
            if magnitude is not None:
                self.tensors[f"{PREFIX}{name}.{MAGNITUDE}"] = magnitude.contiguous()

    def config(self, model: ModelShape, family: Family, kind: str, base: str) -> Tree:
        """Return adapter_config.json. Ranks and alphas that differ from the most frequent are listed by name."""
        rank, alpha = (Counter(values.values()).most_common(1)[0][0] for values in (self.ranks, self.alphas))
        rslora = all(group.settings.get("rslora", False) for group in model.adapters)
        dropouts = [group.made().dropout for group in model.adapters]
        layer, modules = family.names(model).layer, self.ranks.keys() - self.stacks
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base or None,
            "inference_mode": True,
            "bias": "none",
            "r": rank,
            "lora_alpha": alpha,
            "lora_dropout": 0.0 if self.stacks else max(dropouts),  # PEFT has none beside stacks
            "target_modules": _targets(modules, model.layers, layer),
            "target_parameters": _targets(self.stacks, model.layers, layer) or None,
            "rank_pattern": {re.escape(k): v for k, v in self.ranks.items() if v != rank},
            "alpha_pattern": {re.escape(k): v for k, v in self.alphas.items() if v != alpha},
            "use_rslora": rslora,
            "use_dora": kind == "dora",
            "fan_in_fan_out": family.names(model).transposed,
            "modules_to_save": None,
        }


def export_peft(source: Checkpoint, folder: str | Path, *, base: str = "") -> Path:
    """Write the adapters of a verified checkpoint as a PEFT folder, and return it. base: the name or path of the base
    model, which is written to the folder.

    Raises ConfigError if the checkpoint has no adapters, or some that one PEFT folder cannot have together.
    """
    folder, model, adapted = Path(folder), source.plan.model, adapted_layers(source)
    ways = {(_kind(group), bool(group.settings.get("rslora", False))) for group in model.adapters}
    if len(ways) > 1:
        told = ", ".join(f"{kind}{' with rslora' if rslora else ''}" for kind, rslora in sorted(ways))
        raise ConfigError(
            f"plan.model.adapters has {told}, and a PEFT folder has one of them; merge them instead: "
            f"`trivium checkpoint merge {source.directory} --to DIR`"
        )
    bare = model.model_copy(update={"adapters": ()})
    family, written = _family_of(source, bare), _Written()
    for twin in _linear_twins(bare, family):
        if twin.ours.name in adapted:
            number, each = adapted[twin.ours.name]
            written.add(each, added_tensors(source, number, each), twin, family, bare)
    kind = next(iter(ways))[0]
    for layer in stacks_by_layer(bare, family):
        here = [(stack, *adapted[stack.row.name]) for stack in layer if stack.row.name in adapted]
        if here and kind == "dora":
            raise ConfigError(
                f"plan.model.adapters has dora beside {here[0][0].row.name}, and PEFT has no DoRA beside the matrices "
                f"of experts; merge it instead: `trivium checkpoint merge {source.directory} --to DIR`"
            )
        for (stack, number, each), place in zip(here, layer[0].places[-len(here) :], strict=False):
            written.add_experts(each, added_tensors(source, number, each), stack, place)
    with publishing_new(folder, "name a new folder") as unfinished:
        entries = [
            Entry(key, values.dtype, tuple(values.shape), partial(_given, values))
            for key, values in sorted(written.tensors.items())
        ]
        write_pieces(unfinished / WEIGHTS, entries, about={"format": "pt", BASE_HASH: base_sha256(source)})
        write_json(unfinished / CONFIG, written.config(model, family, kind, base or _named(source).get("folder", "")))
    return folder


def _given(values: Tensor) -> Tensor:
    return values


def _kind(group: AdapterGroup) -> str:
    """Return PEFT's name for a kind of adapter. lora_ggpo becomes lora, because its noise affects training alone."""
    return "lora" if group.kind == "lora_ggpo" else group.kind


def _named(source: Checkpoint) -> Tree:
    """Return what a checkpoint records about the folder that its base was imported from."""
    found: Tree = source.manifest.get("imported_from", {})
    return found


def _family_of(source: Checkpoint, model: ModelShape) -> Family:
    """Return the family of the base, whose modules have the adapters; by default that of an export."""
    named = _named(source).get("architecture", ())
    return next((family for family in families_of(model) if family.architecture in named), family_of(model))


def _family(model: ModelShape, tensors: Iterable[str]) -> Family:
    """Return the family whose modules have the adapters: several families differ in names alone."""

    def matches(family: Family) -> bool:
        names = (name.removesuffix(".weight") for twin in _linear_twins(model, family) for name in twin.theirs)
        return not known.isdisjoint(f"{PREFIX}{name}.{A}" for name in names)

    known = set(tensors)
    return next((family for family in families_of(model) if matches(family)), family_of(model))


def _linear_twins(model: ModelShape, family: Family) -> Iterator[Twin]:
    """Yield the linear layers of a model without adapters, which may have adapters."""
    for twin in twins(model, family):
        row = twin.ours
        if isinstance(row.owner, int) and row.is_linear and not row.by_expert:
            yield twin


def _short(twin: Twin) -> str:
    """Return the name of a linear layer within its layer."""
    return twin.ours.name.split(".", 2)[2].removesuffix(".weight")


def _of_columns(twin: Twin, columns: int, family: Family, model: ModelShape) -> Twin:
    """Return the twin of a matrix that has the outputs of this one and `columns` inputs, such as B."""
    row = replace(twin.ours, shape=(*twin.ours.shape[:-1], columns))
    return twin_of(row, family.names(model)._replace(transposed=False))


def _shape(there: Tensor, family: Family, model: ModelShape) -> tuple[int, int]:
    """Return the number of outputs and inputs of a matrix in their layout."""
    first, second = there.shape
    return (second, first) if family.names(model).transposed else (first, second)


def _as_one(found: Sequence[_Module | None], outputs: Iterable[int], scale: float) -> tuple[Tensor, list[Tensor]]:
    """Return A of several modules and the B of each, with this factor. If all have the same A, it is used once;
    otherwise they are stacked, and each B has zeros for the others' A."""
    some = [module for module in found if module is not None]
    if len(some) == len(found) and all(x.scale == scale and torch.equal(x.a, some[0].a) for x in some):
        return some[0].a, [module.b for module in some]
    a = torch.cat([module.a for module in some])
    pieces, start = [], 0
    for module, rows in zip(found, outputs, strict=True):
        b = torch.zeros(rows, len(a), dtype=a.dtype)
        if module is not None:
            stop = start + len(module.a)
            b[:, start:stop] = module.b if module.scale == scale else module.b * (module.scale / scale)
            start = stop
        pieces.append(b)
    return a, pieces


def _groups(found: Iterable[_Linear], model: ModelShape) -> tuple[AdapterGroup, ...]:
    """Return the groups of plan.model.adapters: one for a linear layer that has the same adapter in every layer, else
    one for each."""
    by_name: dict[str, list[_Linear]] = {}
    for linear in found:
        by_name.setdefault(linear.name, []).append(linear)
    groups = []
    for name, several in by_name.items():
        first = several[0]
        alike = len(several) == _having(name, model) and all(x[2:4] == first[2:4] for x in several)
        for each in [first] if alike else several:
            place = f"layers.*.{name}" if alike else f"layers.{each.layer}.{name}"
            groups.append(AdapterGroup(match=place, kind=each.kind, settings=each.settings))
    return tuple(groups)


def _having(name: str, model: ModelShape) -> int:
    """Return how many layers have a linear layer of this name."""
    return sum(any(row.name == f"{name}.weight" for row in layer.own_rows) for layer in model.each_layer)


def _targets(modules: Iterable[str], layers: int, layer: str) -> list[str]:
    """Return target_modules: the last names of modules that every layer has, and the full names of others."""
    split = [(name, name.removeprefix(layer.format(n) + ".")) for n in range(layers) for name in modules
             if name.startswith(layer.format(n) + ".")]  # fmt: skip
    times = Counter(short for _, short in split)
    return sorted({short if times[short] == layers else name for name, short in split})


def _read_config(folder: Path) -> Tree:
    try:
        found = read_json(folder / CONFIG)
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / CONFIG} cannot be read: {error}; download the folder again") from None
    if not isinstance(found, dict):
        raise DataError(f"{folder / CONFIG} is {type(found).__name__}, and must be an object; download it again")
    return found


def _refuse_other_kinds(config: Tree, where: Path) -> None:
    """Raise DataError if an adapter computes something that this engine does not."""
    for key, values in _MUST.items():
        if config.get(key, values[0]) not in values:
            raise DataError(
                f"{where}: {key} is {config[key]!r}, and this engine computes {values[0]!r}; train the adapter without "
                f"it, or merge it into its base with PEFT (merge_and_unload) and import the result"
            )
    begun = config.get("init_lora_weights")
    if isinstance(begun, str) and _CHANGES_BASE.match(begun):
        raise DataError(
            f"{where}: init_lora_weights is {begun!r}, which changes the weights of the base; save the adapter with "
            f"PEFT's path_initial_model_for_weight_conversion, which makes a LoRA of it"
        )
    dropout = config.get("lora_dropout", 0.0)
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise DataError(f"{where}: lora_dropout is {dropout!r}, and must be a number from 0 to less than 1")


def _read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise DataError(f"{path} does not exist; save the adapter as safetensors, as other formats can run code")
    try:
        check_regular(path)
        with safe_open(str(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
    except (OSError, SafetensorError, UnicodeError) as error:
        raise DataError(f"{path} cannot be read: {error}; download it again") from None


def _metadata(path: Path) -> Mapping[str, str]:
    with safe_open(str(path), framework="pt") as file:
        return file.metadata() or {}
