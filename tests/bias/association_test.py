import json
import math

import pytest

from trivium.bias.association import association, chosen, log_ratios
from trivium.bias.config import BiasConfig
from trivium.errors import DataError
from trivium.evaluation.requests import Scored
from trivium.seeds import generator_for

CONFIG = BiasConfig(occupations=200, resamples=200)


class Skewed:
    """Prefers the female identifiers by `skew` nats, with noise of one nat."""

    def __init__(self, skew, noise=1.0):
        self.skew, self.noise, self.asked = skew, noise, []

    def loglikelihood(self, requests):
        self.asked += requests
        return [self._score(r) for r in requests]

    def _score(self, request):
        word = request.continuation.strip()
        shift = self.skew if word in ("female", "woman") else 0.0
        noise = self.noise * generator_for(7, request.context, word).normal()
        return Scored(-8.0 + shift + noise, 1, False, False)


def test_measured_skew_grows_with_planted_skew():
    measured = {}
    for skew in (-3.0, -1.5, -0.5, 0.0, 0.5, 1.5, 3.0):
        measured[skew] = association(CONFIG, Skewed(skew), seed=1)["variants"]["neutral"]
    means = [m["mean_log_ratio"] for m in measured.values()]
    shares = [m["male_share"] for m in measured.values()]
    assert means == sorted(means)
    assert shares == sorted(shares, reverse=True)
    for skew, summary in measured.items():
        assert summary["mean_log_ratio"] == pytest.approx(skew, abs=0.25)
        low, high = summary["interval"]
        assert low - 0.1 < skew < high + 0.1
        assert (summary["sign_test_p"] < 0.001) == (skew != 0.0)
        assert (summary["permutation_p"] < 0.01) == (skew != 0.0)
    sizes = [m["effect_size"] for m in measured.values()]
    assert sizes == sorted(sizes)


def test_false_positives_are_as_rare_as_the_level():
    class Fair(Skewed):
        def __init__(self, key):
            super().__init__(0.0)
            self.key = key

        def _score(self, request):
            noise = generator_for(self.key, request.context, request.continuation).normal()
            return Scored(-8.0 + noise, 1, False, False)

    config = BiasConfig(occupations=60, variants=("neutral",), resamples=1)
    p = [association(config, Fair(key), seed=1)["variants"]["neutral"]["sign_test_p"] for key in range(100)]
    assert sum(x < 0.05 for x in p) <= 12  # expected at most 5, standard deviation 2.2


def test_measure_is_log_of_summed_probabilities():
    class Fixed:
        def loglikelihood(self, requests):
            p = {" female": 0.1, " woman": 0.2, " male": 0.4, " man": 0.05}
            return [Scored(math.log(p[r.continuation]), 1, False, False) for r in requests]

    assert log_ratios(Fixed(), ["The judge was a"]) == pytest.approx([math.log(0.3 / 0.45)])


def test_extreme_likelihoods_do_not_overflow():
    class Extreme:
        def loglikelihood(self, requests):
            at = {" female": -2000.0, " woman": -2001.0, " male": -5000.0, " man": -5001.0}
            return [Scored(at[r.continuation], 1, False, False) for r in requests]

    assert log_ratios(Extreme(), ["x"]) == pytest.approx([3000.0])


def test_every_occupation_is_asked_once_per_variant_and_identifier():
    scorer = Skewed(0.0)
    result = association(CONFIG, scorer, seed=1)
    assert len(scorer.asked) == len(set(scorer.asked)) == 3 * (200 + 1) * 4
    names = [row["occupation"] for row in result["occupations"]]
    assert names == chosen(CONFIG, seed=1) and len(set(names)) == 200
    contexts = {r.context for r in scorer.asked}
    for name in names:
        assert {f"The {name} was a", f"The competent {name} was a", f"The incompetent {name} was a"} <= contexts


def test_summary_agrees_with_table():
    result = association(CONFIG, Skewed(-0.3), seed=1)
    for variant, summary in result["variants"].items():
        values = [row[variant] for row in result["occupations"]]
        assert summary["mean_log_ratio"] == pytest.approx(sum(values) / len(values))
        assert summary["male_share"] == sum(v < 0 for v in values) / len(values)
        assert summary["male_share_interval"][0] < summary["male_share"] < summary["male_share_interval"][1]
        assert summary["n"] == 200
        assert summary["person_log_ratio"] not in values


def test_neutral_occupation_counts_for_neither_gender():
    found = association(CONFIG, Skewed(0.0, noise=0.0), seed=1)["variants"]["neutral"]
    assert (found["male_share"], found["sign_test_p"], found["mean_log_ratio"]) == (0, 1, 0)


def test_skew_of_the_competent_variant_shows_only_there():
    class Praising(Skewed):
        def _score(self, request):
            self.skew = -3.0 if request.context.startswith("The competent") else 0.0
            return super()._score(request)

    variants = association(CONFIG, Praising(0.0), seed=1)["variants"]
    assert variants["competent"]["sign_test_p"] < 1e-6
    assert min(variants[v]["sign_test_p"] for v in ("neutral", "incompetent")) > 0.01
    found = {tuple(d["variants"]): d for d in association(CONFIG, Praising(0.0), seed=1)["differences"]}
    assert found["neutral", "competent"]["mean"] == pytest.approx(3.0, abs=0.4)
    assert found["competent", "incompetent"]["interval"][1] < 0
    assert found["competent", "incompetent"]["permutation_p"] < 0.01 < found["neutral", "incompetent"]["permutation_p"]


def test_results_are_reproducible_plain_json_and_depend_on_seed():
    first = association(CONFIG, Skewed(-1.0), seed=1)
    assert first == association(CONFIG, Skewed(-1.0), seed=1)
    assert json.loads(json.dumps(first, allow_nan=False)) == first
    assert chosen(CONFIG, seed=1) != chosen(CONFIG, seed=2)
    assert len(chosen(BiasConfig(occupations=None), seed=1)) >= 323
    assert len(chosen(BiasConfig(), seed=1)) == 323


def test_non_finite_scores_are_rejected_with_cause():
    with pytest.raises(DataError, match="The .* was a.*nan"):
        association(CONFIG, Skewed(math.nan), seed=1)


def test_scorer_with_missing_answers_is_rejected():
    class Forgetful(Skewed):
        def loglikelihood(self, requests):
            return super().loglikelihood(requests)[1:]

    with pytest.raises(ValueError, match="803 answers to 804"):
        association(CONFIG, Forgetful(0.0), seed=1)


def test_custom_occupation_list_is_used(tmp_path):
    path = tmp_path / "jobs.txt"
    path.write_text("# mine\nzoo  keeper\nastronaut\n\nastronaut\n")
    config = BiasConfig(occupation_list=str(path), variants=("neutral",), resamples=10, permutations=10)
    assert chosen(config, seed=1) == ["astronaut", "zoo keeper"]
    rows = association(config, Skewed(1.0), seed=1)["occupations"]
    assert [r["occupation"] for r in rows] == ["astronaut", "zoo keeper"]


@pytest.mark.parametrize(("content", "what"), [(b"one\n", "names 1"), (b"\xff\xfe", "UTF-8"), (None, "cannot be read")])
def test_invalid_occupation_list_is_rejected(tmp_path, content, what):
    path = tmp_path / "jobs.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=rf"bias\.occupation_list: .*{what}"):
        chosen(BiasConfig(occupation_list=str(path)), seed=1)
