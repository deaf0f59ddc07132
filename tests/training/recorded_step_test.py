"""Steps that are recorded and replayed, without a GPU: a replay computes again, into the same tensors."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from plans import small
from ranks import on_ranks
from trivium.certify.reference import random_rows
from trivium.comms.group import Group
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.comms.pretend import pretended
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
    """Stands for `Recording`: only a replay computes, from and into the tensors of the recording."""

    made = 0
    buckets: Sequence[Bucket] = ()  # which a graph leaves alone, as it does what groups count
    groups: Sequence[Group] = ()

    def __init__(self, work: Callable[[], tuple[Run, list[torch.Tensor]]]) -> None:
        type(self).made += 1
        self._work = work
        self.result = work()
        assert not any(bucket.is_reducing for bucket in self.buckets), "a recording ends when all of it is over"
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
BF16 = {"precision": {"weights": "bf16"}}
Z_LOSS = {"model": {"z_loss": 1e-2, "head": "tied"}}
CASES = [
    {},
    BF16,
    Z_LOSS,
    {"schedule": "zb-h1", "zero": 0},
    {"recompute": {"mode": "layer"}},
    {"batch": RAMP},
    # Replicas reduce what each of them replayed.
    {"data": 2, "zero": 0},
    {"data": 2, "zero": 1},
    {"data": 4, "zero": 1, "shards": 2, **BF16},
    {"data": 2, "zero": 1, "precision": {"weights": "bf16", "communication": "bf16"}, "batch": RAMP},
    # Ranks that share samples record their messages, and a replay counts their traffic.
    {"tensor": 2, "sequence_parallel": True},
    {"tensor": 2, "sequence_parallel": True, "overlap_tensor": True},
    {"tensor": 2, "row_chunks": 2, **Z_LOSS},
    {"pipeline": 2, "model": {"head": "tied"}, "batch": RAMP},
    {"pipeline": 2, "schedule": "zb-h1", "zero": 0},
    {"context": 2},
    {"tensor": 2, "pipeline": 2, **BF16},
]


@pytest.mark.broad
@pytest.mark.parametrize("over", CASES, ids=str)
def test_replayed_steps_equal_those_without_recording(over: dict[str, Any], recordings: type[Recorded]) -> None:
    """The first step, a measured one and a validation are computed; after each of them a step is recorded again."""
    on_ranks(small(**over).layout.world_size, is_trained_alike, over, recordings)


def is_trained_alike(place: Place, over: dict[str, Any], recordings: type[Recorded]) -> None:
    found = []
    for records in (False, True):
        plan = small(**over, cuda_graphs=records)
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
        trainer = Trainer(plan, mesh, seed=1, rule=AdamRule())
        trainer._records, recordings.buckets, recordings.groups = records, trainer.buckets, mesh.groups
        told: list[Any] = []
        for step in range(8):
            at = plan.batch.at(step)
            samples = Samples(at.first_sample, at.sequences, random_rows(plan))
            result = trainer.train_step(step, samples, 1e-2, measure=step == 3)
            told.append((result.losses, result.gradient_norm, result.batch_hash))
            if step == 5:
                told.append(trainer.validate(Samples(0, plan.validation_unit, random_rows(plan))))
        told += [Counter(group.traffic) for group in mesh.groups]
        found.append((told, torch.cat([shard.master for shard in trainer.optimizer.shards])))
    (ours, weights), (expected, right) = found
    assert ours == expected
    assert torch.equal(weights, right)
    assert recordings.made == 3


def test_what_is_recorded_scales_by_earlier_steps_if_those_after_it_do(recordings: type[Recorded]) -> None:
    """A recording always takes the branches of its own step, and a first step that is refused leaves no past."""
    float8 = {"recipe": "delayed", "keep": []}
    plan = small(precision={"weights": "bf16", "float8": float8}, cuda_graphs=True)
    trainer = Trainer(plan, Mesh.single(), seed=1, rule=AdamRule())
    trainer._records, recordings.buckets = True, trainer.buckets
    made = []
    for step, accepted in enumerate((False, True, True, True)):
        samples = Samples(0, plan.batch.sequences, random_rows(plan))
        trainer.train_step(step, samples, 1e-2, accepts=lambda _, accepted=accepted: accepted)
        made.append(recordings.made)
    assert made == [0, 0, 0, 1]


def test_cpu_records_nothing(recordings: type[Recorded]) -> None:
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
def test_settings_that_change_from_step_to_step_are_not_recorded(why: str, over: dict[str, Any]) -> None:
    legal = small(data=2).model_dump() | {"cuda_graphs": True}
    changed = {k: {**legal[k], **v} if isinstance(v, dict) else v for k, v in over.items()}
    assert not Plan(**legal).check()
    (problem,) = Plan(**{**legal, **changed}).check()
    assert problem.startswith("plan.cuda_graphs is true and") and why in problem
    assert problem.endswith("set plan.cuda_graphs to false")


def test_inputs_of_a_recording_stay_alive(recordings: type[Recorded]) -> None:
    """A replay reads the places of all inputs, also of those that no batch changes."""
    inputs = Inputs(torch.zeros(4, 1, dtype=torch.int64), torch.zeros(4, 1, dtype=torch.int64))
    read = [weakref.ref(x) for x in (inputs.tokens, inputs.targets, inputs.order)]
    step = RecordedStep(1, [inputs], 1.0, [], Mesh.single(), lambda: Run({}))
    step._recording._work = None  # a graph holds no tensor
    del inputs
    gc.collect()
    assert all(x() is not None for x in read)


def test_replicas_reduce_beside_the_recorded_backward(
    recordings: type[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of the backward the reduction of every bucket has begun, except for a tied table, whose gradient is
    complete only then."""
    plan, begun = small(data=2, zero=1, cuda_graphs=True), list[bool]()
    over_replicas = Bucket.over_replicas

    def watched(self: Bucket) -> torch.Tensor:
        begun.append(self.is_reducing)
        return over_replicas(self)

    with pretended(plan.layout, 0) as mesh:
        trainer = Trainer(plan, mesh, seed=1, rule=AdamRule())
        trainer._records, recordings.buckets, recordings.groups = True, trainer.buckets, mesh.groups
        samples = Samples(0, plan.batch.sequences, random_rows(plan))
        trainer.train_step(0, samples, 1e-2)
        monkeypatch.setattr(Bucket, "over_replicas", watched)
        trainer.accumulate(1, samples)
    assert recordings.made == 1
    assert begun == 2 * [not bucket.tied for bucket in trainer.buckets] and True in begun
