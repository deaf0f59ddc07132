"""The reference of preferences: the log-probability of each target under the weights that training starts from.

It is computed once, before the first step, under the layout of the training, and stored beside the tokens. New
adapters change nothing yet at that moment, so their reference is the model without them.
"""

from collections.abc import Sequence

import numpy as np

from trivium.checkpoint.agree import found_by_first
from trivium.config import to_tree
from trivium.errors import CheckpointError, DataError
from trivium.plan.plan import Plan
from trivium.provenance import fingerprint
from trivium.tokens.beside import Beside
from trivium.tokens.samples import TokenDataset
from trivium.training.beside import write_beside
from trivium.training.pairs import REFERENCE
from trivium.training.resume import Start
from trivium.training.trainer import Samples, Trainer


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
        if not begins:
            raise CheckpointError(
                f"{beside.folder} has no {REFERENCE}.json any more, and training has changed the weights that computed "
                f"it; restore it, or begin again in another --out"
            )

        def computed(samples: Samples) -> dict[str, np.ndarray]:
            return {REFERENCE: trainer.log_probabilities(samples)}

        write_beside(beside, trainer, splits, computed)
    beside.refuse_other_weights(found_by_first(beside.check, mesh, DataError))
