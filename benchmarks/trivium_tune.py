"""LoRA by Trivium on the same Llama: the folder is imported, and its weights are frozen."""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tuned_llama as setting
from contest import Build
from setting import Setting

from trivium.checkpoint.load import Checkpoint
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.config import build, to_tree
from trivium.interchange.bring import import_hf
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.tokens.rows import Rows
from trivium.training.state import begin_with
from trivium.training.trainer import Samples, Trainer

ADAPTER = {"kind": "lora", "settings": {"r": setting.RANK, "alpha": setting.ALPHA}}


class Tuned:
    """One process. packed: several conversations in a row, apart; otherwise each is a row of its own."""

    def __init__(self, place: Place, folder: str, *, packed: bool, more: dict[str, Any]) -> None:
        length = setting.SEQUENCE if packed else max(map(setting.longest, range(setting.DIFFERENT_STEPS)))
        self.rows = setting.packed if packed else partial(setting.padded, length=length)
        sequences = setting.BINS if packed else setting.BINS * setting.PER_BIN
        with tempfile.TemporaryDirectory() as root:
            checkpoint = Checkpoint.open(import_hf(folder, Path(root)))
            apart = {"documents": "apart", "end_of_text": setting.END, "sequence": length, "adapters": [ADAPTER]}
            model = to_tree(checkpoint.plan.model) | apart
            batch = {"sequences": sequences, "micro": sequences}
            plan = build(Plan, {"model": model, "batch": batch, **more}).checked()
            mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
            rule = AdamRule(beta2=0.999, weight_decay=0.0, clip=setting.CLIP)
            self.trainer = Trainer(plan, mesh, seed=setting.SEED, rule=rule)
            begin_with(self.trainer, checkpoint)

    def step(self, number: int) -> torch.Tensor:
        """Do one optimizer step."""
        rows = self.rows(number)
        ids, weights = rows.ids, rows.weights

        def read(first: int, count: int) -> Rows:
            targets, counts = np.roll(ids, -1, 1), np.roll(weights, -1, 1)
            counts[:, -1] = 0
            part = slice(first, first + count)
            return Rows(ids[part], targets[part], counts[part])

        return torch.tensor(self.trainer.train_step(number, Samples(0, len(ids), read), setting.LR).loss)


def tuned(*, folder: str, packed: bool, more: dict[str, Any] | None = None) -> Build:
    """Return a contestant. more: fields of its plan."""

    def build(_: Setting, place: Place) -> Tuned:
        return Tuned(place, folder, packed=packed, more=more or {})

    return build
