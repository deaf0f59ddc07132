"""The GPU checks on a machine without GPU: missing requirements are named, and the report is correct."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture()
def script(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import without_gpu

    return without_gpu


def test_a_torch_without_cuda_is_named_with_what_to_do(tmp_path: Path):
    if (script_headers := _headers_here()) is not None:
        pytest.skip(f"this torch has CUDA: {script_headers}")
    command = [sys.executable, str(BENCHMARKS / "without_gpu.py"), "--json", str(tmp_path / "out.json")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 3 and "pip install torch==2.11.0" in ended.stderr
    assert not list(tmp_path.iterdir())


def _headers_here() -> Path | None:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import pretended

        return pretended.headers()
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_the_report_tells_errors_of_memory_and_failures(script: ModuleType):
    measured = {
        "status": "measured",
        "launches": 1484,
        "waits": {"wait: for an event": 1},
        "processor_seconds": 0.0167,
        "peak_bytes": 1000,
        "predicted_bytes": 990,
        "bytes_error": -0.01,
    }
    peer = {**measured, "predicted_bytes": None, "bytes_error": None}
    record = {
        "date": "2026-11-24T00:00:00",
        "torch": "2.11.0+cu130",
        "cuda": "13.0",
        "python": "3.11.7",
        "machine": {"processor": "some"},
        "commit": "abc",
        "changed": True,
        "command": "python benchmarks/without_gpu.py",
        "workspace_bytes": 8,
        "rows": {"125M": {"ours": measured, "theirs": peer, "bad": {"status": "failed", "reason": "no room"}}},
    }
    page = script.page(record)
    assert "| 125M | ours | 1,484 | 1 | 16.7 | 1,000 | 990 | -1.00% |" in page
    assert "| 125M | theirs | 1,484 | 1 | 16.7 | 1,000 | | |" in page and "failed: no room" in page
    assert "kernels did nothing" in page and "abc with uncommitted changes" in page
