"""The plain loop on packed documents that do not see each other, as a user of PyTorch or transformers has it: attention
behind a mask, positions that restart, targets that do not count."""

import torch
import torch.nn.functional as F
from setting import END, Setting
from torch_model import Gpt, adamw, narrow, tensors

from trivium.comms.launch import Place


class PackedLoop:
    """One process; fp32 weights, products in bf16 where the setting asks for it."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.model = Gpt(setting).fill()
        self.optimizer = adamw([self.model])

    def step(self, number: int) -> torch.Tensor:
        """One optimizer step."""
        x, y = tensors(self.setting, number)
        ends = x == END
        document = ends.long().cumsum(1) - ends.long()
        seen = (document[:, :, None] == document[:, None, :]).tril()
        numbers = seen.sum(-1) - 1
        with narrow(self.setting):
            logits = self.model(x, numbers, seen[:, None])
        # What follows the end is another document's first token.
        targets = y.masked_fill(ends, -100)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def packed_loop(setting: Setting, place: Place) -> PackedLoop:
    """A contestant."""
    return PackedLoop(setting)
