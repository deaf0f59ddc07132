"""What a user composes from PyTorch, as its documentation and torchtitan do it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from contest import Build
from setting import LR, RULE, Setting
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch_model import Gpt, adamw, mean_loss, narrow, tensors

from trivium.comms.launch import Place

Optimizer = torch.optim.Optimizer
DataParallel = Literal["none", "replicate", "fsdp"]
PipelineSchedule = Literal["1f1b", "zero-bubble", "zbv"]


class WholeModel:
    """A model whose forward, backward and update are three lines, whatever wraps it."""

    def __init__(
        self,
        model: nn.Module,
        setting: Setting,
        optimizer: Optimizer,
        place: Place,
        *,
        split_loss: bool = False,
        casts_itself: bool = False,
    ) -> None:
        self.model, self.setting, self.optimizer = model, setting, optimizer
        self.split_loss, self.casts_itself = split_loss, casts_itself
        self.index, self.of = (0, 1) if split_loss else (place.rank, place.world_size)

    def step(self, number: int) -> Tensor:
        """One optimizer step."""
        x, y = tensors(self.setting, number, index=self.index, of=self.of)
        with _loss_region(self.split_loss):
            with nullcontext() if self.casts_itself else narrow(self.setting):
                loss = mean_loss(self.model(x), y)
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return _plain(loss)


class Pipelined:
    """One or two stages of this rank under a schedule of torch.distributed.pipelining."""

    def __init__(
        self, setting: Setting, stages: Sequence[nn.Module], schedule: object, *, split_loss: bool, replica: int
    ) -> None:
        self.setting, self.schedule, self.split_loss = setting, schedule, split_loss
        self.optimizer = adamw(stages)
        self.first = any(s.tokens is not None for s in stages)
        self.last = any(s.head is not None for s in stages)
        self.replica = replica
        self.replicas = 1

    def step(self, number: int) -> Tensor | None:
        """One optimizer step."""
        x, y = tensors(self.setting, number, index=self.replica, of=self.replicas)
        losses: list[Tensor] = []
        inputs = (x,) if self.first else ()
        with _loss_region(self.split_loss), narrow(self.setting):
            if self.last:
                self.schedule.step(*inputs, target=y, losses=losses, return_outputs=False)
            else:
                self.schedule.step(*inputs, return_outputs=False)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return torch.stack([_plain(loss) for loss in losses]).mean() if losses else None


def dtensor(setting: Setting, place: Place) -> WholeModel:
    """DTensor tensor and sequence parallelism, with the loss over the split vocabulary."""
    mesh = init_device_mesh("cpu", (place.world_size,), mesh_dim_names=("tp",))
    model = split_over(Gpt(setting).fill(), mesh)
    return WholeModel(model, setting, adamw([model]), place, split_loss=True)


def ddp(setting: Setting, place: Place) -> WholeModel:
    """DistributedDataParallel; gradients are views of its buckets, which saves it a copy."""
    model = DistributedDataParallel(Gpt(setting).fill(), gradient_as_bucket_view=True)
    return WholeModel(model, setting, adamw([model]), place)


def ddp_sharded(setting: Setting, place: Place) -> WholeModel:
    """DDP with ZeroRedundancyOptimizer: PyTorch's own ZeRO-1."""
    model = DistributedDataParallel(Gpt(setting).fill(), gradient_as_bucket_view=True)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = ZeroRedundancyOptimizer(
        [{"params": decayed, "weight_decay": RULE.weight_decay}, {"params": others, "weight_decay": 0.0}],
        torch.optim.AdamW,
        lr=LR,
        betas=(RULE.beta1, RULE.beta2),
        eps=RULE.epsilon,
        fused=True,
    )
    return WholeModel(model, setting, optimizer, place)


def fsdp(setting: Setting, place: Place) -> WholeModel:
    """FSDP2: fully_shard on every block, then on the model (parameters freed after use: ZeRO-3). In bf16 it gathers
    the weights so, and reduces gradients in fp32, as torchtitan does."""
    mesh = init_device_mesh("cpu", (place.world_size,), mesh_dim_names=("dp",))
    policy = MixedPrecisionPolicy()
    if setting.weights == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = Gpt(setting).fill()
    for block in model.layers.values():
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return WholeModel(model, setting, adamw([model]), place, casts_itself=True)


def pipelining(schedule: PipelineSchedule, layers: Sequence[int]) -> Build:
    """A pipeline over all ranks; layers of each stage, one per rank or (zbv) two, down the ranks and back."""
    return lambda setting, place: composed(
        setting, place, (place.world_size, 1, 1), schedule=schedule, layers=layers, data="none"
    )


def three_roads(layers: Sequence[int], data: DataParallel) -> Build:
    """DTensor + pipelining 1F1B + data parallelism on 2 x 2 x 2 ranks, tensor varying fastest."""
    return lambda setting, place: composed(setting, place, (2, 2, 2), schedule="1f1b", layers=layers, data=data)


def composed(
    setting: Setting,
    place: Place,
    degrees: tuple[int, int, int],
    *,
    schedule: PipelineSchedule,
    layers: Sequence[int],
    data: DataParallel,
) -> Pipelined:
    """Any of the three on (pipeline, data, tensor) ranks."""
    mesh = init_device_mesh("cpu", degrees, mesh_dim_names=("pp", "dp", "tp"))
    here = mesh.get_local_rank("pp")
    modules, stages = [], []
    for number in (here, 2 * degrees[0] - 1 - here) if schedule == "zbv" else (here,):
        module = _stage_module(setting, layers, number)
        if degrees[2] > 1:
            split_over(module, mesh["tp"])
        if data != "none":
            _over_replicas(module, mesh["dp"], data)
        modules.append(module)
        stages.append(PipelineStage(module, number, len(layers), torch.device("cpu"), group=mesh.get_group("pp")))
    micro_batches = setting.micro_batches(degrees[1])
    match schedule:
        case "1f1b":
            runs: object = Schedule1F1B(stages[0], micro_batches, loss_fn=mean_loss)
        case "zero-bubble":
            runs = ScheduleInterleavedZeroBubble(stages, micro_batches, loss_fn=mean_loss)
        case "zbv":
            runs = ScheduleZBVZeroBubble(stages, micro_batches, loss_fn=mean_loss)
    engine = Pipelined(setting, modules, runs, split_loss=degrees[2] > 1, replica=mesh.get_local_rank("dp"))
    engine.replicas = degrees[1]
    return engine


def split_over(model: Gpt, mesh: DeviceMesh) -> Gpt:
    """The plan of the tensor-parallel tutorial: norms on split sequences, columns, rows, loss on split logits."""
    plan: dict[str, object] = {}
    if model.tokens is not None:
        plan["tokens"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        plan["positions"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0))
    for number in model.layers:
        at = f"layers.{number}"
        plan[f"{at}.attention_norm"] = SequenceParallel()
        plan[f"{at}.attention.qkv"] = ColwiseParallel(input_layouts=Shard(1))
        plan[f"{at}.attention.out"] = RowwiseParallel(output_layouts=Shard(1))
        plan[f"{at}.mlp_norm"] = SequenceParallel()
        plan[f"{at}.mlp.up"] = ColwiseParallel(input_layouts=Shard(1))
        plan[f"{at}.mlp.down"] = RowwiseParallel(output_layouts=Shard(1))
    if model.head is not None:
        plan["norm"] = SequenceParallel()
        plan["head"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)
    return parallelize_module(model, mesh, plan)


def _stage_module(setting: Setting, layers: Sequence[int], number: int) -> Gpt:
    first = sum(layers[:number])
    held = range(first, first + layers[number])
    return Gpt(setting, held, first=number == 0, last=number == len(layers) - 1).fill()


def _over_replicas(module: Gpt, mesh: DeviceMesh, data: DataParallel) -> None:
    if data == "replicate":
        replicate(module, mesh=mesh)
        return
    for block in module.layers.values():
        # torchtitan's default under a pipeline: whole weights stay between forward and backward.
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    fully_shard(module, mesh=mesh, reshard_after_forward=False)


def _loss_region(split: bool) -> AbstractContextManager[None]:
    return loss_parallel() if split else nullcontext()


def _plain(loss: Tensor) -> Tensor:
    loss = loss.detach()
    return loss.to_local() if hasattr(loss, "to_local") else loss
