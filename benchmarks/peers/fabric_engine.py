"""Lightning Fabric around the model and optimizer the PyTorch peers use, and around litgpt's GPT."""

from typing import Any

import litgpt
import torch
from contest import Build
from lightning.fabric import Fabric
from setting import Setting
from torch import Tensor, nn
from torch_model import Gpt, adamw, mean_loss, tensors

from trivium.comms.launch import Place

# Ours -> litgpt's, within a layer.
LAYER_NAMES = {
    "attention_norm": "norm_1",
    "attention.qkv": "attn.qkv",
    "attention.out": "attn.proj",
    "mlp_norm": "norm_2",
    "mlp.up": "mlp.fc",
    "mlp.down": "mlp.proj",
}
END_NAMES = {
    "tokens.weight": "transformer.wte.tokens.weight",
    "positions.weight": "transformer.wte.positions.weight",
    "norm.weight": "transformer.ln_f.weight",
    "norm.bias": "transformer.ln_f.bias",
    "head.weight": "lm_head.weight",
}


class InFabric:
    """One replica under Fabric's precision and strategy."""

    def __init__(self, setting: Setting, place: Place, model: nn.Module) -> None:
        self.setting, self.place = setting, place
        self.fabric = Fabric(
            accelerator="cpu",
            devices=place.world_size,
            strategy="ddp" if place.world_size > 1 else "auto",
            precision="bf16-mixed" if setting.weights == "bf16" else "32-true",
        )
        self.fabric.launch()
        self.model, self.optimizer = self.fabric.setup(model, adamw([model]))

    def step(self, number: int) -> Tensor:
        """One optimizer step."""
        x, y = tensors(self.setting, number, index=self.place.rank, of=self.place.world_size)
        loss = mean_loss(self.model(x), y)
        self.fabric.backward(loss)
        if self.setting.clip:
            self.fabric.clip_gradients(self.model, self.optimizer, max_norm=self.setting.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


class Embedding(nn.Module):
    """Tokens and learned positions; litgpt's own models have rotary positions only, here turned off."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.tokens = nn.Embedding(setting.vocabulary, setting.hidden)
        self.positions = nn.Embedding(setting.sequence, setting.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S] -> [B, S, H]."""
        return self.tokens(x) + self.positions(torch.arange(x.shape[1]))


def fabric() -> Build:
    """Fabric around the plain model."""
    return lambda setting, place: InFabric(setting, place, Gpt(setting).fill())


def litgpt_model() -> Build:
    """Fabric around litgpt's GPT."""
    return lambda setting, place: InFabric(setting, place, _litgpt(setting))


def _litgpt(setting: Setting) -> nn.Module:
    model = litgpt.GPT(
        litgpt.Config(
            block_size=setting.sequence,
            padded_vocab_size=setting.vocabulary,
            vocab_size=setting.vocabulary,
            n_layer=setting.layers,
            n_head=setting.heads,
            n_embd=setting.hidden,
            rotary_percentage=0.0,
            parallel_residual=False,
            bias=True,
            lm_head_bias=False,
            norm_class_name="LayerNorm",
            mlp_class_name="GptNeoxMLP",
            gelu_approximate="tanh",
        )
    )
    model.transformer.wte = Embedding(setting)
    with torch.no_grad():
        mine: dict[str, Any] = dict(model.named_parameters())
        for name, value in Gpt(setting).fill().state_dict().items():
            if ".qkv." in name:  # queries, keys, values of a head side by side -> all queries, all keys, all values
                value = value.unflatten(0, (setting.heads, 3, -1)).transpose(0, 1).flatten(0, 2)
            mine.pop(_name(name)).copy_(value)
    assert not mine, f"parameters without a value: {sorted(mine)}"
    return model


def _name(ours: str) -> str:
    if ours in END_NAMES:
        return END_NAMES[ours]
    _, number, inner = ours.split(".", 2)
    module, _, kind = inner.rpartition(".")
    return f"transformer.h.{number}.{LAYER_NAMES[module]}.{kind}"
