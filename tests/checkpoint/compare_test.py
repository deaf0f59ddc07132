"""Tensors in several pieces are compared completely, and resharded into files of equal size."""

from pathlib import Path

import pytest
import torch

from trivium.checkpoint import pieces
from trivium.checkpoint import reshard as resharding
from trivium.checkpoint.compare import tensor_differences
from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.reshard import parts_of, reshard
from trivium.checkpoint.save import Fragment, save
from trivium.comms.mesh import Mesh
from trivium.errors import ConfigError
from trivium.plan.parameters import Box

SHAPE, ROW_BYTES = (5, 4), 32
NAMES = ("weights/a", "weights/b", "weights/c")


@pytest.fixture(autouse=True)
def a_row_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resharding, "PIECE_BYTES", ROW_BYTES)


def written(root: Path, *tensors: torch.Tensor) -> Checkpoint:
    given = zip(NAMES, tensors, strict=False)
    fragments = [Fragment(name, SHAPE, Box((0, 0), SHAPE), values) for name, values in given]
    return Checkpoint.open(save(root, 1, fragments, Mesh.single(), {}))


@pytest.mark.parametrize("row", range(5))
def test_difference_is_measured_in_any_piece(tmp_path: Path, row: int) -> None:
    values = torch.arange(20.0, 0.0, -1.0, dtype=torch.float64).view(SHAPE)
    other = values.clone()
    other[row, 2] += 0.5
    one, two = written(tmp_path / "a", values, values), written(tmp_path / "b", values, other)
    (found,) = tensor_differences(one, two)
    largest = float(torch.maximum(values, other).max())
    assert (found.name, found.absolute) == ("weights/b", 0.5)
    assert found.relative == pytest.approx(0.5 / largest)


def test_sign_of_zero_is_a_difference_of_size_zero(tmp_path: Path) -> None:
    values = torch.zeros(SHAPE, dtype=torch.float64)
    other = values.clone()
    other[0, 0] = -0.0
    (found,) = tensor_differences(written(tmp_path / "a", values), written(tmp_path / "b", other))
    assert (found.absolute, found.relative) == (0.0, 0.0)


@pytest.mark.parametrize("strange", [float("nan"), float("-inf")])
def test_non_finite_values_are_counted_and_others_measured(
    tmp_path: Path, strange: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest of differences of which one is NaN is none, or, to max(), the one before it. Such checkpoints are not
    published here, but may come from elsewhere."""
    monkeypatch.setattr(pieces, "is_finite", lambda values: True)
    values = torch.full(SHAPE, 2.0, dtype=torch.float64)
    other = values.clone()
    other[1, 0], other[1, 1], other[4, 3] = 2.5, strange, strange
    values[4, 3] = float("inf")
    (found,) = tensor_differences(written(tmp_path / "a", values), written(tmp_path / "b", other))
    assert (found.absolute, found.relative) == (0.5, 0.2)
    assert found.what.startswith("not finite in one or both: 2 values; the rest differs by at most 0.5,")


def test_other_dtype_shape_or_missing_tensor_is_reported(tmp_path: Path) -> None:
    values = torch.full(SHAPE, 0.25, dtype=torch.float64)
    one = written(tmp_path / "a", values, values, values)
    save(tmp_path / "b", 1, [
        Fragment("weights/a", SHAPE, Box((0, 0), SHAPE), values.float()),
        Fragment("weights/b", (4, 5), Box((0, 0), (4, 5)), values.view(4, 5)),
    ], Mesh.single(), {})  # fmt: skip
    two = Checkpoint.open(tmp_path / "b" / one.directory.name)
    found = {d.name: d for d in tensor_differences(one, two)}
    assert found["weights/a"].what == "F64 -> F32 differs by at most 0, 0 of the largest"
    assert found["weights/b"].what == "shape [5, 4] -> [4, 5]"
    assert found["weights/c"].what == f"only in {one.directory}"
    assert all((d.absolute, d.relative) == (0.0, 0.0) for d in found.values())
    assert [d.what for d in tensor_differences(two, one) if d.name == "weights/c"] == [f"only in {one.directory}"]


@pytest.mark.parametrize("scalar", [(0.0, -0.0), (1.5, 1.25)])
def test_scalar_tensors_are_compared(tmp_path: Path, scalar: tuple[float, float]) -> None:
    first, second = (
        Checkpoint.open(save(tmp_path / n, 1, [Fragment("s", (), Box((), ()), torch.tensor(x))], Mesh.single(), {}))
        for n, x in zip("ab", scalar, strict=True)
    )
    (found,) = tensor_differences(first, second)
    assert found.absolute == abs(scalar[0] - scalar[1])
    assert list(tensor_differences(first, first)) == []


@pytest.mark.parametrize("files", [0, 21, 100_000_000])
def test_reshard_rejects_too_many_files(tmp_path: Path, files: int) -> None:
    source = written(tmp_path / "a", torch.zeros(SHAPE, dtype=torch.float64))
    with pytest.raises(ConfigError, match=rf"--files \({files}\) must be 1 to 20 for .*step-00000001"):
        reshard(source, tmp_path / "b", files=files)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("files", [1, 2, 3, 5, 7, 60])
def test_resharded_files_have_equal_size_and_small_pieces(tmp_path: Path, files: int) -> None:
    tensors = [torch.randn(SHAPE, dtype=torch.float64) for _ in NAMES]
    source = written(tmp_path / "a", *tensors)
    assert max(part.bytes for name in source.names for part in parts_of(source, name)) <= ROW_BYTES
    found = Checkpoint.open(reshard(source, tmp_path / "b", files=files))
    found.verify()
    assert list(tensor_differences(source, found)) == []
    held = dict.fromkeys(found.manifest["files"], 0)
    for tensor in found.manifest["tensors"].values():
        for piece in tensor["pieces"]:
            held[piece["file"]] += Box(tuple(piece["start"]), tuple(piece["shape"])).elements
    assert len(held) == files and max(held.values()) - min(held.values()) <= 1, "but for one element"
