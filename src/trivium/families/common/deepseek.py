"""DeepSeek's blocks: latent attention, and experts in all layers but the first. What its versions share."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from trivium.errors import ConfigError, DataError
from trivium.families.common.deepseek_logits import LATENT_EPSILON, logits
from trivium.families.common.experts import MODULES as EXPERTS
from trivium.families.common.experts import Dense, Mixture, with_experts
from trivium.families.common.family import Config, Family, Names, Tree, has_windows
from trivium.families.common.llama_like import ENDS, MUST, SETTINGS
from trivium.families.common.rope import rope_config, rope_of
from trivium.plan.experts import Experts
from trivium.plan.latent import Latent
from trivium.plan.model_shape import ModelShape

MODULES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "attention.norm": ("input_layernorm",),
        "attention.query": ("self_attn.q_proj",),
        "attention.query_down": ("self_attn.q_a_proj",),
        "attention.query_norm": ("self_attn.q_a_layernorm",),
        "attention.query_up": ("self_attn.q_b_proj",),
        "attention.kv_down": ("self_attn.kv_a_proj_with_mqa",),
        "attention.kv_norm": ("self_attn.kv_a_layernorm",),
        "attention.kv_up": ("self_attn.kv_b_proj",),
        "attention.out": ("self_attn.o_proj",),
        "mlp.norm": ("post_attention_layernorm",),
        "mlp.up": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.down": ("mlp.down_proj",),
    }
)
SHARED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "mlp.shared.up": ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
        "mlp.shared.down": ("mlp.shared_experts.down_proj",),
    }
)
NAMES = Names(
    "model.", "model.layers.{}", ENDS, MODULES, kinds=MappingProxyType({"mlp.router.bias": "e_score_correction_bias"})
)
# Our settings of latents by their names there.
LATENT: Mapping[str, str] = MappingProxyType(
    {
        "kv_rank": "kv_lora_rank",
        "query_rank": "q_lora_rank",
        "plain_columns": "qk_nope_head_dim",
        "rotated_columns": "qk_rope_head_dim",
        "value_columns": "v_head_dim",
    }
)
SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings")
UNSAID: Mapping[str, Any] = MappingProxyType(
    {
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": None,
    }
)
_PLACES = ("rope_parameters", "rope_scaling")


def deepseek(
    architecture: str,
    model_type: str,
    mixture: Mixture,
    *,
    unsaid: Mapping[str, Any],
    must: Mapping[str, tuple[Any, ...]],
    interleaves: bool,
    besides: Callable[[Config], range] = lambda config: range(0),
) -> Family:
    """Return a version of DeepSeek; versions differ in the function of their routers' scores. interleaves: whether
    config.json says which columns are rotated together; neighbours, otherwise."""
    scores = mixture.must.get("scores", "softmax")
    family = Family(
        architecture=architecture,
        settings=MappingProxyType({**SETTINGS, "attention": "latent"}),
        sizes=(*SIZES, "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
        must=MappingProxyType({**MUST, "moe_layer_freq": (1,), **must}),
        read=partial(_read, interleaves=interleaves),
        write=lambda model: {"model_type": model_type, **_write(model, architecture, interleaves=interleaves)},
        names=lambda model: NAMES,
        logits=logits,
        unsaid=MappingProxyType({**UNSAID, **unsaid}),
        free=("latent", "rope_pairs"),
        besides=besides,
        can_say=lambda model: not has_windows(model) and _scores(model) == scores,
    )
    shared = mixture._replace(
        number="n_routed_experts",
        modules=MappingProxyType({**EXPERTS, **SHARED}),
        columns="moe_intermediate_size",
        balance=None,
        dense=Dense(_is_dense, _dense_fields),
        converted=(*mixture.converted, "shared"),
        read=lambda config, where: {**_shared(config, where), **mixture.read(config, where)},
        write=lambda experts: {**_shared_config(experts, architecture), **mixture.write(experts)},
    )
    return with_experts(family, shared)


def _read(config: Config, where: str, *, interleaves: bool) -> Tree:
    heads = config["num_attention_heads"]
    if config["num_key_value_heads"] not in (None, heads):
        raise DataError(
            f"{where}: num_key_value_heads is {config['num_key_value_heads']!r}, and latent attention has as many as "
            f"num_attention_heads ({heads})"
        )
    plain, rotated = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    if config.get("qk_head_dim") not in (None, plain + rotated):
        raise DataError(
            f"{where}: qk_head_dim is {config['qk_head_dim']!r}, and qk_nope_head_dim ({plain}) and qk_rope_head_dim "
            f"({rotated}) together are {plain + rotated}; correct the file, or download the folder again"
        )
    neighbours = not interleaves or config.get("rope_interleave", True)
    return {
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": heads,
        "ffn": config["intermediate_size"],
        "sequence": config["max_position_embeddings"],
        "norm_epsilon": config["rms_norm_eps"],
        "latent": {ours: config[theirs] for ours, theirs in LATENT.items()} | {"norm_epsilon": LATENT_EPSILON},
        "rope_pairs": "neighbours" if neighbours else "halves",
        **_rope(config, where),
    }


def _write(model: ModelShape, architecture: str, *, interleaves: bool) -> Tree:
    latent, interleaved = _latent_of(model, architecture), model.rope_pairs == "neighbours"
    if not (interleaved or interleaves):
        raise ConfigError(
            f"plan.model.rope_pairs is '{model.rope_pairs}', and {architecture} rotates neighbours; train with "
            f"plan.model.rope_pairs=neighbours for a model that is to be exported"
        )
    return {
        "max_position_embeddings": model.sequence,
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.heads,
        **{theirs: getattr(latent, ours) for ours, theirs in LATENT.items()},
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_epsilon,
        "attention_bias": False,
        "attention_dropout": 0.0,
        **_rope_config(model),
        **({"rope_interleave": interleaved} if interleaves else {}),
        "moe_layer_freq": 1,
    }


def _scores(model: ModelShape) -> str:
    """Return the function of the scores of the first layer with experts."""
    forms = (model.form_of(n) for n in range(model.layers))
    found = next((form.experts for form in forms if form.feed_forward == "experts"), model.experts)
    return "softmax" if found is None else found.scores


def _is_dense(config: Config, layer: int) -> bool:
    found: bool = layer < config["first_k_dense_replace"]
    return found


def _dense_fields(layers: list[int]) -> Tree:
    if layers != list(range(len(layers))):
        raise ConfigError(
            f"plan.model: layers {layers} have no experts, and a config.json of DeepSeek says of the first layers "
            f"alone that they have none; train with such layers for a model that is to be exported"
        )
    return {"first_k_dense_replace": len(layers)}


def _shared(config: Config, where: str) -> Tree:
    count = config.get("n_shared_experts")
    if type(count) is not int or count < 1:
        raise DataError(f"{where}: n_shared_experts is {count!r}, and must be a whole number above 0")
    return {"shared": count * config["moe_intermediate_size"]}


def _shared_config(experts: Experts, architecture: str) -> Tree:
    columns = experts.columns or 0
    if not experts.shared or not columns or experts.shared % columns:
        raise ConfigError(
            f"plan.model.experts.shared is {experts.shared}, and {architecture} has a shared expert with a multiple of "
            f"plan.model.experts.columns ({experts.columns}); train with such columns for a model that is to be "
            f"exported"
        )
    return {"n_shared_experts": experts.shared // columns}


def _latent_of(model: ModelShape, architecture: str) -> Latent:
    """Return the latents of all layers. Raises ConfigError where they differ, or have norms of another kind."""
    latents = {model.form_of(n).latent for n in range(model.layers)}
    latent = next(iter(latents))
    if len(latents) > 1 or latent is None:
        raise ConfigError(f"plan.model: layers have {len(latents)} kinds of latents, and {architecture} has one")
    if latent.norm_epsilon != LATENT_EPSILON:
        raise ConfigError(
            f"plan.model.latent.norm_epsilon is {latent.norm_epsilon:g}, and {architecture} has {LATENT_EPSILON:g}; "
            f"train with that for a model that is to be exported"
        )
    return latent


def _rope(config: Config, where: str) -> Tree:
    """Return the settings of rotary positions. `mscale_all_dim` enlarges scores, and over it `mscale` sines and
    cosines."""
    plain, all_dim = dict(config), set()
    for place in _PLACES:
        rope = config.get(place)
        if not isinstance(rope, Mapping) or rope.get("rope_type", rope.get("type")) != "yarn":
            continue
        numbers = {name: rope.get(name) or None for name in ("mscale", "mscale_all_dim")}
        for name, number in numbers.items():
            if number is not None and (isinstance(number, bool) or not isinstance(number, int | float)):
                raise DataError(f"{where}: {place}.{name} is {number!r}, and must be a number")
        rest = {name: value for name, value in rope.items() if name not in numbers}
        if rest.get("attention_factor") is None and None not in numbers.values():
            top, bottom = (_grown(float(rope.get("factor") or 1), float(m or 0)) for m in numbers.values())
            rest["attention_factor"] = top / bottom
        plain[place] = rest
        all_dim.add(numbers["mscale_all_dim"])
    if len(all_dim) > 1:
        raise DataError(f"{where}: rope_parameters and rope_scaling differ in mscale_all_dim; remove the wrong one")
    found = rope_of(plain, where)
    if found["rope_scaling"] is not None:
        found["rope_scaling"]["mscale_all_dim"] = next(iter(all_dim), None)
    return found


def _grown(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def _rope_config(model: ModelShape) -> Tree:
    scaling = model.rope_scaling
    if scaling is None or scaling.mscale_all_dim is None:
        return rope_config(model)
    rest = scaling.model_copy(update={"mscale_all_dim": None})
    more = {"mscale_all_dim": scaling.mscale_all_dim}
    if scaling.attention == 1:  # as DeepSeek's own files say it, which code written for them reads
        rest, more = rest.model_copy(update={"attention": None}), {**more, "mscale": scaling.mscale_all_dim}
    found = rope_config(model.model_copy(update={"rope_scaling": rest}))
    return {name: {**value, **more} if isinstance(value, Mapping) else value for name, value in found.items()}
