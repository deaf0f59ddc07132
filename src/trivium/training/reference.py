"""The reference of preferences: the log-probability of each target under the weights that training starts from.

It is computed once, before the first step, under the layout of the training, and stored beside the tokens. With
adapters it is computed without them.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch

from trivium.checkpoint.agree import found_by_first
from trivium.comms.collectives import all_reduce_
from trivium.config import to_tree
from trivium.errors import CheckpointError, DataError
from trivium.model.stage import adapters_off
from trivium.plan.plan import Plan
from trivium.provenance import fingerprint
from trivium.tokens.beside import Beside, Kind
from trivium.tokens.samples import TokenDataset
from trivium.training.pairs import REFERENCE
from trivium.training.resume import Start
from trivium.training.trainer import Samples, Trainer

KIND: Mapping[str, Kind] = {REFERENCE: Kind("<f8")}


def hash_of_reference(start: Start, plan: Plan, seed: int) -> str:
    """Return the hash of the weights that a training began with: of the checkpoint that they come from, or of model
    and seed."""
    if start.state is not None:
        return str(start.state.manifest.get(REFERENCE) or start.state.manifest["sha256"])
    if start.weights is not None:
        return str(start.weights.manifest["sha256"])
    return fingerprint([to_tree(plan.model), seed])


def with_reference(beside: Beside, trainer: Trainer, splits: Sequence[TokenDataset], *, begins: bool) -> None:
    """Make sure that the reference is there and of the right weights; every rank calls this.

    begins: whether the trainer has the weights of the reference, so that a missing one can be computed. Raises
    CheckpointError if it is of other weights, or is missing and cannot be computed, and DataError if it is damaged.
    """
    mesh = trainer.mesh
    if not found_by_first(lambda: beside.exists, mesh, DataError):
        if not begins and not trainer.plan.model.adapters:
            raise CheckpointError(
                f"{beside.folder} has no {REFERENCE}.json any more, and training has changed the weights that computed "
                f"it; restore it, or begin again in another --out"
            )
        found_by_first(beside.create, mesh, DataError)
        for split in splits:
            for source in split.windows:
                _compute(beside, trainer, split, source)
        found_by_first(beside.finish, mesh, DataError)
    beside.refuse_other_weights(found_by_first(beside.check, mesh, DataError))


def _compute(beside: Beside, trainer: Trainer, split: TokenDataset, source: str) -> None:
    """Compute the reference of one source, a batch of windows at a time, and let the first rank write it."""
    plan, mesh, length = trainer.plan, trainer.mesh, split.sequence
    windows, unit = split.windows[source], plan.validation_unit
    batch = -(-plan.batch.sequences // unit) * unit
    stored = beside.filled(split.split, source)[REFERENCE] if mesh.rank == 0 else None
    for first in range(0, windows, batch):
        count = min(batch, windows - first)
        samples = Samples(first, count, partial(split.stored, source)).padded_to(unit)
        with adapters_off(trainer.stages.values()):
            own = trainer.log_probabilities(samples)
        whole = torch.zeros(samples.sequences, length, dtype=torch.float64, device=mesh.device)
        place = mesh.at.data * len(own)
        whole[place : place + len(own)] = torch.from_numpy(own).to(mesh.device)
        values = all_reduce_(whole, mesh.data)[:count].cpu().numpy()
        if stored is not None:
            counted = split.stored(source, first, count).weights != 0
            targets = np.arange(first, first + count)[:, None] * length + np.arange(1, length + 1)
            stored[targets[counted] % len(stored)] = values[counted]  # a source shorter than a window repeats
    if isinstance(stored, np.memmap):
        stored.flush()
