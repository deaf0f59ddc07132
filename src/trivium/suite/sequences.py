"""Probes that need only token sequences: memorisation of trained ones, and how much a longer context helps.

A sequence is memorised if the model, prompted with its first k tokens, continues it with the next k exactly (Pythia:
k = 32). Greedy continuation reproduces the text if and only if every token is the argmax after the true tokens before
it, so that one forward pass decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trivium.errors import DataError
from trivium.evaluation.statistics import share_of
from trivium.evaluation.windows import Encoded
from trivium.plan.plan import Plan
from trivium.tokens.samples import TokenDataset

PROMPT_TOKENS = 32  # and as many that follow
SEQUENCES = 256  # number of training sequences, and of held-out ones
CONFIDENCE = 0.95


class TokenScorer(Protocol):
    def loglikelihood_of_ids(self, requests: Sequence[Encoded]) -> list[tuple[float, bool]]: ...


@dataclass(frozen=True)
class Trained:
    """A sample of the training: its number, the step that trained on it first (from 1), and its tokens."""

    sample: int
    step: int
    ids: list[int]


@dataclass(frozen=True)
class Sequences:
    """The sequences that every checkpoint of every size is asked about. k: tokens of prompt and continuation."""

    k: int
    trained: tuple[Trained, ...]
    heldout: tuple[list[int], ...]


def prompt_tokens(sequence: int) -> int:
    """Return k for a model of this sequence length: 32, or half of a sample that is shorter."""
    return min(PROMPT_TOKENS, (sequence + 1) // 2)


def choose(data: TokenDataset, heldout: TokenDataset | None, plan: Plan, steps: int) -> Sequences:
    """Choose samples at equal distances over the training, and held-out windows.

    Only samples of a source's first epoch are chosen: before its step, a sequence has then not been seen at all.
    """
    first, last = plan.batch.at(steps - 1)
    total = min(first + last, data.num_samples)
    numbers = sorted({n * total // SEQUENCES for n in range(SEQUENCES)})
    numbers = [n for n in numbers if data.where(n).epoch == 0]
    rows = data.samples(numbers).tolist()
    trained = (Trained(n, plan.batch.steps_for(n + 1), ids) for n, ids in zip(numbers, rows, strict=True))
    others = [] if heldout is None else heldout.samples(range(min(SEQUENCES, heldout.num_samples))).tolist()
    return Sequences(prompt_tokens(plan.model.sequence), tuple(trained), tuple(others))


def validation_of(data: TokenDataset) -> TokenDataset | None:
    """Return the held-out samples of the same tokens, or None if there are too few tokens for one."""
    try:
        return TokenDataset.open(data.directory, "validation", sequence=data.sequence, seed=data.seed)
    except DataError:
        return None


def memorisation(sequences: Sequences, scorer: TokenScorer, step: int) -> dict[str, Any]:
    """Measure exact continuations after `step` steps.

    Returns {k, seen, unseen, heldout, recited}: {n, accuracy, interval, nats_per_token} or None of each group, and the
    numbers of the samples that are continued exactly.
    """
    k = sequences.k
    ids = [*(t.ids for t in sequences.trained), *sequences.heldout]
    answers = scorer.loglikelihood_of_ids([Encoded(row[:k], row[k : 2 * k]) for row in ids])
    of_trained = list(zip(sequences.trained, answers, strict=False))
    return {
        "k": k,
        "seen": _group(k, [answer for t, answer in of_trained if t.step <= step]),
        "unseen": _group(k, [answer for t, answer in of_trained if t.step > step]),
        "heldout": _group(k, answers[len(of_trained) :]),
        "recited": [t.sample for t, (_, exact) in of_trained if exact],
    }


def _group(k: int, answers: Sequence[tuple[float, bool]]) -> dict[str, Any] | None:
    if not answers:
        return None
    nats = -sum(likelihood for likelihood, _ in answers) / (k * len(answers))
    return share_of([exact for _, exact in answers], confidence=CONFIDENCE) | {"nats_per_token": nats}


def context_gain(sequences: Sequences, scorer: TokenScorer) -> dict[str, float] | None:
    """Measure the loss of held-out windows early and late (Olsson et al. 2022, arXiv 2209.11895).

    Returns {early, late, gain}: nats per token in the second eighth and in the last quarter of the windows, and how
    much lower the latter is. None if nothing is held out or the windows are shorter than eight tokens.
    """
    if not sequences.heldout or len(sequences.heldout[0]) < 8:
        return None
    length = len(sequences.heldout[0])
    spans = {"early": (length // 8, length // 4), "late": (length - length // 4, length)}
    found = {}
    for name, (start, stop) in spans.items():
        answers = scorer.loglikelihood_of_ids([Encoded(row[:start], row[start:stop]) for row in sequences.heldout])
        found[name] = -sum(likelihood for likelihood, _ in answers) / (len(answers) * (stop - start))
    return found | {"gain": found["early"] - found["late"]}
