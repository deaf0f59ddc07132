"""No NaN or infinity is published or continued from; the error names the tensor."""

import math
from pathlib import Path

import pytest
import torch

from plans import small
from trivium.certify.certificate import RULE
from trivium.checkpoint import pieces
from trivium.checkpoint.average import average
from trivium.checkpoint.format import published
from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.pieces import is_finite
from trivium.checkpoint.reshard import reshard
from trivium.checkpoint.save import Fragment, save
from trivium.checkpoint.verify import summary
from trivium.comms.mesh import Mesh
from trivium.config import to_tree
from trivium.errors import CheckpointError
from trivium.interchange.export import export_hf
from trivium.plan.parameters import Box
from trivium.training.state import fragments
from trivium.training.trainer import Trainer

BAD = "layers.0.mlp.up.weight"


def fragment(name: str, value: float, dtype: torch.dtype = torch.float32) -> Fragment:
    values = torch.ones(64, dtype=dtype)
    values[17] = value
    return Fragment(name, (64,), Box((0,), (64,)), values)


def model(root: Path, step: int, monkeypatch: pytest.MonkeyPatch, **bad: str) -> Checkpoint:
    """A checkpoint with a NaN in one tensor, as other versions wrote: its hashes are right."""
    plan = small()
    held = fragments(Trainer(plan, Mesh.single(), seed=step, rule=RULE))
    for one in held:
        if one.name in bad.values():
            one.values[3] = math.nan
    with monkeypatch.context() as unchecked:
        unchecked.setattr(pieces, "is_finite", lambda values: True)
        path = save(root, step, held, Mesh.single(), {"plan": to_tree(plan)})
    return Checkpoint.open(path)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_is_finite_detects_exactly_nan_and_infinity(dtype: torch.dtype) -> None:
    for value in (math.nan, math.inf, -math.inf):
        assert not is_finite(fragment("a", value, dtype).values)
    both = fragment("a", math.inf, dtype).values
    both[18] = -math.inf
    assert not is_finite(both)
    assert is_finite(torch.full((64,), torch.finfo(dtype).max, dtype=dtype)), "only their sum overflows"
    assert is_finite(torch.empty(0, dtype=dtype)) and is_finite(torch.ones(2, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_checkpoint_is_finite_if_all_values_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(pieces, "is_finite", lambda values: True)
    size = 300_001  # of more than one block in every dtype, and no multiple of one
    values = torch.full((size,), torch.finfo(dtype).max, dtype=dtype)
    values[::2] = -torch.finfo(dtype).tiny
    for step, (place, value) in enumerate(
        [(0, math.nan), (150_000, math.inf), (size - 1, -math.inf), (size - 2, -math.nan), (0, 0.0)]
    ):
        changed = values.clone()
        changed[place] = value
        held = [fragment("weights/a", 1.0), Fragment("weights/b", (size,), Box((0,), (size,)), changed)]
        held.append(Fragment("count", (1,), Box((0,), (1,)), torch.tensor([-1])))  # all bits of an integer
        checkpoint = Checkpoint.open(save(tmp_path, step, held, Mesh.single(), {}))
        found = summary(checkpoint.directory, verified=True)
        if math.isfinite(value):
            checkpoint.refuse_not_finite()
            assert found["state"] == "verified"
            continue
        assert found["state"] == "not finite" and "weights/b holds a NaN or an infinity" in found["problem"]
        with pytest.raises(CheckpointError, match="weights/b holds"):
            checkpoint.refuse_not_finite()
        checkpoint.refuse_not_finite(share=1, shares=2)  # the only file is the first rank's


@pytest.mark.parametrize("kind", ["weights", "master", "moment1", "moment2"])
def test_non_finite_tensor_is_not_saved(tmp_path: Path, kind: str) -> None:
    held = [fragment("weights/a", 1.0), fragment(f"{kind}/b", math.nan)]
    with pytest.raises(CheckpointError, match=rf"step-00000003 was not saved: {kind}/b holds a NaN"):
        save(tmp_path, 3, held, Mesh.single(), {})
    assert not list(tmp_path.iterdir())


def test_training_does_not_resume_from_non_finite_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = model(tmp_path, 1, monkeypatch, bad=f"moment2/{BAD}")
    bad.verify()  # its bytes are those that were written
    with pytest.raises(CheckpointError, match=f"moment2/{BAD} holds a NaN or an infinity; use an older"):
        Checkpoint.open_together(bad.directory, Mesh.single())


def test_average_reshard_and_export_reject_non_finite_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = (model(tmp_path / "run", 1, monkeypatch), model(tmp_path / "run", 2, monkeypatch, bad=f"weights/{BAD}"))
    told = rf"was not written: weights/{BAD} holds a NaN"
    with pytest.raises(CheckpointError, match=told):
        average([good, bad], tmp_path / "to")
    with pytest.raises(CheckpointError, match=told):
        reshard(bad, tmp_path / "to", files=2)
    with pytest.raises(CheckpointError, match=r"layers.*holds a NaN|h\.0.*holds a NaN"):
        export_hf(bad, tmp_path / "hf", tokenizer=None)
    assert not published(tmp_path / "to") and not (tmp_path / "hf").exists()
    assert not list((tmp_path / "to").iterdir())
