"""Ask a model for the answers of held-out conversations, and count those that it gives exactly."""

from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trivium.errors import DataError
from trivium.evaluation.statistics import share_of
from trivium.evaluation.windows import Encoded
from trivium.seeds import generator_for
from trivium.tokens.manifest import open_shards

CONFIDENCE = 0.95


class Scorer(Protocol):
    """Anything that scores ids after other ids."""

    def loglikelihood_of_ids(self, requests: list[Encoded]) -> list[tuple[float, bool]]:
        """Return for each request its log-likelihood in nats, and whether every id was the most likely one."""
        ...


def replies(tokens: Path, *, limit: int, seed: int) -> list[Encoded]:
    """Return the answers of the held-out conversations in a token directory, each after all that precedes it.

    An answer is a run of ids that count as targets. At most `limit` are drawn, by the seed. Raises DataError if there
    are none.
    """
    found = [
        Encoded(ids[:begin].tolist(), ids[begin:end].tolist())
        for shard in open_shards(tokens, "validation").values()
        if shard.weights is not None
        for first, last in pairwise(shard.document_starts[:].tolist())
        for ids in (np.asarray(shard.tokens[first:last]),)
        for begin, end in _runs(np.asarray(shard.weights[first:last]) > 0)
    ]
    if not found:
        raise DataError(
            f"{tokens} holds no answers for validation: no id there counts; raise tokens.validation_fraction"
        )
    drawn = generator_for(seed, "replies").permutation(len(found))[:limit]
    return [found[n] for n in sorted(drawn.tolist())]


def _runs(counted: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the beginning and end of each run of true values; an answer that nothing precedes cannot be asked for."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], counted, [False]]).astype(np.int8)))
    return [(begin, end) for begin, end in edges.reshape(-1, 2).tolist() if begin]


def score_replies(scorer: Scorer, asked: list[Encoded]) -> dict[str, Any]:
    """Return how many answers a model gives exactly, to the token that ends them, with an interval.

    Greedy generation gives an answer exactly if each of its ids is the most likely one after those before it, so
    nothing has to be generated.
    """
    scores = scorer.loglikelihood_of_ids(asked)
    ids = sum(len(request.continuation) for request in asked)
    nats = -sum(likelihood for likelihood, _ in scores)
    return {**share_of([exact for _, exact in scores], confidence=CONFIDENCE), "nats_per_token": nats / ids}
