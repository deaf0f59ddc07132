"""Steps that are recorded and replayed, without an accelerator: a replay computes anew, into the tensors of before."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from plans import small
from ranks import on_ranks
from trivium.certify.certificate import certificate, examine
from trivium.certify.reference import compute_reference, random_rows
from trivium.comms.launch import Place
from trivium.comms.mesh import Group, Mesh
from trivium.errors import TriviumError
from trivium.kernels.cuda.recording import Recording
from trivium.kernels.operations import Operations
from trivium.model.inputs import Inputs
from trivium.parallel.pipeline.executor import Run
from trivium.parallel.sharding.buckets import Bucket
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.training import recorded_step
from trivium.training.recorded_step import RecordedStep
from trivium.training.trainer import Samples, Trainer


class Recorded:
    """As `Recording` is: nothing is computed but by a replay, from and into the places of the recording."""

    made = 0
    buckets: Sequence[Bucket] = ()  # which a graph leaves alone, as it does what groups count
    groups: Sequence[Group] = ()

    def __init__(self, work: Callable[[], tuple[Run, list[torch.Tensor]]]) -> None:
        type(self).made += 1
        self._work = work
        self.result = work()
        assert not any(bucket.is_reducing for bucket in self.buckets), "replicas reduce after a replay"
        self._places = self._tensors(self.result)
        for place in self._places:
            place.fill_(torch.nan)

    def replay(self) -> None:
        before = [dict(vars(bucket)) for bucket in self.buckets]
        handed = [(group, Counter(group.traffic)) for group in self.groups]
        found = self._tensors(self._work())
        for group, counted in handed:
            group.traffic.clear()
            group.traffic.update(counted)
        for place, x in zip(self._places, found, strict=True):
            place.copy_(x)
        for bucket, state in zip(self.buckets, before, strict=True):
            bucket.clear_gradients()
            vars(bucket).update(state)

    @staticmethod
    def _tensors(result: tuple[Run, list[torch.Tensor]]) -> list[torch.Tensor]:
        run, gradients = result
        return [*run.losses.values(), *gradients]


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> type[Recorded]:
    Recorded.made, Recorded.buckets, Recorded.groups = 0, (), ()
    monkeypatch.setattr(recorded_step, "operations_of", lambda device: Operations(recording=Recorded))
    return Recorded


RAMP = {"sequences": 8, "micro": 2, "ramp": {"start": 4, "increment": 4, "samples": 12}}


@pytest.mark.broad
@pytest.mark.parametrize(
    "over",
    [
        {},
        {"precision": {"weights": "bf16"}},
        {"model": {"z_loss": 1e-2, "head": "tied"}},
        {"schedule": "zb-h1", "zero": 0},
        {"recompute": {"mode": "layer"}},
        {"batch": RAMP},
    ],
)
def test_replayed_steps_are_those_that_are_not(over: dict[str, Any], recordings: type[Recorded]) -> None:
    """The first, a measured one, and a validation are computed as ever; after each of them a step is recorded anew."""
    _is_trained_alike(Mesh.single(), over, recordings)


@pytest.mark.broad
@pytest.mark.parametrize(
    "over",
    [
        {"zero": 0},
        {"zero": 1},
        {"zero": 1, "shards": 2, "precision": {"weights": "bf16"}},
        {"zero": 1, "precision": {"weights": "bf16", "communication": "bf16"}, "batch": RAMP},
    ],
)
def test_replicas_reduce_what_they_replayed(over: dict[str, Any], recordings: type[Recorded]) -> None:
    """Each records and replays by itself; then its gradients travel."""
    ranks = 4 if "shards" in over else 2
    on_ranks(ranks, _ranks_are_trained_alike, {**over, "data": ranks}, recordings)


@pytest.mark.broad
@pytest.mark.parametrize(
    "over",
    [
        {"tensor": 2, "sequence_parallel": True},
        {"tensor": 2, "row_chunks": 2, "model": {"z_loss": 1e-2}},
        {"pipeline": 2, "model": {"head": "tied"}, "batch": RAMP},
        {"pipeline": 2, "schedule": "zb-h1", "zero": 0},
        {"context": 2},
        {"tensor": 2, "pipeline": 2, "precision": {"weights": "bf16"}},
    ],
)
def test_ranks_that_share_samples_record_their_messages(over: dict[str, Any], recordings: type[Recorded]) -> None:
    """Each rank at the same steps; what a replay hands to collectives is counted."""
    ranks = small(**over).layout.world_size
    on_ranks(ranks, _ranks_are_trained_alike, over, recordings)


def _ranks_are_trained_alike(place: Place, over: dict[str, Any], recordings: type[Recorded]) -> None:
    plan = small(**over)
    mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
    _is_trained_alike(mesh, over, recordings)


def _is_trained_alike(mesh: Mesh, over: dict[str, Any], recordings: type[Recorded]) -> None:
    found = []
    for records in (False, True):
        plan = small(**over, cuda_graphs=records)
        trainer = Trainer(plan, mesh, seed=1, rule=AdamRule())
        trainer._records, recordings.buckets, recordings.groups = records, trainer.buckets, mesh.groups
        told: list[Any] = []
        handed = [Counter(group.traffic) for group in mesh.groups]
        for step in range(8):
            at = plan.batch.at(step)
            samples = Samples(at.first_sample, at.sequences, random_rows(plan))
            result = trainer.train_step(step, samples, 1e-2, measure=step == 3)
            told.append((result.losses, result.gradient_norm, result.batch_hash))
            if step == 5:
                told.append(trainer.validate(Samples(0, plan.validation_unit, random_rows(plan))))
        told += [group.traffic - before for group, before in zip(mesh.groups, handed, strict=True)]
        masters = torch.cat([shard.master for shard in trainer.optimizer.shards])
        found.append((told, masters.clone()))
    (ours, weights), (expected, right) = found
    assert ours == expected
    assert torch.equal(weights, right)
    assert recordings.made == 3


def test_recorded_steps_are_certified(recordings: type[Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    made = Trainer.__init__

    def records(trainer: Trainer, *given: Any, **more: Any) -> None:
        made(trainer, *given, **more)
        trainer._records = trainer.plan.cuda_graphs

    monkeypatch.setattr(Trainer, "__init__", records)
    plan = small(cuda_graphs=True, precision={"weights": "fp64"})
    findings = examine(plan, Mesh.single(), compute_reference(plan))
    assert certificate(plan, findings.deviations).passed
    assert recordings.made


def test_a_processor_records_nothing(recordings: type[Recorded]) -> None:
    plan = small(cuda_graphs=True)
    trainer = Trainer(plan, Mesh.single(), seed=1, rule=AdamRule())
    for step in range(3):
        trainer.train_step(step, Samples(0, plan.batch.sequences, random_rows(plan)), 1e-2)
    assert recordings.made == 0


@pytest.mark.parametrize(
    ("why", "over"),
    [
        ("plan.zero is 3", {"zero": 3}),
        ("plan.model.dropout is 0.1", {"model": {"dropout": 0.1}}),
        ("plan.model.documents is 'apart'", {"model": {"documents": "apart"}}),
        ("plan.precision.weights is 'fp16'", {"precision": {"weights": "fp16"}}),
    ],
)
def test_what_changes_from_step_to_step_is_not_recorded(why: str, over: dict[str, Any]) -> None:
    legal = small(data=2).model_dump() | {"cuda_graphs": True}
    changed = {k: {**legal[k], **v} if isinstance(v, dict) else v for k, v in over.items()}
    assert not Plan(**legal).check()
    (problem,) = Plan(**{**legal, **changed}).check()
    assert problem.startswith("plan.cuda_graphs is true and") and why in problem
    assert problem.endswith("set plan.cuda_graphs to false")


def test_what_a_recording_reads_lives_as_long(recordings: type[Recorded]) -> None:
    """A replay reads the places of all inputs, also of those that no batch changes."""
    inputs = Inputs(torch.zeros(4, 1, dtype=torch.int64), torch.zeros(4, 1, dtype=torch.int64))
    read = [weakref.ref(x) for x in (inputs.tokens, inputs.targets, inputs.order)]
    step = RecordedStep(1, [inputs], 1.0, [], Mesh.single(), lambda: Run({}))
    step._recording._work = None  # a graph holds no tensor
    del inputs
    gc.collect()
    assert all(x() is not None for x in read)


@pytest.mark.parametrize(
    ("cause", "told", "says"),
    [
        (RuntimeError("not permitted"), TriviumError, "not permitted; set plan.cuda_graphs=false"),
        (torch.OutOfMemoryError("no room"), torch.OutOfMemoryError, "no room"),
    ],
)
def test_a_recording_that_fails_tells_what_failed_first(
    cause: Exception, told: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not that its end failed, too; the executor's words are between."""

    @contextmanager
    def recording(graph: object, capture_error_mode: str) -> Iterator[None]:
        try:
            yield
        finally:
            raise RuntimeError("due to a previous error during capture")

    def work() -> None:
        try:
            raise cause
        except RuntimeError as error:
            raise TriviumError("rank 0 failed at F0.0") from error

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    with pytest.raises(told, match=says):
        Recording(work)
