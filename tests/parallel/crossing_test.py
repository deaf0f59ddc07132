"""What crosses between a processor and its accelerator holds neither up."""

import numpy as np
import pytest
import torch

from fake_accelerator import accelerator
from trivium.parallel.crossing import fetched, read_later, sent


def test_what_is_sent_is_not_waited_for() -> None:
    with accelerator() as seen:
        assert sent(np.arange(3), seen.device, torch.int64).device == seen.device
    assert seen.copies == ["from cpu to cuda:0"] and not seen.waits


def test_all_that_is_fetched_is_under_way_before_it_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with accelerator() as seen:
        waited: list[int] = []
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(len(seen.copies)))
        here = fetched([torch.empty(3, device=seen.device) for _ in range(4)])
    assert {x.device.type for x in here} == {"cpu"} and not seen.waits and waited == [4]


def test_what_is_fetched_is_a_copy() -> None:
    x = torch.arange(4.0)
    (copy,) = fetched([x])
    x.zero_()
    assert copy.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_numbers_are_read_when_they_are_asked_for() -> None:
    x = torch.tensor([1.5, 2.5], dtype=torch.float64)
    assert read_later(x)() == [1.5, 2.5]


def test_what_is_copied_by_the_way_would_be_waited_for() -> None:
    """So that the tests above can fail."""
    with accelerator() as seen:
        torch.tensor((1, 2), device=seen.device)
        torch.empty(3, device=seen.device).to("cpu")
        torch.zeros(3).to(seen.device, non_blocking=True)
    assert len(seen.waits) == 3
