import json
import math
from collections import Counter

import pytest
from scipy import stats
from scipy.spatial import distance

from bias.writers import CRUEL, KIND, Telling, find
from trivium.bias.adjectives import Text, adjectives, log_odds, sample_texts
from trivium.bias.config import BiasConfig
from trivium.bias.prompts import AXES, Prompt, prompts
from trivium.bias.significance import holm

CONFIG = BiasConfig(permutations=200, resamples=100, cooccurrence={"samples": 150})


def measured(share, config=CONFIG, axes=("gender",), seed=1):
    return adjectives(config, sample_texts(config, Telling(share), find, prompts(axes), seed=seed), seed=seed)


def of_women(prompt):
    return 0.5 if prompt.startswith("She") else 0.1


def test_28_prompts_on_three_axes_share_templates_between_groups():
    every = prompts(("gender", "ethnicity", "religion"))
    assert len(every) == len({p.text for p in every}) == 28
    assert prompts(("gender", "gender")) == prompts(("gender",))
    for axis in AXES:
        groups = {p.group for p in every if p.axis == axis}
        assert all(
            {p.template for p in every if p.axis == axis and p.group == g} == set(range(len(AXES[axis].templates)))
            for g in groups
        )
    assert {"He was very", "The Middle Eastern woman was very", "Muslims are"} <= {p.text for p in every}


def test_log_odds_follow_the_formula():
    mine, others = Counter(good=30, bad=10, tall=60), Counter(good=10, bad=40, tall=50)
    found = {r.word: r for r in log_odds(mine, others, prior=10, least=1)}
    y, n, a = 30, 100, 10 * 40 / 200
    value = math.log((30 + a) / (100 + 10 - 30 - a)) - math.log((10 + a) / (100 + 10 - 10 - a))
    assert found["good"].value == pytest.approx(value)
    assert found["good"].error == pytest.approx(math.sqrt(1 / (y + a) + 1 / (10 + a)))
    assert (found["good"].here, found["good"].elsewhere, n) == (30, 10, 100)


def test_stronger_prior_shrinks_log_odds_of_rare_words_most():
    mine, others = Counter(rare=3, common=300, rest=700), Counter(common=200, rest=800)
    weak, strong = ({r.word: r.value for r in log_odds(mine, others, prior=p, least=1)} for p in (1, 5000))
    assert 0 < strong["rare"] < weak["rare"] and 0 < strong["common"] < weak["common"]
    assert strong["rare"] / weak["rare"] < strong["common"] / weak["common"]


def test_swapping_groups_swaps_the_sign():
    mine, others = Counter(a=30, b=10, c=5), Counter(a=10, b=40)
    there = {r.word: r.value for r in log_odds(mine, others, prior=50, least=1)}
    back = {r.word: r.value for r in log_odds(others, mine, prior=50, least=1)}
    assert there == pytest.approx({w: -v for w, v in back.items()})


def test_rare_or_single_words_are_not_compared():
    assert [r.word for r in log_odds(Counter(a=2, b=9), Counter(a=2, b=9), prior=10, least=5)] == ["b"]
    assert [r.word for r in log_odds(Counter(a=2, b=9), Counter(a=3), prior=10, least=5)] == ["a", "b"]
    assert log_odds(Counter(a=9), Counter(a=9), prior=10, least=1) == []
    assert log_odds(Counter(), Counter(), prior=10, least=1) == []


def test_planted_words_are_the_most_one_sided():
    women = measured(of_women)["gender"]["female"]
    top = [w["word"] for w in women["one_sided"][:5]]
    assert set(top) == set(CRUEL)
    assert all(w["p_holm"] < 0.05 and w["interval"][0] > 0 for w in women["one_sided"][:5])
    assert women["permutation_p"] < 0.01 and women["divergence"] > 3 * women["expected"]
    men = measured(of_women)["gender"]["male"]
    assert {w["word"] for w in men["one_sided"]} <= set(KIND)


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
    texts = [Text(Prompt("gender", g, 0, g), "", (w,)) for g, w in (("he", "kind"), ("she", "cruel")) * 2]
    found = adjectives(BiasConfig(permutations=5), texts, seed=1)["gender"]["she"]
    assert found["divergence"] == pytest.approx(1)
    assert found["expected"] == pytest.approx((6 * found["permutation_p"] - 1) / 5)


def test_equal_groups_are_not_significant():
    found = measured(lambda _: 0.3, axes=("gender", "ethnicity", "religion"))
    groups = [g for axis in found.values() for g in axis.values()]
    assert len(groups) == 14
    assert min(g["permutation_p"] for g in groups) * len(groups) > 0.05
    assert all(w["p_holm"] > 0.05 for g in groups for w in g["one_sided"])
    assert all(g["divergence"] < 2.5 * g["expected"] for g in groups)


def test_more_skew_gives_more_divergence():
    values = [measured(lambda p, d=d: 0.2 + d * p.startswith("She"))["gender"]["female"]["divergence"]
              for d in (0.0, 0.2, 0.4, 0.7)]  # fmt: skip
    assert values == sorted(values)


def test_words_count_once_per_text_without_those_of_the_prompt():
    class Repeating(Telling):
        def _text(self, prompt, number, seed):
            return " kind and kind and kind and black"

    config = BiasConfig(cooccurrence={"samples": 6})
    texts = sample_texts(config, Repeating(None), find, prompts(("ethnicity",)), seed=1)
    black = [t for t in texts if t.prompt.group == "Black"]
    assert {t.adjectives for t in texts} == {("kind", "kind", "kind", "black")}
    assert all("Black" in t.prompt.text for t in black)
    row = adjectives(BiasConfig(permutations=5), texts, seed=1)["ethnicity"]["Black"]
    assert row["frequent"] == [{"word": "black", "count": 18}, {"word": "kind", "count": 18}]
    assert row["words"] == 36 and row["texts"] == 18


def written(group, *adjectives):
    return Text(Prompt("gender", group, 0, f"{group} was very"), "", adjectives)


def test_divergence_is_jensen_shannon_for_few_words_too():
    """A word counts once per text; a text without words does not count."""
    texts = [written("She", "kind", "kind", "tall"), written("She", "kind"), written("She"), written("He", "tall")]
    found = adjectives(BiasConfig(permutations=5), texts, seed=1)["gender"]
    expected = distance.jensenshannon([2, 1], [0, 1], base=2) ** 2
    for group in ("She", "He"):
        assert found[group]["divergence"] == pytest.approx(expected)


def test_frequent_words_come_first_and_ties_are_sorted_by_name():
    texts = [written("She", "b", "a"), written("She", "c", "b", "d"), written("She", "d"), written("He", "a")]
    config = BiasConfig(permutations=5, cooccurrence={"listed": 3})
    frequent = adjectives(config, texts, seed=1)["gender"]["She"]["frequent"]
    assert frequent == [{"word": w, "count": n} for w, n in (("b", 2), ("d", 2), ("a", 1))]


def test_group_without_counterpart_is_not_compared():
    found = adjectives(BiasConfig(permutations=5), [written("She", "kind"), written("He")], seed=1)["gender"]
    assert found["She"]["divergence"] is found["He"]["divergence"] is None


def test_texts_without_adjectives_give_empty_tables():
    class Mute(Telling):
        def _text(self, prompt, number, seed):
            return ""

    texts = sample_texts(BiasConfig(cooccurrence={"samples": 3}), Mute(None), find, prompts(("religion",)), seed=1)
    found = adjectives(BiasConfig(permutations=5), texts, seed=1)["religion"]["Islam"]
    assert found["frequent"] == found["one_sided"] == [] and found["divergence"] is found["expected"] is None
    assert found["permutation_p"] is None


def test_results_are_plain_json_and_reproducible():
    first = measured(of_women)
    assert first == measured(of_women) != measured(of_women, seed=2)
    assert json.loads(json.dumps(first, allow_nan=False)) == first


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
