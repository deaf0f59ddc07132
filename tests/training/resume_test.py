"""Whole jobs that are interrupted: nothing is lost, nothing is mixed, and the results are the same."""

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from killing import killing
from plans import small
from tokens.curated import curated, documents
from trivium.checkpoint.base import BASE_HASH, base_sha256
from trivium.checkpoint.format import published, read_manifest, step_name, step_of
from trivium.checkpoint.lease import holding
from trivium.checkpoint.load import Checkpoint
from trivium.errors import CheckpointError, ConfigError, DataError, MachineError
from trivium.plan.adapters import AdapterGroup
from trivium.plan.plan import Plan
from trivium.tokens.config import TokensConfig
from trivium.tokens.encode import tokenize
from trivium.training import loop
from trivium.training.config import TrainingConfig
from trivium.training.lineage.replay import replay_to
from trivium.training.lineage.trace import round_trip
from trivium.training.loop import TrainingJob, dataset_of
from trivium.training.metrics import EVENTS, METRICS, read
from trivium.training.observers import saves as saves_module
from trivium.training.prove import another_layout
from trivium.training.record import CHECKPOINTS, read_record
from trivium.training.resume import drop_abandoned, refuse_other_order
from trivium.training.supervision.job import check_start, start

BATCH = {"sequences": 8, "micro": 2}
MODEL = {"vocabulary": 300, "layers": 2, "dropout": 0.1}
STEPS = 12


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("resume")
    source = curated(root / "curated", documents({"prose": 40, "pages": 15}, words=60), {"prose": 0.75, "pages": 0.25})
    (root / "tokens").mkdir()
    tokenize(TokensConfig(vocabulary=300, validation_fraction=0.2), source, root / "tokens", seed=3)
    return root / "tokens"


def plan(**degrees: Any) -> Plan:
    precision = {"weights": degrees.pop("weights", "fp32")}
    return small(model=MODEL, batch=BATCH, precision=precision, **degrees)


def job(tokens: Path, out: Path, plan: Plan, **training: Any) -> TrainingJob:
    given = {"steps": STEPS, "checkpoint_every": 3, "validation_samples": 8, "restarts": 1, "keep_last": 2, **training}
    return TrainingJob(plan, TrainingConfig(**given), 5, tokens, out)


def losses(out: Path) -> dict[int, float]:
    return {m["step"]: m["loss"] for m in read(out / METRICS) if "loss" in m}


def rates(out: Path) -> dict[int, float]:
    return {m["step"]: m["lr"] for m in read(out / METRICS) if "lr" in m}


def batches(out: Path) -> dict[int, str]:
    """Return the hash of what each step read, independent of the ranks."""
    return {m["step"]: m["batch_hash"] for m in read(out / METRICS) if "batch_hash" in m}


def test_a_training_that_moves_to_another_layout_is_the_same_training(tokens: Path, tmp_path: Path) -> None:
    begun, then = plan(data=2, weights="fp64"), plan(weights="fp64")
    unbroken, moved = tmp_path / "unbroken", tmp_path / "moved"
    start(job(tokens, unbroken, begun))
    priced = replace(job(tokens, moved, begun), step_seconds=lambda of: 0.25 * of.layout.world_size)
    summary = start(priced, then=(5, then))
    assert summary["layout"]["data"] == 1 and len(summary["memory"]) == 2
    assert read_record(moved).plan == begun
    events = [(e["event"], e["step"]) for e in read(moved / EVENTS)]
    assert ("saved", 5) in events and ("resumed", 5) in events
    (resumed,) = (e for e in read(moved / EVENTS) if e["event"] == "resumed")
    assert (resumed["layout_before"]["data"], resumed["layout"]["data"], resumed["predicted_seconds"]) == (2, 1, 0.25)
    assert summary["memory_layout"]["data"] == 2
    assert losses(moved) == pytest.approx(losses(unbroken), rel=1e-9)
    assert losses(moved).keys() == set(range(1, STEPS + 1))


def hashes(out: Path, step: int) -> dict[str, Any]:
    """Return the sha256 of every file of weights and moments."""
    (path,) = (p for p in published(out / CHECKPOINTS) if step_of(p.name) == step)
    checkpoint = Checkpoint.open(path)
    checkpoint.verify()
    return checkpoint.manifest["files"]


@pytest.mark.parametrize(
    "layout", [{}, {"data": 2, "zero": 1}, {"pipeline": 2, "tensor": 2}, {"data": 2, "zero": 3, "weights": "bf16"}]
)
def test_killed_run_ends_bit_for_bit_like_the_uninterrupted_one(
    tokens: Path, tmp_path: Path, layout: dict[str, Any], monkeypatch
) -> None:
    given = plan(**layout)
    start(job(tokens, tmp_path / "unbroken", given))
    start(job(tokens, tmp_path / "broken", given), watch=killing(7, monkeypatch))
    events = [e["event"] for e in read(tmp_path / "broken" / EVENTS)]
    assert "rank failed" in events and "resumed" in events
    assert losses(tmp_path / "broken") == losses(tmp_path / "unbroken")
    assert batches(tmp_path / "broken") == batches(tmp_path / "unbroken")
    assert hashes(tmp_path / "broken", STEPS) == hashes(tmp_path / "unbroken", STEPS)
    assert len(losses(tmp_path / "broken")) == STEPS


def test_validation_uses_the_samples_there_are_under_every_layout(tokens: Path, tmp_path: Path) -> None:
    there = dataset_of(job(tokens, tmp_path, plan()), "validation").num_samples
    assert there % 8, "full micro-batches under every layout would show nothing"
    told = []
    for degrees in ({}, {"data": 4}):
        out = tmp_path / str(len(told))
        start(job(tokens, out, plan(weights="fp64", **degrees), steps=1, validation_samples=1000))
        told.append(json.loads((out / "result.json").read_text()))
    assert [x["validation_samples"] for x in told] == [there] * 2
    assert told[0]["validation_loss"] == pytest.approx(told[1]["validation_loss"], rel=1e-12)


def test_metrics_count_samples_and_tokens_up_to_the_end_of_the_step(tokens: Path, tmp_path: Path) -> None:
    given, seen = job(tokens, tmp_path, plan(), steps=4), 0
    start(given)
    for line in (m for m in read(tmp_path / METRICS) if "loss" in m):
        seen += line["sequences"]
        assert (line["samples"], line["tokens"]) == (seen, seen * given.plan.model.sequence)
    assert seen > 0


def test_plan_with_a_given_table_has_another_layout_too() -> None:
    rows = tuple(" ".join(f"{op}{m}.{stage}" for op in "FB" for m in range(4)) for stage in range(2))
    given = plan(pipeline=2, schedule="given", rows=rows)
    other = another_layout(given)
    assert not given.check() and not other.check() and other.layout != given.layout


def test_run_continues_after_failed_saves_and_stops_after_save_failures(
    tokens: Path, tmp_path: Path, monkeypatch, capfd
) -> None:
    right = saves_module.Saving

    def failing(root: Path, step: int, *rest: Any) -> Any:
        if step in bad:
            raise CheckpointError(f"checkpoint {root / str(step)} was not saved: no room")
        return right(root, step, *rest)

    monkeypatch.setattr(saves_module, "Saving", failing)
    bad = {6}
    start(job(tokens, tmp_path / "one", plan()))
    assert [(e["event"], e["step"]) for e in read(tmp_path / "one" / EVENTS)] == [
        ("saved", 3),
        ("save failed", 6),
        ("saved", 9),
        ("saved", 12),
    ]
    bad = {6, 9}
    with pytest.raises(MachineError, match="training.save_failures .2. saves in a row failed"):
        start(job(tokens, tmp_path / "two", plan(), save_failures=2))
    assert [step_of(p.name) for p in published(tmp_path / "two" / CHECKPOINTS)] == [3]
    bad = {12}
    with pytest.raises(MachineError, match="the end of this training is lost"):
        start(job(tokens, tmp_path / "three", plan()))
    assert "no room" in capfd.readouterr().err
    bad = set()
    start(job(tokens, tmp_path / "three", plan()))
    assert hashes(tmp_path / "three", 12) == hashes(tmp_path / "one", 12)


def test_failed_write_is_reported_after_the_next_step(tokens: Path, tmp_path: Path, monkeypatch) -> None:
    right = saves_module.Saving

    class Failing(right):
        looks = 0

        def _write(self) -> None:
            if self.step == 6 and self._mesh.rank == 1:
                raise OSError(28, "No space left on device")
            super()._write()

        def advance(self, *, wait: bool = False) -> bool:
            self.looks += 1
            self._thread.join()  # an error would have occurred by now
            try:
                return super().advance(wait=wait)
            except CheckpointError:
                (tmp_path / f"looked-{self._mesh.rank}-{self.looks}").touch()
                raise

    monkeypatch.setattr(saves_module, "Saving", Failing)
    start(job(tokens, tmp_path / "out", plan(data=2), checkpoint_every=6))
    (event,) = (e for e in read(tmp_path / "out" / EVENTS) if e["event"] == "save failed")
    assert event["step"] == 6 and "rank 1: " in event["cause"] and " are needed and " in event["cause"]
    assert sorted(p.name for p in tmp_path.glob("looked-*")) == ["looked-0-1", "looked-1-1"]
    assert [step_of(p.name) for p in published(tmp_path / "out" / CHECKPOINTS)] == [12]


def test_retention_and_milestones_keep_what_they_promise(tokens: Path, tmp_path: Path) -> None:
    start(job(tokens, tmp_path, plan(), milestones="pythia", keep_last=1, keep_every=6, checkpoint_every=3))
    assert [step_of(p.name) for p in published(tmp_path / CHECKPOINTS)] == [0, 1, 2, 4, 6, 8, 12]
    assert not list((tmp_path / CHECKPOINTS).glob(".*"))


def test_damaged_newest_checkpoint_is_skipped_with_a_warning_and_its_steps_repeated(
    tokens: Path, tmp_path: Path, capfd
) -> None:
    start(job(tokens, tmp_path, plan(data=2)))
    before = losses(tmp_path), hashes(tmp_path, 12)
    damaged = tmp_path / CHECKPOINTS / "step-00000012" / "pieces-00001.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-9] ^= 1
    damaged.write_bytes(content)
    start(job(tokens, tmp_path, plan(data=2)))
    told = capfd.readouterr().err
    assert "PASSING OVER A DAMAGED CHECKPOINT" in told and "pieces-00001" in told
    assert (losses(tmp_path), hashes(tmp_path, 12)) == before


OTHER = {
    "model": (lambda p: p.model_copy(update={"model": p.model.model_copy(update={"ffn": 48})}), "plan.model.ffn"),
    "dtype": (
        lambda p: p.model_copy(update={"precision": p.precision.model_copy(update={"weights": "bf16"})}),
        "plan.precision.weights: fp32 -> bf16",
    ),
}


def test_other_blend_of_the_same_shards_is_rejected_with_a_diff(tokens: Path, tmp_path: Path) -> None:
    """No hash of a file shows the weights of sources, and the samples would differ: some are read twice, some never."""
    start(job(tokens, tmp_path / "a", plan(), steps=3))
    there = shutil.copytree(tokens, tmp_path / "tokens")
    manifest = json.loads((there / "manifest.json").read_text())
    manifest["sources"]["prose"]["weight"], manifest["sources"]["pages"]["weight"] = 0.5, 0.5
    (there / "manifest.json").write_text(json.dumps(manifest))
    given = str(tmp_path / "a" / CHECKPOINTS / "step-00000003")
    for out, began in (("a", {}), ("b", {"start_from": given, "start_with": "state"})):
        with pytest.raises(CheckpointError, match=r"data\.blend\.prose\.weight: 0\.75 -> 0\.5\n"):
            start(job(there, tmp_path / out, plan(), steps=6, **began))


def test_run_resumes_only_with_its_own_recipe(tokens: Path, tmp_path: Path) -> None:
    start(job(tokens, tmp_path, plan(), steps=3))
    with pytest.raises(CheckpointError, match=r"training.lr: 0.003 -> 0.01\n  training.steps: 3 -> 6\n"):
        start(job(tokens, tmp_path, plan(), steps=6, lr=0.01))
    assert sorted(losses(tmp_path)) == [1, 2, 3]


def test_second_job_in_a_run_directory_is_rejected(tokens: Path, tmp_path: Path) -> None:
    with holding(tmp_path, print), pytest.raises(MachineError, match=f"pid {os.getpid()} on .* ago"):
        start(job(tokens, tmp_path, plan()))
    start(job(tokens, tmp_path, plan(), steps=3))


def test_run_starts_with_given_weights(tokens: Path, tmp_path: Path) -> None:
    start(job(tokens, tmp_path / "a", plan(), steps=3))
    given = str(tmp_path / "a" / CHECKPOINTS / "step-00000003")
    start(job(tokens, tmp_path / "b", plan(data=2), steps=4, start_from=given))
    assert losses(tmp_path / "b")[1] < losses(tmp_path / "a")[1]
    with pytest.raises(CheckpointError, match="plan.model.ffn"):
        start(job(tokens, tmp_path / "c", OTHER["model"][0](plan()), steps=4, start_from=given))


@pytest.mark.parametrize("asks", [check_start, start], ids=["before the ranks", "by the ranks"])
def test_another_directory_is_the_remedy_only_for_a_runs_own_checkpoint(
    tokens: Path, tmp_path: Path, asks: Callable[[TrainingJob], Any]
) -> None:
    """In another directory the same training.start_from would be refused again."""
    other = OTHER["model"][0](plan())
    start(job(tokens, tmp_path / "a", plan(), steps=3))
    given = {"start_from": str(tmp_path / "a" / CHECKPOINTS / "step-00000003"), "steps": 4}
    with pytest.raises(CheckpointError, match=r"checkpoint \(training.start_from\)$") as weights:
        asks(job(tokens, tmp_path / "b", other, **given))
    with pytest.raises(CheckpointError, match=r"weights alone \(training.start_with=weights\)$") as state:
        asks(job(tokens, tmp_path / "c", other, start_with="state", **given))
    assert "--out" not in f"{weights.value}{state.value}"
    with pytest.raises(CheckpointError, match="tokens, or another --out$"):
        start(job(tokens, tmp_path / "a", other, steps=4))


def test_run_that_starts_with_a_state_continues_like_the_run_of_that_state(tokens: Path, tmp_path: Path) -> None:
    start(job(tokens, tmp_path / "a", plan(), steps=6))
    given = str(tmp_path / "a" / CHECKPOINTS / "step-00000003")
    began = {"start_from": given, "start_with": "state"}
    start(job(tokens, tmp_path / "b", plan(), steps=6, **began))
    whole, rest = losses(tmp_path / "a"), losses(tmp_path / "b")
    assert rest == {step: whole[step] for step in (4, 5, 6)}
    replay = replay_to(read_record(tmp_path / "b"), 6)
    assert (replay.started_from, replay.done) == (3, 5)
    assert round_trip(read_record(tmp_path / "b"))["agrees"]
    for too_few in (2, 3):
        with pytest.raises(ConfigError, match=f"training.steps .{too_few}. .* has done 3: none is left"):
            start(job(tokens, tmp_path / "c", plan(), steps=too_few, **began))
    with pytest.raises(CheckpointError, match="fp32 -> bf16"):
        start(job(tokens, tmp_path / "c", OTHER["dtype"][0](plan()), steps=6, **began))


def test_state_continues_with_another_learning_rate_and_from_its_own_checkpoints(tokens: Path, tmp_path: Path) -> None:
    start(job(tokens, tmp_path / "a", plan(), steps=6))
    given = str(tmp_path / "a" / CHECKPOINTS / "step-00000003")
    began = {"start_from": given, "start_with": "state", "lr": 1e-4, "decay_tokens": 10**6}
    start(job(tokens, tmp_path / "b", plan(), steps=5, **began))
    start(job(tokens, tmp_path / "b", plan(), steps=6, **began))
    whole, rest = losses(tmp_path / "a"), losses(tmp_path / "b")
    assert whole[4] == rest[4] and whole[6] != rest[6] and sorted(rest) == [4, 5, 6]
    assert [e["step"] for e in read(tmp_path / "b" / EVENTS) if e["event"] == "resumed"] == [3, 5]


def test_final_decay_branched_off_a_stable_training_equals_one_planned_from_the_start(
    tokens: Path, tmp_path: Path
) -> None:
    """This is how warm-up-stable-decay is used: train without an end, and decay from any checkpoint."""
    step = 8 * 8  # tokens
    stable = {"decay": "constant", "warmup_tokens": step, "checkpoint_every": 2, "keep_last": 9}
    start(job(tokens, tmp_path / "stable", plan(), steps=6, **stable))
    decay = {"decay": "wsd", "final_decay_tokens": 3 * step, "lr_final_fraction": 0.0}
    whole = {**stable, **decay, "steps": 7}
    start(job(tokens, tmp_path / "whole", plan(), **whole))
    given = tmp_path / "stable" / CHECKPOINTS / "step-00000004"
    branch = job(tokens, tmp_path / "branch", plan(), start_from=str(given), start_with="state", **whole)
    check_start(branch)
    start(branch)
    expected, rest = (losses(tmp_path / out) for out in ("whole", "branch"))
    assert rest == {n: expected[n] for n in (5, 6, 7)}
    assert hashes(tmp_path / "branch", 7) == hashes(tmp_path / "whole", 7)
    assert {n: losses(tmp_path / "stable")[n] for n in range(1, 6)} == {n: expected[n] for n in range(1, 6)}
    assert losses(tmp_path / "stable")[6] != expected[6] and rates(tmp_path / "branch")[7] == 0.0


def test_final_decay_that_would_have_begun_before_the_given_state_is_rejected(tokens: Path, tmp_path: Path) -> None:
    step = 8 * 8  # tokens
    start(job(tokens, tmp_path / "stable", plan(), steps=4, decay="constant"))
    state = {"start_with": "state", "start_from": str(tmp_path / "stable" / CHECKPOINTS / "step-00000003")}
    wsd = {"decay": "wsd", "steps": 6}
    late = job(tokens, tmp_path / "late", plan(), final_decay_tokens=4 * step, **wsd, **state)
    with pytest.raises(ConfigError, match=r"\(256\) begin at token 128, .* seen 192: .* to 192 at most, raise"):
        check_start(late)
    check_start(job(tokens, tmp_path / "late", plan(), final_decay_tokens=3 * step, **wsd, **state))
    begun = job(tokens, tmp_path / "begun", plan(), final_decay_tokens=4 * step, **wsd)
    start(begun)
    inside = {**state, "start_from": str(tmp_path / "begun" / CHECKPOINTS / "step-00000003")}
    check_start(job(tokens, tmp_path / "other", plan(), final_decay_tokens=4 * step, **wsd, **inside))


def test_state_that_saw_skipped_samples_is_rejected() -> None:
    about = {"samples": 24, "left_out": []}
    refuse_other_order(Path("given"), about, [{"step": 5, "cause": "", "gaps": [[24, 32]]}])
    with pytest.raises(DataError, match="saw samples that a rewind left out"):
        refuse_other_order(Path("given"), about, [{"step": 5, "cause": "", "gaps": [[16, 32]]}])


def test_first_rank_may_delete_longer_than_the_timeout_of_a_collective(
    tokens: Path, tmp_path: Path, monkeypatch
) -> None:
    """The thousands of files of a checkpoint can take that long."""
    monkeypatch.setattr(loop, "drop_abandoned", lambda root, entries: time.sleep(2.0))
    supervision = {"timeout_seconds": 1.0}
    start(job(tokens, tmp_path, plan(data=2), steps=2, restarts=0, supervision=supervision))


@pytest.mark.parametrize("begins", ["restore", "begin_with"])
def test_rank_may_read_a_checkpoint_longer_than_the_timeout_of_a_collective(
    tokens: Path, tmp_path: Path, monkeypatch, begins: str
) -> None:
    """A slow file system can take that long."""
    patience: dict[str, Any] = {"restarts": 0, "supervision": {"timeout_seconds": 1.0}, "decay_tokens": 1000}
    start(job(tokens, tmp_path / "run", plan(data=2), steps=2, **patience))
    reads = getattr(loop, begins)

    def read_slowly(trainer, checkpoint) -> None:
        time.sleep(2.0 * trainer.mesh.rank)
        reads(trainer, checkpoint)

    monkeypatch.setattr(loop, begins, read_slowly)
    if begins == "restore":
        start(job(tokens, tmp_path / "run", plan(data=2), steps=3, **patience))
    else:
        there = str(tmp_path / "run" / CHECKPOINTS / "step-00000002")
        start(job(tokens, tmp_path / "other", plan(data=2), steps=3, start_from=there, **patience))


def test_only_abandoned_checkpoints_are_deleted(tmp_path: Path) -> None:
    for step in (4, 8, 12):
        (tmp_path / step_name(step)).mkdir()
    drop_abandoned(tmp_path, [])
    assert len(published(tmp_path)) == 3
    drop_abandoned(tmp_path, [step_name(8), step_name(12)])
    assert [path.name for path in published(tmp_path)] == [step_name(4)]


def test_run_keeps_the_hash_of_the_weights_beside_which_its_adapters_are_trained(tokens: Path, tmp_path: Path) -> None:
    start(job(tokens, tmp_path / "base", plan(), steps=1))
    base = published(tmp_path / "base" / "checkpoints")[-1]
    bare = plan()
    adapted = bare.model_copy(update={"model": bare.model.model_copy(update={"adapters": (AdapterGroup(),)})})
    tuning = job(tokens, tmp_path / "tuned", adapted, steps=2, start_from=str(base))
    for steps in (1, 2):  # the second continues the first
        start(replace(tuning, until=steps))
        newest = read_manifest(published(tmp_path / "tuned" / "checkpoints")[-1])
        assert newest["step"] == steps and newest[BASE_HASH] == base_sha256(Checkpoint.open(base))
