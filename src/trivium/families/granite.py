"""Granite 3: Llama's blocks with four multipliers."""

import math
from types import MappingProxyType

import torch

from trivium.families.common.family import Config, Tensors, Tree
from trivium.families.common.llama_like import llama_like
from trivium.families.common.llama_logits import logits as llama_logits
from trivium.plan.model_shape import ModelShape

FREE = ("embedding_scale", "score_scale", "residual_scale", "logits_scale")
LLAMA = llama_like("GraniteForCausalLM", "granite", said=MappingProxyType({"attention_bias": False, "mlp_bias": False}))


def read(config: Config, where: str) -> Tree:
    """Return the settings of a model. An absent multiplier is 1, also that of attention scores."""
    return {
        **LLAMA.read(config, where),
        "embedding_scale": config.get("embedding_multiplier", 1.0),
        "score_scale": config.get("attention_multiplier", 1.0),
        "residual_scale": config.get("residual_multiplier", 1.0),
        "logits_scale": 1 / (config.get("logits_scaling") or 1.0),
    }


def write(model: ModelShape) -> Tree:
    """Return the fields of config.json."""
    scale = model.score_scale
    return {
        **LLAMA.write(model),
        "embedding_multiplier": model.embedding_scale,
        "attention_multiplier": 1 / math.sqrt(model.head_columns) if scale is None else scale,
        "residual_multiplier": model.residual_scale,
        "logits_scaling": 1 / model.logits_scale,
    }


def logits(config: Config, tensors: Tensors, tokens: torch.Tensor) -> torch.Tensor:
    """tokens [B, S] -> logits [B, S, V], computed by a Llama whose tensors include the multipliers."""
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    embedding = config["embedding_multiplier"]
    # If the table is tied, the head uses it too.
    again = embedding if config["tie_word_embeddings"] else 1.0
    factors: dict[str, float] = {
        "model.embed_tokens": embedding,
        "model.norm": 1 / (config["logits_scaling"] * again),
        "q_proj": config["attention_multiplier"] * math.sqrt(width),
        "o_proj": config["residual_multiplier"],
        "down_proj": config["residual_multiplier"],
    }

    def get(name: str) -> torch.Tensor:
        module = name.removesuffix(".weight")
        return tensors.get(name) * factors.get(module, factors.get(module.rpartition(".")[2], 1.0))

    return llama_logits({"head_dim": width, **config}, Tensors(get, tensors.names), tokens)


FAMILY = LLAMA._replace(read=read, write=write, logits=logits, free=(*LLAMA.free, *FREE), rank=3)
