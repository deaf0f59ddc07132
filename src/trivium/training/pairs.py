"""The weights of targets in a step on preference pairs.

The loss of a pair is a function of the log-probabilities of its two completions, of which each is a sum over tokens. A
first pass computes the log-probabilities without gradients. Their derivatives, with the opposite sign, then weigh the
targets of an ordinary step, whose gradient is exactly that of the loss, and which any schedule can run.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from trivium.comms.collectives import all_reduce_
from trivium.comms.mesh import Mesh
from trivium.objectives.objective import LOSS
from trivium.objectives.preferences.losses import Pairs, Preference, Side
from trivium.tokens.completions import completions_of
from trivium.tokens.rows import Rows

REFERENCE = "reference"  # among what is beside the tokens: the log-probability of each target under the reference


class Weighed(NamedTuple):
    """A batch of a replica. rows: its weights are the derivative of the summed losses by each target's loss. pairs: of
    the whole batch. losses: sums over the replica's pairs, by name."""

    rows: Rows
    pairs: float
    losses: dict[str, float]


def weighed(
    objective: Preference, rows: Rows, numbers: Sequence[int], each: NDArray[np.float64], mesh: Mesh
) -> Weighed:
    """Weigh the targets of a replica's rows; every rank calls this.

    numbers: of the samples. each [sequences, positions]: the log-probability of each target.
    Raises DataError for rows that are not made of whole pairs.
    """
    number, count = completions_of(rows.weights, numbers)
    counted = np.flatnonzero(number)
    places = torch.from_numpy(number.reshape(-1)[counted] - 1)

    def sums(values: NDArray[np.float64]) -> torch.Tensor:
        """Return the sum of the values of each completion's targets, [pairs, 2]."""
        own = torch.from_numpy(np.asarray(values, np.float64).reshape(-1)[counted])
        return torch.zeros(2 * count, dtype=torch.float64).index_add_(0, places, own).view(count, 2)

    log_probabilities, tokens = sums(each), sums(np.ones(each.shape))
    reference = sums(rows.beside[REFERENCE]) if objective.reference else torch.zeros_like(log_probabilities)
    ratios = log_probabilities - reference
    total = torch.tensor([count, ratios.sum()], dtype=torch.float64, device=mesh.device)
    pairs, ratio = all_reduce_(total, mesh.data).tolist()
    drift = torch.tensor(max(0.0, ratio / max(1, 2 * pairs)), dtype=torch.float64)

    with torch.enable_grad():
        log_probabilities.requires_grad_()
        chosen, rejected = (Side(log_probabilities[:, n], reference[:, n], tokens[:, n]) for n in range(2))
        compared = Pairs(chosen, rejected, drift)
        losses = objective.losses(compared)
        (slopes,) = torch.autograd.grad(losses.sum(), log_probabilities)
    weights = np.zeros(number.shape)
    weights.reshape(-1)[counted] = -slopes.reshape(-1)[places].numpy()
    told = {LOSS: losses, **objective.measures(compared)}
    return Weighed(rows._replace(weights=weights), pairs, {name: float(x.detach().sum()) for name, x in told.items()})
