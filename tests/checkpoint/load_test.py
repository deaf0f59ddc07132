"""A rank reads only its own boxes of a checkpoint."""

import re
from pathlib import Path

import pytest

from plans import small
from ranks import on_ranks
from trivium.certify.certificate import RULE
from trivium.checkpoint.format import FORMAT, MANIFEST, manifest_hash, manifest_text
from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.save import save
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.config import to_tree
from trivium.errors import CheckpointError
from trivium.plan.batch import Batch
from trivium.plan.model_shape import ModelShape
from trivium.plan.plan import Plan
from trivium.plan.sizes import MAX_COLUMNS, MAX_LAYERS
from trivium.training.state import fragments, places, restore
from trivium.training.trainer import Trainer


def write(place: Place, plan: Plan, root: Path) -> None:
    mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
    save(root, 1, fragments(Trainer(plan, mesh, seed=1, rule=RULE)), mesh, {})


def read(place: Place, plan: Plan, root: Path, largest_bytes: int) -> None:
    mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
    trainer = Trainer(plan, mesh, seed=2, rule=RULE, initial=False)
    checkpoint = Checkpoint.open(root / "step-00000001")
    right, reads = checkpoint.read, []

    def counted(name, box, dtype):
        reads.append(box.elements * dtype.itemsize)
        return right(name, box, dtype)

    object.__setattr__(checkpoint, "read", counted)
    restore(trainer, checkpoint)
    wanted = 0
    for bucket in trainer.buckets:
        held = bucket.owned if plan.zero == 3 else slice(0, bucket.padded)
        elements = [sum(p.box.elements for p in places(bucket, part, plan, mesh)) for part in (held, bucket.owned)]
        wanted += (elements[0] + 2 * elements[1]) * trainer.buckets[0].weights.element_size()
    assert sum(checkpoint.traffic.values()) == sum(reads) == wanted
    assert max(reads) <= largest_bytes, "one parameter at a time"


LAYOUTS = [small(data=4, zero=3), small(tensor=2, pipeline=2, zero=1), small(data=2, zero=2), small(zero=0)]


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_rank_reads_its_own_boxes_one_parameter_at_a_time(tmp_path: Path, number: int) -> None:
    written, plan = LAYOUTS[number], LAYOUTS[(number + 1) % len(LAYOUTS)]
    on_ranks(written.layout.world_size, write, written, tmp_path)
    largest = 4 * 24 * 24 * 4  # the widest matrix, in fp32
    on_ranks(plan.layout.world_size, read, plan, tmp_path, largest)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"layers": MAX_LAYERS}, "layers 10000, and names 1 tensors"),
        ({"hidden": MAX_COLUMNS}, "embedding.tokens.weight is [32, 8]"),
        ({}, "not there"),
    ],
)
def test_plan_without_its_weights_is_rejected_early(tmp_path: Path, changed: dict, said: str) -> None:
    shape = {"layers": 1, "hidden": 8, "heads": 1, "sequence": 8, "vocabulary": 32} | changed
    plan = to_tree(Plan(model=ModelShape(**shape), batch=Batch(sequences=1)))
    tensors = {"weights/embedding.tokens.weight": {"dtype": "F32", "shape": [32, 8], "pieces": []}}
    manifest = {"format": FORMAT, "step": 1, "plan": plan, "tensors": tensors, "files": {}}
    whole = {**manifest, "sha256": manifest_hash(manifest)}
    (tmp_path / MANIFEST).write_text(manifest_text(whole), encoding="utf-8")
    with pytest.raises(CheckpointError, match=re.escape(said)):
        _ = Checkpoint.open(tmp_path).plan


def test_invalid_plan_in_manifest_is_damage(tmp_path: Path) -> None:
    shape = ModelShape(layers=1, hidden=8, heads=1, sequence=8, vocabulary=32)
    plan = to_tree(Plan(model=shape, batch=Batch(sequences=1)))
    plan["model"]["layers"] = 10**9
    tensors = {"weights/embedding.tokens.weight": {"dtype": "F32", "shape": [32, 8], "pieces": []}}
    manifest = {"format": FORMAT, "step": 1, "plan": plan, "tensors": tensors, "files": {}}
    whole = {**manifest, "sha256": manifest_hash(manifest)}
    (tmp_path / MANIFEST).write_text(manifest_text(whole), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"holds no plan: model\.layers is 1000000000"):
        _ = Checkpoint.open(tmp_path).plan
