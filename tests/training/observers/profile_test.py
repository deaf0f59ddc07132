"""Traces of steps show the actions of the schedule table by name, and do not change what is computed."""

import gzip
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.scene import SEED, VOCABULARY, write_tokens
from plans import small
from trivium.comms.mesh import Mesh
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.plan.transfers import with_transfers
from trivium.training.config import ProfileConfig, TrainingConfig
from trivium.training.loop import TrainingJob
from trivium.training.metrics import METRICS, last_step, read
from trivium.training.observers import profile as tracing_module
from trivium.training.observers.profile import FOLDER, OF_BUCKETS, Profile, named
from trivium.training.supervision.job import start
from trivium.training.trainer import Trainer

EVENT = re.compile(r"[FBIW]\d+\.\d+(:\d+>\d+)?")
STEPS = 4


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("profile"))


def plan(**degrees: Any) -> Plan:
    return small(model={"vocabulary": VOCABULARY, "dropout": 0.1}, batch={"sequences": 16}, **degrees)


def untold() -> None:
    """Accept a heartbeat that no watchdog reads."""


def train(tokens: Path, out: Path, of: Plan, **profile: Any) -> list[dict[str, Any]]:
    """Train with a profile, and return the metrics of the steps."""
    config = TrainingConfig(steps=STEPS, validation_samples=16, restarts=0, profile=ProfileConfig(**profile))
    start(TrainingJob(of, config, SEED, tokens, out))
    return [m for m in read(out / METRICS) if "loss" in m]


def names(path: Path) -> list[str]:
    """Return the annotations of a trace, in the order in which they began."""
    with gzip.open(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    told = [e for e in events if e.get("cat") == "user_annotation"]
    return [e["name"] for e in sorted(told, key=lambda e: e["ts"])]


LAYOUTS: tuple[dict[str, Any], ...] = (
    {"pipeline": 2, "chunks": 2},
    {"pipeline": 2, "schedule": "zb-h1"},
    {"data": 2, "zero": 3},
)


@pytest.mark.broad
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_traced_losses_are_bit_for_bit_the_same_and_a_ranks_trace_is_its_row_of_the_table(
    tokens: Path, tmp_path: Path, layout: dict[str, Any]
) -> None:
    of = plan(**layout)
    traced = train(tokens, tmp_path / "traced", of, steps=[2, 4], on_ranks=None, memory=True)
    plain = train(tokens, tmp_path / "plain", of)
    same = ("loss", "gradient_norm", "batch_hash")
    assert [[m[k] for k in same] for m in traced] == [[m[k] for k in same] for m in plain]
    assert not (tmp_path / "plain" / FOLDER).exists()
    ranks = range(of.layout.world_size)
    paths = {(s, r): tmp_path / "traced" / FOLDER / f"step-{s:08d}-rank-{r:05d}.json.gz" for s in (2, 4) for r in ranks}
    assert sorted((tmp_path / "traced" / FOLDER).iterdir()) == sorted(paths.values())
    program = with_transfers(of.schedule_table())
    for (_, rank), path in paths.items():
        found = names(path)
        row = program[of.layout.coordinate(rank).pipeline]
        assert [name for name in found if EVENT.fullmatch(name)] == [str(event) for event in row]
        assert found.count("update") == 1 and "reduce bucket 0" in found
        assert ("gather bucket 0" in found) == (of.zero == 3)


def test_trace_that_cannot_be_written_is_a_warning(
    tokens: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    assert len(train(tokens, tmp_path, plan(), steps=[STEPS])) == STEPS
    assert "no trace was written" in capfd.readouterr().err


def test_trace_is_written_in_the_background_and_training_waits_for_it_at_its_end(
    tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = tracing_module._pack

    def slow(*given: Any) -> None:
        deadline = time.monotonic() + 30
        while last_step(tmp_path / METRICS) < STEPS:
            assert time.monotonic() < deadline, "training waits for a trace of an earlier step"
            time.sleep(0.01)
        time.sleep(0.5)
        right(*given)

    monkeypatch.setattr(tracing_module, "_pack", slow)
    train(tokens, tmp_path, plan(), steps=[2])
    assert "update" in names(tmp_path / FOLDER / "step-00000002-rank-00000.json.gz")


@pytest.mark.parametrize("rank", [0, 1])
def test_step_that_one_rank_traces_is_replayed_on_none(rank: int, tmp_path: Path) -> None:
    """NCCL requires that all ranks of a collective replay it, or none."""
    trainer = Trainer(small(cuda_graphs=True), Mesh.single(), seed=1, rule=AdamRule())
    trainer.mesh, trainer._records = replace(trainer.mesh, rank=rank), True
    traces = Profile(ProfileConfig(steps=[2], on_ranks=[0]), tmp_path)
    for step in (1, 2, 3):
        with traces.of(trainer, step, untold):
            assert trainer._records is (step != 2)
    assert trainer._records
    traces.wait()


def test_what_is_named_for_a_trace_is_as_it_was_afterwards_also_when_a_step_fails() -> None:
    trainer = Trainer(small(), Mesh.single(), seed=1, rule=AdamRule())
    objects = [trainer.optimizer, *trainer.buckets]
    before = [set(vars(each)) for each in objects]
    with pytest.raises(ValueError, match="in the step"), named(trainer):
        assert all(set(OF_BUCKETS) <= set(vars(bucket)) for bucket in trainer.buckets)
        raise ValueError("in the step")
    assert [set(vars(each)) for each in objects] == before and trainer.around is None
