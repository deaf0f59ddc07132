"""Judge the judges: the agreement of their scores with human scores, with intervals and tests.

Answers that could not be parsed are treated in three ways, and every measure is given for each: `drop` leaves them
out, `worst` gives them the lowest score of the scale, and `mean` the judge's mean score.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any, Literal, get_args

import numpy as np

from trivium.errors import DataError
from trivium.evaluation.judges.agreement import Floats, measures, resamples, rounded, tie_calibration
from trivium.evaluation.judges.compare import compare
from trivium.evaluation.judges.config import MetaConfig
from trivium.evaluation.judges.ratings import Key, Ratings, mean_of
from trivium.progress import Progress, silent

FORMAT = "trivium-judge-meta-1"
Policy = Literal["drop", "worst", "mean"]
POLICIES: tuple[Policy, ...] = get_args(Policy)


def meta(
    human: Ratings,
    judges: Sequence[Ratings],
    config: MetaConfig,
    *,
    without: Sequence[str] = (),
    progress: Progress = silent,
) -> dict[str, Any]:
    """Return {format, human, judges, tests}, where a judge has policies: {policy: {measure: {value, interval}}}.

    without: systems that are left out. Items count that people have scored and all judges were asked about. Raises
    DataError if there are none.
    """
    gold = {key: mean_of(values) for key, values in human.scores.items()}
    gold_known = {key: value for key, value in gold.items() if value is not None and key[0] not in without}
    keys = [key for key in gold_known if all(key in judge.scores for judge in judges)]
    _check(human, judges, keys, without)
    numbers = [{name: n for n, name in enumerate(dict.fromkeys(key[part] for key in keys))} for part in (0, 1)]
    places = tuple(np.asarray([numbers[part][key[part]] for key in keys]) for part in (0, 1))
    shape = len(numbers[0]), len(numbers[1])
    of_human = _matrix(places, shape, [gold_known[key] for key in keys])
    total = len(judges) * len(POLICIES) + len(list(combinations(judges, 2)))
    done, found = 0, []
    grids: list[dict[Policy, Floats]] = []
    for judge in judges:
        grids.append({p: _matrix(places, shape, _scores(judge, keys, p)) for p in POLICIES})
        results: dict[Policy, Any] = {}
        for policy in POLICIES:
            progress(done, total, f"{judge.name}, {policy}")
            same = next((p for p in results if np.array_equal(grids[-1][p], grids[-1][policy], equal_nan=True)), None)
            results[policy] = results[same] if same else _measured(of_human, grids[-1][policy], config)
            done += 1
        found.append(_about(judge, keys) | {"policies": results})
    tests = []
    for one, other in combinations(range(len(judges)), 2):
        progress(done, total, f"{judges[one].name} and {judges[other].name}")
        a, b = grids[one]["drop"], grids[other]["drop"]
        differences = compare(of_human, a, b, seed=config.seed, permutations=config.resamples)
        tests.append({"judges": [judges[one].name, judges[other].name], "measures": differences})
        done += 1
    progress(done, total, "measured")
    about = {
        "name": human.name,
        "systems": list(numbers[0]),
        "segments": shape[1],
        "items": len(keys),
        "without_score": sum(value is None for value in gold.values()),
        "left_out": sorted(set(without)),
        "not_judged": len(gold_known) - len(keys),
    }
    return {
        "format": FORMAT,
        "confidence": config.confidence,
        "resamples": config.resamples,
        "seed": config.seed,
        "human": about,
        "judges": found,
        "tests": tests,
    }


def _check(human: Ratings, judges: Sequence[Ratings], keys: Sequence[Key], without: Sequence[str]) -> None:
    systems = {key[0] for key in human.scores}
    unknown = [name for name in without if name not in systems]
    if unknown:
        raise DataError(f"--without {unknown[0]}: {human.name} has no such system; it has {', '.join(sorted(systems))}")
    if not keys:
        apart = next((judge for judge in judges if human.scores.keys().isdisjoint(judge.scores)), None)
        if apart is None:
            raise DataError(
                f"no item that counts has scores of {human.name} and of all judges, though each judge has scores of "
                f"some of its items; have the judges score the same items, or name fewer judges or systems to leave out"
            )
        some, other = next(iter(human.scores)), next(iter(apart.scores))
        raise DataError(
            f"no item has scores of {human.name} and of {apart.name}: people scored system {some[0]!r}, segment "
            f"{some[1]!r}, and {apart.name} system {other[0]!r}, segment {other[1]!r}; give them the same names"
        )
    names = [judge.name for judge in judges]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"two judges are named {twice}; rename one folder or file, so that results tell them apart")


def _matrix(places: tuple[Any, ...], shape: tuple[int, int], values: Sequence[float | None]) -> Floats:
    found = np.full(shape, np.nan)
    found[places] = [np.nan if value is None else value for value in values]
    return rounded(found, found)


def _scores(judge: Ratings, keys: Sequence[Key], policy: Policy) -> list[float | None]:
    """Return the score of each item: the mean of its answers, with what the policy puts in place of unparsable
    ones."""
    if policy == "drop":
        return [mean_of(judge.scores[key]) for key in keys]
    known = [value for key in keys for value in judge.scores[key] if value is not None]
    if not known:
        raise DataError(f"no answer of {judge.name} about these items could be parsed, so that it has no scores")
    lowest = min(known) if judge.worst is None else judge.worst
    instead = lowest if policy == "worst" else sum(known) / len(known)
    return [mean_of([instead if value is None else value for value in judge.scores[key]]) for key in keys]


def _about(judge: Ratings, keys: Sequence[Key]) -> dict[str, Any]:
    answers = [value for key in keys for value in judge.scores[key]]
    return {
        "name": judge.name,
        "model": judge.about.get("model"),
        "prompt": judge.about.get("prompt"),
        "answers": len(answers),
        "unparsable": answers.count(None),
        "dropped_items": sum(mean_of(judge.scores[key]) is None for key in keys),
        "without_human_score": len(judge.scores) - len(keys),
        "tokens_per_answer": judge.tokens,
    }


def _measured(human: Floats, judge: Floats, config: MetaConfig) -> dict[str, Any]:
    """Return each measure with its bootstrap interval over segments, and the threshold of ties."""
    measure, segments = measures(human, judge, config.seed), human.shape[1]
    drawn = [measure(weights) for weights in resamples(segments, config.resamples, config.seed, "bootstrap")]
    tail = (1 - config.confidence) / 2
    found: dict[str, Any] = {}
    for name, (value,) in measure(np.ones((1, segments))).items():
        spread = np.concatenate([one[name] for one in drawn])
        known = spread[np.isfinite(spread)]
        interval = np.quantile(known, [tail, 1 - tail]).tolist() if len(known) and np.isfinite(value) else None
        found[name] = {"value": float(value) if np.isfinite(value) else None, "interval": interval}
    items = int((np.isfinite(human) & np.isfinite(judge)).sum())
    return {**found, "items": items, "tie_threshold": _threshold(human, judge)}


def _threshold(human: Floats, judge: Floats) -> float | None:
    found = tie_calibration(human, judge)
    return found.threshold if np.isfinite(found.accuracy) else None
