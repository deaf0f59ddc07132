"""What is measured on an accelerator: training steps of Trivium and of peers, of a whole GPT and of MT-NLG's stage.

Legend: B sequences, S positions, H hidden, N heads here, D head width, E feed-forward columns here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch_model import Block, Gpt

from trivium.model.inputs import Inputs
from trivium.model.stage import Stage
from trivium.parallel.buckets import Dtypes, GradientWatch, make_buckets
from trivium.parallel.dtypes import DTYPES
from trivium.parallel.mesh import Mesh
from trivium.parallel.pretend import pretended
from trivium.parallel.zero import AdamRule
from trivium.plan.buckets import bucket_table
from trivium.plan.plan import Plan
from trivium.training.batches import Rows
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
        return Rows(ids[:, :-1], ids[:, 1:])


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
        read = Samples(0, self._shape.sequences, lambda n, k: Rows(*(x[n : n + k] for x in rows)))
        self._trainer.train_step(0, read, LR)

    def forget(self) -> None:
        """Have the next step recorded anew, where steps are: of a replay torch counts no memory."""
        self._trainer.forget_recording()


def plain_step(shape: Shape, device: torch.device, *, compiled: Compiled) -> Step:
    """nanoGPT's loop: fp32 weights, autocast to bf16, fused AdamW."""
    with device:
        body = Gpt(_as_setting(shape), last=False)
        end = Gpt(_as_setting(shape), (), first=False)
    return _autocast_step(
        Parts(body, end, body.layers.values(), nn.ModuleList([body, end])), shape, device, compiled
    )


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


STAGE = StageShape(layers=3, hidden=20480, heads=128, sequence=2048, tensor=8)
TINY_STAGE = StageShape(layers=1, hidden=32, heads=4, sequence=16, tensor=2)


class Copies:
    """In place of NCCL for one of many ranks: an all-gather writes this rank's slice to every slice, a reduce-scatter
    its own slice, and as much as the others are elsewhere.

    They are on a stream of their own, as NCCL's messages are: what is begun before it is needed goes on beside
    products. copied: their bytes; of_a_step: those of the last step.
    """

    def __init__(self, device: torch.device) -> None:
        self.copied = self.of_a_step = 0
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def instead(self) -> Iterator[None]:
        """What is asked of torch's collectives within is copied."""
        with (
            patch.object(dist, _called("all_gather"), self.gather),
            patch.object(dist, _called("reduce_scatter"), self.scatter),
        ):
            yield

    def gather(self, out: Tensor, x: Tensor, group: Any, async_op: bool) -> "_Copied":
        """In place of dist.all_gather_single."""
        with self._beside(out, x) as done:
            slices, filled = out.view(-1, *x.shape), 1
            slices[0].copy_(x)
            while filled < len(slices):  # few copies, as large as can be
                more = min(filled, len(slices) - filled)
                slices[filled : filled + more].copy_(slices[:more])
                filled += more
            self.copied += out.nbytes
        return done

    def scatter(self, out: Tensor, x: Tensor, group: Any, async_op: bool) -> "_Copied":
        """In place of dist.reduce_scatter_single."""
        with self._beside(out, x) as done:
            out.copy_(x.view(-1, *out.shape)[dist.get_rank(group)])
            x.flatten()[out.numel() :].clone()
            self.copied += x.nbytes
        return done

    @contextmanager
    def _beside(self, *tensors: Tensor) -> Iterator["_Copied"]:
        """After all that was asked for before; what is asked for after it was waited for comes later."""
        done = _Copied(tensors)
        if self._stream is None:
            yield done
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield done
            done.event = self._stream.record_event()


@dataclass
class _Copied:
    """Copies under way, of tensors that nothing else may be written to until then."""

    tensors: tuple[Tensor, ...]
    event: torch.cuda.Event | None = None

    def wait(self) -> None:
        """What this stream is asked for next comes after them; the host goes on."""
        if self.event is not None:
            torch.cuda.current_stream().wait_event(self.event)
        self.tensors = ()


def _called(collective: str) -> str:
    """How this torch calls a collective of single tensors."""
    older = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}
    newer = f"{collective}_single"
    return newer if hasattr(dist, newer) else older[collective]


@contextmanager
def one_of_tensor_ranks(shape: StageShape, device: torch.device) -> Iterator[tuple[Mesh, Copies]]:
    """A rank of the middle stage, and the copies that its collectives are."""
    layout, copies = shape.plan().layout, Copies(device)
    with pretended(layout, rank=layout.tensor) as mesh, copies.instead():
        yield replace(mesh, device=device), copies


def stage_step(shape: StageShape, mesh: Mesh, copies: Copies, **more: Any) -> Step:
    """Forward and backward of our stage, whose gradients are added to those of the step, in fp32 unless `more`, as in
    Plan, says otherwise; its collectives are copies of as many bytes."""
    plan = shape.plan(**more)
    with torch.device("meta"):
        stage = Stage(plan, 1, mesh)
    stage = stage.to_empty(device=mesh.device).to(torch.bfloat16)
    _draw(stage)
    dtypes = Dtypes(torch.bfloat16, DTYPES[plan.gradient_dtype], DTYPES[plan.reduction_dtype])
    parameters = dict(stage.named_parameters())
    buckets = make_buckets(
        bucket_table(plan, 1),
        lambda item: parameters[item.parameter.name],
        mesh,
        zero=plan.zero,
        dtypes=dtypes,
    )
    watch = GradientWatch(buckets)
    watch.start_step()  # of many micro-batches, of which none is the last
    stage.weight_gradients.sums = watch
    S, H = shape.sequence, shape.hidden
    here = {"device": mesh.device, "dtype": torch.bfloat16}
    x = torch.randn(S // shape.tensor, 1, H, requires_grad=True, **here)
    inputs = Inputs(torch.zeros(S, 1, dtype=torch.int64, device=mesh.device))

    def step() -> None:
        moved, copied = Counter(mesh.tensor.traffic), copies.copied
        y = stage(x, inputs)
        y.backward(y.detach())
        handed, copies.of_a_step = mesh.tensor.traffic - moved, copies.copied - copied
        expected = handed["reduce_scatter"] + shape.tensor * handed["all_gather"]
        assert copies.of_a_step == expected, f"{copies.of_a_step} bytes copied for {dict(handed)}"

    return step


def plain_stage_step(
    shape: StageShape, device: torch.device, *, compiled: bool, collectives: bool = True
) -> Step:
    """The same products in plain PyTorch blocks; autograd adds its gradients up, in bf16.

    collectives: all-reduces around attention and MLP, forward and backward, are copies of as many bytes as a
    reduce-scatter and an all-gather have; without them it computes less than a tensor rank does.
    """
    with device:
        blocks = nn.Sequential(*(_narrow_block(shape) for _ in range(shape.layers))).to(torch.bfloat16)
    if collectives:
        for block in blocks:
            for module, enters, leaves in ((block.attention, "qkv", "out"), (block.mlp, "up", "down")):
                setattr(module, enters, _Entering(getattr(module, enters)))
                setattr(module, leaves, _Leaving(getattr(module, leaves)))
    if compiled:
        for block in blocks:
            block.compile()
    x = torch.randn(1, shape.sequence, shape.hidden, device=device, dtype=torch.bfloat16, requires_grad=True)

    def step() -> None:
        y = blocks(x)
        y.backward(y.detach())

    return step


@torch.library.custom_op("trivium_benchmarks::all_reduce", mutates_args=())
def _all_reduce(x: Tensor) -> Tensor:
    """Two copies: the bytes of a reduce-scatter, and of an all-gather. The compiler does not look into it."""
    return x.clone(memory_format=torch.contiguous_format).clone()


@_all_reduce.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


class _ReducedForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _all_reduce(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class _ReducedBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _all_reduce(grads[0])


class _Entering(nn.Module):
    """A column-split layer of a tensor rank: the gradient of its input is summed over the ranks."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, H] -> [B, S, E]."""
        return self.linear(_ReducedBackward.apply(x))


class _Leaving(_Entering):
    """A row-split one: its output is, and the bias added once."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, E] -> [B, S, H]."""
        return _ReducedForward.apply(F.linear(x, self.linear.weight)) + self.linear.bias


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
