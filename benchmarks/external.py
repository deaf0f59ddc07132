"""Peers that need an environment of their own: megatron-core and DeepSpeed.

    python benchmarks/external.py --install [megatron-core|DeepSpeed]

builds their virtual environments in benchmarks/.venvs; `engine.py` then runs their rows by turns with Trivium.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.duel import Duel, fight
from peers.environment import FOLDER, Environment, environments, fast_mkl
from peers.side import Entry
from setting import HIDDEN_256, HIDDEN_512, TINY, Setting

DEEPSPEED_TARGET = 1.5
TWO_STAGES = {"pipeline": 2}


@dataclass(frozen=True)
class ExternalRow:
    """A row that says why when it cannot be run."""

    duel: Duel
    environment: Environment

    @property
    def name(self) -> str:
        """Name of the row."""
        return self.duel.name

    def run(self, rounds: int) -> dict[str, Any]:
        """Return the result of the row. A failure of the peer is reported in it and never raised."""
        if not self.environment.is_ready():
            return {
                "name": self.name,
                "status": "not run",
                "reason": f"not installed: python benchmarks/external.py --install {self.environment.name}",
                "comparisons": [],
            }
        return fight(self.duel, rounds)


def external_rows(folder: Path = FOLDER) -> tuple[ExternalRow, ...]:
    """A row per layout and size, so that the report never passes over a peer in silence."""
    peers = environments(folder)
    megatron, deepspeed = peers["megatron-core"], peers["DeepSpeed"]
    replicas, stages = HIDDEN_256.with_batch(4, 2), HIDDEN_256.with_batch(4, 1)
    large_replicas, large_stages = HIDDEN_512.with_batch(4, 2), HIDDEN_512.with_batch(4, 1)
    return (
        *(_megatron_tensor(megatron, setting) for setting in (TINY, HIDDEN_256, HIDDEN_512)),
        _megatron_pipeline(megatron, TINY.with_batch(8, 2), (4, 4)),
        *(_megatron_pipeline(megatron, setting, (3, 1)) for setting in (stages, large_stages)),
        _megatron_three_roads(megatron, TINY.with_batch(16, 2), (4, 4)),
        _megatron_three_roads(megatron, HIDDEN_256.with_batch(8, 1), (3, 1)),
        *(
            _deepspeed_zero(deepspeed, setting, stage)
            for setting in _both_dtypes(replicas, large_replicas)
            for stage in (1, 2, 3)
        ),
        *(
            _deepspeed_pipeline(deepspeed, setting, (3, 1), schedule)
            for setting in _both_dtypes(stages, large_stages)
            for schedule in ("1f1b", "1f1b-split")
        ),
    )


def _both_dtypes(*settings: Setting) -> tuple[Setting, ...]:
    """In fp32, then in bf16. megatron-core only in fp32: its bf16 optimizer accepts only CUDA tensors."""
    return (*settings, *(setting.in_bf16() for setting in settings))


MEGATRON_SAYS = (
    "megatron-core 0.16.1 is made for CUDA: its calls of torch.cuda are answered for a processor, its attention core "
    "is scaled_dot_product_attention and its AdamW PyTorch's fused one. "
)


def _megatron_tensor(environment: Environment, setting: Setting) -> ExternalRow:
    return _megatron(
        environment,
        f"tensor + sequence {setting.name}",
        setting,
        ours={"layout": {"tensor": 2}, "sequence_parallel": True, "zero": 0},
        theirs={"tensor": 2},
        says="Both split matrices, vocabulary, loss and, between them, the sequence; Trivium also computes the "
        "global gradient norm.",
    )


def _megatron_pipeline(environment: Environment, setting: Setting, layers: tuple[int, int]) -> ExternalRow:
    return _megatron(
        environment,
        f"1F1B {setting.name}",
        setting,
        ours={"layers": layers, "layout": TWO_STAGES, "schedule": "1f1b", "zero": 0},
        theirs={"pipeline": 2, "layers": layers},
        says=f"Layers {layers} per stage, {setting.micro_batches()} micro-batches. Trivium also sends the loss to "
        "every rank and computes the global gradient norm.",
    )


def _megatron_three_roads(environment: Environment, setting: Setting, layers: tuple[int, int]) -> ExternalRow:
    layout = {"pipeline": 2, "data": 2, "tensor": 2}
    return _megatron(
        environment,
        f"2 x 2 x 2 {setting.name}",
        setting,
        ours={"layers": layers, "layout": layout, "schedule": "1f1b", "sequence_parallel": True, "zero": 0},
        theirs={**layout, "layers": layers},
        says=f"Layers {layers} per stage, {setting.micro_batches(2)} micro-batches per replica; both all-reduce "
        "gradients (megatron-core's distributed optimizer accepts only CUDA tensors). Eight ranks share this "
        "machine's cores.",
        ranks=8,
    )


def _deepspeed_zero(environment: Environment, setting: Setting, stage: int) -> ExternalRow:
    return _row(
        environment,
        f"ZeRO-{stage} {setting.name}",
        setting,
        ours={"layout": {"data": 2}, "zero": stage},
        theirs=("peers.deepspeed_engine", "zero", {"stage": stage}),
        says="One micro-batch per replica, the same PyTorch model and fused AdamW as the peers in plain PyTorch, "
        "DeepSpeed's defaults for buckets and overlap, no clipping. DeepSpeed 0.19.8.",
        target=DEEPSPEED_TARGET,
    )


def _deepspeed_pipeline(
    environment: Environment, setting: Setting, layers: tuple[int, int], schedule: str
) -> ExternalRow:
    return _row(
        environment,
        f"{'1F1B' if schedule == '1f1b' else schedule} {setting.name}",
        setting,
        ours={"layers": layers, "layout": TWO_STAGES, "schedule": schedule, "zero": 0},
        theirs=("peers.deepspeed_engine", "pipeline", {"layers": layers}),
        says=f"Layers {layers} per stage, {setting.micro_batches()} micro-batches; both send the loss to every "
        f"rank, Trivium also computes the global gradient norm. Trivium's schedule is {schedule}. DeepSpeed 0.19.8.",
        target=DEEPSPEED_TARGET,
    )


def _megatron(
    environment: Environment,
    title: str,
    setting: Setting,
    *,
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    says: str,
    ranks: int = 2,
) -> ExternalRow:
    peer = ("peers.megatron_engine", "megatron", theirs)
    return _row(
        environment, title, setting, ours=ours, theirs=peer, says=MEGATRON_SAYS + says, target=None, ranks=ranks
    )


def _row(
    environment: Environment,
    title: str,
    setting: Setting,
    *,
    ours: Mapping[str, Any],
    theirs: tuple[str, str, Mapping[str, Any]],
    says: str,
    target: float | None,
    ranks: int = 2,
) -> ExternalRow:
    module, function, options = theirs
    here, fast = Path(sys.executable), fast_mkl()
    duel = Duel(
        name=f"{environment.name} (external) {title}",
        ranks=ranks,
        setting=setting,
        ours=Entry("trivium", "trivium_engine", "trivium", ours, here, dict(os.environ) | fast),
        peer=Entry(environment.name, module, function, options, environment.python, environment.surroundings() | fast),
        target=target,
        says=says,
        fewer_rounds=2 if ranks > 2 else 1,
    )
    return ExternalRow(duel, environment)


def main(arguments: list[str]) -> int:
    """Install what is named, or all; exit code 1 when one cannot be."""
    known = environments()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", nargs="*", choices=tuple(known), required=True, help="which (default: all)")
    failed = 0
    for name in parser.parse_args(arguments).install or known:
        try:
            known[name].install()
            print(f"{name}: ready in {known[name].path}")
        except (subprocess.SubprocessError, OSError) as error:
            failed = 1
            print(f"{name}: not installed: {error}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
