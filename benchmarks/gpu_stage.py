"""A pipeline stage of MT-NLG as one of its tensor ranks computes it, Trivium's and in plain PyTorch: collectives are
copies.

Legend: B sequences, S positions, H hidden, E feed-forward columns here.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from gpu_sides import Step
from torch import Tensor, nn
from torch_model import Block

from trivium.comms.group import Group, PendingResult
from trivium.comms.mesh import Mesh
from trivium.comms.pretend import pretended
from trivium.comms.transports import Torch
from trivium.kernels.cuda.recording import Recording
from trivium.kernels.dtypes import DTYPES
from trivium.model.inputs import Inputs
from trivium.model.stage import Stage
from trivium.parallel.sharding.buckets import Dtypes, GradientWatch, make_buckets
from trivium.plan.buckets import bucket_table
from trivium.plan.plan import Plan


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


class Copies(Torch):
    """In place of NCCL for one of many ranks: an all-gather writes this rank's slice to every slice, a reduce-scatter
    its own slice, and as much as the others are elsewhere.

    They are on a stream of their own, as NCCL's messages are: what is begun before it is needed goes on beside
    products. copied: their bytes; of_a_step: those of the last step.
    """

    def __init__(self, device: torch.device) -> None:
        self.copied = self.of_a_step = 0
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def all_gather(self, out: Tensor, x: Tensor, group: Group) -> "_Copied":
        """As in Transport."""
        with self._beside(out, x) as done:
            slices, filled = out.view(-1, *x.shape), 1
            slices[0].copy_(x)
            while filled < len(slices):  # few copies, as large as can be
                more = min(filled, len(slices) - filled)
                slices[filled : filled + more].copy_(slices[:more])
                filled += more
            self.copied += out.nbytes
        return done

    def reduce_scatter(self, x: Tensor, group: Group) -> PendingResult:
        """As in Transport."""
        out = x.new_empty((x.shape[0] // group.size, *x.shape[1:]))
        with self._beside(out, x) as done:
            out.copy_(x.view(-1, *out.shape)[group.index])
            x.flatten()[out.numel() :].clone()
            self.copied += x.nbytes
        return PendingResult(done, out, group=group)

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


@contextmanager
def one_of_tensor_ranks(shape: StageShape, device: torch.device) -> Iterator[tuple[Mesh, Copies]]:
    """A rank of the middle stage, and the copies that its collectives are."""
    layout, copies = shape.plan().layout, Copies(device)
    with pretended(layout, rank=layout.tensor) as mesh:
        yield replace(mesh, device=device, tensor=replace(mesh.tensor, carrier=copies)), copies


def stage_step(shape: StageShape, mesh: Mesh, copies: Copies, **more: Any) -> Step:
    """Forward and backward of our stage, whose gradients are added to those of the step, in fp32 unless `more`, as in
    Plan, says otherwise; its collectives are copies of as many bytes."""
    plan = shape.plan(**more)
    with torch.device("meta"):
        stage = Stage(plan, 1, mesh)
    stage = stage.to_empty(device=mesh.device).to(torch.bfloat16)
    _draw(stage)
    dtypes = Dtypes(torch.bfloat16, DTYPES[plan.gradient_dtype], DTYPES[plan.reduction_dtype], torch.float32)
    parameters = dict(stage.named_parameters())
    buckets = make_buckets(
        bucket_table(plan, 1), lambda item: parameters[item.parameter.name], mesh, zero=plan.zero, dtypes=dtypes
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


class ReplayedStep:
    """A step that is recorded by its second call, and replayed from then on."""

    def __init__(self, step: Step) -> None:
        self._step, self._ran = step, False
        self._recording: Recording[None] | None = None

    def __call__(self) -> None:
        if not self._ran:
            self._step()
            self._ran = True
            return
        if self._recording is None:
            self._recording = Recording(self._step)
        self._recording.replay()

    def forget(self) -> None:
        """Have the next one computed anew: of a replay torch counts no memory."""
        self._recording, self._ran = None, False


def plain_stage_step(shape: StageShape, device: torch.device, *, compiled: bool, collectives: bool = True) -> Step:
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
