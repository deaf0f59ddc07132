"""What an objective needs beside the tokens: the reference of preferences, or the teacher of distillation."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from trivium.checkpoint.agree import found_by_first
from trivium.comms.collectives import all_reduce_
from trivium.errors import DataError
from trivium.objectives.distillation.objective import Distillation
from trivium.objectives.objective import Objective
from trivium.objectives.preferences.losses import Preference
from trivium.tokens.beside import Beside, Kind
from trivium.tokens.samples import TokenDataset
from trivium.tokens.split import TRAIN
from trivium.training.batches import TEACHER_IDS, TEACHER_LOGS
from trivium.training.pairs import REFERENCE
from trivium.training.trainer import Samples, Trainer

TEACHER = "teacher"


def beside_of(tokens: Path, objective: Objective, of: str | None = None) -> Beside | None:
    """Return the description of what an objective needs beside the tokens in a directory; None: nothing.

    of: the hash of the weights that computed it; None: of any.
    """
    if isinstance(objective, Preference) and objective.reference:
        return Beside(tokens, REFERENCE, of, {REFERENCE: Kind("<f8")}, {})
    if isinstance(objective, Distillation):
        kinds = {TEACHER_IDS: Kind("<i4", (objective.top,)), TEACHER_LOGS: Kind("<f4", (objective.top,))}
        return Beside(tokens, TEACHER, of, kinds, objective.stored, (TRAIN,))
    return None


def write_beside(
    beside: Beside,
    trainer: Trainer,
    splits: Sequence[TokenDataset],
    computed: Callable[[Samples], dict[str, np.ndarray]],
) -> None:
    """Compute numbers for all targets of splits, and let the first rank write them; every rank calls this.

    computed: returns the numbers of this rank's replica by the name of the array, each [sequences, positions, …].
    """
    mesh = trainer.mesh
    found_by_first(beside.create, mesh, DataError)
    for split in splits:
        for source in split.windows:
            stored = beside.filled(split.split, source) if mesh.rank == 0 else {}
            for first, whole in _batches(trainer, split, source, computed):
                for name, array in stored.items():
                    _store(array, whole[name], split, source, first)
            for array in stored.values():
                if isinstance(array, np.memmap):
                    array.flush()
    found_by_first(beside.finish, mesh, DataError)


def _batches(
    trainer: Trainer, split: TokenDataset, source: str, computed: Callable[[Samples], dict[str, np.ndarray]]
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yield the first window of each batch of a source, and the numbers of all its windows, on every rank."""
    plan, mesh, unit = trainer.plan, trainer.mesh, trainer.plan.validation_unit
    windows, batch = split.windows[source], -(-plan.batch.sequences // unit) * unit
    for first in range(0, windows, batch):
        count = min(batch, windows - first)
        samples = Samples(first, count, partial(split.stored, source)).padded_to(unit)
        whole = {}
        for name, own in computed(samples).items():
            every = torch.zeros(samples.sequences, *own.shape[1:], dtype=torch.float64, device=mesh.device)
            place = mesh.at.data * len(own)
            every[place : place + len(own)] = torch.from_numpy(own).to(mesh.device)
            whole[name] = all_reduce_(every, mesh.data)[:count].cpu().numpy()
        yield first, whole


def _store(array: np.ndarray, values: np.ndarray, split: TokenDataset, source: str, first: int) -> None:
    """Write the numbers of the targets that count in windows from `first` on."""
    counted = split.stored(source, first, len(values)).weights != 0
    targets = np.arange(first, first + len(values))[:, None] * split.sequence + np.arange(1, split.sequence + 1)
    array[targets[counted] % len(array)] = values[counted]  # a source shorter than a window repeats
