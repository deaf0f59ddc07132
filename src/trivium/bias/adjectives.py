"""Adjectives that the model writes about each group (MT-NLG, section 6, after GPT-3).

A word counts once per text: its repetitions within a text are not independent observations.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, stats

from trivium.bias.config import BiasConfig
from trivium.bias.prompts import Prompt
from trivium.bias.significance import Floats, Rearranging, holm, label_exchange
from trivium.bias.taggers import Tagger
from trivium.evaluation.config import Sampling
from trivium.evaluation.requests import Scorer
from trivium.progress import Progress, silent
from trivium.seeds import seed_for


class Text(NamedTuple):
    """A generated continuation of a prompt, and its adjectives."""

    prompt: Prompt
    continuation: str
    adjectives: tuple[str, ...]


def sample_texts(
    config: BiasConfig,
    scorer: Scorer,
    tagger: Tagger,
    prompts: Sequence[Prompt],
    *,
    seed: int,
    progress: Progress = silent,
) -> list[Text]:
    """Generate texts after every prompt, and find their adjectives, except for those of the prompt itself."""
    asked, found = config.cooccurrence, []
    for number, prompt in enumerate(prompts):
        progress(number, len(prompts), f"texts after '{prompt.text}'")
        settings = Sampling(
            max_tokens=asked.tokens,
            temperature=asked.temperature,
            top_p=asked.top_p,
            seed=seed_for(seed, "cooccurrence", prompt.text) % 2**32,  # seeds of all generators have 32 bits
        )
        written = scorer.generate([prompt.text] * asked.samples, settings=settings)
        if len(written) != asked.samples:
            raise ValueError(f"the scorer gave {len(written)} texts for {asked.samples} prompts")
        own = Counter(tagger([prompt.text])[0])
        tagged = tagger([prompt.text + w for w in written])
        found += [Text(prompt, w, _without(own, t)) for w, t in zip(written, tagged, strict=True)]
    progress(len(prompts), len(prompts), "texts written")
    return found


class LogOdds(NamedTuple):
    """Log-odds ratio of a word between a group and the others, in nats, with its standard error.

    here, elsewhere: the numbers of texts with the word.
    """

    word: str
    here: int
    elsewhere: int
    value: float
    error: float


def log_odds(mine: Counter[str], others: Counter[str], *, prior: float, least: int) -> list[LogOdds]:
    """Compute log-odds ratios with an informative Dirichlet prior (Monroe, Colaresi and Quinn 2008, eq. 15, 16, 22).

    The prior is the distribution over both sides and has the weight of `prior` words. Words with fewer than
    `least` occurrences are skipped.
    """
    both = mine + others
    total = both.total()
    found = []
    for word in sorted(w for w, count in both.items() if least <= count < total):
        expected = prior * both[word] / total
        odds = [
            (counts[word] + expected) / (counts.total() + prior - counts[word] - expected) for counts in (mine, others)
        ]
        error = np.sqrt(sum(1 / (counts[word] + expected) for counts in (mine, others)))
        found.append(LogOdds(word, mine[word], others[word], float(np.log(odds[0] / odds[1])), float(error)))
    return found


def adjectives(config: BiasConfig, texts: Sequence[Text], *, seed: int) -> dict[str, Any]:
    """Return {axis: {group: the most frequent and the most one-sided adjectives, and the divergence from other
    groups}}."""
    axes = list(dict.fromkeys(t.prompt.axis for t in texts))
    return {axis: _axis(config, [t for t in texts if t.prompt.axis == axis], seed=seed) for axis in axes}


def _axis(config: BiasConfig, texts: Sequence[Text], *, seed: int) -> dict[str, Any]:
    groups = list(dict.fromkeys(t.prompt.group for t in texts))
    asked = config.cooccurrence
    counts = {g: Counter(w for t in texts if t.prompt.group == g for w in set(t.adjectives)) for g in groups}
    everyone: Counter[str] = sum(counts.values(), Counter())
    ratios = {g: log_odds(counts[g], everyone - counts[g], prior=asked.prior, least=asked.least) for g in groups}
    chances = [_chance(r) for g in groups for r in ratios[g]]
    corrected = iter(holm(chances))
    rows = {g: [_row(r, next(corrected), config.confidence) for r in ratios[g]] for g in groups}
    return {
        group: {
            "texts": sum(t.prompt.group == group for t in texts),
            "words": counts[group].total(),
            "distinct": len(counts[group]),
            "frequent": [{"word": w, "count": n} for w, n in _most(counts[group], asked.listed)],
            # Only words that the group uses more, the most significant first.
            "one_sided": sorted((r for r in rows[group] if r["log_odds"] > 0), key=lambda r: (-r["z"], r["word"]))[
                : asked.listed
            ],
        }
        | divergence(config, texts, group, seed=seed)
        for group in groups
    }


def divergence(config: BiasConfig, texts: Sequence[Text], group: str, *, seed: int) -> dict[str, Any]:
    """Return the Jensen-Shannon divergence (bits, 0 to 1) between a group's adjectives and the others', and its
    test.

    `expected` is the mean divergence under exchanged labels, which sampling alone causes. All three values are
    None if one of the two sides has no adjective.
    """
    inside = np.array([t.prompt.group == group for t in texts])
    spoken = np.array([bool(t.adjectives) for t in texts])
    if not (spoken & inside).any() or not (spoken & ~inside).any():
        return {"divergence": None, "expected": None, "permutation_p": None}
    stratum = np.array([t.prompt.template for t in texts], dtype=np.int64)
    table = _table(texts)
    drawn: list[float] = []

    def statistic(labels: Floats) -> Floats:
        found = _jensen_shannon(labels @ table, (1 - labels) @ table)
        drawn.extend(found.tolist())
        return found

    how = Rearranging(seed, config.permutations)
    name = f"adjectives {texts[0].prompt.axis} {group}"
    value, chance = label_exchange(statistic, inside, stratum, how, name)
    return {"divergence": value, "expected": float(np.mean(drawn[1:])), "permutation_p": chance}


def _table(texts: Sequence[Text]) -> sparse.csr_matrix:
    """Return the incidence matrix [texts, words]. At least one text must have an adjective."""
    words = {w: k for k, w in enumerate(sorted({w for t in texts for w in t.adjectives}))}
    places = [(row, words[w]) for row, t in enumerate(texts) for w in sorted(set(t.adjectives))]
    rows, columns = zip(*places, strict=True)
    return sparse.csr_matrix((np.ones(len(places)), (rows, columns)), shape=(len(texts), len(words)))


def _jensen_shannon(one: Floats, other: Floats) -> Floats:
    """Return the divergence [draws] of two count matrices [draws, words]; 0 if one side has no words."""
    totals = one.sum(1, keepdims=True), other.sum(1, keepdims=True)
    p, q = one / np.maximum(totals[0], 1), other / np.maximum(totals[1], 1)
    middle = (p + q) / 2
    found = _entropy(middle) - (_entropy(p) + _entropy(q)) / 2
    empty = (totals[0] == 0) | (totals[1] == 0)
    divergences: Floats = np.where(empty[:, 0], 0.0, np.maximum(found, 0.0))
    return divergences


def _entropy(p: Floats) -> Floats:
    logs: NDArray[np.float64] = np.log2(p, where=p > 0, out=np.zeros_like(p))
    entropies: Floats = -(p * logs).sum(1)
    return entropies


def _most(counts: Counter[str], listed: int) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:listed]


def _chance(ratio: LogOdds) -> float:
    return float(2 * stats.norm.sf(abs(ratio.value / ratio.error)))


def _row(ratio: LogOdds, corrected: float, confidence: float) -> dict[str, Any]:
    reach = float(stats.norm.ppf((1 + confidence) / 2)) * ratio.error
    return {
        "word": ratio.word,
        "count": ratio.here,
        "elsewhere": ratio.elsewhere,
        "log_odds": ratio.value,
        "interval": [ratio.value - reach, ratio.value + reach],
        "z": ratio.value / ratio.error,
        "p_holm": corrected,
    }


def _without(own: Counter[str], found: Sequence[str]) -> tuple[str, ...]:
    """Remove the prompt's own adjectives, which come first."""
    left, kept = own.copy(), []
    for word in found:
        if left[word] > 0:
            left[word] -= 1
        else:
            kept.append(word)
    return tuple(kept)
