"""The loop a user writes (nanoGPT's): autocast forward, backward, clip, fused AdamW; DDP where there are replicas."""

import torch
from contest import Build
from setting import Setting
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_model import Gpt, adamw, mean_loss, narrow, tensors

from trivium.comms.launch import Place


class PlainLoop:
    """One replica; fp32 weights, products in bf16 where the setting asks for it."""

    def __init__(self, setting: Setting, place: Place, *, compiled: bool) -> None:
        self.setting, self.place = setting, place
        self.parameters, self.model = prepared(setting, place, compiled=compiled)
        self.optimizer = adamw([self.parameters])

    def step(self, number: int) -> torch.Tensor:
        """One optimizer step."""
        x, y = tensors(self.setting, number, index=self.place.rank, of=self.place.world_size)
        with narrow(self.setting):
            loss = mean_loss(self.model(x), y)
        loss.backward()
        if self.setting.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters.parameters(), self.setting.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def prepared(setting: Setting, place: Place, *, compiled: bool) -> tuple[nn.Module, nn.Module]:
    """The module that holds the parameters, and the one to call."""
    model = Gpt(setting).fill()
    called: nn.Module = torch.compile(model) if compiled else model
    return model, DistributedDataParallel(called) if place.world_size > 1 else called


def plain_loop(compiled: bool = False) -> Build:
    """A contestant; compiled: by torch.compile."""
    return lambda setting, place: PlainLoop(setting, place, compiled=compiled)
