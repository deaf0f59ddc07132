"""DeepSpeed as a contestant, on the model and optimizer the PyTorch peers use."""

from collections.abc import Sequence
from typing import Any

import deepspeed
import torch
from contest import Build
from deepspeed.pipe import LayerSpec, PipelineModule
from setting import Setting
from torch import nn
from torch_model import Gpt, adamw, mean_loss, tensors

from trivium.comms.launch import Place


class Replica:
    """One of two replicas under a ZeRO stage; one micro-batch per step."""

    def __init__(self, setting: Setting, place: Place, stage: int) -> None:
        self.setting, self.place = setting, place
        deepspeed.init_distributed("gloo", rank=place.rank, world_size=place.world_size)
        model = Gpt(setting).fill()
        each = setting.sequences // place.world_size
        config = {**_config(setting, each, 1), "zero_optimization": {"stage": stage}}
        self.engine = _engine(model, config)

    def step(self, number: int) -> torch.Tensor:
        """One optimizer step."""
        x, y = tensors(self.setting, number, index=self.place.rank, of=self.place.world_size)
        loss = mean_loss(self.engine(x), y)
        self.engine.backward(loss)
        self.engine.step()
        return loss.detach()


class Pipelined:
    """One stage per rank under DeepSpeed's 1F1B."""

    def __init__(self, setting: Setting, place: Place, layers: Sequence[int]) -> None:
        self.setting = setting
        deepspeed.init_distributed("gloo")
        ends = [sum(layers[:number]) for number in range(len(layers) + 1)]
        # A spec is a whole stage, so that the partition is exactly the one Trivium runs.
        stages = [
            LayerSpec(_Stage, setting, ends[n], ends[n + 1], n == 0, n == len(layers) - 1) for n in range(len(layers))
        ]
        model = PipelineModule(stages, num_stages=place.world_size, loss_fn=mean_loss, partition_method="uniform")
        self.engine = _engine(model, _config(setting, setting.micro, setting.micro_batches()))

    def step(self, number: int) -> torch.Tensor:
        """One optimizer step."""
        x, y = tensors(self.setting, number)
        micro_batches = zip(x.split(self.setting.micro), y.split(self.setting.micro), strict=True)
        return self.engine.train_batch(micro_batches).detach()


class _Stage(Gpt):
    """Layers `start` to `stop` with the initial values."""

    def __init__(self, setting: Setting, start: int, stop: int, first: bool, last: bool) -> None:
        super().__init__(setting, range(start, stop), first=first, last=last)
        self.fill()


def zero(stage: int) -> Build:
    """ZeRO of this stage over all ranks."""
    return lambda setting, place: Replica(setting, place, stage)


def pipeline(layers: Sequence[int]) -> Build:
    """The pipeline engine over all ranks; layers of each."""
    return lambda setting, place: Pipelined(setting, place, layers)


def _config(setting: Setting, micro: int, micro_batches: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": setting.clip,
        "steps_per_print": 1_000_000,
        "bf16": {"enabled": setting.weights == "bf16"},
    }


def _engine(model: nn.Module, config: dict[str, Any]) -> Any:
    engine, *_ = deepspeed.initialize(model=model, optimizer=adamw([model]), config=config)
    return engine
