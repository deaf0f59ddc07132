"""Results that several calls keep in one run: whatever comes between the calls, no result is lost."""

import json
from threading import Thread

from trivium.cli.benchmarks import Kept


def joined(earlier, found):
    return {"tasks": sorted({*earlier["tasks"], *found["tasks"]})}


def tasks_in(run):
    return json.loads((run / "tasks" / "results.json").read_text())["tasks"]


def kept(run, join=joined):
    return Kept(run, "tasks", None, join, lambda earlier, tree: not {*earlier["tasks"]} <= {*tree["tasks"]})


def test_calls_that_are_at_work_at_the_same_time_keep_what_the_others_found(tmp_path):
    one, other = kept(tmp_path), kept(tmp_path)
    other.write({"tasks": ["piqa"]})
    one.write({"tasks": ["hans"]})
    other.write({"tasks": ["piqa", "wic"]})
    assert tasks_in(tmp_path) == ["hans", "piqa", "wic"]
    assert not list(tmp_path.rglob("results.previous*"))


def test_what_a_call_writes_again_is_joined_with_what_was_there_before_it(tmp_path):
    """The earlier results of the same call are not set aside, as another call's would be."""
    kept(tmp_path).write({"tasks": ["piqa"]})
    call = kept(tmp_path)
    call.write({"tasks": ["hans", "wic"]})
    call.write({"tasks": ["hans"]})
    assert tasks_in(tmp_path) == ["hans", "piqa"] and not list(tmp_path.rglob("results.previous*"))


def test_a_call_waits_while_another_joins_and_writes(tmp_path):
    kept(tmp_path).write({"tasks": ["wic"]})
    beside = Thread(target=lambda: kept(tmp_path).write({"tasks": ["piqa"]}))

    def slowly(earlier, found):
        beside.start()
        beside.join(0.2)
        return joined(earlier, found)

    kept(tmp_path, slowly).write({"tasks": ["hans"]})
    beside.join()
    assert tasks_in(tmp_path) == ["hans", "piqa", "wic"]
