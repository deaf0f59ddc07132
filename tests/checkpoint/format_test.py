"""Boxes, and the protocol of writing and reading checkpoints, without ranks."""

import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from trivium.checkpoint.format import (
    boxes_of_range,
    covers,
    manifest_hash,
    manifest_text,
    published,
    read_manifest,
    step_name,
    step_of,
)
from trivium.checkpoint.load import Checkpoint, newest_good
from trivium.checkpoint.reshard import reshard
from trivium.checkpoint.save import Fragment, save
from trivium.checkpoint.verify import summary
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError
from trivium.plan.parameters import Box

MESH = Mesh.single()
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@settings(deadline=None)  # machines are busy
@given(shape=shapes, data=st.data())
def test_boxes_of_range_contain_its_elements_in_order(shape: tuple[int, ...], data: st.DataObject) -> None:
    size = int(np.prod(shape))
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    numbers = np.arange(size).reshape(shape)
    boxes = boxes_of_range(start, stop, shape)
    found = [numbers[b.within(Box((0,) * len(shape), shape))].reshape(-1) for _, b in boxes]
    assert [f for f, _ in boxes] == [int(x[0]) for x in found]
    assert np.concatenate([*found, np.empty(0, int)]).tolist() == list(range(start, stop))
    assert len(boxes) <= 2 * len(shape) - 1


@settings(deadline=None)  # machines are busy
@given(data=st.data())
def test_boxes_cover_array_if_each_element_is_in_exactly_one(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 3), max_size=3).map(tuple))
    size = int(np.prod(shape))
    cuts = sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=3))})
    boxes = [b.box for pair in pairwise(cuts) for b in boxes_of_range(*pair, shape)]
    numbers = st.tuples(*(st.integers(0, n) for n in shape))
    boxes += [Box(*data.draw(st.tuples(numbers, numbers))) for _ in range(data.draw(st.integers(0, 2)))]
    del boxes[data.draw(st.integers(0, len(boxes))) :]
    marks = np.zeros(tuple(2 * n for n in shape), int)
    for box in boxes:
        marks[box.within(Box((0,) * len(shape), shape))] += 1
    inside = marks[tuple(slice(n) for n in shape)]
    exactly_once = bool((inside == 1).all()) and marks.sum() == size
    assume(all(box.elements for box in boxes) or not exactly_once)  # An empty box outside is harmless.
    assert covers(shape, data.draw(st.permutations(boxes))) == exactly_once


@settings(deadline=None)  # machines are busy
@given(a=st.data())
def test_intersection_contains_common_elements(a: st.DataObject) -> None:
    def box() -> Box:
        start = tuple(a.draw(st.integers(0, 4)) for _ in range(2))
        return Box(start, tuple(a.draw(st.integers(1, 4)) for _ in range(2)))

    x, y, whole = box(), box(), Box((0, 0), (9, 9))
    marks = [np.zeros((9, 9), bool) for _ in range(2)]
    for mark, b in zip(marks, (x, y)):
        mark[b.within(whole)] = True
    common = x.intersect(y)
    both = marks[0] & marks[1]
    assert both.any() == (common is not None)
    if common is not None:
        assert both.sum() == common.elements and both[common.within(whole)].all()


def write(root: Path, step: int, cut: int = 3, value: float = 0.0) -> dict[str, torch.Tensor]:
    full = {"weights/a": torch.randn(6, 4) + value, "weights/b": torch.randn(5, dtype=torch.float64)}
    full["weights/c"] = torch.randn(3, 2).bfloat16()
    pieces = [
        Fragment("weights/a", (6, 4), Box((0, 0), (cut, 4)), full["weights/a"][:cut]),
        Fragment("weights/a", (6, 4), Box((cut, 0), (6 - cut, 4)), full["weights/a"][cut:]),
        Fragment("weights/b", (5,), Box((0,), (5,)), full["weights/b"]),
        Fragment("weights/c", (3, 2), Box((0, 0), (3, 2)), full["weights/c"]),
    ]
    save(root, step, pieces, MESH, {"plan": {"x": 1}})
    return full


def test_any_box_is_read_as_written(tmp_path: Path) -> None:
    full = write(tmp_path, 7)
    checkpoint = Checkpoint.open(tmp_path / step_name(7))
    checkpoint.verify()
    assert checkpoint.step == 7 and checkpoint.manifest["plan"] == {"x": 1}
    for wanted in (Box((0, 0), (6, 4)), Box((2, 1), (3, 2)), Box((5, 3), (1, 1))):
        expected = full["weights/a"][wanted.within(Box((0, 0), (6, 4)))]
        assert torch.equal(checkpoint.read("weights/a", wanted, torch.float32), expected)
    assert torch.equal(checkpoint.read("weights/b", Box((0,), (5,)), torch.float64), full["weights/b"])
    assert torch.equal(checkpoint.read("weights/c", Box((1, 0), (2, 2)), torch.bfloat16), full["weights/c"][1:])


def test_safetensors_library_reads_pieces(tmp_path: Path) -> None:
    full = write(tmp_path, 1)
    tensors = load_file(tmp_path / step_name(1) / "pieces-00000.safetensors")
    assert torch.equal(torch.cat([tensors["0:weights/a"], tensors["1:weights/a"]]), full["weights/a"])


def test_missing_box_is_rejected(tmp_path: Path) -> None:
    half = [Fragment("weights/a", (6, 4), Box((0, 0), (3, 4)), torch.zeros(3, 4))]
    save(tmp_path, 1, half, MESH, {})
    checkpoint = Checkpoint.open(tmp_path / step_name(1))
    with pytest.raises(CheckpointError, match="12 of 24 wanted"):
        checkpoint.read("weights/a", Box((0, 0), (6, 4)), torch.float32)
    with pytest.raises(CheckpointError, match="no tensor 'weights/z'"):
        checkpoint.read("weights/z", Box((0,), (1,)), torch.float32)


@pytest.mark.parametrize("file", ["pieces-00000.safetensors", "pieces-00001.safetensors", "manifest.json"])
def test_flipped_bytes_are_detected(tmp_path: Path, file: str) -> None:
    write(tmp_path / "one", 1)
    path = reshard(Checkpoint.open(tmp_path / "one" / step_name(1)), tmp_path, files=2) / file
    original = path.read_bytes()
    for at in {0, 9, len(original) // 3, len(original) // 2, len(original) - 2}:
        path.write_bytes(original[:at] + bytes([original[at] ^ 4]) + original[at + 1 :])
        with pytest.raises(CheckpointError, match=file.partition(".")[0]):
            Checkpoint.open(path.parent).verify()
    path.write_bytes(original)
    Checkpoint.open(path.parent).verify()


def forge(path: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest with a right hash of itself, as anybody who knows the format could."""
    plain = {k: v for k, v in manifest.items() if k != "sha256"}
    path.write_text(manifest_text({**plain, "sha256": manifest_hash(plain)}))


def forged(value: Any) -> Iterator[Any]:
    """Yield a value with each of its parts replaced by an invalid one, or removed."""
    yield from (None, True, -1, 10**30, "../x", [], [-2, -2], {})
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {k: v for k, v in value.items() if k != key}
            yield from ({**value, key: other} for other in forged(inner))
    if isinstance(value, list):
        for at, inner in enumerate(value):
            yield from ([*value[:at], other, *value[at + 1 :]] for other in forged(inner))


def test_forged_manifest_is_rejected_or_changes_no_value(tmp_path: Path) -> None:
    full = write(tmp_path, 1)["weights/a"]
    path = tmp_path / step_name(1) / "manifest.json"
    right, whole = json.loads(path.read_text()), Box((0, 0), (6, 4))
    parts = {k: v for k, v in right["tensors"].items() if k == "weights/a"}
    read = 0
    for part in ("step", "tensors", "files", "plan"):
        for wrong in forged(parts if part == "tensors" else right[part]):
            forge(path, {**right, part: wrong})
            try:
                checkpoint = Checkpoint.open(path.parent)
                checkpoint.verify()
                assert torch.equal(checkpoint.read("weights/a", whole, torch.float32), full), wrong
                read += 1
            except CheckpointError:
                continue
    assert read > 0


@pytest.mark.timeout(60)
def test_cover_check_is_linear_in_number_of_pieces() -> None:
    """Pieces that cross each other: a sweep along any axis has thousands of them beside any one."""
    crossing = [Box((n, 0), (1, 12_000)) for n in range(6_000)] + [Box((0, n), (12_000, 1)) for n in range(6_000)]
    read = []

    class Counted(Box):
        def intersect(self, other: Box) -> Box | None:
            raise AssertionError("no two boxes are compared")

        def __getattribute__(self, name: str) -> Any:
            if name in ("start", "shape"):
                read.append(name)
            return super().__getattribute__(name)

    boxes = [Counted(box.start, box.shape) for box in crossing]
    assert not covers((12_000, 12_000), boxes)
    assert len(read) <= 10 * len(boxes)
    rows = [Box((n, 0), (1, 7)) for n in range(12_000)]
    assert covers((12_000, 7), rows) and not covers((12_000, 7), [*rows[:-1], rows[0]])


def lies(right: dict[str, Any]) -> dict[str, tuple[dict[str, Any], str]]:
    """Return manifests with right hashes and wrong contents, each with the expected message."""
    tensors, files = right["tensors"], right["files"]
    a, file = tensors["weights/a"], "pieces-00000.safetensors"
    pieces = a["pieces"]

    def of_a(**changed: Any) -> dict[str, Any]:
        return {"tensors": {**tensors, "weights/a": {**a, **changed}}}

    nested: Any = 1
    for _ in range(480):
        nested = [nested]
    many = [{**pieces[0], "key": str(n), "start": [n % 6, 0], "shape": [0, 0]} for n in range(3_000)]
    return {
        "layout is a text": ({"plan": {"layout": "tensor"}}, "plan.layout is 'tensor'"),
        "layout is a list": ({"plan": {"layout": [1]}}, r"plan.layout is \[1\]"),
        "degree is a text": ({"plan": {"layout": {"tensor": "2"}}}, "plan.layout.tensor is '2'; it must be a valid"),
        "degree is true": ({"plan": {"layout": {"tensor": True}}}, "plan.layout.tensor is true; it must be a valid"),
        "precision is a list": ({"plan": {"precision": []}}, "plan.precision is "),
        "weights are a number": ({"plan": {"precision": {"weights": 16}}}, "plan.precision.weights is 16; it must be"),
        "plan is a text": ({"plan": "x"}, "plan is 'x'"),
        "step is another": ({"step": 7}, "step is 7, and the directory's name says 1"),
        "step is true": ({"step": True}, "step is true; it must be a valid integer"),
        "step is a text": ({"step": "1"}, "step is '1'; it must be a valid integer"),
        "dtype is another": (
            of_a(dtype="I64", shape=a["shape"]),
            "have .* bytes at least|is F32 .*and manifest.json says I64",
        ),
        "dtype is of the same size": (
            {"tensors": {**tensors, "weights/b": {**tensors["weights/b"], "dtype": "I64"}}},
            "'2:weights/b' is F64 \\[5\\], and manifest.json says I64",
        ),
        "dtype is unknown": (of_a(dtype="F8"), "tensors.weights/a.dtype is 'F8'; it must be 'F64'"),
        "shape is transposed": (
            of_a(shape=[4, 6], pieces=[{**p, "start": p["start"][::-1], "shape": p["shape"][::-1]} for p in pieces]),
            r"'0:weights/a' is F32 \[3, 4\], and manifest.json says F32 \[4, 3\]",
        ),
        "no tensors": ({"tensors": {}}, "tensors is {}; it must have 1 item or more"),
        "nested": ({"data": {"x": nested}}, "nested more than 200 levels deep"),
        "more pieces than the file can hold": (of_a(pieces=many), f"the pieces in {file} have .* bytes at least, and"),
        "more elements than the file can hold": (
            of_a(shape=[600, 400], pieces=[{**pieces[0], "shape": [600, 400]}]),
            f"the pieces in {file} have",
        ),
        "a piece twice": (of_a(pieces=[pieces[0], pieces[0]]), "the piece '0:weights/a' of .* a second time"),
        "a piece that is not there": (
            of_a(pieces=[pieces[0], {**pieces[1], "key": "\x1b[2J"}]),
            r"has no piece '\\u001b\[2J', but manifest.json lists it",
        ),
        "a piece of another tensor": (of_a(pieces=[pieces[0], {**pieces[1], "key": "3:weights/c"}]), "a second time"),
        "a file outside": (
            {"files": {**files, "../x": files[file]}},
            "files has '../x'; it must be the name of a file",
        ),
        "a piece of a file outside": (
            of_a(pieces=[{**pieces[0], "file": "../other.safetensors"}, pieces[1]]),
            "'../other.safetensors' is not one of its own hashed files",
        ),
        "pieces overlap": (of_a(pieces=[pieces[0], {**pieces[1], "start": [0, 0]}]), "pieces of weights/a overlap"),
        "marks are a list": ({"imported_from": {"marks": [1]}}, "imported_from.marks is "),
        "left out is a number": ({"left_out": 3}, "left_out is 3"),
        "gaps of one": ({"left_out": [{"gaps": [[1]]}]}, "left_out.0.gaps.0"),
        "loss scale is a text": ({"loss_scale": "x"}, "loss_scale is 'x'"),
        "history is a text": ({"spikes": {"losses": "abc"}}, "spikes.losses is 'abc'"),
        "samples are below zero": ({"samples": -1}, "samples is -1; it must be greater than or equal to 0"),
        "tokens are a float": ({"tokens_seen": 1.5}, "tokens_seen is 1.5; it must be a valid integer"),
        "updates beyond 64 bits": ({"updates": 10**30}, "updates is 1000"),
        "files are a list": ({"files": [1]}, "files is "),
        "bytes are true": (
            {"files": {file: {**files[file], "bytes": True}}},
            f"files.{file}.bytes is true; it must be",
        ),
    }


def test_wrong_content_is_rejected_by_path_field_and_value(tmp_path: Path) -> None:
    write(tmp_path, 1)
    path = tmp_path / step_name(1) / "manifest.json"
    right = json.loads(path.read_text())
    for name, (changed, said) in lies(right).items():
        forge(path, {**right, **changed})
        with pytest.raises(CheckpointError, match=said) as refused:
            Checkpoint.open(path.parent).verify()
        told = str(refused.value)
        assert str(path.parent) in told and "\n" not in told and len(told) < 900, name
        row = summary(path.parent, verified=True)
        assert row["state"] == "damaged" and row["problem"] == told, name
    forge(path, right)
    Checkpoint.open(path.parent).verify()


def test_special_files_do_not_block(tmp_path: Path) -> None:
    write(tmp_path, 1)
    folder = tmp_path / step_name(1)
    for name in ("manifest.json", "pieces-00000.safetensors"):
        content = (folder / name).read_bytes()
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(CheckpointError, match=f"{name}.*(is a FIFO, not a regular file|is missing)"):
            Checkpoint.open(folder).verify()
        (folder / name).unlink()
        (folder / name).symlink_to("/dev/zero")
        with pytest.raises(CheckpointError, match=f"{name}.*(is a character device, not a regular file|is missing)"):
            Checkpoint.open(folder).verify()
        (folder / name).unlink()
        (folder / name).write_bytes(content)
    Checkpoint.open(folder).verify()


def test_deeply_nested_manifest_is_damaged(tmp_path: Path) -> None:
    write(tmp_path, 1)
    (tmp_path / step_name(1) / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="cannot be read"):
        Checkpoint.open(tmp_path / step_name(1))


def test_truncated_or_missing_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, 1)
    path = tmp_path / step_name(1) / "pieces-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match="truncated"):
        Checkpoint.open(path.parent).verify()
    path.unlink()
    with pytest.raises(CheckpointError, match="missing"):
        Checkpoint.open(path.parent).verify()
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        Checkpoint.open(tmp_path / "nothing")


def test_damaged_newest_checkpoint_falls_back_with_warning(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2)
    path = tmp_path / step_name(2) / "pieces-00000.safetensors"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    said: list[str] = []
    checkpoint = newest_good(tmp_path, MESH, said.append)
    assert checkpoint is not None and checkpoint.step == 1
    assert len(said) == 1 and step_name(2) in said[0]
    (tmp_path / step_name(1) / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match="none of the 2"):
        newest_good(tmp_path, MESH, said.append)
    assert newest_good(tmp_path / "empty", MESH, said.append) is None


def test_unfinished_directories_are_not_listed(tmp_path: Path) -> None:
    write(tmp_path, 3)
    (tmp_path / f".{step_name(4)}.partial").mkdir()
    (tmp_path / "step-5").mkdir()
    assert [p.name for p in published(tmp_path)] == [step_name(3)]
    write(tmp_path, 4)
    assert [step_of(p.name) for p in published(tmp_path)] == [3, 4]


def test_failed_save_keeps_previous_checkpoint_and_cleans_up(tmp_path: Path) -> None:
    write(tmp_path, 1)
    bad = [Fragment("weights/a", (1,), Box((0,), (1,)), torch.zeros(1, dtype=torch.float32))]
    (tmp_path / step_name(2)).write_text("in the way: a file where the directory should go")
    (tmp_path / f".{step_name(2)}.replaced").mkdir()
    (tmp_path / f".{step_name(2)}.replaced" / "x").write_text("so that it cannot be moved aside either")
    with pytest.raises(CheckpointError, match="was not saved"):
        save(tmp_path, 2, bad, MESH, {})
    assert not list(tmp_path.glob("*.partial"))
    Checkpoint.open(tmp_path / step_name(1)).verify()


@pytest.mark.parametrize("old, new", [("1e-05", "1E-05"), (", ", ",\t"), ("0.5", "0.50")])
def test_other_spelling_of_equal_manifest_is_damage(tmp_path: Path, old: str, new: str) -> None:
    pieces = [Fragment("weights/a", (2,), Box((0,), (2,)), torch.zeros(2))]
    save(tmp_path, 1, pieces, MESH, {"epsilon": 1e-5, "half": 0.5})
    path = tmp_path / step_name(1) / "manifest.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert json.loads(path.read_text()) == json.loads(text)
    with pytest.raises(CheckpointError, match="own sha256"):
        read_manifest(path.parent)


def test_manifest_hash_covers_everything_but_itself(tmp_path: Path) -> None:
    write(tmp_path, 1)
    path = tmp_path / step_name(1) / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest_hash({**manifest, "sha256": "other"}) == manifest["sha256"]
    path.write_text(json.dumps({**manifest, "step": 2}))
    with pytest.raises(CheckpointError, match="own sha256"):
        read_manifest(path.parent)
