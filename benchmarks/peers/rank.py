"""One rank of one side of a duel: builds its contestant, then takes a step whenever it is told to.

Reads a line of JSON per order from standard input and answers each with one line. Runs in the environment of its
side, so it imports nothing beyond torch and what the benchmark's model, data and recipe need.
"""

import contextlib
import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TextIO

import torch
import torch.distributed as dist
from contest import Build, Contestant
from setting import Setting

from trivium.comms.launch import Place, connected, torchrun_place

OURS = ("trivium_engine", "trivium_experts", "trivium_tune")
COLLECTIVE_TIMEOUT_SECONDS = 240


def main(answers: TextIO) -> None:
    """Serve orders until standard input ends."""
    place = torchrun_place()
    assert place is not None, "started with the variables torchrun sets"
    order = json.loads(sys.stdin.readline())
    with _joined(place, ours=order["module"] in OURS):
        build: Callable[..., Build] = getattr(importlib.import_module(order["module"]), order["function"])
        _warm_up()
        imported = _memory_bytes("VmRSS")
        _forget_peak()
        contestant = build(**order["options"])(Setting(**order["setting"]), place)
        gc.collect()
        gc.disable()
        _answer(answers, {"built": True})
        for line in sys.stdin:
            order = json.loads(line)
            if "step" in order:
                _answer(answers, _step(contestant, order["step"]))
            else:
                _answer(answers, {"imported": imported, "peak": _memory_bytes("VmHWM")})
        # The other side's ranks may be gone already, and nobody waits for this one.
        os._exit(0)


@contextlib.contextmanager
def _joined(place: Place, *, ours: bool) -> Iterator[None]:
    """Trivium's ranks join as its runtime does, which also keeps freed memory; a peer's as its users' would."""
    if ours:
        with connected(place, timeout_seconds=COLLECTIVE_TIMEOUT_SECONDS):
            yield
        return
    if place.world_size > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_SECONDS))
    yield


def _step(contestant: Contestant, number: int) -> dict[str, Any]:
    """Wall seconds between barriers, processor seconds of this rank, and the loss where this rank knows it."""
    _meet()
    wall, cpu = time.perf_counter(), time.process_time()
    loss = contestant.step(number)
    cpu = time.process_time() - cpu
    _meet()
    wall = time.perf_counter() - wall
    gc.collect()
    return {"wall": wall, "cpu": cpu, "loss": None if loss is None else float(loss)}


def _meet() -> None:
    if dist.is_initialized():
        dist.barrier()


def _warm_up() -> None:
    """What torch loads when it is first used is not the contestant's memory."""
    importlib.import_module("torch._dynamo")
    layer = torch.nn.Linear(64, 64)
    for dtype in (torch.float32, torch.bfloat16):
        layer.to(dtype)(torch.ones(64, 64, dtype=dtype)).sum().backward()
    torch.optim.AdamW(layer.parameters(), fused=True).step()


def _memory_bytes(which: Literal["VmRSS", "VmHWM"]) -> int:
    """Resident bytes of this process, now or at most since `_forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(which):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {which}: memory is measured on Linux only")


def _forget_peak() -> None:
    with contextlib.suppress(OSError):  # where it may not be written, the peak counts imports too
        Path("/proc/self/clear_refs").write_text("5")


def _answer(answers: TextIO, content: dict[str, Any]) -> None:
    answers.write(json.dumps(content) + "\n")
    answers.flush()


if __name__ == "__main__":
    torch.set_num_threads(1)
    # Libraries print; the answers keep the pipe, everything else goes to the log.
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        main(pipe)
    except Exception as raised:  # whatever a peer raises is its result
        _answer(pipe, {"error": f"{type(raised).__name__}: {' '.join(str(raised).split())[:300]}"})
        raise
