"""Losses of preference pairs, as functions of the log-probabilities of their completions.

Each depends on the weights of the model only through the log-probabilities s of the two completions, each a sum over
the completion's tokens. Its gradient is therefore that of the tokens' cross-entropies, each times -dL/ds of its
completion. r = s - s of the reference.
"""

import sys
from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from pydantic import Field

from trivium.objectives.objective import LOSS, Objective
from trivium.plan.model_shape import ModelShape

if TYPE_CHECKING:
    from torch import Tensor

# Means over the pairs, beside the loss. An accuracy counts a tie of rewards as one half.
MEASURES = (
    "reward_chosen",
    "reward_rejected",
    "reward_margin",
    "reward_accuracy",
    "log_probability_chosen",
    "log_probability_rejected",
)
Above0 = Annotated[float, Field(gt=0)]
Smoothing = Annotated[float, Field(ge=0, lt=0.5)]


class Side(NamedTuple):
    """The chosen or the rejected completions of pairs, each [pairs]: log-probability, that under the reference (0 for a
    method without one), and number of tokens."""

    log_probability: "Tensor"
    reference: "Tensor"
    tokens: "Tensor"

    @property
    def ratio(self) -> "Tensor":
        """r."""
        return self.log_probability - self.reference

    @property
    def mean(self) -> "Tensor":
        """The mean log-probability of a token."""
        return self.log_probability / self.tokens


class Pairs(NamedTuple):
    """drift: the mean r of all completions of the global batch, or 0 if that is negative; constant in the gradient."""

    chosen: Side
    rejected: Side
    drift: "Tensor"


class Preference(Objective):
    """A method of learning from pairs. Its loss is the mean over the pairs of the global batch."""

    of_pairs: ClassVar[bool] = True
    forward_passes: ClassVar[int] = 1
    reference: ClassVar[bool] = True  # whether it compares with the model before training

    @abstractmethod
    def losses(self, pairs: Pairs) -> "Tensor":
        """Return the loss of each pair, [pairs]."""

    @abstractmethod
    def reward(self, side: Side) -> "Tensor":
        """Return the implicit reward of each completion, [pairs]."""

    def names(self, model: ModelShape) -> tuple[str, ...]:
        return (LOSS, *MEASURES)

    def measures(self, pairs: Pairs) -> dict[str, "Tensor"]:
        """Return MEASURES of each pair, [pairs]."""
        chosen, rejected = self.reward(pairs.chosen), self.reward(pairs.rejected)
        margin = chosen - rejected
        logged = (chosen, rejected, margin, (margin.sign() + 1) / 2)
        return dict(zip(MEASURES, (*logged, pairs.chosen.log_probability, pairs.rejected.log_probability), strict=True))


class Referred(Preference):
    """A method whose reward is beta r."""

    beta: Above0 = 0.1  # how strongly the model is held to the reference

    def reward(self, side: Side) -> "Tensor":
        return self.beta * side.ratio

    def margin(self, pairs: Pairs) -> "Tensor":
        """Return the difference of the rewards, [pairs]."""
        return self.beta * (pairs.chosen.ratio - pairs.rejected.ratio)


class DPO(Referred):
    """-log sigmoid(margin) (arXiv 2305.18290)."""

    def losses(self, pairs: Pairs) -> "Tensor":
        return _minus_log_sigmoid(self.margin(pairs))


class SmoothedDPO(Referred):
    """DPO whose labels are wrong with the probability `smoothing` (cDPO)."""

    smoothing: Smoothing = 0.1  # probability that a pair is the wrong way round

    def losses(self, pairs: Pairs) -> "Tensor":
        margin, wrong = self.margin(pairs), self.smoothing
        return (1 - wrong) * _minus_log_sigmoid(margin) + wrong * _minus_log_sigmoid(-margin)


class RobustDPO(Referred):
    """DPO that is unbiased if labels are wrong with the probability `smoothing` (arXiv 2403.00409)."""

    smoothing: Smoothing = 0.1  # probability that a pair is the wrong way round

    def losses(self, pairs: Pairs) -> "Tensor":
        margin, wrong = self.margin(pairs), self.smoothing
        found = (1 - wrong) * _minus_log_sigmoid(margin) - wrong * _minus_log_sigmoid(-margin)
        return found / (1 - 2 * wrong)


class IPO(Referred):
    """The squared distance of the difference of mean r from 1 / (2 beta) (arXiv 2310.12036). As in `trl`, each r is
    averaged over the tokens of its completion."""

    def reward(self, side: Side) -> "Tensor":
        return self.beta * side.ratio / side.tokens

    def losses(self, pairs: Pairs) -> "Tensor":
        difference = pairs.chosen.ratio / pairs.chosen.tokens - pairs.rejected.ratio / pairs.rejected.tokens
        return (difference - 1 / (2 * self.beta)).square()


class Hinge(Referred):
    """max(0, 1 - margin) (SLiC, arXiv 2305.10425)."""

    def losses(self, pairs: Pairs) -> "Tensor":
        return (1 - self.margin(pairs)).clamp(min=0)


class KTO(Referred):
    """Each completion by itself against the drift z (arXiv 2402.01306): 1 - sigmoid(beta (r - z)) for a chosen one,
    1 - sigmoid(beta (z - r)) for a rejected one; the loss of a pair is the mean of both."""

    chosen_weight: Above0 = 1.0
    rejected_weight: Above0 = 1.0

    def losses(self, pairs: Pairs) -> "Tensor":
        chosen = (self.beta * (pairs.drift - pairs.chosen.ratio)).sigmoid()  # 1 - sigmoid(x) = sigmoid(-x)
        rejected = (self.beta * (pairs.rejected.ratio - pairs.drift)).sigmoid()
        return (self.chosen_weight * chosen + self.rejected_weight * rejected) / 2


class SimPO(Preference):
    """-log sigmoid(beta (difference of mean log-probabilities) - gamma) (arXiv 2405.14734)."""

    reference: ClassVar[bool] = False
    beta: Above0 = 2.0
    gamma: Annotated[float, Field(ge=0)] = 1.0  # margin of rewards that is aimed at

    def reward(self, side: Side) -> "Tensor":
        return self.beta * side.mean

    def losses(self, pairs: Pairs) -> "Tensor":
        return _minus_log_sigmoid(self.reward(pairs.chosen) - self.reward(pairs.rejected) - self.gamma)


class ORPO(Preference):
    """The mean cross-entropy of the chosen completion's tokens, and -log sigmoid of the difference of log odds times
    `weight` (arXiv 2403.07691)."""

    reference: ClassVar[bool] = False
    weight: Above0 = 0.1  # of the odds

    def reward(self, side: Side) -> "Tensor":
        return self.weight * side.mean

    def losses(self, pairs: Pairs) -> "Tensor":
        odds = _log_odds(pairs.chosen.mean) - _log_odds(pairs.rejected.mean)
        return self.weight * _minus_log_sigmoid(odds) - pairs.chosen.mean


PREFERENCES: Mapping[str, type[Preference]] = MappingProxyType(
    {
        "dpo": DPO,
        "cdpo": SmoothedDPO,
        "robust": RobustDPO,
        "ipo": IPO,
        "hinge": Hinge,
        "kto": KTO,
        "simpo": SimPO,
        "orpo": ORPO,
    }
)


def _minus_log_sigmoid(x: "Tensor") -> "Tensor":
    return x.new_zeros(()).logaddexp(-x)


def _log_odds(log: "Tensor") -> "Tensor":
    """log (p / (1 - p)) of a probability p, given its logarithm. A logarithm that rounding made 0 or positive counts as
    -epsilon: the odds of p = 1 are infinite, and their gradient would be nan."""
    log = log.clamp(max=-sys.float_info.epsilon)
    return log - (-log.expm1()).log()
