"""Requests are generated in one batch, and none waits for the end of another."""

import threading
import time

import pytest

from evaluation.models import TOKENIZER, plan_of, scorer_of
from trivium.serving.config import Drawing, ServeConfig
from trivium.serving.worker import Job, Worker
from trivium.serving.writer import Writer

SCORER = scorer_of(plan_of(sequence=96))
LONG = Drawing(max_tokens=80, temperature=0.8, top_p=1)
SHORT = LONG.model_copy(update={"max_tokens": 2})


def draft_of(writer, prompt, settings):
    """Create a draft that runs to its full length."""
    draft = writer.draft(TOKENIZER.encode(prompt), settings, seed=1)
    draft.done = lambda ids: False
    return draft


def alone(prompt, settings):
    writer = Writer(SCORER)
    draft = draft_of(writer, prompt, settings)
    writer.write_drafts([draft])
    return draft.ids


class Asked:
    """A worker, its named requests, and all their events in order."""

    def __init__(self, writer=None, *, together=4):
        self.writer, self.told, self.jobs = writer or Writer(SCORER), [], {}
        self.worker = Worker(self.writer, ServeConfig(together=together, queue=8))

    def ask(self, name, prompt, settings, *, seconds=60.0, heard=lambda: None):
        draft = draft_of(self.writer, prompt, settings)
        job = Job([draft], lambda event: self.told.append((name, event.kind)), time.monotonic() + seconds)
        draft.on_token = lambda token: (self.told.append((name, "token")), heard(), job.goes_on)[-1]
        self.jobs[name] = job
        assert self.worker.submit(job)

    def ids(self, name):
        return self.jobs[name].drafts[0].ids


@pytest.fixture
def two():
    """Create a long text, at whose fifth token a short one is requested."""
    asked = Asked()
    begun = iter(range(1000))
    asked.ask("long", "Item 7 opens", LONG, heard=lambda: next(begun) == 4 and asked.ask("short", "The", SHORT))
    while "short" not in asked.jobs:
        time.sleep(0.001)
    asked.worker.close()
    return asked


def test_later_request_joins_running_batch(two):
    done = two.told.index(("short", "done"))
    # It is requested at the fifth token, joins before the sixth, and has two tokens.
    assert two.told[:done].count(("long", "token")) == 7
    assert two.told[-1] == ("long", "done")


def test_joining_changes_no_text(two):
    assert two.ids("long") == alone("Item 7 opens", LONG)
    assert two.ids("short") == alone("The", SHORT)


def test_full_batch_delays_next_request():
    asked, begun = Asked(together=1), threading.Event()
    asked.ask("long", "Item 7 opens", LONG, heard=begun.set)
    begun.wait(60)
    asked.ask("short", "The", SHORT)
    asked.worker.close()
    assert asked.told.index(("short", "token")) > asked.told.index(("long", "done"))


def test_place_of_a_client_that_left_is_free_at_the_next_token():
    asked, drawn = Asked(together=1), iter(range(1000))

    def heard():
        if next(drawn) == 4:
            asked.jobs["long"].cancelled.set()
            asked.ask("short", "The", SHORT)

    asked.ask("long", "Item 7 opens", LONG, heard=heard)
    while "short" not in asked.jobs:
        time.sleep(0.001)
    asked.worker.close()
    assert asked.told.count(("long", "token")) == 5
    assert asked.ids("short") == alone("The", SHORT)


def test_timely_text_is_not_late_because_of_others():
    asked, both, drawn = Asked(), threading.Event(), iter(range(1000))

    def heard():
        both.wait(60)
        if next(drawn) == 60:
            asked.jobs["short"].deadline = 0.0

    asked.ask("long", "Item 7 opens", LONG, heard=heard)
    asked.ask("short", "The", SHORT)
    both.set()
    asked.worker.close()
    assert ("short", "done") in asked.told and ("short", "late") not in asked.told


def test_failing_request_fails_alone(capsys):
    class Failing(Writer):
        def choose(self, logits, drafts):
            if any(d.settings.max_tokens == 3 for d in drafts):
                raise RuntimeError("out of memory")
            return super().choose(logits, drafts)

    asked, first = Asked(Failing(SCORER)), threading.Event()
    asked.ask("good", "Item 7 opens", LONG, heard=lambda: first.set() or time.sleep(0.002))
    first.wait(60)
    asked.ask("bad", "The", LONG.model_copy(update={"max_tokens": 3}))
    asked.worker.close()
    assert ("bad", "failed") in asked.told and ("good", "done") in asked.told
    assert asked.ids("good") == alone("Item 7 opens", LONG)
    assert "out of memory" in capsys.readouterr().err  # the operator sees the cause


def test_abandoned_request_is_not_generated():
    asked = Asked()
    asked.ask("late", "The", SHORT, seconds=-1)
    asked.worker.close()
    assert asked.told == [("late", "late")]
