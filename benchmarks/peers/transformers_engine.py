"""transformers' GPT-2 under accelerate, as its examples train: prepare, backward, clip, step."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from contest import Build
from gpt2 import gpt2_config
from setting import Setting
from torch import Tensor
from torch_model import Gpt, adamw, tensors
from transformers import GPT2LMHeadModel

from trivium.comms.launch import Place

# Ours -> transformers', within a layer; its matrices are stored transposed.
LAYER_NAMES = {
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
END_NAMES = {
    "tokens.weight": "transformer.wte.weight",
    "positions.weight": "transformer.wpe.weight",
    "norm.weight": "transformer.ln_f.weight",
    "norm.bias": "transformer.ln_f.bias",
    "head.weight": "lm_head.weight",
}


class Accelerated:
    """One replica; attention by scaled_dot_product_attention, the activation by PyTorch's own kernel."""

    def __init__(self, setting: Setting, place: Place) -> None:
        self.setting, self.place = setting, place
        mixed = "bf16" if setting.weights == "bf16" else "no"
        self.accelerator = Accelerator(cpu=True, mixed_precision=mixed)
        model = _model(setting)
        self.model, self.optimizer = self.accelerator.prepare(model, adamw([model]))

    def step(self, number: int) -> Tensor:
        """One optimizer step."""
        x, y = tensors(self.setting, number, index=self.place.rank, of=self.place.world_size)
        logits = self.model(x, use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        self.accelerator.backward(loss)
        if self.setting.clip:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.setting.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def accelerated() -> Build:
    """A contestant."""
    return Accelerated


def _model(setting: Setting) -> GPT2LMHeadModel:
    model = GPT2LMHeadModel(gpt2_config(setting))
    with torch.no_grad():
        mine = dict(model.named_parameters())
        whole = Gpt(setting).fill().state_dict()
        for name, value in whole.items():
            mine.pop(_name(name)).copy_(_as_theirs(name, value, setting))
    assert not mine, f"parameters without a value: {sorted(mine)}"
    return model.train()


def _as_theirs(name: str, value: Tensor, setting: Setting) -> Tensor:
    if ".qkv." in name:  # queries, keys and values of a head side by side -> all queries, all keys, all values
        value = value.unflatten(0, (setting.heads, 3, -1)).transpose(0, 1).flatten(0, 2)
    matrix = name.startswith("layers.") and value.dim() == 2
    return value.T if matrix else value


def _name(ours: str) -> str:
    if ours in END_NAMES:
        return END_NAMES[ours]
    _, number, inner = ours.split(".", 2)
    module, _, kind = inner.rpartition(".")
    return f"transformer.h.{number}.{LAYER_NAMES[module]}.{kind}"
