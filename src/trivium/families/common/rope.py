"""Rotary positions in a config.json of Hugging Face, read and written.

transformers 5 writes everything into `rope_parameters`. Earlier versions wrote `rope_theta`, and the scaling into
`rope_scaling`, whose type was once called `type`. OLMo-3 has two `rope_parameters`, for layers with a window and for
layers with full attention; its earlier fields are those of the latter.
"""

from collections.abc import Mapping
from typing import Any, Literal

from trivium.config import build
from trivium.errors import ConfigError, DataError
from trivium.families.common.windows import ALL, WINDOW
from trivium.plan.model_shape import ModelShape
from trivium.plan.rope_scaling import RopeScaling

Rope = Literal["alike", "apart"]  # are the layers with a window turned as those that see all, or said apart
_BASE, _BASE_APART = 10000.0, 500000.0  # defaults of transformers
_PLACES = ("rope_parameters", "rope_scaling")
_ORIGINAL = "original_max_position_embeddings"
# Our fields by their names there.
_NAMES: Mapping[str, Mapping[str, str]] = {
    "linear": {"factor": "factor"},
    "llama3": {"factor": "factor", "original": _ORIGINAL, "slow": "low_freq_factor", "fast": "high_freq_factor"},
    "yarn": {
        "factor": "factor",
        "original": _ORIGINAL,
        "slow": "beta_slow",
        "fast": "beta_fast",
        "attention": "attention_factor",
    },
}
_UNSAID = {"beta_slow": 1.0, "beta_fast": 32.0}  # defaults of transformers
_MAY_LACK = "attention"
_BESIDES = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


def rope_of(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`rope_base` and `rope_scaling` of the model of a config.json; DataError for what this engine does not compute."""
    given = {place: config[place] for place in _PLACES if config.get(place)}
    for place, rope in given.items():
        if not isinstance(rope, Mapping):
            raise DataError(f"{where}: {place} is {rope!r}, and must hold rope_type and its numbers")
    for said in (config, *given.values()):
        if said.get("partial_rotary_factor") not in (None, 1) or said.get("partial_rotary_factor") is True:
            raise DataError(
                f"{where}: partial_rotary_factor is {said['partial_rotary_factor']!r}, and this engine turns all "
                f"columns of a head (1)"
            )
    found = {place: _scaling(rope, config, f"{where}: {place}") for place, rope in given.items()}
    if len(set(found.values())) > 1:
        raise DataError(f"{where}: rope_parameters and rope_scaling differ ({given}); remove the one that is wrong")
    scaling = next(iter(found.values()), None)
    bases = [said.get("rope_theta") for said in (*given.values(), config)]
    for base in bases:
        if base is not None and type(base) not in (int, float):
            raise DataError(f"{where}: rope_theta is {base!r}, and must be a number")
    return {
        "rope_base": next((base for base in bases if base is not None), _BASE),
        "rope_scaling": scaling and scaling.model_dump(),
    }


def rope_apart(config: Mapping[str, Any], where: str, *, window: bool) -> dict[str, Any]:
    """The same of a model whose config.json says it for two kinds of layers. window: whether it has layers with one.

    DataError where both are there and are not turned alike, as transformers 5 reads it.
    """
    given = config.get("rope_parameters") or {}
    if not isinstance(given, Mapping) or given.keys() - {ALL, WINDOW}:
        raise DataError(f"{where}: rope_parameters is {given!r}, and must hold {ALL} and {WINDOW}, each with its own")
    base = config.get("rope_theta") or _BASE_APART
    of_all = {**config, "rope_theta": base, "rope_parameters": given.get(ALL)}
    of_window = {**config, "rope_theta": _BASE_APART, "rope_parameters": given.get(WINDOW), "rope_scaling": None}
    found = rope_of(of_all, where)
    if window and (other := rope_of(of_window, where)) != found:
        raise DataError(
            f"{where}: rope_parameters rotate layers of {ALL} by {found} and those of {WINDOW} by {other}, but this "
            f"engine rotates all layers by the same; only a model in which both are equal can be imported"
        )
    return found


def rope_config(model: ModelShape, rope: Rope = "alike") -> dict[str, Any]:
    """The fields of config.json, as transformers 5 read them and as those before did.

    ConfigError where these do not read the same.
    """
    scaling = _as_theirs(model.rope_scaling)
    if model.rope_scaling is not None and model.rope_scaling.mscale_all_dim is not None:
        raise ConfigError(
            f"plan.model.rope_scaling.mscale_all_dim is {model.rope_scaling.mscale_all_dim:g}, and only DeepSeek's "
            f"architectures enlarge scores by it; train with plan.model.rope_scaling.mscale_all_dim=null for a model "
            f"that is to be exported"
        )
    if rope == "apart" and model.rope_scaling is not None:
        raise ConfigError(
            f"plan.model.rope_scaling is of kind '{model.rope_scaling.kind}' in all layers, and Olmo3ForCausalLM of "
            f"Hugging Face slows, before transformers 5, only those that see all; train with "
            f"plan.model.rope_scaling=null, or with plan.model.window=null, for a model that is to be exported"
        )
    if rope == "apart":
        both = {**scaling, "rope_theta": model.rope_base}
        return {"rope_theta": model.rope_base, "rope_parameters": {ALL: both, WINDOW: both}}
    before_5 = {"rope_theta": model.rope_base} | ({"rope_scaling": scaling} if model.rope_scaling else {})
    return {**before_5, "rope_parameters": {**scaling, "rope_theta": model.rope_base}}


def _scaling(rope: Mapping[str, Any], config: Mapping[str, Any], where: str) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if not isinstance(kind, str) or kind not in _NAMES:
        raise DataError(f"{where}.rope_type is {kind!r}, and must be default, {', '.join(_NAMES)}")
    names = _NAMES[kind]
    said = _UNSAID | {name: value for name, value in rope.items() if value is not None}
    if _ORIGINAL in names.values():  # where transformers looks for it, in this order
        places = config.get(_ORIGINAL), rope.get(_ORIGINAL), config["max_position_embeddings"]
        said[_ORIGINAL] = next(n for n in places if n is not None)
    numbers = {ours: said.get(theirs) for ours, theirs in names.items()}
    for ours, number in numbers.items():
        if (isinstance(number, bool) or not isinstance(number, int | float)) and (
            number is not None or ours != _MAY_LACK
        ):
            raise DataError(f"{where}.{names[ours]} is {number!r}, and must be a number for '{kind}'")
    other = sorted(said.keys() - {*names.values(), *_UNSAID, *_BESIDES})
    if other and (other != ["truncate"] or said["truncate"] is not True):
        raise DataError(
            f"{where}.{other[0]} is {said[other[0]]!r}, which this engine does not know for '{kind}'; if it changes "
            f"nothing, remove it"
        )
    return build(RopeScaling, {"kind": kind, **numbers})


def _as_theirs(scaling: RopeScaling | None) -> dict[str, Any]:
    if scaling is None:
        return {"rope_type": "default"}
    numbers = {theirs: getattr(scaling, ours) for ours, theirs in _NAMES[scaling.kind].items()}
    return {"rope_type": scaling.kind, **{name: n for name, n in numbers.items() if n is not None}}
