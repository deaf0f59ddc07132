"""A step that is not finite, or far above the steps before, changes no weight on any rank; then a policy applies."""

import math
import statistics
from dataclasses import replace
from multiprocessing import current_process
from pathlib import Path
from typing import Any

import pytest
import torch

from chaos.poison import Poison, poisoned
from killing import killing
from plans import small
from ranks import on_ranks
from tokens.curated import curated, documents
from trivium.certify.certificate import RULE
from trivium.certify.reference import random_rows
from trivium.checkpoint.format import published, read_manifest, step_of
from trivium.checkpoint.load import Checkpoint
from trivium.comms.launch import ALONE, Place
from trivium.comms.mesh import Mesh
from trivium.errors import DataError
from trivium.parallel.sharding.zero import Totals
from trivium.tokens.config import TokensConfig
from trivium.tokens.encode import tokenize
from trivium.tokens.manifest import token_counts
from trivium.training import loop, resume
from trivium.training.config import SpikesConfig, TrainingConfig
from trivium.training.lineage import trace as lineage
from trivium.training.loop import TrainingJob
from trivium.training.metrics import EVENTS, METRICS, read
from trivium.training.observers.saves import Saves
from trivium.training.rank import train_rank
from trivium.training.record import CHECKPOINTS, LEFT_OUT, left_out_of, read_record, write_entries
from trivium.training.spikes import SIGMA_PER_DEVIATION, SpikeWatch, threshold
from trivium.training.supervision.heartbeats import RankHeartbeat
from trivium.training.supervision.job import start
from trivium.training.trainer import Samples, Trainer


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("spikes")
    docs = documents({"prose": 40, "pages": 15}, words=60)
    source = curated(root / "curated", docs, {"prose": 0.75, "pages": 0.25})
    (root / "tokens").mkdir()
    tokenize(TokensConfig(vocabulary=300, validation_fraction=0.2), source, root / "tokens", seed=3)
    return root / "tokens"


def job(tokens: Path, out: Path, policy: str, steps: int = 10, **more: Any) -> TrainingJob:
    degrees = more.pop("layout", {})
    spikes = SpikesConfig(policy=policy, **more.pop("spikes", {}))
    plan = small(model={"vocabulary": 300, "layers": 2, "dropout": 0.1}, batch={"sequences": 8, "micro": 2}, **degrees)
    given = {"steps": steps, "checkpoint_every": 3, "validation_samples": 8, "decay_tokens": 9999}
    return TrainingJob(plan, TrainingConfig(**given, **more, spikes=spikes), 5, tokens, out)


def poison_at(step: int, *, factor: float = math.nan, kind: str = "sample backward") -> Poison:
    """Return a fault in the fourth row of a step, identified by its sample number."""
    return Poison(kind, step, 3, 8 * (step - 1) + 3, 1, "mlp", factor)


def poison_of_tokens(tokens: Path, out: Path, step: int) -> Poison:
    """Return a fault in the tokens of a step's fourth row, at whatever step they are read."""
    data = read_record(out, tokens).data
    sample = 8 * (step - 1) + 3
    phrase = tuple(data.sample(sample)[:8].tolist())
    return Poison("document backward", step, 3, sample, 1, "mlp", math.nan, "any", phrase)


def losses(out: Path) -> dict[int, float]:
    return {m["step"]: m["loss"] for m in read(out / METRICS) if "loss" in m}


def files(out: Path, step: int) -> dict[str, Any]:
    (path,) = (p for p in published(out / CHECKPOINTS) if step_of(p.name) == step)
    checkpoint = Checkpoint.open(path)
    checkpoint.verify()
    return checkpoint.manifest["files"]


def spikes_of(out: Path) -> list[dict[str, Any]]:
    return [e for e in read(out / EVENTS) if e["event"] == "spike"]


def test_threshold_is_median_plus_deviations_of_the_last_steps() -> None:
    config = SpikesConfig(deviations=5, window=7)
    before = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6, 5.0]
    middle = statistics.median(before)
    spread = statistics.median(abs(x - middle) for x in before)
    assert threshold(before, config) == pytest.approx(middle + 5 * SIGMA_PER_DEVIATION * spread)
    assert threshold(before[1:], config) == math.inf, "the window is not full"
    assert threshold(before, SpikesConfig(window=7)) == math.inf, "off by default"
    large = [*before[:-1], 1e9]
    assert threshold(large, config) < 100, "one outlier does not move it"


def test_rejected_step_is_not_in_the_history_and_the_state_is_restorable() -> None:
    config = SpikesConfig(deviations=5, window=4)
    watch = SpikeWatch(config)
    for loss in (3.0, 3.1, 2.9, 3.05):
        assert watch.accepts(Totals(1.0, {"loss": loss}))
    state = watch.state
    for loss, norm in ((50.0, 1.0), (3.0, math.inf), (math.nan, 1.0)):
        assert not watch.accepts(Totals(norm, {"loss": loss})) and watch.cause
        assert watch.state["losses"] == state["losses"]
    assert watch.in_a_row == 3
    other = SpikeWatch(config, watch.state)
    assert other.in_a_row == 3
    for loss, norm in ((50.0, 1.0), (3.0, 50.0)):
        assert not other.accepts(Totals(norm, {"loss": loss}))
    assert other.accepts(Totals(1.0, {"loss": 3.0})) and other.in_a_row == 0


LAYOUTS = [
    {"data": 2, "zero": 0},
    {"data": 2, "zero": 3},
    {"tensor": 2, "sequence_parallel": True},
    {"pipeline": 2, "chunks": 2},
]


def refuse(place: Place, plan: Any) -> None:
    mesh = Mesh.connect(plan.layout, place.rank, place.world_size)
    trainer = Trainer(plan, mesh, seed=4, rule=RULE)
    samples, watch = Samples(0, 16, random_rows(plan)), SpikeWatch(SpikesConfig())
    trainer.train_step(0, samples, 1e-2, accepts=watch.accepts)

    def state() -> list[torch.Tensor]:
        shards = trainer.optimizer.shards
        states = [t for s in shards for part in s.parts for t in part.states.values()]
        return [t.clone() for t in (*states, *(t for s in shards for t in (s.master, s.bucket.shard)))]

    before = state()
    with poisoned(Poison("sample forward", 2, 3, 3, 1, "attention", math.inf)):
        result = trainer.train_step(1, samples, 1e-2, accepts=watch.accepts)
    assert watch.cause and not math.isfinite(result.loss)
    assert all(torch.equal(a, b) for a, b in zip(before, state(), strict=True))
    assert trainer.optimizer.steps_done == 1
    trainer.train_step(2, samples, 1e-2, accepts=watch.accepts)
    assert not watch.cause and trainer.optimizer.steps_done == 2
    assert any(not torch.equal(a, b) for a, b in zip(before, state(), strict=True))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_all_ranks_reject_a_step_that_is_not_finite_before_any_weight_changes(layout: dict[str, Any]) -> None:
    plan = small(**layout)
    on_ranks(plan.layout.world_size, refuse, plan)


def test_overflow_of_the_loss_scale_is_no_spike_but_a_loss_that_is_not_finite_is() -> None:
    plan = small(precision={"weights": "fp16"})
    trainer, watch = Trainer(plan, Mesh.single(), seed=4, rule=RULE), SpikeWatch(SpikesConfig())
    assert trainer.loss_scale is not None
    trainer.loss_scale.value = 2.0**40
    samples = Samples(0, 16, random_rows(plan))
    trainer.train_step(0, samples, 1e-3, accepts=watch.accepts)
    assert not watch.cause and trainer.loss_scale.value == 2.0**39
    trainer.loss_scale.value = 2.0**10
    with poisoned(Poison("sample forward", 2, 3, 3, 1, "mlp", math.nan)):
        trainer.train_step(1, samples, 1e-3, accepts=watch.accepts)
    assert watch.cause == "the loss is nan" and trainer.optimizer.steps_done == 0


def test_stop_ends_the_job_once_and_leaves_good_checkpoints(tokens: Path, tmp_path: Path) -> None:
    work = job(tokens, tmp_path, "stop", layout={"data": 2}, restarts=2)
    with (
        poisoned(poison_at(5)),
        pytest.raises(DataError, match=r"step 5: the gradient norm is nan.*`trivium data show RUN --step 5 --culprit`"),
    ):
        start(work)
    assert [(e["step"], e["gradient_norm"]) for e in spikes_of(tmp_path)] == [(5, "nan")]
    assert [e for e in read(tmp_path / EVENTS) if e["event"] == "resumed"] == []
    start(work)  # without the fault it trains to the end
    assert len(losses(tmp_path)) == 10


def test_skip_omits_the_step_and_a_killed_run_skips_it_again(tokens: Path, tmp_path: Path, monkeypatch) -> None:
    given = {"layout": {"data": 2, "zero": 2}, "steps": 12}
    with poisoned(poison_at(8)):
        start(job(tokens, tmp_path / "unbroken", "skip", **given))
        watch = killing(9, monkeypatch, victim=-1)
        start(job(tokens, tmp_path / "broken", "skip", **given), watch=watch)
    for out in (tmp_path / "unbroken", tmp_path / "broken"):
        (line,) = (m for m in read(out / METRICS) if "spike" in m)
        assert line["step"] == 8 and "gradient_norm" not in line
    assert "rank failed" in [e["event"] for e in read(tmp_path / "broken" / EVENTS)]
    assert losses(tmp_path / "broken") == losses(tmp_path / "unbroken")
    assert files(tmp_path / "broken", 12) == files(tmp_path / "unbroken", 12)
    last = read_manifest(published(tmp_path / "broken" / CHECKPOINTS)[-1])
    assert last["updates"] == 11 and len(last["spikes"]["losses"]) == 11


def test_more_spikes_in_a_row_than_the_limit_stop_the_run(tokens: Path, tmp_path: Path) -> None:
    most = (int(token_counts(tokens, "train").argmax()),)  # every batch has it
    with poisoned(replace(poison_at(1), phrase=most)), pytest.raises(DataError, match="at most 2 in a row"):
        start(job(tokens, tmp_path, "skip", spikes={"limit": 2}))
    assert [e["step"] for e in spikes_of(tmp_path)] == [1, 2, 3]


def test_more_rewinds_of_one_step_than_the_limit_stop_the_run(tokens: Path, tmp_path: Path) -> None:
    """The limit holds whatever samples replace the skipped ones."""
    with poisoned(poison_at(4)), pytest.raises(DataError, match="at most 2 in a row"):
        start(job(tokens, tmp_path, "rewind", steps=5, spikes={"limit": 2}, milestones="pythia"))
    assert [e["step"] for e in spikes_of(tmp_path)] == [4, 4, 4]


def test_repeated_rewinds_go_further_back_and_then_stop(tokens: Path, tmp_path: Path) -> None:
    """No rewind returns to a checkpoint from which the step failed again."""
    more: dict[str, Any] = {"milestones": "pythia", "spikes": {"limit": 9}}
    with (
        poisoned(poison_at(4)),
        pytest.raises(DataError, match=r"step 4: .*step 0, step 1, step 2, step 3, and no older checkpoint"),
    ):
        start(job(tokens, tmp_path, "rewind", steps=5, **more))
    assert [e["to"] for e in read(tmp_path / EVENTS) if e["event"] == "rewound"] == [3, 2, 1, 0]


def test_validation_loss_that_is_not_finite_is_an_error_and_deletes_no_checkpoint(tokens: Path, tmp_path: Path) -> None:
    """The last update leaves weights that are finite, but so large that no loss is finite."""
    more: dict[str, Any] = {"milestones": "pythia", "keep_last": 1, "save": "waiting"}
    with pytest.raises(DataError, match=r"step 1: the validation loss is nan; .*update of step 1 .*weights/"):
        start(job(tokens, tmp_path, "stop", **more, steps=1, warmup_tokens=0, lr=1e36))
    assert [path.name for path in published(tmp_path / CHECKPOINTS)] == ["step-00000000", "step-00000001"]
    assert not (tmp_path / "result.json").exists()


def test_rewind_may_take_as_long_as_a_start(tokens: Path, tmp_path: Path, monkeypatch) -> None:
    """It verifies and reads a checkpoint, and first waits for a save."""
    found = list[tuple[str, str]]()

    def noting(owner: Any, method: str) -> None:
        right = getattr(owner, method)

        def noted(self: Any, *given: Any, **named: Any) -> None:
            found.append((method, heartbeat.all.of(0).phase))
            right(self, *given, **named)

        monkeypatch.setattr(owner, method, noted)

    heartbeat = RankHeartbeat()
    noting(loop.Loop, "_restore")
    noting(Saves, "settle")
    with poisoned(poison_at(4)), pytest.raises(DataError):
        train_rank(ALONE, job(tokens, tmp_path / "out", "rewind", steps=5, spikes={"limit": 1}), heartbeat)
    assert set(found) == {("_restore", "starting"), ("settle", "saving")}
    assert found.count(("_restore", "starting")) == 2


@pytest.mark.broad
def test_rewind_skips_the_samples_for_good_even_in_a_killed_run(tokens: Path, tmp_path: Path, monkeypatch) -> None:
    clean = tmp_path / "clean"
    start(job(tokens, clean, "stop", steps=12))
    poison = poison_of_tokens(tokens, clean, 8)
    given = {"layout": {"data": 2}, "steps": 12, "spikes": {"batches": 3}, "keep_last": 4}
    with poisoned(poison):
        start(job(tokens, tmp_path / "unbroken", "rewind", **given))
        watch = killing(10, monkeypatch, victim=-1, later=1)
        start(job(tokens, tmp_path / "broken", "rewind", **given), watch=watch)
    assert "rank failed" in [e["event"] for e in read(tmp_path / "broken" / EVENTS)]
    for out in (tmp_path / "unbroken", tmp_path / "broken"):
        record = read_record(out)
        assert [(e["step"], e["gaps"]) for e in record.entries] == [(8, [[40, 64]])]
        assert left_out_of(record.entries) == record.data.left_out
        found = lineage.round_trip(record)
        assert found["agrees"] and found["steps"] == 12
        assert [r["place"] for r in lineage.batch(record, 6)["rows"]] == list(range(64, 72))
        assert [e["event"] for e in read(out / EVENTS)].count("spike") == 1
    one, two = tmp_path / "unbroken", tmp_path / "broken"
    assert losses(one) == losses(two) and len(losses(one)) == 12
    assert files(one, 12) == files(two, 12)
    assert all(math.isclose(losses(one)[s], losses(clean)[s], rel_tol=1e-5) for s in range(1, 6))
    assert losses(one)[6] != losses(clean)[6]
    resumed = [e["step"] for e in read(one / EVENTS) if e["event"] == "resumed"]
    assert resumed == [3], "the checkpoint of 3 saw nothing that is left out, that of 6 did"


def test_record_of_skipped_samples_is_restored_from_a_checkpoint(tokens: Path, tmp_path: Path) -> None:
    clean = tmp_path / "clean"
    start(job(tokens, clean, "stop", steps=6))
    with poisoned(poison_of_tokens(tokens, clean, 4)):
        start(job(tokens, tmp_path / "out", "rewind", steps=6))
    (tmp_path / "out" / LEFT_OUT).unlink()
    start(job(tokens, tmp_path / "out", "rewind", steps=9))
    assert [e["gaps"] for e in read_record(tmp_path / "out").entries] == [[[24, 32]]]
    assert lineage.round_trip(read_record(tmp_path / "out"))["agrees"]


def test_ranks_skip_what_the_first_rank_read_even_if_a_host_sees_an_older_file(
    tokens: Path, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "out").mkdir()
    write_entries(tmp_path / "out", [{"step": 2, "cause": "nan", "gaps": [[3, 9]]}])
    right = resume.entries_of
    stale = lambda folder: [] if current_process().name == "rank-1" else right(folder)  # noqa: E731
    monkeypatch.setattr(resume, "entries_of", stale)
    start(job(tokens, tmp_path / "out", "stop", steps=2, layout={"data": 2}))
    record = read_record(tmp_path / "out")
    logged = [one["batch_hash"] for one in record.logged()]
    assert logged == [str(record.data.digest(*record.plan.batch.at(step))) for step in (0, 1)]
