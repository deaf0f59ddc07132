import pytest

from trivium.parallel.pipeline.executor import Run, Span
from trivium.plan.schedule import backward, forward
from trivium.plan.transfers import Transfer
from trivium.training.observers.measured_step import phases


def test_the_phases_of_a_step_add_up_to_it():
    spans = [
        Span(forward(0, 0), 0.0, 1.0),
        Span(Transfer(0, 1, forward(0, 0)), 1.0, 1.25),
        Span(Transfer(1, 0, backward(0, 1)), 1.25, 3.0),
        Span(backward(0, 0), 3.0, 5.0),
    ]
    found = phases(Run({}, spans), 0.5, 6.0)
    assert found == {"stages": 3.0, "waiting": 2.0, "update": 0.5, "other": 0.5}
    assert sum(found.values()) == pytest.approx(6.0)
