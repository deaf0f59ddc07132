"""Saving, changing the layout and resuming gives what uninterrupted training gives."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from plans import EXPERTS, small
from ranks import on_ranks
from trivium.certify.certificate import RULE
from trivium.certify.reference import random_rows
from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.reshard import reshard
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.comms.pretend import pretended
from trivium.errors import CheckpointError, ConfigError
from trivium.plan.parameters import parameters
from trivium.plan.plan import Plan
from trivium.training.state import begin_with, fragments, places, read_together, restore, save_state, soundness
from trivium.training.trainer import Samples, Trainer

FP64 = {"weights": "fp64"}
WITH_BIASES = {**EXPERTS, "experts": {**EXPERTS["experts"], "bias_rate": 0.1, "balance_loss": 0.1}}
LAYOUTS = [
    small(precision=FP64),
    small(tensor=2, pipeline=2, chunks=2, sequence_parallel=True, precision=FP64),
    small(tensor=4, zero=0, precision=FP64),
    small(pipeline=2, data=2, precision=FP64),
    small(pipeline=2, data=2, chunks=2, schedule="zb-turns", precision=FP64),
    small(data=4, zero=3, shards=2, precision=FP64),
]
TWO_RANKS = [
    small(data=2, zero=1, precision=FP64),
    small(data=2, zero=3, precision=FP64),
    small(tensor=2, sequence_parallel=True, precision=FP64),
    small(pipeline=2, chunks=2, precision=FP64),
]
EXPERTS_ALONE = small(precision=FP64, model=WITH_BIASES)
OF_EXPERTS = [
    small(data=2, expert=2, zero=0, precision=FP64, model=WITH_BIASES),
    small(data=2, expert=2, zero=2, precision=FP64, model=WITH_BIASES),
    small(tensor=2, precision=FP64, model=WITH_BIASES),
]
FAR_EXPERTS = [
    small(data=4, expert=4, zero=1, precision=FP64, model=WITH_BIASES),
    small(data=4, expert=2, zero=3, shards=2, precision=FP64, model=WITH_BIASES),
    small(data=2, tensor=2, expert=2, zero=1, precision=FP64, model=WITH_BIASES),
    small(pipeline=2, context=2, expert=2, chunks=2, zero=3, precision=FP64, model=WITH_BIASES),
]
REFUSED, SAVED, END = 2, 4, 6  # steps: one whose update is rejected, the first after the checkpoint, the end
Totals = list[tuple[float, float]]


def in_ranks(does: Callable[..., None], cases: Sequence[tuple[Any, ...]]) -> None:
    """Call `does(place, plan, ...)` for each case. Cases of as many ranks share them: starting takes longest."""
    for size in sorted({plan.layout.world_size for plan, *_ in cases}):
        on_ranks(size, one_after_the_other, does, [c for c in cases if c[0].layout.world_size == size])


def one_after_the_other(place: Place, does: Callable[..., None], cases: Sequence[tuple[Any, ...]]) -> None:
    for case in cases:
        does(place, *case)


def trainer_of(plan: Plan, place: Place | None = None, seed: int = 1, **more: Any) -> Trainer:
    mesh = Mesh.single() if place is None else Mesh.connect(plan.layout, place.rank, place.world_size)
    return Trainer(plan, mesh, seed=seed, rule=RULE, **more)


def steps(trainer: Trainer, first: int, last: int) -> Totals:
    read, size = random_rows(trainer.plan, 1), trainer.plan.batch.sequences
    found = [
        trainer.train_step(step, Samples(step * size, size, read), 1e-2, accepts=lambda t, step=step: step != REFUSED)
        for step in range(first, last)
    ]
    return [(each.loss, each.gradient_norm) for each in found]


def save_under(place: Place, plan: Plan, root: Path) -> None:
    trainer = trainer_of(plan, place)
    steps(trainer, 0, SAVED)
    save_state(trainer, root, SAVED)


def resume_under(place: Place, plan: Plan, path: Path, expected: Totals) -> None:
    trainer = trainer_of(plan, place, seed=99, initial=False)
    restore(trainer, Checkpoint.open(path))
    assert trainer.optimizer.steps_done == SAVED - 1
    for here, there in zip(steps(trainer, SAVED, END), expected, strict=True):
        assert here == pytest.approx(there, rel=1e-12), f"{plan.layout} from {path}"


@pytest.mark.parametrize(
    ("alone", "layouts"),
    [
        pytest.param(LAYOUTS[0], LAYOUTS, marks=pytest.mark.broad),
        (LAYOUTS[0], TWO_RANKS),
        pytest.param(EXPERTS_ALONE, OF_EXPERTS, marks=pytest.mark.broad),
        pytest.param(EXPERTS_ALONE, FAR_EXPERTS, marks=pytest.mark.broad),
    ],
    ids=["up to 4 ranks", "2 ranks", "experts on 2 ranks", "experts on 4 ranks"],
)
def test_any_layout_resumes_any_layouts_checkpoint_exactly(tmp_path: Path, alone: Plan, layouts: list[Plan]) -> None:
    """This includes the count of updates: a wrong one corrects Adam's moments by another factor."""
    unbroken = trainer_of(alone)
    steps(unbroken, 0, SAVED)
    save_state(unbroken, tmp_path / "one", SAVED)
    expected = steps(unbroken, SAVED, END)
    paths = [tmp_path / str(n) / f"step-{SAVED:08d}" for n in range(len(layouts))]
    in_ranks(save_under, [(plan, path.parent) for plan, path in zip(layouts, paths, strict=True)])
    for path in paths:
        Checkpoint.open(path).verify()
    paths.append(tmp_path / "one" / paths[0].name)
    further = [(plan, paths[(n + away) % len(paths)], expected) for n, plan in enumerate(layouts) for away in (0, 1)]
    in_ranks(resume_under, further)
    for path in paths:
        resume_under(None, alone, path, expected)


def values_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Weights and moments by kind and name, of a single process."""
    found = {}
    for shard in trainer.optimizer.shards:
        for place in places(shard.bucket, shard.bucket.owned, trainer.plan, trainer.mesh):
            first, count = place.first - shard.bucket.owned.start, place.box.elements
            tensors = {"weights": shard.bucket.shard[first : first + count], **shard.tensors(first, count)}
            for kind, values in tensors.items():
                found[f"{kind}/{place.slot.row.name}"] = values.clone()
    return found


@pytest.mark.parametrize("files", [None, 1, 40])
def test_deep_model_is_restored_from_any_number_of_files(tmp_path: Path, files: int | None) -> None:
    """34 layers, whose numbers begin alike ("layers.1", "layers.10"), and tensors in pieces. No two are equal."""
    deep = {"layers": 34, "hidden": 8, "heads": 2, "sequence": 4}
    plan = small(model=deep, batch={"sequences": 2, "micro": 1}, precision=FP64)
    one, other = trainer_of(plan), trainer_of(plan, seed=2)
    steps(one, 0, 1)
    path = save_state(one, tmp_path / "run", 1)
    if files is not None:
        path = reshard(Checkpoint.open(path), tmp_path / "moved", files=files)
        assert len(list(path.glob("*.safetensors"))) == files
    restore(other, Checkpoint.open(path))
    expected, found = values_of(one), values_of(other)
    assert expected.keys() == found.keys() and len(expected) == 4 * len(parameters(plan.model))
    for name, values in expected.items():
        assert torch.equal(values, found[name]), name
    matrices = [x.numpy().tobytes() for name, x in expected.items() if not name.startswith("master")]
    assert len(set(matrices)) == len(matrices)


def test_step_that_overflowed_is_not_counted_as_an_update(tmp_path: Path) -> None:
    one, other = (trainer_of(small(precision={"weights": "fp16"}), seed=seed) for seed in (1, 2))
    for step, scale in enumerate((2.0**40, 2.0**10)):
        assert one.loss_scale is not None
        one.loss_scale.value = scale
        steps(one, step, step + 1)
    restore(other, Checkpoint.open(save_state(one, tmp_path, 2)))
    assert other.optimizer.steps_done == 1 and other.loss_scale == one.loss_scale
    assert steps(one, 3, 5) == steps(other, 3, 5)
    for here, there in zip(one.optimizer.shards, other.optimizer.shards, strict=True):
        assert torch.equal(here.master, there.master)


@pytest.mark.parametrize(
    "other",
    [
        {"model": {"layers": 2}},
        {"model": {"vocabulary": 30}},
        {"model": {"heads": 2}},
        {"model": {"sequence": 4}},
        {"precision": {"weights": "fp32"}},
        {"optimizer": {"groups": [{"match": "head.*", "lr_scale": 2.0}]}},
    ],
    ids=str,
)
def test_state_of_another_model_precision_or_optimizer_is_rejected_before_loading(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    bf16 = {"precision": {"weights": "bf16"}}
    path = save_state(trainer_of(small(**bf16)), tmp_path, 3)
    trainer = trainer_of(small(**{**bf16, **other}), seed=2)
    before = [shard.master.clone() for shard in trainer.optimizer.shards]
    with pytest.raises(CheckpointError, match=r"^\S+ holds the state of another model, precision or optimizer"):
        restore(trainer, Checkpoint.open(path))
    assert all(torch.equal(b, s.master) for b, s in zip(before, trainer.optimizer.shards, strict=True))
    assert trainer.optimizer.steps_done == 0


@pytest.mark.parametrize("given", ["bf16", "fp32"])
def test_masters_of_a_training_begun_with_weights_are_not_rounded(tmp_path: Path, given: str) -> None:
    one = trainer_of(small(precision={"weights": given}))
    steps(one, 0, 2)
    other = trainer_of(small(precision={"weights": "bf16"}), seed=2)
    begin_with(other, Checkpoint.open(save_state(one, tmp_path, 2)))
    for here, there in zip(other.optimizer.shards, one.optimizer.shards, strict=True):
        assert torch.equal(here.master, there.master)
        assert torch.equal(here.bucket.shard, here.master.bfloat16())
        assert not torch.equal(here.master, here.bucket.shard.float())


@pytest.mark.parametrize("data", [1, 2])
def test_partial_micro_batch_is_rejected(data: int) -> None:
    """If it was dropped, losses and gradients would be divided by the wrong count. Validation pads it."""
    on_ranks(data, rejects_partial_micro_batches, small(data=data, batch={"sequences": 8, "micro": 2}))


def rejects_partial_micro_batches(place: Place, plan: Plan) -> None:
    trainer = trainer_of(plan, place)
    read, unit = random_rows(plan, 1), 2 * place.world_size
    for sequences in range(13):
        samples = Samples(0, sequences, read)
        if sequences:
            assert trainer.validate(samples)["loss"] > 0
        if sequences and sequences % unit == 0:
            continue
        for use in (partial(trainer.train_step, 0, lr=1e-2), *([] if sequences else [trainer.validate])):
            with pytest.raises(ConfigError, match=rf"^{sequences} sequences: must be a multiple of .* = {unit}"):
                use(samples)


def test_rank_sends_a_heartbeat_for_each_tensor_that_it_reads(tmp_path: Path) -> None:
    trainer = trainer_of(small())
    path, alive = save_state(trainer, tmp_path, 1), list[int]()
    trainer.goes_on = lambda: alive.append(1)
    checkpoint = Checkpoint.open(path)
    read_together(restore, trainer, checkpoint)
    assert len(alive) >= len(checkpoint.names)
    alive.clear()
    read_together(begin_with, trainer, checkpoint)
    assert len(alive) >= sum(name.startswith("weights/") for name in checkpoint.names)


def save_initial(place: Place, plan: Plan, root: Path) -> None:
    save_state(trainer_of(plan, place), root, 1)


def test_checkpoint_has_every_element_of_every_tensor_once(tmp_path: Path) -> None:
    plans = [*LAYOUTS, small(data=2, precision={"weights": "bf16"})]
    roots = [tmp_path / str(number) for number in range(len(plans))]
    in_ranks(save_initial, list(zip(plans, roots, strict=True)))
    for plan, root in zip(plans, roots, strict=True):
        tensors = Checkpoint.open(root / "step-00000001").manifest["tensors"]
        kinds = {"weights", "moment1", "moment2"} | ({"master"} if plan.precision.has_master else set())
        assert {n.split("/")[0] for n in tensors} == kinds
        for name, entry in tensors.items():
            stored = sum(math.prod(piece["shape"]) for piece in entry["pieces"])
            assert stored == math.prod(entry["shape"]), name
        writers = {piece["file"] for entry in tensors.values() for piece in entry["pieces"]}
        assert len(writers) == (plan.layout.world_size if plan.zero else plan.layout.tensor), "all ranks write"


def test_state_that_is_finite_is_described_by_its_largest_weight_and_any_other_by_its_tensor() -> None:
    trainer = trainer_of(small())
    slot = next(s for b in trainer.buckets for s in b.slots if s.row.name == "layers.2.mlp.up.weight")
    slot.parameter.data.view(-1)[3] = -70.0
    assert soundness(trainer, 9) == (
        "the state after the update of step 9 is finite, its largest weight 70 in weights/layers.2.mlp.up.weight"
    )
    slot.parameter.data.view(-1)[3] = math.nan
    assert soundness(trainer, 9).startswith("weights/layers.2.mlp.up.weight ")


def test_ranks_that_replicate_a_slice_take_turns_in_writing_it() -> None:
    plan, written = small(data=4, zero=1, shards=2), []
    for rank in range(4):
        with pretended(plan.layout, rank) as mesh:
            written += [Counter(f.name for f in fragments(Trainer(plan, mesh, seed=1, rule=RULE)))]
    assert all(written), "every rank writes"
    for one, other in ((0, 2), (1, 3)):
        assert not written[one].keys() & written[other].keys(), "they hold the same"
