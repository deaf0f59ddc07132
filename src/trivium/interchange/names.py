"""Which tensors of a Hugging Face model hold which parameter of ours, and how they are laid out there.

Legend: H hidden, G key-value heads, N heads, D head width.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from trivium.plan.layers.part import Parameter
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import parameters

Tensors = tuple[torch.Tensor, ...]
HEAD = "lm_head.weight"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"  # all in one file, or which holds which


class Twin(NamedTuple):
    """A parameter of ours and its tensors there; `apart` and `together` turn one into the other."""

    ours: Parameter
    theirs: tuple[str, ...]
    apart: Callable[[torch.Tensor], Tensors]
    together: Callable[[Tensors], torch.Tensor]


def twins(model: ModelShape) -> Iterator[Twin]:
    """Every parameter of a model with its tensors there, in the order of the parameter table."""
    for row in parameters(model):
        name, layer = _split(row.name)
        if model.family == "gpt":
            yield _gpt2(row, name, layer, model)
        else:
            yield _llama(row, name, layer, model)


def _split(name: str) -> tuple[str, str]:
    """`layers.3.mlp.up.weight` -> (`mlp.up.weight`, `3`); what is in no layer has no number."""
    first, _, rest = name.partition(".")
    if first != "layers":
        return name, ""
    number, _, inner = rest.partition(".")
    return inner, number


_GPT2_ENDS = {
    "embedding.tokens.weight": "transformer.wte.weight",
    "embedding.positions.weight": "transformer.wpe.weight",
    "head.norm.weight": "transformer.ln_f.weight",
    "head.norm.bias": "transformer.ln_f.bias",
    "head.weight": HEAD,
}
_GPT2_LAYER = {
    "attention.norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "mlp.norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
_LLAMA_ENDS = {
    "embedding.tokens.weight": "model.embed_tokens.weight",
    "head.norm.weight": "model.norm.weight",
    "head.weight": HEAD,
}
_LLAMA_LAYER = {
    "attention.norm": ("input_layernorm",),
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.query_norm": ("self_attn.q_norm",),
    "attention.key_norm": ("self_attn.k_norm",),
    "attention.out": ("self_attn.o_proj",),
    "mlp.norm": ("post_attention_layernorm",),
    "mlp.up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down": ("mlp.down_proj",),
}


# Where half blocks end with their norm; elsewhere `post_attention_layernorm` is before the second.
_NORMS_AFTER = {"attention.norm": ("post_attention_layernorm",), "mlp.norm": ("post_feedforward_layernorm",)}


def _gpt2(row: Parameter, name: str, layer: str, model: ModelShape) -> Twin:
    if not layer:
        return _alike(row, _GPT2_ENDS[name])
    module, _, kind = name.rpartition(".")
    theirs = f"transformer.h.{layer}.{_GPT2_LAYER[module]}.{kind}"
    # GPT-2's linear layers are written [inputs, outputs]; its queries of all heads come first, then keys, values.
    matrix = kind == "weight" and not module.endswith("norm")
    if module == "attention.qkv":
        return Twin(
            row,
            (theirs,),
            lambda w: (_turned(torch.cat(by_kind(w, model)), matrix),),
            lambda there: by_group(_turned(there[0], matrix).chunk(3), model),
        )
    return Twin(row, (theirs,), lambda w: (_turned(w, matrix),), lambda there: _turned(there[0], matrix))


def _llama(row: Parameter, name: str, layer: str, model: ModelShape) -> Twin:
    if not layer:
        return _alike(row, _LLAMA_ENDS[name])
    module, _, kind = name.rpartition(".")
    named = _LLAMA_LAYER | (_NORMS_AFTER if model.norm_position == "after" else {})
    theirs = tuple(f"model.layers.{layer}.{m}.{kind}" for m in named[module])
    if module == "attention.qkv":
        return Twin(row, theirs, lambda w: by_kind(w, model), lambda there: by_group(there, model))
    if module == "mlp.up":  # ours: gate and up, [2, ffn, H]
        return Twin(row, theirs, lambda w: w.unbind(0), lambda there: torch.stack(there))
    return _alike(row, theirs[0])


def _alike(row: Parameter, theirs: str) -> Twin:
    return Twin(row, (theirs,), lambda w: (w,), lambda there: there[0])


def _turned(w: torch.Tensor, matrix: bool) -> torch.Tensor:
    return w.T.contiguous() if matrix else w


def by_kind(w: torch.Tensor, model: ModelShape) -> Tensors:
    """Rows in groups (queries of a group, its key, its value) -> queries of all heads, keys, values."""
    G, D = model.kv, model.head_columns
    groups = w.view(G, model.heads // G + 2, D, *w.shape[1:])
    return tuple(x.reshape(-1, *w.shape[1:]) for x in (groups[:, :-2], groups[:, -2], groups[:, -1]))


def by_group(there: Tensors, model: ModelShape) -> torch.Tensor:
    """Queries of all heads, keys, values -> rows in groups, as tensor ranks split them."""
    G, D = model.kv, model.head_columns
    groups = [x.reshape(G, -1, D, *x.shape[1:]) for x in there]
    return torch.cat(groups, dim=1).reshape(-1, *there[0].shape[1:])
