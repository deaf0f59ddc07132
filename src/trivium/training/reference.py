"""The reference of preferences: the log-probability of each target under the weights that training starts from.

It is computed once, before the first step, under the layout of the training, and stored beside the tokens. With
adapters it is computed without them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
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

        def computed(samples: Samples) -> dict[str, np.ndarray]:
            with adapters_off(trainer.stages.values()):
                return {REFERENCE: trainer.log_probabilities(samples)}

        write_beside(beside, trainer, splits, computed)
    beside.refuse_other_weights(found_by_first(beside.check, mesh, DataError))


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
