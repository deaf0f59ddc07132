"""The unigram baseline: scores tokens only by their frequency in the training text."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trivium.errors import DataError
from trivium.evaluation.requests import Likelihoods, Request, Scored
from trivium.evaluation.windows import encode_all
from trivium.tokens.entropy import add_one
from trivium.tokens.tokenizer import Tokenizer


class _Unigram:
    """Scores the tokens of a continuation regardless of the context. It uses the same tokens as a model does."""

    def __init__(self, tokenizer: Tokenizer, counts: NDArray[np.int64]) -> None:
        self._tokenizer = tokenizer
        self._logs = np.log(add_one(counts))
        self._likeliest = int(self._logs.argmax())

    def loglikelihood(self, requests: Sequence[Request]) -> list[Scored]:
        """Return one answer per request, in order."""
        return [self._score(encoded.continuation) for encoded in encode_all(requests, self._tokenizer)]

    def _score(self, ids: Sequence[int]) -> Scored:
        return Scored(
            loglikelihood=float(self._logs[list(ids)].sum()),
            tokens=len(ids),
            greedy=all(i == self._likeliest for i in ids),
            truncated=False,
        )


def unigram_scorer(tokenizer: Tokenizer, counts: NDArray[np.int64]) -> Likelihoods:
    """Return the unigram baseline of a tokenizer. counts: occurrences of its ids in the training text [vocabulary]."""
    if len(counts) != tokenizer.vocabulary:
        raise DataError(
            f"{len(counts)} token counts do not belong to a tokenizer of {tokenizer.vocabulary} ids; tokenize again"
        )
    return _Unigram(tokenizer, counts)
