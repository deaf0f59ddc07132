"""Train, change the layout, resume, train: the same as never having stopped."""

from pathlib import Path

from plans import small
from ranks import on_ranks
from trivium.certify.certificate import RULE, random_rows
from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.save import save
from trivium.parallel.launch import Place
from trivium.parallel.mesh import Mesh
from trivium.plan.plan import Plan
from trivium.training.state import fragments, restore
from trivium.training.trainer import Samples, Trainer

FP64 = {"weights": "fp64"}
LAYOUTS = [
    small(precision=FP64),
    small(tensor=2, pipeline=2, chunks=2, sequence_parallel=True, precision=FP64),
    small(tensor=4, zero=0, precision=FP64),
    small(pipeline=2, data=2, precision=FP64),
]


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
        assert abs(here - there) <= 1e-12 * abs(there), f"{plan.layout}: {losses} != {expected}"


def test_any_layout_resumes_any_layouts_checkpoint_exactly(tmp_path: Path) -> None:
    unbroken = steps(Trainer(LAYOUTS[0], Mesh.single(), seed=1, rule=RULE), 0, 4)[2:]
    for number, written in enumerate(LAYOUTS):
        root = tmp_path / str(number)
        on_ranks(written.layout.world_size, begin, written, root)
        Checkpoint.open(root / "step-00000002").verify()
        for read in (LAYOUTS[number], LAYOUTS[(number + 1) % 4], LAYOUTS[(number + 2) % 4]):
            on_ranks(read.layout.world_size, go_on, read, root, unbroken)


def test_copies_of_the_state_resume_where_one_was_saved_and_the_other_way_round(tmp_path: Path) -> None:
    copies, one = small(data=4, zero=3, shards=2, precision=FP64), small(data=4, zero=1, precision=FP64)
    unbroken = steps(Trainer(LAYOUTS[0], Mesh.single(), seed=1, rule=RULE), 0, 4)[2:]
    for number, (written, read) in enumerate(((copies, one), (one, copies))):
        root = tmp_path / str(number)
        on_ranks(4, begin, written, root)
        on_ranks(4, go_on, read, root, unbroken)


def one_step(place: Place, plan: Plan, root: Path) -> None:
    mesh = Mesh.connect(plan.layout, place.rank, place.world_size)
    trainer = Trainer(plan, mesh, seed=1, rule=RULE)
    steps(trainer, 0, 1)
    save(root, 1, fragments(trainer), mesh, {})


def test_a_checkpoint_holds_every_element_of_every_tensor_exactly_once(tmp_path: Path) -> None:
    copies = small(data=4, zero=3, shards=2, precision=FP64)
    for number, plan in enumerate([*LAYOUTS, small(data=2, precision={"weights": "bf16"}), copies]):
        on_ranks(plan.layout.world_size, one_step, plan, tmp_path / str(number))
        manifest = Checkpoint.open(tmp_path / str(number) / "step-00000001").manifest
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
        assert len(writers) == (plan.layout.world_size if plan.zero else plan.layout.tensor), (
            "all sharers write"
        )
