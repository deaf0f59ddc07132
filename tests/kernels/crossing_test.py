"""Copies between a CPU and its GPU block neither of them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fake_accelerator import accelerator
from trivium.kernels import crossing
from trivium.kernels.crossing import fetched, read_later, sent


def test_what_is_sent_is_not_waited_for() -> None:
    with accelerator() as seen:
        assert sent(np.arange(3), seen.device, torch.int64).device == seen.device
    assert seen.copies == ["from cpu to cuda:0"] and not seen.waits


def test_what_is_fetched_comes_through_pinned_memory_while_the_next_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with accelerator() as seen:
        waited: list[int] = []
        event = SimpleNamespace(record=lambda: None, synchronize=lambda: waited.append(len(seen.copies)))
        monkeypatch.setattr(torch.cuda, "Event", lambda: event)
        here = fetched([torch.empty(3, device=seen.device) for _ in range(5)])
    assert waited == [3, 4, 5, 5, 5] and not seen.waits
    assert not any(hasattr(x, "is_said_pinned") for x in here), "what is kept is not pinned"
    assert {x.device.type for x in here} == {"cpu"}


def test_large_tensors_are_fetched_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossing, "PIECE_BYTES", 32)
    x, target = torch.arange(21.0).view(3, 7), torch.zeros(3, 7)
    pieces = list(crossing._pieces(target, x))
    assert [len(part) for _, part in pieces] == [8, 8, 5]
    for place, part in pieces:
        place.copy_(part)
    assert torch.equal(target, x)


def test_what_is_fetched_is_a_copy() -> None:
    x = torch.arange(4.0)
    (copy,) = fetched([x])
    x.zero_()
    assert copy.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_numbers_are_read_when_they_are_asked_for() -> None:
    x = torch.tensor([1.5, 2.5], dtype=torch.float64)
    assert read_later(x)() == [1.5, 2.5]


def test_what_is_copied_by_the_way_would_be_waited_for() -> None:
    """This shows that the tests above can fail."""
    with accelerator() as seen:
        torch.tensor((1, 2), device=seen.device)
        torch.empty(3, device=seen.device).to("cpu")
        torch.zeros(3).to(seen.device, non_blocking=True)
    assert len(seen.waits) == 3
