import math
from collections import Counter

import numpy as np
import pytest

from evaluation.benchmark_test import HANS
from evaluation.scorers import Ignorant, noise, scored
from trivium.config import build
from trivium.errors import ConfigError, DataError
from trivium.evaluation.benchmark import evaluate_benchmarks, prepare
from trivium.evaluation.calibration import calibration_error, separation
from trivium.evaluation.config import BenchmarkConfig, IncontextConfig
from trivium.evaluation.incontext import in_turn, measure, orders, study_of
from trivium.evaluation.statistics import wilson
from trivium.evaluation.tasks.definition import definition
from trivium.evaluation.tasks.rows import Rows

CONFIG = IncontextConfig(shots=(0, 1, 2, 3), compare_at=3, draws=8, orders=2, limit=30, seed=1)


def study(config=CONFIG, rows=HANS, name="hans"):
    return study_of(definition(name), Rows(rows, None, "x", "x"), config)


class Copycat:
    """Prefers the majority label of the shots, or the label of the last shot if `last`."""

    def __init__(self, strength=1.0, last=False):
        self.strength, self.last = strength, last

    def loglikelihood(self, requests):
        return [scored(self._score(r), r.continuation) for r in requests]

    def _score(self, request):
        said = [" " + p.rsplit("Answer:", 1)[1].split("\n")[0].strip() for p in request.context.split("\n\n")[:-1]]
        said = said[-1:] if self.last else said
        own = 0.01 * noise(request.context, request.continuation)
        return own + self.strength * (said.count(request.continuation) - len(said) / 2)


class Learner:
    """Prefers the answer more with each shot, in addition to a strong preference for True."""

    def __init__(self, solutions):
        self.solutions = solutions

    def loglikelihood(self, requests):
        return [scored(self._score(r), r.continuation) for r in requests]

    def _score(self, request):
        *shots, question = request.context.split("\n\n")
        right = self.solutions.get(question) == request.continuation
        return len(shots) * right + 2.5 * (request.continuation == " True")


def solutions():
    return {
        f"{r['premise']}\nQuestion: {r['hypothesis']} True or False?\nAnswer:": (" True", " False")[r["label"]]
        for r in HANS
    }


def test_copying_scorers_have_majority_and_recency_bias():
    majority = measure(study(), Copycat())["shots"]["3"]
    assert majority["majority_bias"] > 0.2
    recent = measure(study(), Copycat(last=True))["shots"]["3"]
    assert recent["recency_bias"] > 0.2
    assert recent["recency_bias"] > recent["majority_bias"]
    blind = measure(study(), Copycat(strength=0.0))["shots"]["3"]
    assert abs(blind["majority_bias"]) < 0.15 and abs(blind["recency_bias"]) < 0.15
    assert majority["majority_bias"] > blind["majority_bias"] + 0.1


def test_learning_scorer_improves_calibration_before_accuracy():
    found = measure(study(), Learner(solutions()))["shots"]
    accuracies = [found[k]["accuracy"] for k in ("0", "1", "2", "3")]
    assert accuracies == sorted(accuracies) and accuracies[-1] == 1.0
    assert found["1"]["accuracy"] < 0.7 and found["1"]["threshold_accuracy"] == 1.0
    assert found["1"]["contextual_accuracy"] == 1.0
    assert found["1"]["separation"] == 1.0 and found["0"]["separation"] == 0.5
    assert found["0"]["said"] == {" True": 1.0, " False": 0.0} == found["0"]["by_label"]
    assert found["3"]["by_label"] == {" True": 1.0, " False": 1.0}


def test_truncated_fraction_is_kept_by_condition():
    class Short(Copycat):
        """Truncates prompts of more than two shots, and all inputs without content."""

        def loglikelihood(self, requests):
            asked = {q.split("\n\n")[-1] for q in solutions()}
            cut = [r.context.count("Question:") > 3 or r.context.split("\n\n")[-1] not in asked for r in requests]
            return [scored(self._score(r), r.continuation, truncated=t) for r, t in zip(requests, cut, strict=True)]

    found = measure(study(CONFIG.model_copy(update={"draws": 2})), Short())
    assert [found["shots"][k]["truncated_fraction"] for k in ("0", "1", "2", "3")] == [0, 0, 0, 1]
    assert {m["truncated_fraction"] for m in (*found["order"].values(), *found["source"].values())} == {1}


def test_orders_are_distinct_and_complete_if_few():
    for shots, number in ((1, 4), (2, 4), (3, 4), (3, 6), (3, 9), (4, 24), (4, 20), (8, 5)):
        found = orders(number, shots, seed=3)
        assert len(set(found)) == len(found) == min(number, math.factorial(shots))
        assert all(sorted(order) == list(range(shots)) for order in found)
    assert orders(9, 4, seed=3)[:5] == orders(5, 4, seed=3) != orders(5, 4, seed=4)
    several = [measure(study(CONFIG.model_copy(update={"orders": n})), Copycat(last=True)) for n in (4, 10)]
    assert [(len(m["order"]), m["order_complete"]) for m in several] == [(4, False), (6, True)]


def test_correction_uses_mean_content_free_probability():
    """The model prefers one choice after one of the inputs and the other after the rest, with no average preference."""
    right = solutions()

    class Fickle:
        def loglikelihood(self, requests):
            return [scored(math.log(self._share(r)), r.continuation) for r in requests]

        def _share(self, request):
            question = request.context.split("\n\n")[-1]
            if question in right:
                return 0.6 if request.continuation == right[question] else 0.4
            first = 0.999 if "N/A" in question else 0.2 if "[MASK]" in question else 0.301
            return first if request.continuation == " True" else 1 - first

    found = measure(study(), Fickle())["shots"]["1"]
    assert found["contextual_accuracy"] == found["accuracy"] == 1.0


def test_balances_have_the_stated_labels():
    found = measure(study(), Copycat())["balance"]
    assert set(found) == {"balanced", "only True", "only False"}
    assert found["only True"]["said"][" True"] == 1.0 and found["only False"]["said"][" False"] == 1.0


def test_bias_is_undefined_if_questions_differ_in_shots():
    found = measure(study(), Copycat())
    assert found["shots"]["3"]["majority_bias"] is not None
    assert {m["majority_bias"] for m in found["source"].values()} == {None}


def asked_of(config):
    """Return {condition: shots and question of each prompt}, without the answer."""
    now, asked = [""], {}

    class Spy(Copycat):
        def loglikelihood(self, requests):
            prompts = [[p.split(" True or False?")[0] for p in r.context.split("\n\n")] for r in requests]
            asked.setdefault(now[-1], []).extend(p for p in prompts if "near the" in p[-1])
            return super().loglikelihood(requests)

    measure(study(config), Spy(), progress=lambda done, total, text: now.append(text.removeprefix("hans, ")))
    return asked


def test_shots_are_distinct_and_of_requested_group_and_label():
    asked = asked_of(CONFIG.model_copy(update={"draws": 1, "orders": 1, "limit": 8}))
    row = {f"{r['premise']}\nQuestion: {r['hypothesis']}": r for r in HANS}
    assert {k.removeprefix("source ") for k in asked if k.startswith("source")} == {
        f"{kind} {name}" for kind in ("same", "other") for name in ("heuristic", "subcase")
    }
    for kind, same in (("same", True), ("other", False)):
        for name in ("heuristic", "subcase"):
            for *shots, question in asked[f"source {kind} {name}"]:
                assert {row[s][name] == row[question][name] for s in shots} == {same}
    for *shots, _ in asked["balance balanced"]:
        assert len(set(shots)) == 3 and {row[s]["label"] for s in shots} == {0, 1}


@pytest.mark.parametrize("at", [1, 2, 3])
def test_balanced_shots_are_even_over_draws(at):
    asked = asked_of(CONFIG.model_copy(update={"draws": 2, "orders": 1, "limit": 8, "compare_at": at}))
    label = {f"{r['premise']}\nQuestion: {r['hypothesis']}": r["label"] for r in HANS}
    draws = {tuple(label[s] for s in shots) for *shots, _ in asked["balance balanced"]}
    assert all(abs(d.count(0) - d.count(1)) == at % 2 for d in draws)
    said = [label[s] for *shots, _ in asked["balance balanced"] for s in shots]
    assert said.count(0) == said.count(1)


@pytest.mark.parametrize("labels", [2, 3, 4, 5])
@pytest.mark.parametrize("shots", range(1, 12))
def test_label_counts_differ_by_at_most_one_over_draws(labels, shots):
    each = [lambda example, label=label: [label] * shots for label in range(labels)]
    said = Counter(dict.fromkeys(range(labels), 0))
    for number in range(3 * labels):
        drawn = Counter(in_turn(each, shots, number)(None))
        said += drawn
        for counted in (drawn, said):
            times = [counted[label] for label in range(labels)]
            assert max(times) - min(times) <= 1


def test_more_shots_are_added_at_the_front():
    asked = asked_of(CONFIG.model_copy(update={"draws": 1, "orders": 1, "limit": 8}))
    for one, two, three in zip(*(asked[f"shots {k}"] for k in (1, 2, 3)), strict=True):
        assert three[1:] == two and two[1:] == one


def test_margin_is_lead_over_best_other_choice():
    row = {"question": "Q", "answer": "B"}
    rows = [{**row, "article": f"A{n}", "options": [f"{x}{n}" for x in "abcd"]} for n in range(30)]

    class Sure:
        def loglikelihood(self, requests):
            nats = {"a": -5.0, "b": -2.0, "c": -4.5, "d": -9.0}
            return [scored(nats[r.continuation[1]], r.continuation) for r in requests]

    config = CONFIG.model_copy(update={"shots": (0,), "compare_at": 1, "draws": 1, "orders": 1, "limit": 9})
    found = measure(study(config, rows, "race_h"), Sure())["shots"]["0"]["margins"]
    assert found["edges"][0] == 2.5 and found["counts"]["right"][0] == 9


def test_margins_of_two_choices_without_labels_are_leads_too():
    """A model that is always right has no margin below 0, wherever the right choice stands."""
    rows = [{"goal": f"g{n}", "sol1": f"a{n}", "sol2": f"b{n}", "label": n % 2} for n in range(60)]

    class Right:
        def loglikelihood(self, requests):
            right = [r.continuation[1] == "ab"[int(r.continuation[2:]) % 2] for r in requests]
            return [scored(-5.0 if good else -9.0, r.continuation) for r, good in zip(requests, right, strict=True)]

    found = measure(study(CONFIG.model_copy(update={"shots": (0,), "draws": 2}), rows, "piqa"), Right())
    measured = found["shots"]["0"]
    assert found["labels"] is None and measured["accuracy"] == measured["separation"] == 1.0
    assert measured["margins"]["edges"][0] == 4.0 and measured["margins"]["counts"]["right"][0] == 30 * 2


def test_measures_are_means_over_draws():
    """Bins and histograms count the answers of all draws."""

    class Spy(Ignorant):
        def loglikelihood(self, requests):
            answers = super().loglikelihood(requests)
            nats.append(np.asarray([a.loglikelihood for a in answers]).reshape(-1, 2)[:30])
            return answers

    nats, asked = [], study(CONFIG.model_copy(update={"shots": (3,)}))
    found, examples = measure(asked, Spy())["shots"]["3"], asked.benchmark.task.examples
    gold = np.asarray([e.answer for e in examples])
    assert len(set(found["accuracies"])) > 1
    assert [float((n.argmax(1) == gold).mean()) for n in nats[:8]] == found["accuracies"]
    of_labels = [found["by_label"][label] * (gold == k).sum() for k, label in enumerate(asked.labels)]
    assert sum(of_labels) / 30 == pytest.approx(found["accuracy"]) == pytest.approx(np.mean(found["accuracies"]))
    for groups in found["by_group"].values():
        assert sum(g["accuracy"] * g["n"] for g in groups.values()) == pytest.approx(30 * found["accuracy"])
        assert sum(g["n"] for g in groups.values()) == 30
    assert found["calibration_error"] == pytest.approx(np.mean([calibration_error(n, gold)[0] for n in nats[:8]]))
    assert found["separation"] == pytest.approx(np.mean([separation(n[:, 0] - n[:, 1], gold == 0) for n in nats[:8]]))
    bins = found["calibration_bins"]
    assert sum(b["n"] for b in bins) == 30 * 8
    assert sum(b["n"] * b["accuracy"] for b in bins) / 240 == pytest.approx(found["accuracy"])
    for histograms in ([found["margins"]], found["margins_by_group"].values()):
        counted = [np.sum([h["counts"][label] for h in histograms]) for label in asked.labels]
        assert counted == [8 * (gold == k).sum() for k in (0, 1)]


def test_confidence_is_a_probability_also_of_long_choices():
    """A lead of 10 nats is a probability of nearly 1, whatever number of tokens the score is divided by."""
    rows = [{"goal": f"g{n}", "sol1": "a " * 20, "sol2": "b " * 20, "label": 0} for n in range(60)]

    class Sure:
        def loglikelihood(self, requests):
            return [scored(-20.0 if "a" in r.continuation else -30.0, r.continuation) for r in requests]

    found = measure(study(CONFIG.model_copy(update={"shots": (0,), "draws": 1}), rows, "piqa"), Sure())["shots"]["0"]
    assert found["calibration_error"] == pytest.approx(1 / (1 + math.exp(10)))


def test_interval_is_that_of_mean_over_draws():
    for found in measure(study(), Ignorant())["shots"].values():
        right = round(30 * sum(found["accuracies"]) / 8)
        assert found["interval"] == list(wilson(right, 30, confidence=CONFIG.confidence))


def test_both_wordings_are_measured_at_compare_at():
    rows = [{"goal": f"g{n}", "sol1": f"a{n}", "sol2": f"b{n} more", "label": n % 2} for n in range(60)]
    apart = CONFIG.model_copy(update={"draws": 2, "shots": (0,), "compare_at": 2})
    found = measure(study(apart, rows, "piqa"), Ignorant())["template"]
    asked_too = measure(study(apart.model_copy(update={"shots": (0, 2)}), rows, "piqa"), Ignorant())
    assert found.keys() == {"paper", "the other"}
    assert found["paper"]["accuracies"] == asked_too["shots"]["2"]["accuracies"]
    assert asked_too["template"]["paper"] == asked_too["shots"]["2"]


def test_only_tasks_with_choices_can_be_studied():
    rows = [{"goal": f"g{n}", "sol1": f"a{n}", "sol2": f"b{n} more", "label": n % 2} for n in range(60)]
    found = measure(study(CONFIG.model_copy(update={"draws": 2}), rows, "piqa"), Ignorant())
    assert found["labels"] is None and found["balance"] == {} and found["source"] == {}
    assert found["shots"]["2"]["majority_bias"] is None and "the other" in found["template"]
    with pytest.raises(DataError, match="has no choices"):
        study(rows=[{"text": "a b"}], name="lambada")


@pytest.mark.parametrize("wording", ["paper", "harness"])
@pytest.mark.parametrize("name", ["piqa", "race_h", "hans"])
def test_zero_shot_study_equals_evaluation(name, wording):
    """The same score decides between choices, including scores that are not per token."""
    words = "aa bb cc dd ee"
    text = lambda *key: " ".join(words.split()[: 1 + int(5 * noise(*map(str, key)))])  # noqa: E731
    rows = {
        "piqa": [
            {"goal": f"g{n}", "sol1": text(n), "sol2": f"{text(n, 2)} x", "label": int(2 * noise("label", str(n)))}
            for n in range(240)
        ],
        "race_h": [
            {"article": f"A{n}.", "question": "Why?", "options": [f"{text(n, o)} {o}" for o in "wxyz"], "answer": "B"}
            for n in range(240)
        ],
        "hans": HANS,
    }[name]

    class Wordy:
        def loglikelihood(self, requests):
            nats = [-len(r.continuation) * (0.2 + noise(r.context, r.continuation)) for r in requests]
            return [scored(n, r.continuation) for n, r in zip(nats, requests, strict=True)]

    config = CONFIG.model_copy(
        update={"shots": (0,), "compare_at": 1, "draws": 1, "orders": 1, "wording": wording}
        | ({} if name == "hans" else {"limit": 200})
    )
    found = measure(study(config, rows, name), Wordy())
    asked = BenchmarkConfig(shots=(0,), limit=config.limit, seed=config.seed, wording=wording, resamples=5)
    benchmark = prepare(definition(name), Rows(rows, None, "x", "x"), asked)
    result = evaluate_benchmarks([benchmark], Wordy(), asked)[name]["0"]
    assert found["shots"]["0"]["accuracy"] == result["accuracy"]
    assert found["normalisation"] == result["normalisation"]
    if name != "hans":  # the score makes a difference in these tasks
        by = result["accuracy_by_normalisation"]
        assert len({by["token"], by[result["normalisation"]]}) == (1 if result["normalisation"] == "token" else 2)


def test_conditions_with_too_few_shots_are_reported():
    one = [r for r in HANS if r["label"] == 0]
    rows = [*one, *[r for r in HANS if r["label"] == 1][:1]]
    config = CONFIG.model_copy(update={"draws": 2, "shots": (0, 2), "limit": 8})
    whole, found = measure(study(config), Copycat()), measure(study(config, rows), Copycat())
    assert whole["left_out"] == {"balance": {}, "source": {}}
    assert set(found["left_out"]["balance"]) == {"balanced", "only False"}
    assert "3 shots of the label False were requested, but only" in found["left_out"]["balance"]["only False"]
    assert set(found["balance"]) == {"only True"} and set(found["shots"]) == {"0", "2"}
    single = [r for r in HANS if r["heuristic"] == "subsequence"]
    found = measure(study(config, single), Copycat())
    assert "3 shots of another heuristic than subsequence" in found["left_out"]["source"]["other heuristic"]
    assert "same heuristic" in found["source"] and "other heuristic" not in found["source"]


def test_too_many_shots_are_rejected():
    with pytest.raises(DataError, match="60 shots were requested, but only 50"):
        measure(study(CONFIG.model_copy(update={"shots": (60,)})), Copycat())
    with pytest.raises(ConfigError, match="draws"):
        build(IncontextConfig, {"draws": 0})


def test_balanced_labels_have_no_majority():
    found = measure(study(CONFIG.model_copy(update={"compare_at": 2})), Copycat(last=True))["balance"]["balanced"]
    assert found["majority_bias"] is None and found["recency_bias"] > 0.5


def test_bias_is_difference_from_other_draws():
    """Two draws of one shot each, with different labels, and a model that repeats the shot's label."""
    config = CONFIG.model_copy(update={"draws": 2, "shots": (1,), "compare_at": 1})
    found = [measure(study(config.model_copy(update={"seed": n})), Copycat())["shots"]["1"] for n in range(8)]
    assert {f["recency_bias"] for f in found} == {None, 1.0} == {f["majority_bias"] for f in found}
