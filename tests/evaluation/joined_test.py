"""Merging of earlier results with new ones, and detection of losses."""

import pytest

from trivium.evaluation.benchmark import series_of
from trivium.evaluation.joined import is_same, joined, loses, loses_study

MODEL = {"step": 8, "tokens": 80, "parameters": 9, "sha256": "a"}
RESULT = {"prompt_hash": "h", "version": 1, "normalisation": "token", "accuracy": 0.5}
ASKED_OTHERWISE = [{"prompt_hash": "g"}, {"version": 2}, {"normalisation": "byte"}]


def tree(model=MODEL, tasks=("hans",), skipped=None, **changed):
    results = {t: {"0": {**RESULT, **changed}} for t in tasks}
    point = {**model, "tasks": series_of(results)}
    return {"model": model, "config": {}, "tasks": results, "skipped": skipped or {}, "series": [point]}


def test_checkpoints_are_identified_by_hash_if_both_have_one():
    other = {**MODEL, "sha256": "b"}
    assert is_same(MODEL, dict(MODEL)) and not is_same(MODEL, other)
    unhashed = {k: v for k, v in MODEL.items() if k != "sha256"}
    assert is_same(MODEL, unhashed) and is_same(unhashed, MODEL)
    assert loses(tree(), tree(other)) and not loses(tree(), tree())


@pytest.mark.parametrize("changed", ASKED_OTHERWISE)
def test_other_question_or_scoring_is_another_answer(changed):
    assert loses(tree(), tree(**changed))
    assert not loses(tree(), tree(accuracy=0.25) | {"series": tree()["series"]})


def test_other_tokenizer_gives_other_answers():
    other = tree() | {"config": {"tokenizer": "other.json"}}
    assert joined(tree(), other, [MODEL]) == other and loses(tree(), other)


def test_answered_task_is_no_longer_skipped():
    earlier = tree(tasks=["hans"], skipped={"boolq": "no rows", "piqa": "no rows"})
    found = joined(earlier, tree(tasks=["boolq"]), [MODEL])
    assert set(found["tasks"]) == {"hans", "boolq"} and set(found["skipped"]) == {"piqa"}
    assert set(found["series"][0]["tasks"]) == {"hans", "boolq"}


def test_series_point_belongs_to_one_model():
    """Step 4 was trained again and evaluated on another task, which replaces it. Step 8 is unchanged and is merged."""
    before, again = ({**MODEL, "step": 4, "sha256": s} for s in "xy")
    earlier = tree(MODEL) | {"series": [*tree(before)["series"], *tree(MODEL)["series"]]}
    found = joined(earlier, tree(again, tasks=["boolq"]), [again, MODEL])
    assert [set(p["tasks"]) for p in found["series"]] == [{"boolq"}, {"hans"}]


def test_results_of_other_checkpoints_are_dropped():
    earlier, found = tree({**MODEL, "step": 4, "sha256": "b"}), tree(tasks=["boolq"])
    assert joined(earlier, found, [MODEL]) == found


@pytest.mark.parametrize("step", [4, 16])
def test_other_checkpoints_of_this_call_stay_in_series_only(step):
    """A checkpoint keeps the headline until its turn; then the last one evaluated has it."""
    other = {**MODEL, "step": step, "sha256": "b"}
    earlier, found = tree(other), tree(tasks=["boolq"])
    told = joined(earlier, found, [MODEL, other])
    tree_is_of = earlier if step == 16 else found
    assert (told["model"], told["tasks"]) == (tree_is_of["model"], tree_is_of["tasks"])
    assert [point["step"] for point in told["series"]] == sorted([8, step])


def test_repeated_question_is_replaced():
    told = joined(tree(), tree(accuracy=0.25), [MODEL])
    assert told["tasks"]["hans"]["0"]["accuracy"] == told["series"][0]["tasks"]["hans"]["0"]["accuracy"] == 0.25


@pytest.mark.parametrize("changed", ASKED_OTHERWISE)
def test_series_is_of_the_same_questions(changed):
    """The second call asks other questions of one of two tasks, and was interrupted after the first checkpoint."""
    first, *_, last = models = [{**MODEL, "step": n, "sha256": str(n)} for n in (10, 20, 30)]
    tasks = ["hans", "boolq"]
    earlier = tree(last, tasks) | {"series": [tree(m, tasks)["series"][0] for m in models]}
    told = joined(earlier, tree(first, **changed), models)
    assert [(p["step"], set(p["tasks"])) for p in told["series"]] == [(10, {*tasks}), (20, {"boolq"}), (30, {"boolq"})]
    assert told["series"][0]["tasks"]["hans"]["0"].items() >= changed.items()
    assert told["model"] == last and set(told["tasks"]) == {"boolq"} and loses(earlier, told)

    asked = {**earlier, "tasks": {"hans": earlier["tasks"]["hans"]}}
    asked["series"] = [{**p, "tasks": {"hans": p["tasks"]["hans"]}} for p in earlier["series"]]
    told = joined(asked, tree(first, **changed), models)
    assert told == tree(first, **changed)

    alone = tree(last, **changed) | {"series": []}  # without --every
    told = joined(earlier, alone, [last])
    assert {task for p in told["series"] for task in p["tasks"]} == {"boolq"} and len(told["series"]) == 3
    assert told["tasks"]["hans"] == alone["tasks"]["hans"] and loses(earlier, told)
    same = joined(earlier, tree(last) | {"series": []}, [last])
    assert same["series"] == earlier["series"] and not loses(earlier, same)


def test_missing_point_or_answer_is_a_loss():
    before = tree({**MODEL, "step": 4, "sha256": "b"})["series"]
    earlier = tree() | {"series": [*before, *tree()["series"]]}
    assert not loses(earlier, dict(earlier))
    assert loses(earlier, tree())
    changed = [{**before[0], "tasks": {"hans": {"0": RESULT | {"accuracy": 0.25}}}}, *tree()["series"]]
    assert loses(earlier, earlier | {"series": changed})


@pytest.mark.parametrize("changed", ["format", "task", "config"])
def test_other_study_is_a_loss(changed):
    study = {"format": "f", "task": "hans", "config": {"seed": 1}, "models": [{"model": MODEL}]}
    assert not loses_study(study, dict(study))
    assert loses_study(study, {**study, changed: "other"})
    assert loses_study(study, {**study, "models": [{"model": {**MODEL, "sha256": "b"}}]})
