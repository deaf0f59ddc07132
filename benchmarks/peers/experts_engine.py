"""Forward and backward of transformers' models of experts."""

import torch
import torch.nn.functional as F
from contest import Build
from setting import Setting
from torch import Tensor
from torch_model import tensors
from transformers import AutoModelForCausalLM

from trivium.comms.launch import Place

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Experts:
    """One process. experts: transformers' implementation of the experts' products; None: its default."""

    def __init__(self, setting: Setting, folder: str, *, experts: str | None, compiled: bool) -> None:
        more = {} if experts is None else {"experts_implementation": experts}
        dtype = DTYPES[setting.weights]
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa", **more).train()
        self.setting, self.model = setting, model
        self.forward = torch.compile(model) if compiled else model

    def step(self, number: int) -> Tensor:
        """Compute the gradients of a batch."""
        x, y = tensors(self.setting, number, index=0, of=1)
        self.model.zero_grad(set_to_none=True)
        logits = self.forward(x, use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())
        loss.backward()
        return loss.detach()


def experts(*, folder: str, experts: str | None = None, compiled: bool = False) -> Build:
    """Return a contestant."""

    def build(setting: Setting, place: Place) -> Experts:
        return Experts(setting, folder, experts=experts, compiled=compiled)

    return build
