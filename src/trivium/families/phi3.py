"""Phi-3: Llama's blocks, whose queries, keys and values are one tensor, as are gate and up. An export is a Llama's."""

from types import MappingProxyType

import torch

from trivium.families.common.family import Config, Names, Tensors
from trivium.families.common.llama_like import ENDS, MODULES, llama_like
from trivium.families.common.llama_logits import logits as llama_logits

JOINED = MappingProxyType({"attention.qkv": ("self_attn.qkv_proj",), "mlp.up": ("mlp.gate_up_proj",)})
NAMES = Names("model.", "model.layers.{}", ENDS, MappingProxyType({**MODULES, **JOINED}), tuple(JOINED))
RANK = 9  # behind every other family that computes the same


def logits(config: Config, tensors: Tensors, tokens: torch.Tensor) -> torch.Tensor:
    """tokens [B, S] -> logits [B, S, V]: those of a Llama whose matrices are parts of the joined ones."""
    width = config["hidden_size"] // config["num_attention_heads"]
    keys = (config.get("num_key_value_heads") or config["num_attention_heads"]) * width
    parts = {
        "qkv_proj": (("q_proj", "k_proj", "v_proj"), [config["hidden_size"], keys, keys]),
        "gate_up_proj": (("gate_proj", "up_proj"), [config["intermediate_size"]] * 2),
    }
    where = {one: (whole, n) for whole, (names, _) in parts.items() for n, one in enumerate(names)}

    def get(name: str) -> torch.Tensor:
        at, _, module = name.removesuffix(".weight").rpartition(".")
        if module not in where:
            return tensors.get(name)
        whole, n = where[module]
        return torch.split(tensors.get(f"{at}.{whole}.weight"), parts[whole][1])[n]

    return llama_logits({"head_dim": width, **config}, Tensors(get, tensors.names), tokens)


FAMILY = llama_like(
    "Phi3ForCausalLM", "phi3", windows="sized", unsaid=MappingProxyType({"rms_norm_eps": 1e-5})
)._replace(names=lambda model: NAMES, logits=logits, rank=RANK)
