"""A failed capture of a CUDA graph: its error, and the state that it leaves. The calls of torch are replaced."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trivium.errors import TriviumError
from trivium.kernels.cuda.recording import Recording


class FakeCuda:
    """The state that torch keeps of captures. ends: whether CUDA ends a capture without an error."""

    def __init__(self, *, ends: bool) -> None:
        self.ends = ends
        self.outside, self.inside = (SimpleNamespace(device_index=0, name=name) for name in ("outside", "inside"))
        self.stream = self.outside
        self.pools: dict[Any, str] = {}
        self.is_capturing = False

    @contextmanager
    def graph(self, graph: object, *, pool: Any, capture_error_mode: str) -> Iterator[None]:
        self.stream, self.pools[pool], self.is_capturing = self.inside, "in use", True
        try:
            yield
        finally:
            self.end(pool)

    def end(self, pool: Any) -> None:
        if not self.ends:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        self.end_pool(0, pool)
        self.stream, self.is_capturing = self.outside, False

    def set_stream(self, stream: Any) -> None:
        self.stream = stream

    def end_pool(self, device: int, pool: Any) -> None:
        if self.pools[pool] != "in use":
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.pools[pool] = "ended"

    def release_pool(self, device: int, pool: Any) -> None:
        assert self.pools[pool] == "ended"
        self.pools[pool] = "released"

    def clone_state(self) -> str:
        return "state outside of captures"

    def graphsafe_set_state(self, state: str) -> None:
        self.is_capturing = state != self.clone_state()


@pytest.fixture(params=[True, False], ids=["capture ends", "end fails"])
def fake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda(ends=request.param)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", fake.graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: fake.stream)
    monkeypatch.setattr(torch.cuda, "set_stream", fake.set_stream)
    monkeypatch.setattr(torch.cuda, "default_generators", (fake,))
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", fake.end_pool)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", fake.release_pool)
    return fake


@pytest.mark.parametrize(
    ("cause", "told", "says"),
    [
        (RuntimeError, TriviumError, r"torch [^ ]+: no room; set plan\.cuda_graphs=false"),
        (torch.OutOfMemoryError, torch.OutOfMemoryError, "no room"),
    ],
)
def test_failed_capture_reports_its_first_error_and_leaves_the_capture(
    cause: type[Exception], told: type[Exception], says: str, fake: FakeCuda
) -> None:
    """And not that its end failed too; the executor's error is between the two."""

    def work() -> None:
        try:
            raise cause("no room")
        except RuntimeError as error:
            raise TriviumError("rank 0 failed at F0.0") from error

    with pytest.raises(told, match=says):
        Recording(work)
    assert fake.stream is fake.outside and not fake.is_capturing
    assert fake.pools == {(0, 1): "ended" if fake.ends else "released"}
