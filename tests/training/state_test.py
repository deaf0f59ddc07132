"""Train, change the layout, resume, train: the same as never having stopped."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from plans import small
from ranks import on_ranks
from trivium.certify.certificate import RULE
from trivium.certify.reference import random_rows
from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.reshard import reshard
from trivium.checkpoint.save import save
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError, ConfigError
from trivium.plan.parameters import parameters
from trivium.plan.plan import Plan
from trivium.training.state import begin_with, fragments, places, read_together, restore, save_state
from trivium.training.trainer import Samples, Trainer

FP64 = {"weights": "fp64"}
LAYOUTS = [
    small(precision=FP64),
    small(tensor=2, pipeline=2, chunks=2, sequence_parallel=True, precision=FP64),
    small(tensor=4, zero=0, precision=FP64),
    small(pipeline=2, data=2, precision=FP64),
    small(pipeline=2, data=2, chunks=2, schedule="zb-turns", precision=FP64),
]


def in_ranks(does: Callable[..., None], cases: Sequence[tuple[Any, ...]]) -> None:
    """`does(place, plan, ...)` for each case. Those of as many ranks share them: starting takes longest."""
    for size in sorted({plan.layout.world_size for plan, *_ in cases}):
        on_ranks(size, one_after_the_other, does, [c for c in cases if c[0].layout.world_size == size])


def one_after_the_other(place: Place, does: Callable[..., None], cases: Sequence[tuple[Any, ...]]) -> None:
    for case in cases:
        does(place, *case)


def steps(trainer: Trainer, first: int, last: int) -> list[float]:
    read = random_rows(trainer.plan, 1)
    size = trainer.plan.batch.sequences
    return [trainer.train_step(s, Samples(s * size, size, read), 1e-2).loss for s in range(first, last)]


def begin(place: Place, plan: Plan, root: Path) -> None:
    mesh = Mesh.connect(plan.layout, place.rank, place.world_size)
    trainer = Trainer(plan, mesh, seed=1, rule=RULE)
    steps(trainer, 0, 2)
    save(root, 2, fragments(trainer), mesh, {})


def go_on(place: Place, plan: Plan, root: Path, expected: list[float]) -> None:
    mesh = Mesh.connect(plan.layout, place.rank, place.world_size)
    trainer = Trainer(plan, mesh, seed=99, rule=RULE, initial=False)
    restore(trainer, Checkpoint.open(root / "step-00000002"))
    losses = steps(trainer, 2, 4)
    for here, there in zip(losses, expected, strict=True):
        assert abs(here - there) <= 1e-12 * abs(there), f"{plan.layout} from {root.name}: {losses} != {expected}"


@pytest.mark.broad
def test_any_layout_resumes_any_layouts_checkpoint_exactly(tmp_path: Path) -> None:
    unbroken = steps(Trainer(LAYOUTS[0], Mesh.single(), seed=1, rule=RULE), 0, 4)[2:]
    roots = [tmp_path / str(number) for number in range(len(LAYOUTS))]
    in_ranks(begin, list(zip(LAYOUTS, roots, strict=True)))
    for root in roots:
        Checkpoint.open(root / "step-00000002").verify()
    further = [(n, (n + away) % len(LAYOUTS)) for n in range(len(LAYOUTS)) for away in range(3)]
    in_ranks(go_on, [(LAYOUTS[reads], roots[written], unbroken) for written, reads in further])


REFUSED, SAVED, END = 2, 6, 9  # steps: one whose update is refused, the first after the checkpoint, the end
TWO_RANKS = [
    small(data=2, zero=1, precision=FP64),
    small(data=2, zero=3, precision=FP64),
    small(tensor=2, sequence_parallel=True, precision=FP64),
    small(pipeline=2, chunks=2, precision=FP64),
]


def with_a_refused_update(trainer: Trainer, first: int, last: int) -> list[tuple[float, float]]:
    read, size = random_rows(trainer.plan, 1), trainer.plan.batch.sequences
    found = [
        trainer.train_step(
            step, Samples(step * size, size, read), 1e-2, accepts=lambda totals, step=step: step != REFUSED
        )
        for step in range(first, last)
    ]
    return [(each.loss, each.gradient_norm) for each in found]


def save_under(place: Place, plan: Plan, root: Path) -> None:
    trainer = Trainer(plan, Mesh.connect(plan.layout, place.rank, place.world_size), seed=1, rule=RULE)
    with_a_refused_update(trainer, 0, SAVED)
    save_state(trainer, root, SAVED)


def resume_under(place: Place, plan: Plan, path: Path, expected: list[tuple[float, float]]) -> None:
    mesh = Mesh.connect(plan.layout, place.rank, place.world_size)
    resume_in(Trainer(plan, mesh, seed=99, rule=RULE, initial=False), path, expected)


def resume_in(trainer: Trainer, path: Path, expected: list[tuple[float, float]]) -> None:
    restore(trainer, Checkpoint.open(path))
    assert trainer.optimizer.steps_done == SAVED - 1
    found = with_a_refused_update(trainer, SAVED, END)
    assert trainer.optimizer.steps_done == END - 1
    for here, there in zip(found, expected, strict=True):
        assert here == pytest.approx(there, rel=1e-12), trainer.plan.layout


def test_another_layout_resumes_with_the_count_of_updates(tmp_path: Path) -> None:
    """A wrong count corrects Adam's moments by another factor: losses from the second resumed step on differ."""
    unbroken = Trainer(LAYOUTS[0], Mesh.single(), seed=1, rule=RULE)
    with_a_refused_update(unbroken, 0, SAVED)
    path = save_state(unbroken, tmp_path / "one", SAVED)
    expected = with_a_refused_update(unbroken, SAVED, END)
    in_ranks(resume_under, [(plan, path, expected) for plan in TWO_RANKS])
    in_ranks(save_under, [(plan, tmp_path / str(n)) for n, plan in enumerate(TWO_RANKS)])
    for n in range(len(TWO_RANKS)):
        one = Trainer(LAYOUTS[0], Mesh.single(), seed=99, rule=RULE, initial=False)
        resume_in(one, tmp_path / str(n) / path.name, expected)


def values_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Weights and moments by kind and name, of a process that has them all."""
    found = {}
    for shard in trainer.optimizer.shards:
        for place in places(shard.bucket, shard.bucket.owned, trainer.plan, 0):
            first, count = place.first - shard.bucket.owned.start, place.box.elements
            tensors = {"weights": shard.bucket.shard[first : first + count], **shard.tensors(first, count)}
            for kind, values in tensors.items():
                found[f"{kind}/{place.slot.row.name}"] = values.clone()
    return found


@pytest.mark.parametrize("files", [None, 1, 40])
def test_a_deep_model_comes_back_from_any_number_of_files(tmp_path: Path, files: int | None) -> None:
    """34 layers, whose numbers begin alike ("layers.1", "layers.10"), and tensors in pieces. No two are equal."""
    deep = {"layers": 34, "hidden": 8, "heads": 2, "sequence": 4}
    plan = small(model=deep, batch={"sequences": 2, "micro": 1}, precision=FP64)
    one = Trainer(plan, Mesh.single(), seed=1, rule=RULE)
    steps(one, 0, 1)
    path = save_state(one, tmp_path / "run", 1)
    if files is not None:
        path = reshard(Checkpoint.open(path), tmp_path / "moved", files=files)
        assert len(list(path.glob("*.safetensors"))) == files
    other = Trainer(plan, Mesh.single(), seed=2, rule=RULE)
    restore(other, Checkpoint.open(path))
    expected, found = values_of(one), values_of(other)
    assert expected.keys() == found.keys() and len(expected) == 4 * len(parameters(plan.model))
    for name, values in expected.items():
        assert torch.equal(values, found[name]), name
    matrices = [x.numpy().tobytes() for name, x in expected.items() if not name.startswith("master")]
    assert len(set(matrices)) == len(matrices)


@pytest.mark.broad
def test_copies_of_the_state_resume_where_one_was_saved_and_the_other_way_round(tmp_path: Path) -> None:
    copies, one = small(data=4, zero=3, shards=2, precision=FP64), small(data=4, zero=1, precision=FP64)
    unbroken = steps(Trainer(LAYOUTS[0], Mesh.single(), seed=1, rule=RULE), 0, 4)[2:]
    for number, (written, read) in enumerate(((copies, one), (one, copies))):
        root = tmp_path / str(number)
        on_ranks(4, begin, written, root)
        on_ranks(4, go_on, read, root, unbroken)


def test_a_step_that_overflowed_is_none_of_the_updates_that_are_gone_on_with(tmp_path: Path) -> None:
    one, other = (Trainer(small(precision={"weights": "fp16"}), Mesh.single(), seed=seed, rule=RULE) for seed in (1, 2))
    for step, scale in enumerate((2.0**40, 2.0**10)):
        assert one.loss_scale is not None
        one.loss_scale.value = scale
        steps(one, step, step + 1)
    restore(other, Checkpoint.open(save_state(one, tmp_path, 2)))
    assert other.optimizer.steps_done == 1 and other.loss_scale == one.loss_scale
    assert steps(one, 2, 4) == steps(other, 2, 4)
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
def test_the_state_of_another_model_precision_or_optimizer_is_refused_and_nothing_is_filled(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    bf16 = {"precision": {"weights": "bf16"}}
    path = save_state(Trainer(small(**bf16), Mesh.single(), seed=1, rule=RULE), tmp_path, 3)
    trainer = Trainer(small(**{**bf16, **other}), Mesh.single(), seed=2, rule=RULE)
    before = [shard.master.clone() for shard in trainer.optimizer.shards]
    with pytest.raises(CheckpointError, match=r"^\S+ holds the state of another model, precision or optimizer"):
        restore(trainer, Checkpoint.open(path))
    assert all(torch.equal(b, s.master) for b, s in zip(before, trainer.optimizer.shards, strict=True))
    assert trainer.optimizer.steps_done == 0


@pytest.mark.parametrize("given", ["bf16", "fp32"])
def test_masters_of_a_training_begun_with_weights_are_what_the_checkpoint_has_unrounded(
    tmp_path: Path, given: str
) -> None:
    one = Trainer(small(precision={"weights": given}), Mesh.single(), seed=1, rule=RULE)
    steps(one, 0, 2)
    other = Trainer(small(precision={"weights": "bf16"}), Mesh.single(), seed=2, rule=RULE)
    begin_with(other, Checkpoint.open(save_state(one, tmp_path, 2)))
    for here, there in zip(other.optimizer.shards, one.optimizer.shards, strict=True):
        assert torch.equal(here.master, there.master)
        assert torch.equal(here.bucket.shard, here.master.bfloat16())
        assert not torch.equal(here.master, here.bucket.shard.float())


@pytest.mark.parametrize("data", [1, 2])
def test_a_part_of_a_micro_batch_is_refused(data: int) -> None:
    """Where it was left out, losses and gradients were divided by what it would have added. Of what validates none is
    left out: the rest of a micro-batch is padding."""
    on_ranks(data, refuses_parts, small(data=data, batch={"sequences": 8, "micro": 2}))


def refuses_parts(place: Place, plan: Plan) -> None:
    trainer = Trainer(plan, Mesh.connect(plan.layout, place.rank, place.world_size), seed=1, rule=RULE)
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


def test_a_rank_that_reads_says_tensor_by_tensor_that_it_goes_on(tmp_path: Path) -> None:
    trainer = Trainer(small(), Mesh.single(), seed=1, rule=RULE)
    path, alive = save_state(trainer, tmp_path, 1), list[int]()
    trainer.goes_on = lambda: alive.append(1)
    checkpoint = Checkpoint.open(path)
    read_together(restore, trainer, checkpoint)
    assert len(alive) >= len(checkpoint.names)
    alive.clear()
    read_together(begin_with, trainer, checkpoint)
    assert len(alive) >= sum(name.startswith("weights/") for name in checkpoint.names)


def one_step(place: Place, plan: Plan, root: Path) -> None:
    mesh = Mesh.connect(plan.layout, place.rank, place.world_size)
    trainer = Trainer(plan, mesh, seed=1, rule=RULE)
    steps(trainer, 0, 1)
    save(root, 1, fragments(trainer), mesh, {})


def test_a_checkpoint_holds_every_element_of_every_tensor_exactly_once(tmp_path: Path) -> None:
    copies = small(data=4, zero=3, shards=2, precision=FP64)
    plans = [*LAYOUTS, small(data=2, precision={"weights": "bf16"}), copies]
    roots = [tmp_path / str(number) for number in range(len(plans))]
    in_ranks(one_step, list(zip(plans, roots, strict=True)))
    for plan, root in zip(plans, roots, strict=True):
        manifest = Checkpoint.open(root / "step-00000001").manifest
        kinds = {"weights", "moment1", "moment2"} | ({"master"} if plan.precision.has_master else set())
        assert {n.split("/")[0] for n in manifest["tensors"]} == kinds
        for name, entry in manifest["tensors"].items():
            size = 1
            for n in entry["shape"]:
                size *= n
            held = 0
            for piece in entry["pieces"]:
                elements = 1
                for n in piece["shape"]:
                    elements *= n
                held += elements
            assert held == size, f"{name}: {held} of {size}"
        entries = manifest["tensors"].values()
        writers = {piece["file"] for entry in entries for piece in entry["pieces"]}
        assert len(writers) == (plan.layout.world_size if plan.zero else plan.layout.tensor), "all sharers write"
