"""A model's shape as the config.json of Hugging Face, and back."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from trivium.config import build
from trivium.errors import ConfigError, DataError
from trivium.interchange.hf_config import refuse_other_kinds
from trivium.interchange.rope import Rope, rope_apart, rope_config, rope_of
from trivium.interchange.windows import Windows, can_say, windows_config, windows_of
from trivium.plan.layers.form import Family, NormPosition, QkNormName
from trivium.plan.model_shape import ModelShape


class Architecture(NamedTuple):
    """What one of Hugging Face's names says of a model besides its sizes.

    kind: its `model_type`. windows: how its config.json says which layers see a window of the positions before them.
    rope: whether it says for those layers and for the others apart how they are turned. unsaid: what transformers take
    where a config.json says nothing. said: what an export's says besides.
    """

    kind: str
    family: Family
    qkv_bias: bool = False
    qk_norm: QkNormName = "none"
    norm_position: NormPosition = "before"
    windows: Windows = "none"
    rope: Rope = "alike"
    unsaid: Mapping[str, Any] = MappingProxyType({})
    said: Mapping[str, Any] = MappingProxyType({})

    @property
    def choices(self) -> dict[str, Any]:
        """The fields of a model's shape that it decides."""
        return choices_of(self)


def choices_of(model: "ModelShape | Architecture") -> dict[str, Any]:
    """What tells architectures apart, by the field's name."""
    names = ("family", "qkv_bias", "qk_norm", "norm_position")
    return {name: getattr(model, name) for name in names}


# In the order in which an export looks for one: Mistral's and Ministral's blocks are Llama's, through a window, and
# OLMo-3's are OLMo-2's.
ARCHITECTURES: Mapping[str, Architecture] = {
    "GPT2LMHeadModel": Architecture("gpt2", "gpt"),
    "LlamaForCausalLM": Architecture(
        "llama", "llama", said={"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1}
    ),
    "MistralForCausalLM": Architecture(
        "mistral", "llama", windows="sized", unsaid={"num_key_value_heads": 8, "sliding_window": 4096}
    ),
    "MinistralForCausalLM": Architecture(
        "ministral", "llama", windows="typed", unsaid={"num_key_value_heads": 8, "sliding_window": 4096}
    ),
    "Qwen2ForCausalLM": Architecture(
        "qwen2",
        "llama",
        qkv_bias=True,
        windows="used",
        unsaid={"num_key_value_heads": 32, "sliding_window": 4096},
    ),
    "Qwen3ForCausalLM": Architecture(
        "qwen3",
        "llama",
        qk_norm="each_head",
        windows="used",
        unsaid={"num_key_value_heads": 32, "sliding_window": 4096, "head_dim": 128},
        said={"attention_bias": False},
    ),
    "Olmo2ForCausalLM": Architecture(
        "olmo2",
        "llama",
        qk_norm="all_heads",
        norm_position="after",
        unsaid={"rms_norm_eps": 1e-5},
        said={"attention_bias": False},
    ),
    "Olmo3ForCausalLM": Architecture(
        "olmo3",
        "llama",
        qk_norm="all_heads",
        norm_position="after",
        windows="mixed",
        rope="apart",
        unsaid={"rms_norm_eps": 1e-5, "sliding_window": 4096},
        said={"attention_bias": False},
    ),
}


def is_model_folder(folder: Path) -> bool:
    """Whether a folder holds a model of Hugging Face."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def config_of(model: ModelShape, *, dtype: str) -> dict[str, Any]:
    """config.json for a model, without the ids of its marks; ConfigError when no architecture of Hugging Face computes
    the same."""
    name = _architecture_of(model)
    common = {
        "architectures": [name],
        "vocab_size": model.vocabulary,
        "initializer_range": model.std,
        "tie_word_embeddings": model.head == "tied",
        "use_cache": True,
        "dtype": dtype,
        "torch_dtype": dtype,  # transformers before 4.56, and what was written against it
    }
    return common | (_gpt2(model) if model.family == "gpt" else _llama(model, ARCHITECTURES[name]))


def _architecture_of(model: ModelShape) -> str:
    named = [name for name, a in ARCHITECTURES.items() if a.choices == choices_of(model)]
    if not named:
        given = ", ".join(f"plan.model.{k} {str(v).lower()}" for k, v in choices_of(model).items())
        known = "; ".join(f"{n}: {', '.join(map(str, a.choices.values()))}" for n, a in ARCHITECTURES.items())
        raise ConfigError(
            f"no architecture of Hugging Face has {given} ({known}); train with the choices of one for a model that is "
            f"to be exported"
        )
    saying = [name for name in named if can_say(model, ARCHITECTURES[name].windows)]
    if not saying:
        raise ConfigError(
            f"plan.model.window is {model.window}, and in {' and '.join(named)} of Hugging Face every position sees "
            f"all before it; train with plan.model.window=null for a model that is to be exported"
        )
    if model.family == "llama":
        return saying[0]
    if model.kv != model.heads:
        raise ConfigError(
            f"plan.model.kv_heads ({model.kv}) must be plan.model.heads ({model.heads}) for GPT2LMHeadModel, which "
            f"has no grouped queries; use family llama for a model that is to be exported"
        )
    if model.heads * model.head_columns != model.hidden:
        raise ConfigError(
            f"plan.model.head_width ({model.head_width}) must be hidden / heads ({model.hidden} / {model.heads}) for "
            f"GPT2LMHeadModel, which knows no other; use family llama for a model that is to be exported"
        )
    return named[0]


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


def _llama(model: ModelShape, architecture: Architecture) -> dict[str, Any]:
    return {
        "model_type": architecture.kind,
        "max_position_embeddings": model.sequence,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn_width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv,
        "head_dim": model.head_columns,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_epsilon,
        **rope_config(model, architecture.rope),
        **windows_config(model, architecture.windows),
        "attention_dropout": 0.0,
        **architecture.said,
    }


def shape_of(config: Mapping[str, Any], where: str) -> ModelShape:
    """The shape of a model of Hugging Face; DataError when this engine would compute something else."""
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and named else named
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise DataError(f"{where}: architectures {named!r} is not one of {', '.join(sorted(ARCHITECTURES))}")
    architecture = ARCHITECTURES[name]
    refuse_other_kinds(config, where)
    config = {**architecture.unsaid, **config}
    gpt = architecture.family == "gpt"
    sizes = _GPT2_SIZES if gpt else _LLAMA_SIZES
    for key in ("vocab_size", *sizes):
        if config.get(key) is None:
            raise DataError(f"{where}: {key} is {config.get(key)!r}, and must be a whole number above 0")
    wanted = _GPT2_MUST if gpt else _LLAMA_MUST
    for key, values in wanted.items():
        if config.get(key, values[0]) not in values:
            raise DataError(f"{where}: {key} is {config[key]!r}, and this engine computes {values[0]!r}")
    tree = _from_gpt2(config) if gpt else _from_llama(config, architecture, where)
    end = next(iter(ids_of(config.get("eos_token_id"))), None)
    ours = {
        **tree,
        **architecture.choices,
        "vocabulary": config["vocab_size"],
        "head": "tied" if config.get("tie_word_embeddings", name == "GPT2LMHeadModel") else "untied",
        "init_std": config.get("initializer_range", 0.02),
        "end_of_text": end if isinstance(end, int) else 0,
    }
    try:
        return build(ModelShape, ours)
    except ConfigError as error:
        raise DataError(f"{where}: of the model that it describes, {error}") from None


def marks_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a config.json says of the ids that begin, end and fill texts; transformers have others where it says
    nothing. What is no id of its model is left out."""
    said = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config}
    known = range(config["vocab_size"])
    return {k: v for k, v in said.items() if v is None or all(i in known for i in ids_of(v))}


def ids_of(mark: Any) -> list[Any]:
    """What a config.json names for one mark, the first first; chat models end texts with several."""
    return mark if isinstance(mark, list) else [] if mark is None else [mark]


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


def _from_llama(config: Mapping[str, Any], architecture: Architecture, where: str) -> dict[str, Any]:
    windows = windows_of(config, architecture.windows, where)
    alike = architecture.rope == "alike"
    return {
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "kv_heads": config.get("num_key_value_heads") or config["num_attention_heads"],
        "head_width": _head_width(config),
        "ffn": config["intermediate_size"],
        "sequence": config["max_position_embeddings"],
        "norm_epsilon": config.get("rms_norm_eps", 1e-6),
        **(rope_of(config, where) if alike else rope_apart(config, where, window="window" in windows)),
        **windows,
    }


def _head_width(config: Mapping[str, Any]) -> int | None:
    """Columns of a head; None where they are hidden / heads."""
    width, hidden, heads = config.get("head_dim"), config["hidden_size"], config["num_attention_heads"]
    return None if width is None or width * heads == hidden else width
