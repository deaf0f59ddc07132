"""How parts of a run are measured on an accelerator: until when, in turns, and what failed or was skipped."""

import gc
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from gpu_sides import Step

from trivium.kernels.cuda.recording import Recording

WARM_UP, ROUNDS = 3, 6
STEPS_AT_ONCE = 3  # one after the other, as in a training
TO_BUILD = 20.0  # seconds that building and compiling a side may take


@runtime_checkable
class Replayed(Protocol):
    """A step that may be replayed."""

    def __call__(self) -> None:
        """One more."""

    def forget(self) -> None:
        """The next one is no replay."""


@dataclass
class Bench:
    """One run: where, how large, until when, and what was found."""

    device: torch.device
    smoke: bool
    deadline: float
    found: dict[str, Any] = field(default_factory=dict)

    def part(self, name: str, needs_seconds: float, measure: Callable[[], Any]) -> None:
        """Measure, unless the time does not suffice; a failure is its result."""
        self.found[name] = self.skipped(needs_seconds)
        if self.found[name] is None:
            try:
                self.found[name] = measure()
            except Exception as error:  # whatever it is, the other parts are measured
                self.found[name] = failure(error)
        try:
            self.clear()
        except Exception as error:  # a device that no longer answers; what follows will say so, too
            print(f"{name}: memory cannot be given back: {failure(error)['reason']}", flush=True)
        print(f"{name}: {json.dumps(self.found[name])[:300]}", flush=True)

    def skipped(self, needs_seconds: float = 0.0) -> dict[str, Any] | None:
        """What is said of something that needs more time than is left; None where there is enough."""
        left = self.deadline - time.monotonic()
        if left >= needs_seconds or self.smoke:
            return None
        return {"status": "skipped", "reason": f"{max(0, left):.0f} s left, {needs_seconds:.0f} s needed"}

    def clear(self) -> None:
        """Give memory back, and forget graphs: of a second shape the compiler would make one for any shape."""
        torch.compiler.reset()
        self.free()

    def free(self) -> None:
        """Give memory back; what was compiled stays."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def wait(self) -> None:
        """Until the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, act: Step, times: int = 1) -> float:
        """Return the seconds per call of `times` calls in a row."""
        self.wait()
        begin = time.perf_counter()
        for _ in range(times):
            act()
        self.wait()
        return (time.perf_counter() - begin) / times

    def held_bytes(self) -> int:
        """Bytes of tensors; 0 on a processor."""
        gc.collect()
        self.wait()
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0

    def peak_bytes(self, act: Step) -> int:
        """Most bytes of tensors during a call; 0 on a processor, which does not count them."""
        if self.device.type != "cuda":
            act()
            return 0
        if isinstance(act, Replayed):
            act.forget()
            self.free()
        torch.cuda.reset_peak_memory_stats(self.device)
        act()
        self.wait()
        return int(torch.cuda.max_memory_allocated(self.device))

    def workspace_bytes(self) -> int:
        """What cuBLAS keeps for as long as the process lives, once for each thread that multiplies, and again for what
        is recorded; 0 on a processor.

        A forward and a backward make this thread and autograd's ask for it, so that nothing measured later does.
        """
        before = self.held_bytes()
        self._multiply()
        if self.device.type == "cuda":
            Recording(self._multiply)
        return self.held_bytes() - before

    def _multiply(self) -> None:
        x, w = (torch.ones(64, 64, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        F.linear(x, w.requires_grad_(), x[0]).sum().backward()


def failure(error: BaseException) -> dict[str, Any]:
    """What a row says that could not be measured."""
    return {"status": "failed", "reason": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def by_turns(
    bench: Bench, builders: Mapping[str, Callable[[], Step]], *, at_once: int = STEPS_AT_ONCE
) -> dict[str, dict[str, Any]]:
    """Each step's median seconds, of so many one after the other, and peak bytes; steps that fail, or that no time is
    left for, with their reason.

    As many as there is memory for stay in it, so that each is measured in turn with all others; one that fails leaves.
    Those that there was no memory for come after them, in turn with the first, which is built again: `beside` is its
    median in the rounds that a step was measured in. A peak is of the step that has it: what the others hold is taken
    off.
    """
    result: dict[str, dict[str, Any]] = {}
    waiting = dict(builders)
    first = next(iter(builders))
    while waiting:
        found, late = _in_memory(bench, {first: builders[first], **waiting}, at_once)
        if len(waiting.keys() & late) == len(waiting):  # not even beside the first alone
            found |= {name: late.pop(name) for name in [next(iter(waiting))]}
        result = {**found, **result}
        waiting = {name: builders[name] for name in waiting if name in late}
        bench.clear()
    return {name: result[name] for name in builders}


def _in_memory(
    bench: Bench, builders: Mapping[str, Callable[[], Step]], at_once: int
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """What was found of those that there was memory for at once; and what is said of the others."""
    found: dict[str, dict[str, Any]] = {}
    late: dict[str, dict[str, Any]] = {}
    steps: dict[str, Step] = {}
    own: dict[str, int] = {}
    for name, build in builders.items():
        if (skipped := bench.skipped(TO_BUILD)) is not None:
            found[name] = skipped
            continue
        before = bench.held_bytes()
        try:
            steps[name] = _warm(build())
        except Exception as error:
            _failed(error, name, found, late)
        if name not in steps:  # not within the handler: there the error still holds what was built
            bench.free()
        own[name] = bench.held_bytes() - before
    times = _rounds(bench, steps, found, late, at_once)
    for name, step in steps.items():
        try:
            peak = bench.peak_bytes(step)
        except Exception as error:
            _failed(error, name, found, late)
            continue
        found[name] = {
            "status": "measured",
            "seconds": statistics.median(times[name]),
            "fastest": min(times[name]),
            "peak_bytes": max(0, peak - (bench.held_bytes() - own[name])),
        }
    beside = found.get(next(iter(builders)), {}).get("seconds")
    for side in found.values():
        if side["status"] == "measured":
            side["beside"] = beside
    return found, late


def _rounds(
    bench: Bench, steps: dict[str, Step], found: dict[str, Any], late: dict[str, Any], at_once: int
) -> dict[str, list[float]]:
    """Seconds of every step, round by round; one that fails leaves `steps`."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(ROUNDS):
        if number and bench.skipped():
            break
        for name in list(steps) if number % 2 == 0 else list(reversed(steps)):
            try:
                times[name].append(bench.seconds(steps[name], at_once))
            except Exception as error:
                _failed(error, name, found, late)
                del steps[name]
            if name not in steps:
                bench.free()
    return times


def _failed(error: Exception, name: str, found: dict[str, Any], late: dict[str, Any]) -> None:
    (late if _lacks_memory(error) else found)[name] = failure(error)


def _lacks_memory(error: BaseException | None) -> bool:
    """Whether there was no room, of torch's allocator, or of the driver for a library or a kernel; a trainer and the
    compiler say it as the cause of another error."""
    while error is not None:
        said = str(error)
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" in said or "ALLOC_FAILED" in said:
            return True
        error = error.__cause__ or error.__context__
    return False


def _warm(step: Step) -> Step:
    for _ in range(WARM_UP):
        step()
    return step


def alone(bench: Bench, build: Callable[[], Step], *, rounds: int) -> tuple[float, int]:
    """Median seconds and own peak bytes of a step that has the device to itself: what was held before it was built is
    taken off, which is cuBLAS's workspaces."""
    before = bench.held_bytes()
    step = build()
    step()
    peak = max(0, bench.peak_bytes(step) - before)
    return statistics.median(bench.seconds(step, STEPS_AT_ONCE) for _ in range(rounds)), peak
