"""nanoGPT's loop on the batches of a recipe's run: same initial weights, samples, learning rates and validation.

python benchmarks/recipe_loop.py runs/books-small [--compiled] [--json loop.json]

One process: autocast forward and backward over micro-batches, clipping, fused AdamW. Only steps are timed, on both
sides. On CPUs give it as many threads as the run had ranks (OMP_NUM_THREADS=2).
"""

import argparse
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from circumstances import circumstances
from setting import Setting
from torch_model import Gpt, mean_loss

from trivium.config import build
from trivium.plan.plan import Plan
from trivium.provenance import write_json
from trivium.tokens.samples import TokenDataset
from trivium.training.config import TrainingConfig
from trivium.training.metrics import METRICS, records
from trivium.training.rates import lr_of_step


def model_of(plan: Plan, seed: int) -> Gpt:
    """The same GPT in plain PyTorch, with the run's initial weights."""
    m = plan.model
    setting = Setting("recipe", m.hidden, m.layers, m.heads, m.vocabulary, m.sequence, plan.batch.sequences, 1)
    model = Gpt(setting)
    assert model.head is not None and model.tokens is not None, "all layers are here"
    if m.head == "tied":
        model.head.weight = model.tokens.weight
    return model.fill(m, seed)


class Loop:
    """A training of a run's config, on its samples."""

    def __init__(self, run: Path, compiled: bool) -> None:
        config = json.loads((run / "config.json").read_text())
        self.plan, self.training = build(Plan, config["plan"]), build(TrainingConfig, config["training"])
        seed, sequence = config["seed"], self.plan.model.sequence
        self.data = TokenDataset.open(run / "tokens", "train", sequence=sequence, seed=seed)
        self.held_out = TokenDataset.open(run / "tokens", "validation", sequence=sequence, seed=seed)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.module = model_of(self.plan, seed).to(self.device)
        self.model: Any = torch.compile(self.module) if compiled else self.module
        t, every = self.training, list(self.module.parameters())
        groups = [
            {"params": [p for p in every if p.dim() >= 2], "weight_decay": t.weight_decay},
            {"params": [p for p in every if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=t.lr, betas=(t.beta1, t.beta2), eps=t.epsilon, fused=True)

    def loss(self, samples: Any) -> torch.Tensor:
        """Mean loss of samples [B, S + 1]."""
        rows = torch.from_numpy(samples).to(self.device)
        narrow = self.plan.precision.weights == "bf16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16) if narrow else nullcontext():
            return mean_loss(self.model(rows[:, :-1]), rows[:, 1:])

    def step(self, number: int) -> float:
        """One optimizer step, counted from 0; returns its loss."""
        first, count = self.plan.batch.at(number)
        micro, total = self.plan.batch.micro, 0.0
        for start in range(first, first + count, micro):
            loss = self.loss(self.data.samples(range(start, start + micro))) * (micro / count)
            loss.backward()
            total += float(loss.detach())
        if self.training.clip:
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.training.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = lr_of_step(self.training, self.plan, number)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total

    @torch.no_grad()
    def validate(self) -> float:
        """Mean loss of the run's validation samples."""
        count, micro = min(self.training.validation_samples, self.held_out.num_samples), self.plan.batch.micro
        losses = [
            float(self.loss(self.held_out.samples(range(n, min(n + micro, count))))) * (min(n + micro, count) - n)
            for n in range(0, count, micro)
        ]
        return sum(losses) / count


def trained(loop: Loop) -> dict[str, Any]:
    """Validation losses by step, and the seconds of all steps."""
    points, seconds = {}, 0.0
    for number in range(loop.training.steps):
        began = time.perf_counter()
        loop.step(number)
        seconds += time.perf_counter() - began
        if (number + 1) % loop.training.validate_every == 0 or number + 1 == loop.training.steps:
            points[number + 1] = loop.validate()
    return {"points": points, "seconds": seconds}


def main() -> None:
    """Train, and print both curves side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    logged = list(records(given.run / "training" / METRICS))
    ours = {r["step"]: r["validation_loss"] for r in logged if "validation_loss" in r}
    seconds = sum(r["seconds"] for r in logged if "seconds" in r and "batch_hash" in r)
    loop = trained(Loop(given.run, given.compiled))
    for step, theirs in loop["points"].items():
        print(f"step {step}: trivium {ours[step]:.4f}, plain loop {theirs:.4f}, difference {ours[step] - theirs:+.4f}")
    print(f"seconds of all steps: trivium {seconds:.1f}, plain loop {loop['seconds']:.1f}")
    if given.json:
        about = circumstances("benchmarks/recipe_loop.py", sys.argv[1:])
        write_json(given.json, {**about, "trivium": {"points": ours, "seconds": seconds}, "loop": loop})


if __name__ == "__main__":
    main()
