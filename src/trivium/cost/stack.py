"""Properties of training systems' software that change its speed: dated facts, as data of stacks.yaml."""

from functools import lru_cache
from typing import Annotated

import yaml
from pydantic import Field

from trivium.config import Config, build, shipped
from trivium.cost.hardware import Machine
from trivium.errors import ConfigError, nearest
from trivium.plan.plan import Plan

OURS = "trivium"


class Stack(Config):
    """A training system's way to execute a plan. factor: multiplies a step's time; learned from a run, else 1."""

    name: str
    fused_elementwise: bool  # neighbouring element-wise operations are one kernel
    fused_accumulation: bool = False  # the product of a weight gradient adds to the gradient: no extra traffic
    overlaps_tensor: bool = False  # tensor collectives of the backward run beside weight-gradient products
    overlaps_tensor_forward: bool = False  # tensor collectives of the forward are pipelined with products
    gathers_again: bool = False  # under sequence parallelism the backward gathers kept positions of inputs again
    blocking_transfers: bool = True  # a rank waits while what it sends to the next stage is under way
    overlaps_data: bool = False  # gradients are reduced while the last micro-batch's backward runs
    reduces_by_chunk: bool = False  # a chunk's gradients are reduced once its last micro-batch is done
    attention: Annotated[float, Field(gt=0, le=1)] | None = None  # share of peak, if the attention kernel is known
    reduces_often: bool = True  # at ZeRO stage 2 after every micro-batch, as it keeps no whole sum of gradients
    gathers_by_parameter: bool = False  # at ZeRO stage 3 into a list of parts, and nothing runs beside it
    gathers_with_update: bool = False  # weights, also while the next are updated; else beside the next forward alone
    overlaps_context: bool = False  # keys and values of a ring are under way while others are attended to
    fused_loss: bool = False  # softmax and its gradient are one pass over the scores
    buckets: bool = False  # gradients are summed over replicas part by part (plan/buckets.py)
    split_transfers: bool = True  # tensor ranks send a slice each between stages, and gather it inside the node
    tile_triggered: bool = False  # simulated hardware: products are reduced tile by tile (cost/overlap.py)
    compiled: bool = False  # blocks, loss and update, by torch.compile
    replays: bool = False  # a recorded step's kernels are asked for at once: none waits for its host
    stops_early: bool = False  # recomputing a layer stops at the last tensor its backward needs
    recomputed: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of a layer run again in mode "layer"
    deepspeed: bool = False  # DeepSpeed's pipeline and optimizer
    remote_memory: bool = False  # processes were bound to the memory of another processor
    factor: Annotated[float, Field(gt=0)] = 1.0
    sources: str = ""


@lru_cache(maxsize=1)
def stacks() -> dict[str, Stack]:
    """Return every stack of stacks.yaml by name."""
    text = shipped("cost/stacks.yaml").read_text(encoding="utf-8")
    return {name: build(Stack, {"name": name, **fields}) for name, fields in yaml.safe_load(text).items()}


def own_stack(plan: Plan, machine: Machine, factor: float = 1.0) -> Stack:
    """Return Trivium's stack as it executes this plan on this machine: GPUs replay CUDA graphs, and compiled blocks are
    fused. A compiled layer is recomputed as a whole. factor: multiplies a step's time."""
    return executing(machine, compiled=plan.compiled).model_copy(update={"factor": factor})


def executing(machine: Machine, *, compiled: bool) -> Stack:
    """Return Trivium's stack on a machine, with or without compiled blocks."""
    ours = stack_named(OURS)
    if machine.generation == "cpu":
        return ours
    fused = {"compiled": True, "fused_elementwise": True, "stops_early": False} if compiled else {}
    return ours.model_copy(update={**fused, "replays": True})


def stack_named(name: str) -> Stack:
    """Return a stack by name. Raises ConfigError with the nearest name if it does not exist."""
    found = stacks().get(name)
    if found is None:
        raise ConfigError(f"there is no stack '{name}'; {nearest(name, stacks())}")
    return found
