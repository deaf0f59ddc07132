"""One rank of one side of a duel: builds its contestant, then takes a step whenever it is told to.

Reads a line of JSON per order from standard input and answers each with one line. Runs in the environment of its
side, so it imports nothing beyond torch and what the benchmark's model, data and recipe need.
"""

import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import torch
import torch.distributed as dist
from contest import Build, Contestant
from setting import Setting

from trivium.parallel.launch import Place, connected, torchrun_place

COLLECTIVE_TIMEOUT_SECONDS = 240


def main(answers: TextIO) -> None:
    """Serve orders until standard input ends."""
    place = torchrun_place()
    assert place is not None, "started with the variables torchrun sets"
    with connected(place, timeout_seconds=COLLECTIVE_TIMEOUT_SECONDS):
        contestant = _built(json.loads(sys.stdin.readline()), place)
        gc.collect()
        gc.disable()
        _answer(answers, {"built": True})
        for line in sys.stdin:
            _answer(answers, _step(contestant, json.loads(line)["step"]))
        # The other side's ranks may be gone already, and nobody waits for this one.
        os._exit(0)


def _built(order: dict[str, Any], place: Place) -> Contestant:
    factory: Callable[..., Build] = getattr(importlib.import_module(order["module"]), order["function"])
    return factory(**order["options"])(Setting(**order["setting"]), place)


def _step(contestant: Contestant, number: int) -> dict[str, Any]:
    """Wall seconds between barriers, processor seconds of this rank, and the loss where this rank knows it."""
    dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    loss = contestant.step(number)
    cpu = time.process_time() - cpu
    dist.barrier()
    wall = time.perf_counter() - wall
    gc.collect()
    return {"wall": wall, "cpu": cpu, "loss": None if loss is None else float(loss)}


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
