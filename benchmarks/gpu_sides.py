"""What is measured on an accelerator: training steps of Trivium and of peers, of a whole GPT and of MT-NLG's stage.

Legend: B sequences, S positions, H hidden, N heads here, D head width, E feed-forward columns here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_model import Gpt

from trivium.comms.mesh import Mesh
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.tokens.rows import Rows
from trivium.training.trainer import Samples, Trainer

Step = Callable[[], None]
# By torch.compile: each block, one graph for all, and the loss, as torchtitan does and we do; or all in one graph, as
# nanoGPT does, which takes the compiler a time that grows with the layers.
Compiled = Literal["no", "blocks", "whole"]
LR = 1e-4


@dataclass(frozen=True)
class Shape:
    """A GPT and its batch on one device."""

    name: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    sequences: int

    def plan(self, *, model: Mapping[str, Any] | None = None, **more: Any) -> Plan:
        """In bf16. model: what else it is."""
        shape = {k: getattr(self, k) for k in ("layers", "hidden", "heads", "vocabulary", "sequence")}
        return Plan.model_validate(
            {
                "model": {**shape, "head": "untied", **(model or {})},
                "batch": {"sequences": self.sequences, "micro": self.sequences},
                "precision": {"weights": "bf16"},
                **more,
            }
        ).checked()

    def rows(self) -> Rows:
        """Random tokens and targets."""
        ids = np.random.default_rng(0).integers(0, self.vocabulary, (self.sequences, self.sequence + 1))
        return Rows.of_text(ids)


SHAPES = (
    Shape("1.3B", layers=24, hidden=2048, heads=16, vocabulary=50304, sequence=2048, sequences=4),
    Shape("125M", layers=12, hidden=768, heads=12, vocabulary=50304, sequence=1024, sequences=16),
    Shape("350M", layers=24, hidden=1024, heads=16, vocabulary=50304, sequence=1024, sequences=8),
)
TINY_SHAPES = tuple(
    Shape(s.name, layers=2, hidden=32, heads=2, vocabulary=64, sequence=16, sequences=2) for s in SHAPES
)


def our_trainer(plan: Plan, device: torch.device) -> Trainer:
    """With weights drawn on the device: what they are changes no time."""
    trainer = Trainer(plan, Mesh.single(device), seed=0, rule=AdamRule(), initial=False)
    for bucket in trainer.buckets:
        bucket.weights.normal_(0, 0.02)
    trainer.optimizer.restart_masters()
    return trainer


class TriviumStep:
    """A whole step: forward, backward, clip, AdamW with fp32 masters. `more` as in Plan."""

    def __init__(self, shape: Shape, device: torch.device, **more: Any) -> None:
        self._trainer, self._shape, self._rows = our_trainer(shape.plan(**more), device), shape, shape.rows()

    def __call__(self) -> None:
        rows = self._rows
        read = Samples(0, self._shape.sequences, lambda n, k: rows.part(n, n + k))
        self._trainer.train_step(0, read, LR)

    def forget(self) -> None:
        """Have the next step recorded anew, where steps are: of a replay torch counts no memory."""
        self._trainer.forget_recording()


def plain_step(shape: Shape, device: torch.device, *, compiled: Compiled) -> Step:
    """nanoGPT's loop: fp32 weights, autocast to bf16, fused AdamW."""
    with device:
        body = Gpt(_as_setting(shape), last=False)
        end = Gpt(_as_setting(shape), (), first=False)
    return _autocast_step(Parts(body, end, body.layers.values(), nn.ModuleList([body, end])), shape, device, compiled)


def transformers_step(shape: Shape, device: torch.device, *, compiled: Compiled) -> Step:
    """GPT-2 of transformers with scaled_dot_product_attention."""
    from gpt2 import gpt2_config  # here, so that all else can be measured without transformers
    from transformers import GPT2LMHeadModel

    with device:
        model = GPT2LMHeadModel(gpt2_config(shape)).train()

    def body(x: Tensor) -> Tensor:
        return model.transformer(x, use_cache=False).last_hidden_state

    return _autocast_step(Parts(body, model.lm_head, model.transformer.h, model), shape, device, compiled)


class Parts(NamedTuple):
    """A peer's model: tokens to hidden states, hidden states to logits, and the blocks within."""

    body: Callable[[Tensor], Tensor]
    end: nn.Module
    blocks: Iterable[nn.Module]
    whole: nn.Module


def _autocast_step(parts: Parts, shape: Shape, device: torch.device, compiled: Compiled) -> Step:
    def end_loss(hidden: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(parts.end(hidden).flatten(0, 1), y.flatten())

    end = torch.compile(end_loss) if compiled == "blocks" else end_loss

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return end(parts.body(x), y)

    for block in parts.blocks if compiled == "blocks" else ():
        block.compile()
    called = torch.compile(loss_of) if compiled == "whole" else loss_of
    optimizer = torch.optim.AdamW(parts.whole.parameters(), lr=LR, fused=True)
    x, y = (torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in shape.rows())

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = called(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parts.whole.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        float(loss.detach())

    return step


def _as_setting(shape: Shape) -> Any:
    from setting import Setting

    return Setting(**vars(shape), micro=shape.sequences)
