import copy

import pytest

from report.fake_run import write_run
from trivium.report.collect import collect
from trivium.report.verdicts import limits, verdicts


@pytest.fixture
def report(tmp_path):
    return collect(write_run(tmp_path))


def states(report):
    return [v.state for v in verdicts(report)]


def test_a_good_run_proves_everything(report):
    assert set(states(report)) == {"proven"}


def test_an_empty_run_proves_nothing_and_fails_nothing(tmp_path):
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
def test_each_claim_fails_alone_when_its_figure_breaks_the_law(report, place, path, value):
    broken = copy.deepcopy(report)
    node = broken
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    assert [i for i, state in enumerate(states(broken)) if state == "failed"] == [place]


def test_a_score_whose_interval_touches_chance_is_not_better_than_chance(report):
    for score in report["evaluation"]["tasks"]["last_word"].values():
        score["interval"] = [0.2, 0.35]
    assert states(report)[5] == "failed"


def test_activations_may_differ_from_their_prediction(report):
    assert report["memory"][0]["predicted"]["activations"] != report["memory"][0]["categories"]["activations"]
    assert states(report)[4] == "proven"


def test_the_limits_name_the_size_of_the_model(report):
    assert "466,000 parameters" in limits(report)[0]
