"""What is measured on an accelerator: training steps of Trivium and of peers, of a whole GPT and of MT-NLG's stage.

Legend: B sequences, S positions, H hidden, N heads here, D head width, E feed-forward columns here.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_model import Block, Gpt

from trivium.model.inputs import Inputs
from trivium.model.stage import Stage
from trivium.parallel.mesh import Mesh
from trivium.parallel.pretend import pretended
from trivium.parallel.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.training.batches import Rows
from trivium.training.trainer import Samples, Trainer

Step = Callable[[], None]
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

    def plan(self, **more: Any) -> Plan:
        """In bf16."""
        model = {k: getattr(self, k) for k in ("layers", "hidden", "heads", "vocabulary", "sequence")}
        return Plan.model_validate(
            {
                "model": {**model, "head": "untied"},
                "batch": {"sequences": self.sequences, "micro": self.sequences},
                "precision": {"weights": "bf16"},
                **more,
            }
        ).checked()

    def rows(self) -> Rows:
        """Random tokens and targets."""
        ids = np.random.default_rng(0).integers(0, self.vocabulary, (self.sequences, self.sequence + 1))
        return Rows(ids[:, :-1], ids[:, 1:])


def our_trainer(plan: Plan, device: torch.device) -> Trainer:
    """With weights drawn on the device: what they are changes no time."""
    trainer = Trainer(plan, Mesh.single(device), seed=0, rule=AdamRule(), initial=False)
    for bucket in trainer.buckets:
        bucket.weights.normal_(0, 0.02)
    trainer.optimizer.restart_masters()
    return trainer


def trivium_step(shape: Shape, device: torch.device, **more: Any) -> Step:
    """A whole step: forward, backward, clip, AdamW with fp32 masters."""
    trainer, rows = our_trainer(shape.plan(**more), device), shape.rows()

    def step() -> None:
        read = Samples(0, shape.sequences, lambda n, k: Rows(*(x[n : n + k] for x in rows)))
        trainer.train_step(0, read, LR)

    return step


def plain_step(shape: Shape, device: torch.device, *, compiled: bool) -> Step:
    """nanoGPT's loop: fp32 weights, autocast to bf16, fused AdamW."""
    with device:
        model = Gpt(_as_setting(shape))
    called = torch.compile(model) if compiled else model
    return _autocast_step(model, lambda x: called(x), shape, device)


def transformers_step(shape: Shape, device: torch.device, *, compiled: bool) -> Step:
    """GPT-2 of transformers with scaled_dot_product_attention."""
    from gpt2 import gpt2_config  # here, so that all else can be measured without transformers
    from transformers import GPT2LMHeadModel

    with device:
        model = GPT2LMHeadModel(gpt2_config(shape)).train()
    called = torch.compile(model) if compiled else model
    return _autocast_step(model, lambda x: called(x, use_cache=False).logits, shape, device)


def _autocast_step(
    model: nn.Module, logits: Callable[[Tensor], Tensor], shape: Shape, device: torch.device
) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    x, y = (torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in shape.rows())

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(logits(x).flatten(0, 1), y.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        float(loss.detach())

    return step


def _as_setting(shape: Shape) -> Any:
    from setting import Setting

    return Setting(**vars(shape), micro=shape.sequences)


# One pipeline stage as a tensor rank sees it


@dataclass(frozen=True)
class StageShape:
    """A middle stage of a plan: so many layers on one of `tensor` ranks."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    tensor: int

    def plan(self, **more: Any) -> Plan:
        """With a stage before and one after."""
        return Plan.model_validate(
            {
                "model": {
                    "layers": 3 * self.layers,
                    "hidden": self.hidden,
                    "heads": self.heads,
                    "vocabulary": 1024,
                    "sequence": self.sequence,
                },
                "layout": {"tensor": self.tensor, "pipeline": 3},
                "batch": {"sequences": 1, "micro": 1},
                "precision": {"weights": "bf16"},
                "sequence_parallel": True,
                **more,
            }
        ).checked()

    @property
    def flops(self) -> float:
        """Model FLOPs of a forward and a backward, of this rank."""
        H, S = self.hidden, self.sequence
        return 3 * self.layers * (24.0 * S * H * H + 4.0 * S * S * H) / self.tensor


@contextmanager
def one_of_tensor_ranks(shape: StageShape, device: torch.device) -> Iterator[Mesh]:
    """A rank of the middle stage whose collectives return at once."""
    layout = shape.plan().layout
    with pretended(layout, rank=layout.tensor) as mesh:
        yield replace(mesh, device=device)


def stage_step(shape: StageShape, mesh: Mesh, **more: Any) -> Step:
    """Forward and backward of our stage; copies of as many bytes stand for its collectives. `more` as in Plan."""
    with torch.device("meta"):
        stage = Stage(shape.plan(**more), 1, mesh)
    stage = stage.to_empty(device=mesh.device).to(torch.bfloat16)
    _draw(stage)
    S, H = shape.sequence, shape.hidden
    here = {"device": mesh.device, "dtype": torch.bfloat16}
    x = torch.randn(S // shape.tensor, 1, H, requires_grad=True, **here)
    inputs = Inputs(torch.zeros(S, 1, dtype=torch.int64, device=mesh.device))
    largest = torch.empty(S * H, **here)
    spare = torch.empty_like(largest)

    def step() -> None:
        before = Counter(mesh.tensor.traffic)
        y = stage(x, inputs)
        y.backward(y.detach())
        handed = mesh.tensor.traffic - before
        _copy(handed["reduce_scatter"] + shape.tensor * handed["all_gather"], largest, spare)

    return step


def plain_stage_step(shape: StageShape, device: torch.device, *, compiled: bool) -> Step:
    """The same products in plain PyTorch blocks, without collectives or copies."""
    with device:
        blocks = nn.Sequential(*(_narrow_block(shape) for _ in range(shape.layers))).to(torch.bfloat16)
    called = torch.compile(blocks) if compiled else blocks
    x = torch.randn(1, shape.sequence, shape.hidden, device=device, dtype=torch.bfloat16, requires_grad=True)

    def step() -> None:
        y = called(x)
        y.backward(y.detach())

    return step


def _narrow_block(shape: StageShape) -> Block:
    """A block of which one tensor rank's heads and columns are left."""
    H, inner = shape.hidden, shape.hidden // shape.tensor
    block = Block(shape.tensor, 1)
    block.attention_norm, block.mlp_norm = nn.LayerNorm(H), nn.LayerNorm(H)
    block.attention.width = shape.hidden // shape.heads
    block.attention.qkv, block.attention.out = nn.Linear(H, 3 * inner), nn.Linear(inner, H)
    block.mlp.up, block.mlp.down = nn.Linear(H, 4 * inner), nn.Linear(4 * inner, H)
    return block


@torch.no_grad()
def _draw(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.normal_(0, 0.02)


def _copy(handed: int, source: Tensor, target: Tensor) -> None:
    whole = source.numel() * source.element_size()
    for _ in range(handed // whole):
        target.copy_(source)
    rest = handed % whole // source.element_size()
    target[:rest].copy_(source[:rest])
