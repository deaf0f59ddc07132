"""A model's shape as the config.json of Hugging Face, and back."""

from collections.abc import Mapping
from typing import Any

from trivium.config import build
from trivium.errors import ConfigError, DataError
from trivium.plan.model_shape import Family, ModelShape

ARCHITECTURES: Mapping[Family, str] = {"gpt": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}


def config_of(model: ModelShape, *, dtype: str) -> dict[str, Any]:
    """config.json for a model; ConfigError when no architecture of Hugging Face computes the same."""
    if model.family == "gpt" and model.kv != model.heads:
        raise ConfigError(
            f"plan.model.kv_heads ({model.kv}) must be plan.model.heads ({model.heads}) for GPT2LMHeadModel, which "
            f"has no grouped queries; use family llama for a model that is to be exported"
        )
    common = {
        "architectures": [ARCHITECTURES[model.family]],
        "vocab_size": model.vocabulary,
        "initializer_range": model.std,
        "tie_word_embeddings": model.head == "tied",
        "bos_token_id": model.end_of_text,
        "eos_token_id": model.end_of_text,
        "use_cache": True,
        "dtype": dtype,
        "torch_dtype": dtype,  # transformers before 4.56, and what was written against it
    }
    return common | (_gpt2(model) if model.family == "gpt" else _llama(model))


def _gpt2(model: ModelShape) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_positions": model.sequence,
        "n_ctx": model.sequence,
        "n_embd": model.hidden,
        "n_layer": model.layers,
        "n_head": model.heads,
        "n_inner": model.ffn_width,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": model.norm_epsilon,
        "embd_pdrop": model.dropout,
        "resid_pdrop": model.dropout,
        "attn_pdrop": 0.0,
        "scale_attn_weights": True,
    }


def _llama(model: ModelShape) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "max_position_embeddings": model.sequence,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn_width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv,
        "head_dim": model.head_width,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_epsilon,
        "rope_theta": model.rope_base,  # transformers before 5
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_base},
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "pretraining_tp": 1,
    }


def shape_of(config: Mapping[str, Any], where: str) -> ModelShape:
    """The shape of a model of Hugging Face; DataError when this engine would compute something else."""
    families = {name: family for family, name in ARCHITECTURES.items()}
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and named else named
    if not isinstance(name, str) or name not in families:
        raise DataError(f"{where}: architectures {named!r} is not one of {', '.join(sorted(families))}")
    sizes = _GPT2_SIZES if families[name] == "gpt" else _LLAMA_SIZES
    for key in ("vocab_size", *sizes):
        if not isinstance(config.get(key), int) or config[key] < 1:
            raise DataError(f"{where}: {key} is {config.get(key)!r}, and must be a whole number above 0")
    wanted = _GPT2_MUST if families[name] == "gpt" else _LLAMA_MUST
    for key, values in wanted.items():
        if config.get(key, values[0]) not in values:
            raise DataError(f"{where}: {key} is {config[key]!r}, and this engine computes {values[0]!r}")
    tree = _from_gpt2(config) if families[name] == "gpt" else _from_llama(config, where)
    ends = config.get("eos_token_id")
    end = ends[0] if isinstance(ends, list) and ends else ends  # chat models name several
    return build(
        ModelShape,
        {
            **tree,
            "family": families[name],
            "vocabulary": config["vocab_size"],
            "head": "tied" if config.get("tie_word_embeddings", name == "GPT2LMHeadModel") else "untied",
            "init_std": config.get("initializer_range", 0.02),
            "end_of_text": end if isinstance(end, int) else 0,
        },
    )


_GPT2_SIZES = ("n_layer", "n_embd", "n_head", "n_positions")
_LLAMA_SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
# What a config may say besides sizes: the first value is also the default of transformers.
_GPT2_MUST: Mapping[str, tuple[Any, ...]] = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "quantization_config": (None,),
}
_LLAMA_MUST: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "rope_scaling": (None,),
    "quantization_config": (None,),
}


def _from_gpt2(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "layers": config["n_layer"],
        "hidden": config["n_embd"],
        "heads": config["n_head"],
        "ffn": config.get("n_inner") or 4 * config["n_embd"],
        "sequence": config["n_positions"],
        "norm_epsilon": config.get("layer_norm_epsilon", 1e-5),
        "dropout": config.get("resid_pdrop", 0.1),
    }


def _from_llama(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    rope = config.get("rope_parameters") or {}
    if not isinstance(rope, Mapping):
        raise DataError(f"{where}: rope_parameters is {rope!r}, and must hold rope_type and rope_theta")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise DataError(f"{where}: rope_parameters.rope_type is {kind!r}, only 'default' is known")
    width = config["hidden_size"] // config["num_attention_heads"]
    if (config.get("head_dim") or width) != width:
        raise DataError(
            f"{where}: head_dim is {config['head_dim']}, and this engine has hidden / heads ({width})"
        )
    return {
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "kv_heads": config.get("num_key_value_heads") or config["num_attention_heads"],
        "ffn": config["intermediate_size"],
        "sequence": config["max_position_embeddings"],
        "norm_epsilon": config.get("rms_norm_eps", 1e-6),
        "rope_base": rope.get("rope_theta", config.get("rope_theta", 10000.0)),
    }
