"""What a training step pays besides its arithmetic: reading its batch, logging, and saving in the background."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from loader import written_tokens
from setting import HIDDEN_256, LR, Setting

from trivium.checkpoint.save import Saving, copies
from trivium.comms.mesh import Mesh
from trivium.parallel.sharding.zero import AdamRule
from trivium.tokens.samples import TokenDataset
from trivium.training.metrics import append
from trivium.training.state import fragments
from trivium.training.trainer import Samples, Trainer

# Largest shares of a step.
TARGETS = {"data loading": 0.01, "metrics": 0.005, "asynchronous save": 0.10}
TOKENS = 10_000_000
STEP_LINE = {"step": 1, "loss": 3.14, "validation": None, "gradient_norm": 1.0, "lr": LR, "tokens": 1 << 20}


def overhead_rows() -> list[tuple[str, Callable[[int], dict[str, Any]]]]:
    """One row: shares of a step of Trivium in one process, fp32."""
    return [(f"overheads {HIDDEN_256.name}", lambda rounds: overheads(HIDDEN_256, rounds))]


def overheads(setting: Setting, rounds: int, tokens: int = TOKENS) -> dict[str, Any]:
    """Median seconds of each, over that of a step. tokens: there are to read from."""
    torch.set_num_threads(1)
    trainer = Trainer(setting.plan(), Mesh.single(), seed=0, rule=AdamRule())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        written_tokens(root / "tokens", {"one": 1.0}, tokens, vocabulary=setting.vocabulary)
        data = TokenDataset.open(root / "tokens", "train", sequence=setting.sequence, seed=0)
        seconds: dict[str, list[float]] = {"step": [], **{name: [] for name in TARGETS}}
        for number in range(rounds):
            first = number * setting.sequences
            seconds["data loading"].append(_timed(lambda: data.rows(first, setting.sequences)))  # noqa: B023
            rows = data.rows(first, setting.sequences)
            samples = Samples(first, setting.sequences, lambda n, k: rows)  # noqa: B023
            seconds["step"].append(_timed(lambda: trainer.train_step(number, samples, LR)))  # noqa: B023
            seconds["metrics"].append(_timed(lambda: append(root / "metrics.jsonl", STEP_LINE)))
            begin = time.perf_counter()
            saving = Saving(root / "checkpoints", number, copies(fragments(trainer)), Mesh.single(), {})
            seconds["asynchronous save"].append(time.perf_counter() - begin)
            saving.advance(wait=True)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    shares = {name: medians[name] / medians["step"] for name in TARGETS}
    return {
        "name": f"overheads {setting.name}",
        "status": "measured",
        "rounds": rounds,
        "says": "Seconds of the trainer's thread. A save in the background stalls it while the state is copied; the "
        "writing that follows competes for the machine's cores and disk, and is not in this figure.",
        "seconds": medians,
        "shares": shares,
        "targets": TARGETS,
        "summary": ", ".join(f"{n} {s:.2%} of a step (target < {TARGETS[n]:.1%})" for n, s in shares.items()),
    }


def _timed(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin
