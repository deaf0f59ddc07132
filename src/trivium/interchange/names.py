"""Map models to Hugging Face architectures: the settings in config.json, and the names and layout of tensors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from trivium.config import build
from trivium.errors import ConfigError, DataError
from trivium.families.common.family import Family, Names, families
from trivium.families.common.hf_config import refuse_other_kinds
from trivium.plan.layers.form import VARIED
from trivium.plan.layers.part import Fused, Parameter
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import Box, parameters
from trivium.tokens.marks import ids_of

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"  # all weights in one file, or the index of several
Tensors = tuple[torch.Tensor, ...]
# Sizes and rotary positions, which every family reads, or rejects in its `write`.
SIZES = ("heads", "kv_heads", "head_width", "ffn", "window", "rope_base", "rope_scaling")


def family_of(model: ModelShape) -> Family:
    """Return the family as which a model is exported. Raises ConfigError if none computes the same."""
    if model.adapters:
        raise ConfigError(
            f"plan.model.adapters has {len(model.adapters)} groups, and no architecture of Hugging Face has adapters "
            f"in its layers; export them to a folder of PEFT (--format peft), or merge them first: `trivium checkpoint "
            f"merge CHECKPOINT --to DIR`"
        )
    every, settings, named = families(), _settings(), families_of(model)
    if not named:
        given = ", ".join(f"plan.model.{name} {getattr(model, name)}" for name in settings)
        known = "; ".join(f"{n}: {', '.join(map(str, f.settings.values()))}" for n, f in every.items())
        raise ConfigError(
            f"no architecture of Hugging Face has {given} ({known}); train with the settings of one for a model "
            f"that is to be exported"
        )
    saying = [family for family in named if family.can_say(model)]
    if not saying:
        raise ConfigError(
            f"plan.model.window is {model.window}, and no config.json of "
            f"{' and '.join(family.architecture for family in named)} says which layers of this model have a window; "
            f"train with plan.model.window=null for a model that is to be exported"
        )
    return min(saying, key=lambda family: family.rank)


def families_of(model: ModelShape) -> list[Family]:
    """Return the families that compute the same as a model without adapters."""
    settings = _settings()
    return [family for family in families().values() if _computes(family, model, settings)]


def _settings() -> list[str]:
    """Return the settings by which families differ."""
    return sorted({name for family in families().values() for name in (*family.settings, *family.free)} | set(VARIED))


def _computes(family: Family, model: ModelShape, settings: Sequence[str]) -> bool:
    """Whether a family has a model's settings, which may differ from layer to layer where the family says so."""
    free = {*SIZES, *family.free}
    runs = {name for run in (*model.first, *model.pattern) for name in run.settings}
    wanted = {
        name: family.settings.get(name, ModelShape.model_fields[name].default) for name in settings if name not in free
    }
    return runs <= {*family.differs, *family.free} and all(
        getattr(model, name) == value for name, value in wanted.items()
    )


def config_of(model: ModelShape, *, dtype: str) -> dict[str, Any]:
    """Return the config.json of a model, without special token ids. Raises ConfigError if no Hugging Face
    architecture computes the same."""
    family = family_of(model)
    return {
        "architectures": [family.architecture],
        "vocab_size": model.vocabulary,
        "initializer_range": model.std,
        "tie_word_embeddings": model.head == "tied",
        "use_cache": True,
        "dtype": dtype,
        "torch_dtype": dtype,  # read by transformers before 4.56 and by code written for it
        **family.write(model),
    }


def family_named(config: Mapping[str, Any], where: str) -> Family:
    """Return the family that a config.json names. Raises DataError if it is unknown."""
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and named else named
    if not isinstance(name, str) or name not in families():
        raise DataError(f"{where}: architectures {named!r} is not one of {', '.join(sorted(families()))}")
    return families()[name]


def shape_of(config: Mapping[str, Any], where: str) -> ModelShape:
    """Return the shape of a Hugging Face model. Raises DataError if this engine would compute something else."""
    family = family_named(config, where)
    refuse_other_kinds(config, where)
    config = {**family.unsaid, **config}
    for key in ("vocab_size", *family.sizes):
        if config.get(key) is None:
            raise DataError(f"{where}: {key} is {config.get(key)!r}, and must be a whole number above 0")
    for key, values in family.must.items():
        if config.get(key, values[0]) not in values:
            raise DataError(f"{where}: {key} is {config[key]!r}, and this engine computes {values[0]!r}")
    end = next(iter(ids_of(config.get("eos_token_id"))), None)
    ours = {
        **family.settings,
        "vocabulary": config["vocab_size"],
        "head": "tied" if config.get("tie_word_embeddings", family.tied) else "untied",
        "init_std": config.get("initializer_range", 0.02),
        "end_of_text": end if isinstance(end, int) else 0,
        **family.read(config, where),
    }
    try:
        return build(ModelShape, ours)
    except ConfigError as error:
        raise DataError(f"{where}: invalid model: {error}") from None


def marks_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the special token ids of a config.json. Ids outside of the vocabulary are omitted; a missing key stays
    missing, because transformers have defaults for it."""
    said = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config}
    known = range(config["vocab_size"])
    return {k: v for k, v in said.items() if v is None or all(i in known for i in ids_of(v))}


class Twin(NamedTuple):
    """A region of a parameter and its Hugging Face tensors. `to_hf` and `from_hf` convert the values of the region.

    The region is the whole parameter, or one expert of it.
    """

    ours: Parameter
    box: Box
    theirs: tuple[str, ...]
    to_hf: Callable[[torch.Tensor], Tensors]
    from_hf: Callable[[Tensors], torch.Tensor]


def twins(model: ModelShape, family: Family | None = None) -> Iterator[Twin]:
    """Yield every parameter with its Hugging Face tensors, in the order of the parameter table, expert by expert.

    family: the tensors' family; by default the one of the export.
    """
    names = (family or family_of(model)).names(model)
    for row in parameters(model):
        if row.by_expert:
            yield from (_twin_of_expert(row, expert, names) for expert in range(row.shape[0]))
        else:
            yield twin_of(row, names)


def twin_of(row: Parameter, names: Names) -> Twin:
    """Return a parameter with its Hugging Face tensors. names: those of its family."""
    if isinstance(row.owner, str):
        return _unfused(row, names.ends[row.name], transposed=False)
    module, theirs = _module(row), _theirs(row, names)
    transposed = names.transposed and len(row.shape) > 1
    fused = row.fused
    if fused is None or (len(theirs) == 1 and module not in names.joined):
        return _unfused(row, theirs[0], transposed=transposed)
    joined = partial(_joined, fused, row.shape)
    if module not in names.joined:
        return Twin(row, _whole(row), theirs, fused.pieces, joined)
    sizes = [len(piece) for piece in fused.pieces(torch.empty(row.shape, device="meta"))]
    return Twin(
        row,
        _whole(row),
        theirs,
        lambda w: (_transposed(torch.cat(fused.pieces(w)), transposed),),
        lambda there: joined(torch.split(_transposed(there[0], transposed), sizes)),
    )


def _twin_of_expert(row: Parameter, expert: int, names: Names) -> Twin:
    """Return one expert of a parameter that holds all of them; its matrices are separate tensors of Hugging Face."""
    assert row.fused is not None, f"{row.name} holds the matrices of {row.shape[0]} experts"
    view, along, sizes = row.fused.view, row.fused.along, row.fused.sizes
    experts, shape = row.shape[0], (1, *row.shape[1:])
    own = Fused((view[0] // experts, *view[1:]), along, sizes[: len(sizes) // experts])
    theirs = tuple(name.format(expert) for name in _theirs(row, names))
    box = Box((expert, *(0 for _ in shape[1:])), shape)
    return Twin(row, box, theirs, own.pieces, partial(_joined, own, shape))


def _module(row: Parameter) -> str:
    """Return the name of a parameter's module within its layer."""
    return row.name.split(".", 2)[2].rpartition(".")[0]


def _theirs(row: Parameter, names: Names) -> tuple[str, ...]:
    """Return the names of the tensors of a layer's parameter, with {} for the number of an expert."""
    module, kind = _module(row), row.name.rpartition(".")[2]
    kind = names.kinds.get(f"{module}.{kind}", kind)
    layer = names.layer.format(row.owner)
    return tuple(f"{layer}.{name}.{kind}" for name in names.modules[module])


def _joined(fused: Fused, shape: tuple[int, ...], pieces: Tensors) -> torch.Tensor:
    return torch.cat(fused.viewed(pieces), dim=fused.along).reshape(shape)


def _whole(row: Parameter) -> Box:
    return Box(tuple(0 for _ in row.shape), row.shape)


def _unfused(row: Parameter, theirs: str, *, transposed: bool) -> Twin:
    def convert(w: torch.Tensor) -> torch.Tensor:
        return _transposed(w, transposed)

    return Twin(row, _whole(row), (theirs,), lambda w: (convert(w),), lambda there: convert(there[0]))


def _transposed(w: torch.Tensor, is_transposed: bool) -> torch.Tensor:
    return w.T.contiguous() if is_transposed else w
