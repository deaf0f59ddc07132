"""Which changes of a configuration a training goes on under, and which make it another training."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from trivium.cli import train
from trivium.cli.options import given_for, open_run
from trivium.errors import MachineError


@pytest.fixture
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of the demo's training with some fields set."""
    monkeypatch.setattr(train, "TRAIN", SimpleNamespace(inputs=lambda run: {"tokens": "the same"}))
    out = tmp_path / "run"
    return lambda *sets: train.lasting(open_run(out, given_for(out, "demo", list(sets))))


@pytest.mark.parametrize(
    "division",
    [
        ("plan.layout.tensor=1",),
        ("plan.zero=3",),
        ("plan.batch.micro=1",),
        ("plan.recompute.mode=layer",),
        ("plan.row_chunks=2",),
        ("plan.layout.context=2", "plan.layout.data=1", "plan.context_attention=ulysses"),
        ("plan.compiled=true",),
        ("training.checkpoint_every=3",),
    ],
)
def test_how_the_work_is_divided_may_change(division: tuple[str, ...], digest) -> None:
    assert digest(*division) == digest()


@pytest.mark.parametrize(
    "what", ["plan.model.layers=8", "plan.precision.weights=bf16", "training.lr=0.01", "seed=2"]
)
def test_what_is_computed_may_not(what: str, digest) -> None:
    assert digest(what) != digest()


def test_a_training_to_be_compiled_asks_for_a_compiler_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    run = open_run(tmp_path / "run", given_for(tmp_path / "run", "demo", ["plan.compiled=true"]))
    with pytest.raises(MachineError, match="plan.compiled"):
        train.job_for(run, tmp_path)
