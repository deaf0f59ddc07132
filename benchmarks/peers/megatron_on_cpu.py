"""What megatron-core 0.16.1 needs to train on a processor: its calls of torch.cuda answered for one.

It asks for the current device, synchronises, keeps the generator's state per device and makes small tensors on
"cuda". Its layers, schedules and collectives stay as they are.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
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
    for name in ("tensor", "zeros"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))


def _on_cpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(make)
    def made(*arguments: Any, **named: Any) -> torch.Tensor:
        if named.get("device") == "cuda":
            named["device"] = CPU
        return make(*arguments, **named)

    return made
