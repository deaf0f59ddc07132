"""What megatron-core 0.16.1 needs to train on a processor: its calls of torch.cuda answered for one.

It asks for the current device, synchronises, keeps the generator's state per device and makes small tensors on
"cuda". Its layers, schedules and collectives stay as they are.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from megatron.core.optimizer import optimizer as megatron_optimizer
from megatron.core.tensor_parallel import random as megatron_random

CPU = torch.device("cpu")


def stand_in_for_cuda() -> None:
    """Once per process, before anything of megatron-core is built."""
    answers: dict[str, Callable[..., Any]] = {
        "current_device": lambda: CPU,
        "synchronize": lambda *_: None,
        "manual_seed": torch.manual_seed,
        "get_rng_state": lambda *_: torch.get_rng_state(),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    megatron_random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    megatron_random._set_cuda_rng_state = lambda *_, **__: None
    megatron_optimizer.clip_grad_by_total_norm_fp32 = _clip  # its own accepts only CUDA tensors
    for name in ("tensor", "zeros"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))


def _clip(parameters: Iterable[torch.nn.Parameter], max_norm: float, total_norm: float, *_: Any, **__: Any) -> None:
    factor = max_norm / (total_norm + 1e-6)
    if factor < 1:
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], factor)


def _on_cpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(make)
    def made(*arguments: Any, **named: Any) -> torch.Tensor:
        if named.get("device") == "cuda":
            named["device"] = CPU
        return make(*arguments, **named)

    return made
