"""Gender bias in pronoun resolution, measured by likelihood on Winogender and WinoBias.

An answer is correct if the right person has the higher log-likelihood per token after the question. The margin is
this difference in nats per token. In WinoBias, both versions of a sentence have the same answer, so the difference
of their margins is the effect of the pronoun's gender.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trivium.bias.config import BiasConfig
from trivium.bias.significance import (
    Rearranging,
    Texts,
    bootstrap_ratio,
    label_exchange,
    percentiles,
    sign_flips,
    standardised_difference,
    standardised_mean,
)
from trivium.bias.winograd import WINOBIAS_KINDS, Question, winobias, winogender
from trivium.errors import DataError
from trivium.evaluation.requests import Likelihoods, Request, ask
from trivium.evaluation.statistics import bootstrap_mean, wilson
from trivium.progress import Progress, silent
from trivium.seeds import generator_for


class _Margins(NamedTuple):
    """Margins of the questions in order, in nats per token, and the fraction of prompts that were truncated."""

    values: list[float]
    truncated: float


def coreference(config: BiasConfig, scorer: Likelihoods, *, seed: int, progress: Progress = silent) -> dict[str, Any]:
    """Return {task: {shots: result}} for the requested tasks. Raises DataError without data."""
    tasks = _tasks(config)
    rounds = [(name, questions, shots) for name, questions in tasks.items() for shots in config.shots]
    found: dict[str, dict[str, Any]] = {name: {} for name in tasks}
    for done, (name, questions, shots) in enumerate(rounds):
        progress(done, len(rounds), f"{name}, {shots} shots")
        margins = _margins(scorer, questions, shots=shots, seed=seed)
        found[name][str(shots)] = compare(config, questions, margins, f"{name} {shots}", seed=seed)
    progress(len(rounds), len(rounds), "pronouns asked about")
    return found


def compare(
    config: BiasConfig, questions: Sequence[Question], margins: _Margins, name: str, *, seed: int
) -> dict[str, Any]:
    """Return the results of both sides of a task, and their difference."""
    one, other = dict.fromkeys(q.side for q in questions)
    sides = {
        side: [m for q, m in zip(questions, margins.values, strict=True) if q.side == side] for side in (one, other)
    }
    right = {side: sum(m > 0 for m in values) for side, values in sides.items()}
    paired = len({q.pair for q in questions}) * 2 == len(questions)
    test = _paired if paired else _unpaired
    return {
        "sides": {
            side: {
                "n": len(values),
                "accuracy": right[side] / len(values),
                "interval": list(wilson(right[side], len(values), confidence=config.confidence)),
                "margin": math.fsum(values) / len(values),
            }
            for side, values in sides.items()
        },
        "compared": [one, other],
        "gap": right[one] / len(sides[one]) - right[other] / len(sides[other]),
        "confidence": config.confidence,
        "truncated_fraction": margins.truncated,
        **test(config, sides[one], sides[other], name, seed=seed),
    }


def prompt_of(question: Question, questions: Sequence[Question], *, shots: int, seed: int) -> str:
    """Return a question after solved questions of other sentences.

    The sides of the solved questions alternate. Both versions of a sentence have the same shots.
    """
    sides = list(dict.fromkeys(q.side for q in questions))
    generator = generator_for(seed, "coreference shots", question.pair)
    order = generator.permutation(len(questions)).tolist()
    # The sentence chooses which side comes first. Otherwise a single shot, or the last one, would always be of one
    # side.
    first = int(generator.integers(len(sides)))
    chosen: list[Question] = []
    for place in order:
        if len(chosen) == shots:
            break
        other = questions[place]
        wanted = sides[(first + len(chosen)) % len(sides)]
        if other.side == wanted and other.pair not in {question.pair, *(c.pair for c in chosen)}:
            chosen.append(other)
    if len(chosen) < shots:
        raise DataError(f"bias.shots is {shots}, but only {len(chosen)} other sentences are available; reduce it")
    return "\n\n".join([*(q.query + q.choices[0] for q in chosen), question.query])


def _tasks(config: BiasConfig) -> dict[str, list[Question]]:
    if config.data is None:
        raise DataError(
            "bias.data is not given, and winogender and winobias read their sentences there; set it to the folder "
            f"that holds winogender/ and winobias/, or leave them out of bias.analyses {list(config.analyses)}"
        )
    folder = Path(config.data)
    found = {}
    if "winogender" in config.analyses:
        found["winogender"] = winogender(folder)
    if "winobias" in config.analyses:
        found |= {f"winobias {kind}": winobias(folder, kind) for kind in WINOBIAS_KINDS}
    return found


def _margins(scorer: Likelihoods, questions: Sequence[Question], *, shots: int, seed: int) -> _Margins:
    prompts = [prompt_of(q, questions, shots=shots, seed=seed) for q in questions]
    requests = [Request(p, c) for p, q in zip(prompts, questions, strict=True) for c in q.choices]
    answers = ask(scorer, requests)
    per_token = [a.loglikelihood / a.tokens for a in answers]
    values = [right - wrong for right, wrong in zip(per_token[::2], per_token[1::2], strict=True)]
    return _Margins(values, sum(a.truncated for a in answers) / len(answers))


def _paired(
    config: BiasConfig, one: Sequence[float], other: Sequence[float], name: str, *, seed: int
) -> dict[str, Any]:
    values = [a - b for a, b in zip(one, other, strict=True)]
    interval = bootstrap_mean(values, seed=seed, name=name, confidence=config.confidence, resamples=config.resamples)
    return {
        "margin": math.fsum(values) / len(values),
        "margin_interval": list(interval),
        "permutation_p": sign_flips(values, Rearranging(seed, config.permutations), name),
        "effect_size": standardised_mean(values),
    }


def _unpaired(
    config: BiasConfig, one: Sequence[float], other: Sequence[float], name: str, *, seed: int
) -> dict[str, Any]:
    values = np.array([*one, *other])
    inside = np.arange(len(values)) < len(one)
    texts = Texts(values, np.ones(len(values)), inside, np.zeros(len(values), dtype=np.int64))
    draws = Rearranging(seed, config.resamples)
    mine, rest = (
        bootstrap_ratio(values[side], np.ones(int(side.sum())), draws, f"{name} {k}")
        for k, side in enumerate((inside, ~inside))
    )
    found, chance = label_exchange(
        texts.differences, inside, texts.stratum, Rearranging(seed, config.permutations), name
    )
    return {
        "margin": found,
        "margin_interval": percentiles(mine - rest, config.confidence),
        "permutation_p": chance,
        "effect_size": standardised_difference(texts),
    }
