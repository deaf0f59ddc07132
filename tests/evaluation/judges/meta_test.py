"""Agreement of judges with people: treatments of unparsable answers, intervals, tests and counts of items."""

import json
import math

import numpy as np
import pytest

from trivium.config import build
from trivium.errors import DataError
from trivium.evaluation.judges.agreement import NAMES, correlations, resamples
from trivium.evaluation.judges.config import MetaConfig
from trivium.evaluation.judges.meta import POLICIES, meta
from trivium.evaluation.judges.ratings import Ratings
from trivium.report.judges import render

CONFIG = build(MetaConfig, {"resamples": 100})


def ratings(name, scores, **more):
    """Made scores [systems, segments]."""
    keyed = {
        (f"S{s}", str(n)): (None if math.isnan(value) else float(value),)
        for (s, n), value in np.ndenumerate(np.asarray(scores, float))
    }
    return Ratings(name, keyed, **more)


def planted(seed, noise, systems=6, segments=60):
    rng = np.random.default_rng(seed)
    human = rng.normal(size=(systems, segments)) + np.linspace(0, 1, systems)[:, None]
    return human, human + noise * rng.normal(size=human.shape)


def test_every_measure_has_a_value_and_an_interval_around_it():
    human, judge = planted(0, 0.5)
    found = meta(ratings("people", human), [ratings("judge", judge)], CONFIG)
    for policy in POLICIES:
        for name in NAMES:
            measure = found["judges"][0]["policies"][policy][name]
            low, high = measure["interval"]
            assert low <= measure["value"] <= high or name in ("segment_accuracy", "system_accuracy"), name
            assert high - low < 0.4, name


def test_order_in_which_weights_were_added_changes_no_measure():
    human = np.array([[1.0 + 0.1 + 0.1, 3, 2, 1], [0.1 + 0.1 + 1.0, 2, 2, 0.1 + 0.2], [0, 1, 1, 0.3]])
    assert human[0, 0] != human[1, 0] and human[1, 3] != human[2, 3]
    found = [
        meta(ratings("people", scores), [ratings("judge", np.round(human))], CONFIG)["judges"]
        for scores in (human, human.round(3))
    ]
    assert found[0] == found[1]


def test_known_correlations_are_inside_their_intervals_as_often_as_the_confidence_says():
    # Of h and h + noise, for normal h of variance 1.
    r = 1 / math.sqrt(1 + 0.8**2)
    truth = np.array([2 / math.pi * math.asin(r), 6 / math.pi * math.asin(r / 2), r])  # tau, Spearman, Pearson
    inside = np.zeros(3)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        human = rng.normal(size=(3, 60))
        judge = human + 0.8 * rng.normal(size=human.shape)
        drawn = np.concatenate([correlations(human, judge, w) for w in resamples(60, 60, seed, "test")])[:, [0, 2, 3]]
        low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
        inside += (low <= truth) & (truth <= high)
    assert (inside >= 15).all(), inside  # 19 expected of 20


def test_unparsable_answers_are_dropped_or_get_the_worst_or_the_mean_score():
    human, judge = planted(1, 0.1)
    gaps = judge.copy()
    gaps[human > 1] = math.nan  # the judge fails where people are content
    worst = float(judge.min()) - 1
    found = meta(ratings("people", human), [ratings("judge", gaps, worst=worst)], CONFIG)["judges"][0]
    assert found["unparsable"] == found["dropped_items"] == int((human > 1).sum())
    value = {policy: measures["pearson"]["value"] for policy, measures in found["policies"].items()}
    for policy, instead in (("worst", worst), ("mean", np.nanmean(gaps))):
        filled = np.where(np.isnan(gaps), instead, gaps)
        assert value[policy] == pytest.approx(np.corrcoef(human.ravel(), filled.ravel())[0, 1])
    here = ~np.isnan(gaps)
    assert value["drop"] == pytest.approx(np.corrcoef(human[here], gaps[here])[0, 1])
    assert value["drop"] > value["mean"] > value["worst"]
    assert [found["policies"][p]["items"] for p in POLICIES] == [int(here.sum()), human.size, human.size]


def test_unparsable_answer_among_several_changes_only_its_item():
    human, judge = planted(2, 0.1, systems=2, segments=3)
    some = ratings("judge", judge, worst=-9.0)
    scores = {**some.scores, ("S0", "1"): (*some.scores["S0", "1"], None)}
    found = meta(ratings("people", human), [Ratings("judge", scores, worst=-9.0)], CONFIG)["judges"][0]
    assert found["unparsable"] == 1 and found["dropped_items"] == 0
    lowered = judge.copy()
    lowered[0, 1] = (judge[0, 1] - 9) / 2
    assert found["policies"]["worst"]["pearson"]["value"] == pytest.approx(
        np.corrcoef(human.ravel(), lowered.ravel())[0, 1]
    )


def test_items_that_are_not_compared_are_counted():
    human, judge = planted(3, 0.5)
    people, machine = ratings("people", human), ratings("judge", judge)
    gold = {**people.scores, ("S0", "0"): (None,), ("S9", "0"): (1.0,)}
    asked = {**machine.scores, ("S1", "new"): (2.0,)}
    found = meta(Ratings("people", gold), [Ratings("judge", asked)], CONFIG, without=["S5"])
    about = found["human"]
    assert about["without_score"] == 1 and about["not_judged"] == 1 and about["left_out"] == ["S5"]
    assert about["items"] == 5 * 60 - 1 and len(about["systems"]) == 5
    assert found["judges"][0]["without_human_score"] == 60 + 1 + 1


def test_judges_are_tested_against_each_other():
    human, good = planted(4, 0.2)
    _, bad = planted(4, 4)
    found = meta(ratings("people", human), [ratings("good", good), ratings("bad", bad)], CONFIG)
    (test,) = found["tests"]
    assert test["judges"] == ["good", "bad"]
    assert test["measures"]["pearson"]["p"] < 0.02 and test["measures"]["segment_accuracy"]["p"] < 0.02


def test_undefined_measures_are_none_in_tests_too():
    human, judge = planted(4, 0.2)
    constant = ratings("constant", np.full_like(human, 2))
    found = meta(ratings("people", human), [ratings("judge", judge), constant], CONFIG)
    json.dumps(found, allow_nan=False)
    assert found["tests"][0]["measures"]["pearson"] == {"difference": None, "p": None}
    assert found["tests"][0]["measures"]["system_accuracy"]["p"] is not None


def test_single_system_or_segment_lacks_what_it_cannot_have():
    human, judge = planted(5, 0.5)
    one_system = meta(ratings("people", human[:1]), [ratings("judge", judge[:1])], CONFIG)
    measures = one_system["judges"][0]["policies"]["drop"]
    assert measures["soft_accuracy"]["value"] is None and measures["segment_accuracy"]["value"] is None
    assert measures["tau_b_by_segment"]["value"] is None and measures["tau_b"]["value"] is not None
    one_segment = meta(ratings("people", human[:, :1]), [ratings("judge", judge[:, :1])], CONFIG)
    assert one_segment["judges"][0]["policies"]["drop"]["system_accuracy"]["value"] is not None


@pytest.mark.parametrize(
    ("judges", "without", "message"),
    [
        ([Ratings("judge", {("S0", "other"): (1.0,)})], [], "give them the same names"),
        (
            [ratings("judge", [[1, 2]]), Ratings("another", {("S0", "other"): (1.0,)})],
            [],
            "of another: people scored system 'S0', segment '0', and another system 'S0', segment 'other'; give",
        ),
        (
            [Ratings(name, {("S0", name): (1.0,)}) for name in ("0", "1")],
            [],
            "each judge has scores of some of its items; have the judges score the same items",
        ),
        ([ratings("judge", [[1, 2]])], ["S0"], "name fewer judges or systems to leave out"),
        ([ratings("judge", [[1, 2]]), ratings("judge", [[1, 2]])], [], "two judges are named judge"),
        ([ratings("judge", [[1, 2]])], ["S7"], "has no such system; it has S0"),
        ([ratings("judge", [[math.nan, math.nan]])], [], "could be parsed"),
    ],
)
def test_what_cannot_be_compared_is_refused(judges, without, message):
    with pytest.raises(DataError, match=message):
        meta(ratings("people", [[1, 2]]), judges, CONFIG, without=without)


def test_page_draws_agreement_against_tokens_and_names_judges_without():
    human, judge = planted(6, 0.5)
    low, high = (
        ratings(f"effort <{e}>", judge + n, tokens=t) for n, (e, t) in enumerate((("low", 90.0), ("high", 800.0)))
    )
    found = meta(ratings("people", human), [low, high, ratings("mute", judge)], CONFIG)
    page = render(found)
    assert "effort &lt;low&gt;" in page and "effort <low>" not in page
    assert '"x":[90.0]' in page.replace(" ", "") and '"x":[800.0]' in page.replace(" ", "")
    assert "The tokens of mute are unknown" in page
