"""The figures of published tasks."""

from trivium.report.published import against_tokens, tasks_section


def test_task_added_later_is_drawn_from_then():
    moments = [
        {"tokens": 1000, "tasks": {"hans": {"0": 0.5}}},
        {"tokens": 2000, "tasks": {"hans": {"0": 0.6}, "piqa": {"1": 0.7}}},
        {"tokens": 3000, "tasks": {"piqa": {"1": 0.8}}},
    ]
    hans, piqa = against_tokens(moments).data
    assert (hans.name, list(hans.x), list(hans.y)) == ("hans, 0 shots", [1000, 2000], [0.5, 0.6])
    assert (piqa.name, list(piqa.x), list(piqa.y)) == ("piqa, 1 shot", [2000, 3000], [0.7, 0.8])


def test_section_names_the_checkpoint():
    score = {"n": 5, "accuracy": 0.4, "interval": [0.1, 0.8], "chance": 0.5}
    found = {"tasks": {"wic": {"0": score}}, "series": [], "skipped": {}}
    told = tasks_section({"tasks": found | {"model": {"step": 1200, "tokens": 614400}}}).shows
    assert told.endswith("Asked of the checkpoint of step 1,200, after 614,400 tokens.")
    assert "Asked of" not in tasks_section({"tasks": found}).shows
