"""LoRA by peft on transformers' Llama, in the loop that trl's trainer runs: loss, backward, clip, step."""

import torch
import torch.nn.functional as F
import tuned_llama as setting
from contest import Build
from peft import LoraConfig, get_peft_model
from setting import Setting
from torch import Tensor

from trivium.comms.launch import Place

ALL_LINEAR = "all-linear"


class Tuned:
    """One process. packed: several conversations in a row, behind a mask of blocks and with positions that restart;
    otherwise each is a row of its own, and the attention mask covers the padding."""

    def __init__(self, *, packed: bool, compiled: bool) -> None:
        config = LoraConfig(
            r=setting.RANK, lora_alpha=setting.ALPHA, lora_dropout=0.0, target_modules=ALL_LINEAR, task_type="CAUSAL_LM"
        )
        self.model = get_peft_model(setting.llama(), config).train()
        self.packed = packed
        self.forward = torch.compile(self.model, dynamic=True) if compiled else self.model
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=setting.LR, betas=(0.9, 0.999), weight_decay=0.0, fused=True)
        self.trained = trained

    def step(self, number: int) -> Tensor:
        """Do one optimizer step."""
        rows = (setting.packed if self.packed else setting.padded)(number)
        ids, weights, positions, numbers = setting.tensors(*rows)
        if self.packed:
            seen = (numbers[:, :, None] == numbers[:, None, :]).tril()[:, None]
            logits = self.forward(ids, attention_mask=seen, position_ids=positions, use_cache=False).logits
        else:
            logits = self.forward(ids, attention_mask=(numbers > 0).long(), use_cache=False).logits
        targets = ids[:, 1:].masked_fill(weights[:, 1:] == 0, -100)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, setting.CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def tuned(*, packed: bool, compiled: bool = False) -> Build:
    """Return a contestant."""

    def build(_: Setting, place: Place) -> Tuned:
        return Tuned(packed=packed, compiled=compiled)

    return build
