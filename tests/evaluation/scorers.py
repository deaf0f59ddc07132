"""Scorers with a known amount of knowledge, for tests."""

import hashlib

from trivium.evaluation.requests import Scored

VOCABULARY = (
    "parser module value buffer index stream socket thread matrix vector tensor kernel cursor widget locale "
    "header packet branch commit object method string filter window canvas signal driver"
)


def scored(loglikelihood, continuation, greedy=False, truncated=False, tokens=None):
    return Scored(loglikelihood, tokens or len(continuation.split()), greedy, truncated)


def noise(*texts):
    """Return a number in [0, 1) that depends only on the texts."""
    return int.from_bytes(hashlib.sha256("\x1f".join(texts).encode()).digest()[:6], "big") / 2**48


class Knowing:
    """Answers correctly if a keyed random number falls below `share`. `solutions` are the answers it considers
    correct."""

    def __init__(self, solutions, share=1.0):
        self.solutions, self.share, self.asked = set(solutions), share, []

    def loglikelihood(self, requests):
        self.asked += requests
        return [self._score(r) for r in requests]

    def _score(self, request):
        known = noise("knows", request.context) < self.share
        right = known and any(request.context.endswith(c) and request.continuation == s for c, s in self.solutions)
        nats = 1 if right else 5 + noise(request.context, request.continuation)
        return scored(-nats * len(request.continuation.split()), request.continuation, right)

    def generate(self, prompts, *, settings):
        return [f"{p} ({settings.seed})" for p in prompts]


class Ignorant:
    """Returns pseudo-random scores."""

    def loglikelihood(self, requests):
        return [scored(-10 * noise(r.context, r.continuation), r.continuation) for r in requests]


def passages(count, documents=None):
    """Return distinct deterministic items of three sentences over a small vocabulary."""
    words, items = VOCABULARY.split(), []
    for i in range(count):
        pick = lambda k: words[int(noise(str(i), str(k)) * len(words))]  # noqa: B023, E731
        text = (
            f"Item {i} opens the {pick(0)} of the {pick(1)}. Then it reads a {pick(2)} from the {pick(3)}. "
            f"At last number {i} gives back a {pick(4)} and a {pick(5)}."
        )
        items.append({"id": f"item-{i}", "document": f"doc-{i % (documents or count)}", "text": text})
    return items
