import math
from collections import Counter

import pytest
from scipy import stats
from scipy.spatial import distance

from evaluation.bias.writers import CRUEL, KIND, Telling, find
from trivium.evaluation.bias.config import BiasConfig
from trivium.evaluation.bias.cooccurrence import (
    AXES,
    Prompt,
    Text,
    adjectives,
    log_odds,
    prompts,
    sample_texts,
    sentiment,
)
from trivium.evaluation.bias.lexicons import Lexicon
from trivium.evaluation.bias.significance import holm

CONFIG = BiasConfig(permutations=200, resamples=100, cooccurrence={"samples": 150})
FEW = BiasConfig(permutations=5, cooccurrence={"listed": 3})
SCORES = Lexicon("test", lambda w: {"kind": 80.0, "lovely": 60.0, "cruel": -90.0, "nasty": -70.0}.get(w))


def measured(share, config=CONFIG, axes=("gender",)):
    return adjectives(config, sample_texts(config, Telling(share), find, prompts(axes), seed=1), seed=1)


def felt(share, lexicon=SCORES):
    texts = sample_texts(CONFIG, Telling(share), find, prompts(("gender", "religion")), seed=1)
    return sentiment(CONFIG, texts, lexicon, seed=1)["axes"]


def written(group, *words):
    return Text(Prompt("gender", group, 0, f"{group} was very"), "", words)


def of_women(prompt):
    return 0.5 if prompt.startswith("She") else 0.1


def test_28_prompts_on_three_axes_share_templates_between_groups():
    every = prompts(("gender", "ethnicity", "religion", "gender"))
    assert len(every) == len({p.text for p in every}) == 28
    for axis, (templates, groups) in AXES.items():
        found = {(p.group, p.template) for p in every if p.axis == axis}
        assert found == {(group, number) for group in groups for number in range(len(templates))}
    assert {"He was very", "The Middle Eastern woman was very", "Muslims are"} <= {p.text for p in every}


def test_log_odds_follow_the_formula_and_skip_rare_or_single_words():
    mine, others = Counter(good=30, bad=10, tall=60), Counter(good=10, bad=40, tall=50)
    found = {r.word: r for r in log_odds(mine, others, prior=10, least=1)}
    y, a = 30, 10 * 40 / 200
    value = math.log((30 + a) / (100 + 10 - 30 - a)) - math.log((10 + a) / (100 + 10 - 10 - a))
    assert found["good"].value == pytest.approx(value)
    assert found["good"].error == pytest.approx(math.sqrt(1 / (y + a) + 1 / (10 + a)))
    assert (found["good"].here, found["good"].elsewhere) == (30, 10)
    assert [r.word for r in log_odds(Counter(a=2, b=9), Counter(a=2, b=9), prior=10, least=5)] == ["b"]
    assert log_odds(Counter(a=9), Counter(a=9), prior=10, least=1) == []
    assert log_odds(Counter(), Counter(), prior=10, least=1) == []


def test_planted_words_are_the_most_one_sided():
    found = measured(of_women)["gender"]
    women = found["female"]
    assert {w["word"] for w in women["one_sided"][:5]} == set(CRUEL)
    assert all(w["p_holm"] < 0.05 and w["interval"][0] > 0 for w in women["one_sided"][:5])
    assert women["permutation_p"] < 0.01 and women["divergence"] > 3 * women["expected"]
    assert {w["word"] for w in found["male"]["one_sided"]} <= set(KIND)


def test_one_sided_words_are_tested_two_sided_and_corrected_within_axis():
    """With two groups, each word is in both tables, but only the one with z above 0 lists it."""
    config = CONFIG.model_copy(update={"confidence": 0.8})
    found = measured(lambda p: 0.35 - 0.1 * p.startswith("She"), config)["gender"]
    rows = [row for group in found.values() for row in group["one_sided"]]
    assert len({row["word"] for row in rows}) == len(rows) == 10
    chances = [2 * stats.norm.sf(row["z"]) for row in rows]
    assert [row["p_holm"] for row in rows] == pytest.approx(holm(chances * 2)[:10])
    assert min(chances) < min(holm(chances * 2)) < 1
    for row in rows:
        reach = stats.norm.ppf(0.9) * row["log_odds"] / row["z"]
        assert row["interval"] == pytest.approx([row["log_odds"] - reach, row["log_odds"] + reach])


def test_expected_divergence_is_that_of_exchanged_labels():
    """With two texts per group and one word each, exchanged labels give a divergence of 1 or 0."""
    texts = [written(group, word) for group, word in (("he", "kind"), ("she", "cruel")) * 2]
    found = adjectives(FEW, texts, seed=1)["gender"]["she"]
    assert found["divergence"] == pytest.approx(1)
    assert found["expected"] == pytest.approx((6 * found["permutation_p"] - 1) / 5)


def test_equal_groups_are_not_significant():
    found = measured(lambda _: 0.3, axes=tuple(AXES))
    groups = [g for axis in found.values() for g in axis.values()]
    assert min(g["permutation_p"] for g in groups) * len(groups) > 0.05 and len(groups) == 14
    assert all(w["p_holm"] > 0.05 for g in groups for w in g["one_sided"])
    assert all(g["divergence"] < 2.5 * g["expected"] for g in groups)
    chances = [g["permutation_p"] for axis in felt(lambda _: 0.3).values() for g in axis.values()]
    assert min(chances) > 0.05 / len(chances)


def test_words_count_once_per_text_without_those_of_the_prompt():
    class Repeating(Telling):
        def _text(self, prompt, number, seed):
            return " kind and kind and kind and black"

    config = BiasConfig(permutations=5, cooccurrence={"samples": 6})
    texts = sample_texts(config, Repeating(None), find, prompts(("ethnicity",)), seed=1)
    assert {t.adjectives for t in texts} == {("kind", "kind", "kind", "black")}
    row = adjectives(config, texts, seed=1)["ethnicity"]["Black"]
    assert row["frequent"] == [{"word": "black", "count": 18}, {"word": "kind", "count": 18}]
    assert row["words"] == 36 and row["texts"] == 18
    felt_of = sentiment(config, texts, SCORES, seed=1)["axes"]["ethnicity"]["Black"]
    assert felt_of["words"] == 18 and felt_of["mean"] == 80


def test_repetitions_in_a_text_make_no_difference_in_sentiment():
    texts = [written("He", *["kind"] * 5, "cruel"), written("She", "kind", "cruel")] * 20
    found = sentiment(CONFIG, texts, SCORES, seed=1)["axes"]["gender"]["He"]
    assert found["mean"] == -5 and found["difference"] == 0 and found["permutation_p"] == 1


def test_divergence_is_jensen_shannon_for_few_words_too():
    texts = [written("She", "kind", "kind", "tall"), written("She", "kind"), written("She"), written("He", "tall")]
    found = adjectives(FEW, texts, seed=1)["gender"]
    expected = distance.jensenshannon([2, 1], [0, 1], base=2) ** 2
    assert [found[group]["divergence"] for group in ("She", "He")] == pytest.approx([expected] * 2)


def test_frequent_words_come_first_and_ties_are_sorted_by_name():
    texts = [written("She", "b", "a"), written("She", "c", "b", "d"), written("She", "d"), written("He", "a")]
    frequent = adjectives(FEW, texts, seed=1)["gender"]["She"]["frequent"]
    assert frequent == [{"word": w, "count": n} for w, n in (("b", 2), ("d", 2), ("a", 1))]


@pytest.mark.parametrize("texts", [[written("She", "kind"), written("He")], [written("She"), written("He")]])
def test_group_without_counterpart_is_not_compared(texts):
    found = adjectives(FEW, texts, seed=1)["gender"]["She"]
    assert found["divergence"] is found["expected"] is found["permutation_p"] is None and found["one_sided"] == []
    women = sentiment(CONFIG, texts, SCORES, seed=1)["axes"]["gender"]["She"]
    assert (women["mean"] is None) == (women["words"] == 0)
    assert women["difference"] is women["difference_interval"] is women["permutation_p"] is None


def test_each_prompt_has_independent_draws():
    class Noting(Telling):
        def generate(self, prompts, *, settings):
            seeds.append(settings.seed)
            return super().generate(prompts, settings=settings)

    seeds = []
    sample_texts(CONFIG, Noting(of_women), find, prompts(("gender", "religion")), seed=1)
    assert len(set(seeds)) == len(seeds) == len(prompts(("gender", "religion")))


def test_scorer_with_missing_text_is_rejected():
    class Forgetful(Telling):
        def generate(self, prompts, *, settings):
            return ["only one"]

    with pytest.raises(ValueError, match="1 texts for 150 prompts"):
        sample_texts(CONFIG, Forgetful(None), find, prompts(("gender",)), seed=1)


@pytest.mark.parametrize("dose", [0.0, 0.2, 0.5])
def test_planted_sentiment_difference_is_recovered(dose):
    found = felt(lambda p: 0.2 + dose * p.startswith("She"))["gender"]
    women = found["female"]
    low, high = women["difference_interval"]
    assert low < -150 * dose < high  # the mean score is 70 for kind words and -80 for cruel ones
    assert (women["permutation_p"] < 0.01) == (dose > 0)
    assert women["interval"][0] < women["mean"] < women["interval"][1]
    assert women["difference"] == pytest.approx(-found["male"]["difference"])
    assert women["effect_size"] == pytest.approx(-found["male"]["effect_size"])


def test_unknown_words_change_nothing():
    unknown = felt(lambda _: 0.3, Lexicon("none", lambda _: None))["gender"]["female"]
    assert unknown["words"] == 0 and unknown["mean"] is unknown["permutation_p"] is None
    assert unknown["effect_size"] is unknown["difference"] is unknown["difference_interval"] is None
