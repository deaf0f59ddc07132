"""The reference of preferences: the log-probability of each target under the weights that training starts from.

It is computed once, before the first step, under the layout of the training, and stored beside the tokens. With
adapters it is computed without them.
"""

from collections.abc import Callable, Mapping
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
from trivium.tokens.manifest import SPLITS, open_shards
from trivium.tokens.rows import Rows
from trivium.tokens.shards import TokenShard
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


def with_reference(beside: Beside, trainer: Trainer, *, begins: bool) -> None:
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
        _compute(beside, trainer)
    beside.refuse_other_weights(found_by_first(beside.check, mesh, DataError))


def _compute(beside: Beside, trainer: Trainer) -> None:
    mesh = trainer.mesh
    found_by_first(beside.create, mesh, DataError)
    for split in SPLITS:
        for source, shard in open_shards(beside.folder, split, TokenShard.mapped).items():
            if not len(shard.tokens):
                continue
            filled = beside.filled(split, source)[REFERENCE] if mesh.rank == 0 else None
            with adapters_off(trainer.stages.values()):
                log_probabilities_of(trainer, shard, partial(_keep, shard, filled))
            if isinstance(filled, np.memmap):
                filled.flush()
    found_by_first(beside.finish, mesh, DataError)


def _keep(shard: TokenShard, into: np.ndarray | None, targets: np.ndarray, values: np.ndarray) -> None:
    if into is not None:
        counted = np.ones(targets.shape, bool) if shard.weights is None else shard.weights[targets] != 0
        into[targets[counted]] = values[counted]


def log_probabilities_of(trainer: Trainer, shard: TokenShard, keep: Callable[[np.ndarray, np.ndarray], None]) -> None:
    """Call `keep` with the numbers of targets in the tokens of a shard, [windows, positions], and their
    log-probabilities, for all windows, a batch at a time; every rank calls this."""
    plan, mesh, length = trainer.plan, trainer.mesh, trainer.plan.model.sequence
    windows = max(1, (len(shard.tokens) - 1) // length)
    unit = plan.validation_unit
    batch = -(-plan.batch.sequences // unit) * unit
    for first in range(0, windows, batch):
        count = min(batch, windows - first)
        samples = Samples(first, count, partial(_rows, shard, length)).padded_to(unit)
        own = trainer.log_probabilities(samples)
        whole = torch.zeros(samples.sequences, length, dtype=torch.float64, device=mesh.device)
        place = mesh.at.data * len(own)
        whole[place : place + len(own)] = torch.from_numpy(own).to(mesh.device)
        values = all_reduce_(whole, mesh.data)[:count].cpu().numpy()
        keep(_targets(shard, length, first, count), values)


def _targets(shard: TokenShard, length: int, first: int, count: int) -> np.ndarray:
    """Return the places of the targets of windows. A shard shorter than one window repeats within it."""
    places = np.arange(first, first + count)[:, None] * length + np.arange(1, length + 1)
    return places % len(shard.tokens)


def _rows(shard: TokenShard, length: int, first: int, count: int) -> Rows:
    targets = _targets(shard, length, first, count)
    return Rows(
        np.asarray(shard.tokens[targets - 1], np.int64),
        np.asarray(shard.tokens[targets], np.int64),
        np.ones(targets.shape, np.float32),
    )
