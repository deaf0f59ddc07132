"""Times are of the work, whoever does it."""

import pytest
import torch

from plans import small
from trivium.certify.reference import random_rows
from trivium.comms.mesh import Mesh
from trivium.parallel.pipeline.clock import Clock
from trivium.parallel.sharding.zero import AdamRule
from trivium.training import trainer as training
from trivium.training.trainer import Samples, Trainer

CUDA = torch.device("cuda", 0)


class Accelerator:
    """Works off what it is asked for, two seconds each; its events know when they came to their turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.waited = 0, False
        accelerator = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing, "times of this event cannot be read"

            def record(self) -> None:
                self.at = 2.0 * accelerator.asked

            def synchronize(self) -> None:
                accelerator.waited = True

            def elapsed_time(self, later: "Event") -> float:
                assert accelerator.waited, "the event has not happened yet"
                return 1e3 * (later.at - self.at)

        monkeypatch.setattr(torch.cuda, "Event", Event)


def test_an_accelerators_times_are_when_its_work_was_done_not_asked_for(monkeypatch) -> None:
    accelerator, clock = Accelerator(monkeypatch), Clock(CUDA)
    for _ in range(3):
        clock.mark()
        accelerator.asked += 1
    assert clock.seconds() == [0.0, 2.0, 4.0]


def test_a_measured_steps_spans_are_by_the_clock_of_its_device(monkeypatch) -> None:
    accelerator = Accelerator(monkeypatch)
    monkeypatch.setattr(training, "Clock", lambda device: Clock(CUDA))
    right = training.Executor._perform

    def perform(self, event, transport) -> None:
        right(self, event, transport)
        accelerator.asked += 1

    monkeypatch.setattr(training.Executor, "_perform", perform)
    plan = small()
    trainer = Trainer(plan, Mesh.single(), seed=1, rule=AdamRule())
    samples = Samples(0, plan.batch.sequences, random_rows(plan))
    measured = trainer.train_step(0, samples, 1e-3, measure=True).run.spans
    assert [(s.start, s.end) for s in measured] == [(2.0 * n, 2.0 * n + 2) for n in range(len(measured))]
    accelerator.waited = False
    trainer.train_step(1, samples, 1e-3)
    assert not accelerator.waited, "only a measured step may wait for the accelerator"
