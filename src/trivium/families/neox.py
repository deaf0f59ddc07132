"""GPT-NeoX and Pythia (arXiv 2204.06745, 2304.01373).

Legend: B sequences, S positions, V vocabulary, H hidden, N heads, D columns of a head.
"""

import math
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F

from trivium.errors import ConfigError, DataError
from trivium.families.common.attention import attend, rotated
from trivium.families.common.family import Config, Family, Names, Tensors, Tree
from trivium.families.common.rope import rope_config, rope_of
from trivium.plan.model_shape import ModelShape

ACTIVATIONS = MappingProxyType(
    {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh"}
)
NAMES = Names(
    prefix="gpt_neox.",
    layer="gpt_neox.layers.{}",
    ends=MappingProxyType(
        {
            "embedding.tokens.weight": "gpt_neox.embed_in.weight",
            "head.norm.weight": "gpt_neox.final_layer_norm.weight",
            "head.norm.bias": "gpt_neox.final_layer_norm.bias",
            "head.weight": "embed_out.weight",
        }
    ),
    modules=MappingProxyType(
        {
            "attention.norm": ("input_layernorm",),
            # Rows by head, as ours of as many key-value heads: queries, keys and values of the first, then the next.
            "attention.qkv": ("attention.query_key_value",),
            "attention.out": ("attention.dense",),
            "mlp.norm": ("post_attention_layernorm",),
            "mlp.up": ("mlp.dense_h_to_4h",),
            "mlp.down": ("mlp.dense_4h_to_h",),
        }
    ),
)
SHARE, BASE = 0.25, 10000.0  # transformers' own: of the columns that are rotated, and the base


def read(config: Config, where: str) -> Tree:
    """The settings of a model from its config.json."""
    share = _share(config)
    if not isinstance(share, int | float) or isinstance(share, bool) or not 0 < share <= 1:
        raise DataError(f"{where}: the share of rotated columns is {share!r}, and must be above 0 and at most 1")
    head = config["hidden_size"] // config["num_attention_heads"]
    if config.get("head_dim") not in (None, head):
        raise DataError(
            f"{where}: head_dim is {config['head_dim']}, and must be hidden_size / num_attention_heads, {head}"
        )
    columns = int(head * share)
    function = config.get("hidden_act", "gelu")
    if function not in ACTIVATIONS:
        raise DataError(f"{where}: hidden_act is {function!r}, and must be one of {', '.join(ACTIVATIONS)}")
    return {
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "ffn": config["intermediate_size"],
        "sequence": config["max_position_embeddings"],
        "norm_epsilon": config.get("layer_norm_eps", 1e-5),
        "dropout": config.get("hidden_dropout", 0.0),
        "activation": ACTIVATIONS[function],
        "wiring": "side_by_side" if config.get("use_parallel_residual", True) else "sequential",
        "rope_columns": None if columns == head else columns,
        **rope_of(_without_share(config), where),
    }


def _share(config: Config) -> Any:
    """The share of each head's columns that is rotated: as transformers 5 writes it, or as those before did."""
    new = (config.get("rope_parameters") or {}).get("partial_rotary_factor")
    return next((x for x in (new, config.get("rotary_pct")) if x is not None), SHARE)


def _without_share(config: Config) -> Tree:
    """The config as that of a model that rotates all columns."""
    new = {k: v for k, v in (config.get("rope_parameters") or {}).items() if k != "partial_rotary_factor"}
    return {**config, "rope_theta": config.get("rotary_emb_base", BASE), "rope_parameters": new or None}


def write(model: ModelShape) -> Tree:
    """The fields of config.json. Raises ConfigError for what GPT-NeoX does not have."""
    if model.kv != model.heads or model.heads * model.head_columns != model.hidden:
        raise ConfigError(
            f"plan.model has {model.heads} heads of {model.head_columns} columns, {model.kv} key-value heads and "
            f"hidden {model.hidden}; GPTNeoXForCausalLM has as many key-value heads as heads, and hidden / heads "
            f"columns in each: train with these for a model that is to be exported"
        )
    columns = model.head_columns if model.rope_columns is None else model.rope_columns
    share = columns / model.head_columns
    rope = rope_config(model)
    return {
        "model_type": "gpt_neox",
        "max_position_embeddings": model.sequence,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn_width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "hidden_act": {"gelu": "gelu", "gelu_tanh": "gelu_new"}[model.activation],
        "rotary_pct": share,
        "rotary_emb_base": model.rope_base,
        **rope,
        "rope_parameters": {**rope["rope_parameters"], "partial_rotary_factor": share},
        "layer_norm_eps": model.norm_epsilon,
        "hidden_dropout": model.dropout,
        "attention_dropout": 0.0,
        "attention_bias": True,
        "use_parallel_residual": model.wiring == "side_by_side",
    }


def logits(config: Config, tensors: Tensors, tokens: torch.Tensor) -> torch.Tensor:
    """tokens [B, S] -> logits [B, S, V]."""
    get, (B, S) = tensors.get, tokens.shape
    N, H = config["num_attention_heads"], config["hidden_size"]
    D = H // N
    columns = int(D * config["rotary_pct"])

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, get(f"{name}.weight"), get(f"{name}.bias"))

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (H,), get(f"{name}.weight"), get(f"{name}.bias"), config["layer_norm_eps"])

    def turn(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([rotated(x[..., :columns], config["rope_parameters"]), x[..., columns:]], dim=-1)

    def attention(x: torch.Tensor, at: str) -> torch.Tensor:
        heads = linear(x, f"{at}.query_key_value").view(B, S, N, 3, D).permute(3, 0, 2, 1, 4)
        y = attend(turn(heads[0]), turn(heads[1]), heads[2])
        return linear(y.transpose(1, 2).reshape(B, S, H), f"{at}.dense")

    def mlp(x: torch.Tensor, at: str) -> torch.Tensor:
        up = linear(x, f"{at}.dense_h_to_4h")
        if config["hidden_act"] == "gelu":
            y = up / 2 * (1 + torch.erf(up / math.sqrt(2)))
        else:
            y = up / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
        return linear(y, f"{at}.dense_4h_to_h")

    x = get("gpt_neox.embed_in.weight")[tokens]
    for n in range(config["num_hidden_layers"]):
        at = f"gpt_neox.layers.{n}"
        attended = x + attention(norm(x, f"{at}.input_layernorm"), f"{at}.attention")
        second = x if config["use_parallel_residual"] else attended
        x = attended + mlp(norm(second, f"{at}.post_attention_layernorm"), f"{at}.mlp")
    table = "gpt_neox.embed_in.weight" if config["tie_word_embeddings"] else "embed_out.weight"
    return norm(x, "gpt_neox.final_layer_norm") @ get(table).T


FAMILY = Family(
    architecture="GPTNeoXForCausalLM",
    settings=MappingProxyType(
        {
            "norm": "layer_norm",
            "feed_forward": "plain",
            "positions": "rotary",
            "bias": "all",
            "qk_norm": "none",
            "norm_position": "before",
        }
    ),
    sizes=("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings"),
    must=MappingProxyType({"attention_bias": (True,), "quantization_config": (None,)}),
    read=read,
    write=write,
    names=lambda model: NAMES,
    logits=logits,
    free=("activation", "wiring", "rope_columns"),
)
