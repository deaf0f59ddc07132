"""Record what plans of every kind compute, bit for bit, and compare the record with that of another commit.

    python benchmarks/golden.py --record FILE [--only NAME,NAME]      of the code that PYTHONPATH or the environment has
    python benchmarks/golden.py --compare BEFORE AFTER

Each plan trains a tiny model for five steps. The record has each step's loss and gradient norm, as the numbers that
they are, and a hash of all tensors of the last checkpoint: weights, masters and moments. Bits depend on the processor
and on torch: compare only records of one machine. Exit code 1 where a plan's record differs, or has no counterpart.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # for chaos.scene

from trivium import mkl
from trivium.certify.layouts import ROTARY

mkl.prefer_fast_kernels()  # before torch
import torch

from chaos.scene import SEED, VOCABULARY, write_tokens
from trivium.checkpoint.load import Checkpoint
from trivium.config import merge
from trivium.plan.parameters import Box
from trivium.plan.plan import Plan
from trivium.training.config import TrainingConfig
from trivium.training.loop import TrainingJob
from trivium.training.supervision.job import start

STEPS = 5
GPT = {"layers": 4, "hidden": 24, "heads": 4, "vocabulary": VOCABULARY, "vocabulary_multiple": 2, "sequence": 16}
LLAMA = GPT | {**ROTARY, "kv_heads": 2}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": GPT,
    "gpt-untied-dropout": GPT | {"head": "untied", "dropout": 0.1},
    "llama": LLAMA,
    "mistral": LLAMA | {"window": 5, "head": "untied"},
    "qwen2": LLAMA | {"bias": "qkv", "window": 6, "first": [{"times": 2, "window": None}]},
    "qwen3": LLAMA | {"qk_norm": "each_head", "head_width": 8},
    "olmo2": LLAMA | {"kv_heads": 4, "qk_norm": "all_heads", "norm_position": "after", "z_loss": 1e-3},
    "olmo3": LLAMA
    | {"qk_norm": "all_heads", "norm_position": "after", "window": 5, "pattern": [{"times": 1}, {"window": None}]},
    "llama3": LLAMA
    | {"rope_base": 5e5, "rope_scaling": {"kind": "llama3", "factor": 8, "original": 8, "slow": 1, "fast": 4}},
    "yarn": LLAMA | {"rope_scaling": {"kind": "yarn", "factor": 4, "original": 8, "slow": 1, "fast": 32}},
    "documents": LLAMA | {"documents": "apart"},
}
PARALLEL = {"layout": {"tensor": 2, "pipeline": 2}, "sequence_parallel": True}


def plans() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the settings of every plan."""
    for model in MODELS:
        yield f"{model} alone", {"model": MODELS[model]}
        yield f"{model} tensor x pipeline", {"model": MODELS[model], **PARALLEL}
    for schedule in ("gpipe", "1f1b", "zb-h1", "1f1b-split"):
        yield f"schedule {schedule}", {"schedule": schedule, "layout": {"pipeline": 2}}
    for schedule in ("interleaved", "zb-v", "zb-turns"):
        yield f"schedule {schedule}", {"schedule": schedule, "layout": {"pipeline": 2, "chunks": 2}}
    for zero in (0, 1, 2, 3):
        yield f"zero {zero}", {"zero": zero, "layout": {"data": 2}}
        yield f"zero {zero} tensor bf16", _bf16({"zero": zero, "layout": {"data": 2, "tensor": 2}})
    yield "zero 3 pipeline", {"zero": 3, "layout": {"data": 2, "pipeline": 2}}
    yield "shards", {"zero": 2, "layout": {"data": 4, "shards": 2}}
    for attention in ("ring", "ulysses"):
        for model in ("llama", "documents", "mistral"):
            context = {"context_attention": attention, "layout": {"context": 2}}
            yield f"{model} {attention}", {"model": MODELS[model], **context}
    for weights in ("fp64", "bf16", "fp16"):
        for model in ("gpt", "olmo2"):
            yield f"{model} {weights}", {"model": MODELS[model], "precision": {"weights": weights}}
    yield (
        "gradients bf16",
        _bf16({"layout": {"data": 2}})
        | {"precision": {"weights": "bf16", "gradients": "bf16", "communication": "bf16"}},
    )
    for mode in ("attention", "layer"):
        yield f"recompute {mode}", {"recompute": {"mode": mode, "activation_function": True}}
    yield "row chunks", {"row_chunks": 2, "layout": {"tensor": 2}}
    yield "partition", {"partition": {"layers": [1, 3]}, "layout": {"pipeline": 2}}
    yield "ramp", {"batch": {"sequences": 8, "micro": 2, "ramp": {"start": 4, "increment": 2, "samples": 12}}}
    yield "compiled", {"model": MODELS["olmo2"], "compiled": True}


def _bf16(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "precision": {"weights": "bf16"}}


def record_of(settings: dict[str, Any], tokens: Path, out: Path) -> dict[str, Any]:
    """Train one plan; return its losses, gradient norms and the hash of its last checkpoint."""
    plan = Plan.model_validate(merge({"model": GPT, "batch": {"sequences": 8, "micro": 2}}, settings)).checked()
    training = TrainingConfig(
        steps=STEPS, lr=1e-2, checkpoint_every=STEPS, validate_every=STEPS, validation_samples=8, restarts=0
    )
    start(TrainingJob(plan, training, SEED, tokens, out))
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = {r["step"]: [r["loss"], r["gradient_norm"]] for r in rows if "loss" in r and "gradient_norm" in r}
    validation = [r["validation_loss"] for r in rows if "validation_loss" in r]
    checkpoint = Checkpoint.open(sorted((out / "checkpoints").glob("step-*"))[-1])
    return {"steps": steps, "validation": validation, "tensors": digest_of(checkpoint)}


def digest_of(checkpoint: Checkpoint) -> str:
    """Return a hash of all tensors, by name, as fp64, which holds every number of the others exactly."""
    digest = hashlib.sha256()
    for name in sorted(checkpoint.names):
        shape = tuple(checkpoint.manifest["tensors"][name]["shape"])
        whole = checkpoint.read(name, Box((0,) * len(shape), shape), torch.float64)
        digest.update(f"{name} {shape}".encode() + whole.contiguous().numpy().tobytes())
    return digest.hexdigest()


def main() -> int:
    """Record or compare, as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--only", default="", help="plans whose names contain one of these, by commas")
    parser.add_argument("--compare", type=Path, nargs=2)
    asked = parser.parse_args()
    if asked.compare:
        return compare(*(json.loads(path.read_text()) for path in asked.compare))
    wanted = [part for part in asked.only.split(",") if part]
    found = dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        tokens = write_tokens(Path(folder))
        for number, (name, settings) in enumerate(plans()):
            if not wanted or any(part in name for part in wanted):
                found[name] = record_of(settings, tokens, Path(folder) / str(number))
                asked.record.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(found)} plans recorded")
    return 0


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print the plans whose records differ; return how the process ends."""
    wrong = [name for name in before | after if before.get(name) != after.get(name)]
    for name in wrong:
        print(f"{name}:\n  before {before.get(name)}\n  after  {after.get(name)}")
    print(f"{len(before | after) - len(wrong)} of {len(before | after)} plans are equal, bit for bit")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
