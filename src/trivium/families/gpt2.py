"""GPT-2."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F

from trivium.errors import ConfigError
from trivium.families.common.attention import attend
from trivium.families.common.family import Config, Family, Names, Tensors, Tree
from trivium.plan.model_shape import ModelShape

NAMES = Names(
    prefix="transformer.",
    layer="transformer.h.{}",
    ends=MappingProxyType(
        {
            "embedding.tokens.weight": "transformer.wte.weight",
            "embedding.positions.weight": "transformer.wpe.weight",
            "head.norm.weight": "transformer.ln_f.weight",
            "head.norm.bias": "transformer.ln_f.bias",
            "head.weight": "lm_head.weight",
        }
    ),
    modules=MappingProxyType(
        {
            "attention.norm": ("ln_1",),
            "attention.qkv": ("attn.c_attn",),
            "attention.out": ("attn.c_proj",),
            "mlp.norm": ("ln_2",),
            "mlp.up": ("mlp.c_fc",),
            "mlp.down": ("mlp.c_proj",),
        }
    ),
    joined=("attention.qkv",),
    transposed=True,
)
MUST: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "quantization_config": (None,),
    }
)


def read(config: Config, where: str) -> Tree:
    """The settings of a model from its config.json."""
    return {
        "layers": config["n_layer"],
        "hidden": config["n_embd"],
        "heads": config["n_head"],
        "ffn": config.get("n_inner") or 4 * config["n_embd"],
        "sequence": config["n_positions"],
        "norm_epsilon": config.get("layer_norm_epsilon", 1e-5),
        "dropout": config.get("resid_pdrop", 0.1),
    }


def write(model: ModelShape) -> Tree:
    """The fields of config.json. Raises ConfigError for grouped queries, and for heads of another width."""
    if model.kv != model.heads:
        raise ConfigError(
            f"plan.model.kv_heads ({model.kv}) must be plan.model.heads ({model.heads}) for GPT2LMHeadModel, which "
            f"has no grouped queries; use the settings of another architecture for a model that is to be exported"
        )
    if model.heads * model.head_columns != model.hidden:
        raise ConfigError(
            f"plan.model.head_width ({model.head_width}) must be hidden / heads ({model.hidden} / {model.heads}) for "
            f"GPT2LMHeadModel, which knows no other; use the settings of another architecture for a model that is to "
            f"be exported"
        )
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


def logits(config: Config, tensors: Tensors, tokens: torch.Tensor) -> torch.Tensor:
    """tokens [B, S] -> logits [B, S, V]."""
    get, (B, S) = tensors.get, tokens.shape
    N, H, epsilon = config["n_head"], config["n_embd"], config["layer_norm_epsilon"]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (H,), get(f"{name}.weight"), get(f"{name}.bias"), epsilon)

    def conv(x: torch.Tensor, name: str) -> torch.Tensor:  # weight [inputs, outputs]
        return x @ get(f"{name}.weight") + get(f"{name}.bias")

    x = get("transformer.wte.weight")[tokens] + get("transformer.wpe.weight")[:S]
    for layer in range(config["n_layer"]):
        at = f"transformer.h.{layer}"
        qkv = conv(norm(x, f"{at}.ln_1"), f"{at}.attn.c_attn")
        q, k, v = (y.view(B, S, N, H // N).transpose(1, 2) for y in qkv.chunk(3, dim=-1))
        y = attend(q, k, v).transpose(1, 2).reshape(B, S, H)
        x = x + conv(y, f"{at}.attn.c_proj")
        up = conv(norm(x, f"{at}.ln_2"), f"{at}.mlp.c_fc")
        gelu_new = 0.5 * up * (1 + torch.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
        x = x + conv(gelu_new, f"{at}.mlp.c_proj")
    table = "transformer.wte.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return norm(x, "transformer.ln_f") @ get(table).T


FAMILY = Family(
    architecture="GPT2LMHeadModel",
    settings=MappingProxyType(
        {
            "norm": "layer_norm",
            "feed_forward": "plain",
            "positions": "learned",
            "bias": "all",
            "qk_norm": "none",
            "norm_position": "before",
            "wiring": "sequential",
            "activation": "gelu_tanh",
        }
    ),
    sizes=("n_layer", "n_embd", "n_head", "n_positions"),
    must=MUST,
    read=read,
    write=write,
    names=lambda model: NAMES,
    logits=logits,
    tied=True,
)
