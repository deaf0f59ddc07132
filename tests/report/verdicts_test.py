import copy

import pytest
from scipy import stats

from report.fake_run import write_run
from trivium.report.collect import collect
from trivium.report.verdicts import limits, verdicts
from trivium.report.words import chance_text


@pytest.fixture
def report(tmp_path):
    return collect(write_run(tmp_path))


def states(report):
    return [v.state for v in verdicts(report)]


def test_good_run_proves_all_claims(report):
    assert set(states(report)) == {"proven"}


def test_empty_run_proves_and_fails_nothing(tmp_path):
    assert set(states(collect(tmp_path))) == {"not tried"}


@pytest.mark.parametrize(("place", "path", "value"), [
    (0, ("planted", "leaks", "caught"), 18),
    (1, ("honest", "lost"), 19),
    (2, ("training", "validation_loss"), 6.5),
    (2, ("training", "validation_loss"), None),
    (3, ("resume_proof", "max_loss_difference"), 0.01),
    (3, ("resume_proof", "max_loss_difference"), None),
    (4, ("memory", 0, "categories", "optimizer"), 404),
])  # fmt: skip
def test_each_claim_fails_independently(report, place, path, value):
    broken = copy.deepcopy(report)
    node = broken
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    assert [i for i, state in enumerate(states(broken)) if state == "failed"] == [place]


def test_interval_touching_chance_is_not_better(report):
    for score in report["evaluation"]["tasks"]["last_word"].values():
        score["interval"] = [0.2, 0.35]
    assert states(report)[6] == "not shown"


def test_score_below_unigram_baseline_is_not_better(report):
    for score in report["evaluation"]["tasks"]["last_word"].values():
        score["unigram"] = 0.28
    assert states(report)[6] == "not shown"


def test_best_score_is_corrected_for_multiple_tests(report):
    """31 % of 500 against 26 % has p = 0.7 % as the only score, but is not significant among 40."""
    task = report["evaluation"]["tasks"]["last_word"]
    score = task["0"]
    exact = float(stats.binom.sf(round(0.31 * 500) - 1, 500, 0.26))
    report["evaluation"]["tasks"] = {"last_word": {"0": score}}
    assert states(report)[6] == "proven" and chance_text(exact) in verdicts(report)[6].text
    report["evaluation"]["tasks"] = {"last_word": {str(shots): score for shots in range(40)}}
    found = verdicts(report)[6]
    assert found.state == "not shown" and chance_text(40 * exact) in found.text


def test_paired_test_with_baseline_is_used(report):
    for score in report["evaluation"]["tasks"]["last_word"].values():
        score["unigram_p"] = 0.125
    assert states(report)[6] == "not shown"


def test_score_far_below_baseline_is_not_significant(report):
    """A score is above chance but far below the baseline. A two-sided p-value does not show the direction."""
    task = report["evaluation"]["tasks"]["last_word"]
    report["evaluation"]["tasks"] = {"last_word": {"0": task["0"] | {"unigram": 0.6, "unigram_p": 1e-9}}}
    found = verdicts(report)[6]
    assert found.state == "not shown" and found.text.endswith("p, corrected for their number: 1.00")


def test_surprise_must_beat_baseline_on_every_task(report):
    report["evaluation"]["tasks"]["last_word"]["4"]["nats_per_byte_interval"] = [1.6, 1.71]
    assert states(report)[5] == "failed"


def test_verdicts_are_unambiguous(report):
    """A failed claim is not worded like a proven one."""
    report["planted"]["leaks"]["caught"] = 18
    report["evaluation"]["tasks"]["last_word"]["4"]["interval"] = [0.2, 0.3]
    report["evaluation"]["tasks"]["last_word"]["0"]["interval"] = [0.2, 0.3]
    texts = [v.text for v in verdicts(report)]
    assert "caught only 90.0%" in texts[0] and texts[6].startswith("No task")


def test_activation_error_is_stated(report):
    assert "activations were predicted within 20%" in verdicts(report)[4].text


@pytest.mark.parametrize(("predicted", "told"), [
    (1000, "so do activations"), (1001, "within 1%"), (1010, "within 1%"), (1014, "within 2%"), (986, "within 2%"),
])  # fmt: skip
def test_activation_error_is_within_stated_bound(report, predicted, told):
    for row in report["memory"]:
        row["categories"]["activations"], row["predicted"]["activations"] = 1000, predicted
    assert verdicts(report)[4].text.endswith(told)


def test_unmeasured_memory_is_not_proven(report):
    for row in report["memory"]:
        row["categories"] = {}
    assert states(report)[4] == "not tried"


def test_most_significant_testable_score_is_named(report):
    """The score has a larger lead over chance on more questions. Without the baseline, only chance counts."""
    score = report["evaluation"]["tasks"]["last_word"]["0"] | {"n": 500, "chance": 0.25}
    sure = score | {"accuracy": 0.5, "interval": [0.46, 0.54], "unigram": None}
    weak = score | {"accuracy": 0.26, "interval": [0.2, 0.3], "unigram": 0.1}
    none = score | {"n": 0, "accuracy": 0.0, "interval": [0.0, 1.0]}
    free = score | {"accuracy": 0.9, "interval": [0.8, 0.95], "chance": None}
    bare = sure | {"interval": None}
    report["evaluation"]["tasks"] = {"a": {"0": weak, "1": none}, "b": {"4": sure}, "c": {"0": free, "1": bare}}
    found = verdicts(report)[6]
    assert found.state == "proven" and "the surest of 2 scores, b with 4 shots, is 50.0%" in found.text
    assert "against 25.0%" in found.text


def test_activations_may_differ_from_prediction(report):
    assert report["memory"][0]["predicted"]["activations"] != report["memory"][0]["categories"]["activations"]
    assert states(report)[4] == "proven"


def test_limits_name_model_size(report):
    assert "466,000 parameters" in limits(report)[0]
    report["training"]["tokens"] = None
    assert "(466,000 parameters)" in limits(report)[0]


def test_limits_depend_on_machine(report):
    here = " ".join(limits(report))
    assert all(x in here for x in ("tiny", "one CPU", "one machine", "no GPU", "no second node", "no 16-bit"))
    report["training"] |= {"device": "NVIDIA X", "hosts": 2, "precision": "bf16", "parameters": 2 * 10**9}
    there = " ".join(limits(report))
    assert not any(x in there for x in ("tiny", "CPU", "one machine", "no ")) and "NVIDIA X" in there
    report["training"] |= {"hosts": 1}
    assert limits(report)[-1] == "Scale: every rank ran on this one machine; no second node."
    report["training"] |= dict.fromkeys(("device", "hosts", "precision", "parameters"))  # unknown
    assert limits(report) == ["Quality: no model was trained to its end."]


def test_unfinished_training_is_neither_proven_nor_failed(report):
    report["training"] |= {"finished": False, "steps_planned": 9}
    found = verdicts(report)[2]
    assert found.state == "not tried" and "3 of 9 steps" in found.text


def test_results_of_another_training_prove_nothing(report):
    report["outdated"] = {"evaluation": "training"}
    assert states(report) == ["proven"] * 5 + ["not shown"] * 2
    assert "another training than this report's; `trivium evaluate` does it again" in verdicts(report)[5].text
