"""The script that compares ranks over NCCL with one process: its plans, its verdicts, and its logic over gloo."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trivium.certify.reference import random_rows
from trivium.comms.group import PendingResult
from trivium.comms.pretend import pretended
from trivium.comms.transports import Torch
from trivium.errors import TriviumError
from trivium.parallel.sharding import buckets
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.layout import AXES
from trivium.plan.schedule import SCHEDULE_NAMES
from trivium.training.trainer import Samples, Trainer


@pytest.fixture()
def nccl(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, as a module; what it sets in the environment is taken back."""
    monkeypatch.setenv("TRIVIUM_DEVICES", "any")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parent.parent / "benchmarks"))
    import nccl

    return nccl


def run(nccl: ModuleType, folder: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and what was found by check."""
    out = folder / "out.json"
    code = nccl.main(["--cpu", "--json", str(out), "--report", str(folder), *more])
    (page,) = folder.glob("nccl-*.md")
    record = json.loads(out.read_text())
    rows = {row["check"]: row for row in record["checks"]}
    assert all(f"| {name} | {row['status']} | " in page.read_text() for name, row in rows.items())
    assert record["nccl"] is None and record["device"] == "processor"
    return code, rows


def test_the_plans_are_legal_in_every_precision_and_cover_every_axis(nccl: ModuleType) -> None:
    plans = [nccl.planned(name, weights) for name in nccl.CASES for weights in nccl.BOUNDS]
    assert set(nccl.BOUNDS) == {"fp64", "fp32", "bf16"}
    assert {p.layout.world_size for p in plans} <= set(range(2, 9))
    assert {p.sequence_parallel for p in plans if p.layout.tensor > 1} == {True, False}
    assert {p.schedule for p in plans if p.layout.pipeline > 1} >= {*SCHEDULE_NAMES, "zb-turns"}
    assert {p.zero for p in plans if p.layout.data > 1} == {0, 1, 2, 3}
    assert {p.context_attention for p in plans if p.layout.context > 1} == {"ring", "ulysses"}
    recorded = {axis for p in plans if p.cuda_graphs for axis in AXES if getattr(p.layout, axis) > 1}
    assert recorded == set(AXES)


def test_every_check_has_a_limit_and_the_most_telling_come_first(nccl: ModuleType) -> None:
    found = nccl.checks()
    assert len({check.name for check in found}) == len(found) == len(nccl.CASES) + 4
    assert all(0 < check.limit_seconds <= 120 for check in found)
    assert nccl.WHOLE_SECONDS < 8 * 60
    assert [check.needed for check in found] == [True, True] + [False] * (len(found) - 2)


@pytest.mark.parametrize("name", ["tensor 4, ring", "tensor 2, ring, recorded"])
def test_limit_of_a_ring_suffices_for_its_messages(
    nccl: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message of ranks that share a GPU waits for at most as many rounds of turns as there are ranks."""
    turn_seconds, sent, plan = 0.002, [], nccl.planned(name, "fp32")

    def counted(send: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **more: sent.append(send) or send(*given, **more)

    for kind in ("all_reduce", "all_gather", "reduce_scatter", "rotate"):
        monkeypatch.setattr(Torch, kind, counted(getattr(Torch, kind)))
    with pretended(plan.layout, 0, ends=plan.ends) as mesh:
        trainer = Trainer(plan, mesh, seed=0, rule=AdamRule())
        trainer.train_step(0, Samples(0, plan.batch.sequences, random_rows(plan)), 1e-3)
    messages = len(sent) * nccl._way(name).course.steps * len(nccl.BOUNDS)
    (limit,) = [check.limit_seconds for check in nccl.checks() if check.name == name]
    assert 1000 < messages < limit / (plan.layout.world_size**2 * turn_seconds)


def test_a_failure_is_told_and_what_needs_it_or_has_no_time_is_not_run(
    nccl: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(setting: Any) -> str:
        raise TriviumError("sums | are wrong")

    def break_off(setting: Any) -> str:
        raise KeyError("of a kind that nobody expected")

    def use_all_time(setting: Any) -> str:
        assert setting.until < 1e12
        monkeypatch.setattr(nccl.time, "monotonic", lambda: 1e12)
        return "done"

    first, second = nccl.Check("first", fail, 1), nccl.Check("second", break_off, 1)
    monkeypatch.setattr(nccl, "checks", lambda: [first, second])
    code, rows = run(nccl, tmp_path)
    assert code == 1 and rows["first"]["found"] == "sums | are wrong"
    assert [row["status"] for row in rows.values()] == ["failed", "failed"]
    assert "KeyError" in rows["second"]["found"]
    monkeypatch.setattr(nccl, "checks", lambda: [first._replace(needed=True), second])
    code, rows = run(nccl, tmp_path)
    assert code == 1 and [row["status"] for row in rows.values()] == ["failed", "not run"]
    assert rows["second"]["found"] == "the check 'first' failed"
    monkeypatch.setattr(nccl, "checks", lambda: [nccl.Check("long", use_all_time, 1), second])
    code, rows = run(nccl, tmp_path)
    assert code == 1 and [row["status"] for row in rows.values()] == ["passed", "not run"]
    assert rows["second"]["found"].startswith("no time was left")


def test_without_a_gpu_nothing_is_compared(nccl: ModuleType, tmp_path: Path, capsys) -> None:
    assert nccl.main(["--json", str(tmp_path / "out.json")]) == 3
    assert "--cpu runs the checks on processors" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.broad
def test_plans_over_gloo_pass(nccl: ModuleType, tmp_path: Path) -> None:
    code, rows = run(nccl, tmp_path, "--only", "context 2, r*")
    assert code == 0, rows
    assert rows.keys() > {"two ranks sum", "context 2, ring", "context 2, recorded"}


@pytest.mark.broad
def test_trainings_over_gloo_are_killed_and_resumed(nccl: ModuleType, tmp_path: Path) -> None:
    code, rows = run(nccl, tmp_path, "--only", "a *")
    assert code == 0, rows
    assert len(rows) == 4
    assert rows["a killed rank is named"]["found"].startswith("rank 1 of 2 in step ")


@pytest.mark.broad
def test_a_wrong_sum_is_found_in_every_precision(
    nccl: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "all_reduce_begin", lambda x, group: PendingResult(None, x))
    code, rows = run(nccl, tmp_path, "--only", "data 2, ZeRO 0")
    assert code == 1 and rows["data 2, ZeRO 0"]["status"] == "failed"
    found = rows["data 2, ZeRO 0"]["found"].split("; ")
    assert [each.partition(":")[0] for each in found] == ["fp64", "fp32", "bf16"]
    assert all("first wrong in step 1: gradient, gradient norm" in each for each in found)


@pytest.mark.broad
def test_a_recorded_plan_whose_steps_are_not_replayed_fails_on_a_gpu(nccl: ModuleType, tmp_path: Path) -> None:
    setting = nccl.Setting(tmp_path, nccl.time.monotonic() + 60, on_gpu=False)
    nccl._references(setting)
    nccl._compared("data 2, recorded", setting)
    with pytest.raises(nccl.Failed, match=r"fp64: replays by rank \[0, 0\], not 3"):
        nccl._compared("data 2, recorded", nccl.Setting(tmp_path, setting.until, on_gpu=True))
