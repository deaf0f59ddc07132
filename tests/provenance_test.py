"""Provenance: an output appears completely or not at all, and its stamp describes how it was made."""

import errno
import hashlib
import json
import os
import stat
from multiprocessing import get_context
from pathlib import Path

import pytest

from trivium import provenance
from trivium.corpus.publish.store import read_manifest
from trivium.errors import DataError, MachineError
from trivium.provenance import (
    JOB,
    LOCK,
    STAMP,
    describe,
    discard,
    file_sha256,
    fingerprint,
    partial_of,
    publishing,
    read_stamp,
    refuse_others_pieces,
    stage_key,
    stamp_hash,
    work_of,
    write_json,
)
from trivium.tokens.manifest import read_tokens_manifest

DEEP = pytest.param("[" * 10**5, id="deep")
WHAT = {"verb": "curate", "config": {"seed": 1}, "inputs": {"harvest": "abc"}}


def test_output_appears_complete_and_stamped(tmp_path: Path):
    out = tmp_path / "curated"
    with publishing(out, **WHAT) as partial:
        (partial / "x").write_text("1")
        assert not out.exists()
    assert (out / "x").read_text() == "1"
    assert stamp_hash(out) == stage_key(**WHAT)
    assert list(tmp_path.iterdir()) == [out]


def test_output_and_its_name_are_synchronised_in_order(tmp_path: Path, monkeypatch):
    """Otherwise a power loss could keep the stamp but lose the output."""
    out, synced, fsync = tmp_path / "curated", [], os.fsync

    def seen(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, out.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    (tmp_path / "elsewhere").write_text("1")
    with publishing(out, **WHAT) as partial:
        (partial / "documents").mkdir()
        (partial / "documents" / "x").write_text("1")
        (partial / "link").symlink_to(tmp_path / "elsewhere")
    before = {number for number, named in synced if not named}
    assert {out.stat().st_ino, *(p.stat().st_ino for p in out.rglob("*") if p.name != "link")} <= before
    assert (tmp_path / "elsewhere").stat().st_ino not in before
    assert [number for number, named in synced if named] == [tmp_path.stat().st_ino]


@pytest.mark.parametrize("stop", [ValueError, KeyboardInterrupt])
def test_interrupted_stage_leaves_previous_output(tmp_path: Path, stop: type):
    out = tmp_path / "curated"
    with publishing(out, **WHAT) as partial:
        (partial / "x").write_text("old")
    with pytest.raises(stop), publishing(out, **WHAT) as partial:
        (partial / "x").write_text("new")
        raise stop
    assert (out / "x").read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_leftovers_of_killed_stage_are_removed(tmp_path: Path):
    (tmp_path / ".curated.partial").mkdir()
    (tmp_path / ".curated.partial" / LOCK).touch()
    (tmp_path / ".curated.partial" / "half").write_text("")
    with publishing(tmp_path / "curated", **WHAT):
        pass
    assert [p.name for p in (tmp_path / "curated").iterdir()] == [STAMP]


def test_pieces_are_kept_until_publication(tmp_path: Path, monkeypatch):
    """Synchronising a large output takes long. If it is killed meanwhile, the next run starts with the pieces."""
    out = tmp_path / "curated"
    work_of(out).mkdir()
    real = provenance.sync_tree

    def killed(directory: Path) -> None:
        real(directory)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(provenance, "sync_tree", killed)
        with pytest.raises(KeyboardInterrupt), publishing(out, **WHAT):
            pass
    assert list(tmp_path.iterdir()) == [work_of(out)]
    with publishing(out, **WHAT):
        pass
    assert list(tmp_path.iterdir()) == [out]


def test_partly_deleted_pieces_are_not_resumed(tmp_path: Path, monkeypatch):
    work = work_of(tmp_path / "curated")
    pieces(work)

    def killed(folder: Path, **_: bool) -> None:
        if folder.exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(provenance.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            discard(work)
    assert not work.exists() and list(tmp_path.iterdir())
    work.mkdir()
    discard(work)
    assert not list(tmp_path.iterdir())


def pieces(work: Path) -> None:
    """Create pieces as tokenization does, with the job description among them."""
    (work / "parts").mkdir(parents=True)
    write_json(work / JOB, {"trivium": "0.1.0"})


def pieces_of_jobs(work: Path) -> None:
    """Create pieces as curation does: each job has a folder, into which a worker that outlives it may write again."""
    for number, described in enumerate(("whole", "outlived")):
        folder = work / fingerprint(described)
        (folder / "parts").mkdir(parents=True)
        if not number:
            write_json(folder / JOB, {"trivium": "0.1.0"})


def nothing(work: Path) -> None:
    work.mkdir()


def begun(work: Path) -> None:
    work.mkdir()
    (work / f".{JOB}.77.partial").touch()


@pytest.mark.parametrize("left", [pieces, pieces_of_jobs, nothing, begun])
@pytest.mark.parametrize("name", [".curated.work", ".curated.work.old"])
def test_own_pieces_are_deleted_with_publication(tmp_path: Path, left, name: str):
    left(tmp_path / name)
    refuse_others_pieces(work_of(tmp_path / "curated"))
    with publishing(tmp_path / "curated", **WHAT):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["curated"]


@pytest.mark.parametrize("letter", ["letter", JOB, "d/letter", f"{'0' * 15}/letter", f"{'0' * 16}/letter"])
@pytest.mark.parametrize("name", [".curated.work", ".curated.work.old"])
def test_foreign_files_in_place_of_pieces_are_kept(tmp_path: Path, letter: str, name: str):
    mine = tmp_path / name / letter
    mine.parent.mkdir(parents=True)
    mine.write_text("dear")
    if letter.startswith("0" * 16):  # names that look like a job's folder, and others
        (tmp_path / name / "readme").touch()
    with publishing(tmp_path / "curated", **WHAT):
        pass
    discard(work_of(tmp_path / "curated"))
    assert mine.read_text() == "dear" and stamp_hash(tmp_path / "curated")
    with pytest.raises(MachineError, match=rf"{name} is the folder .* did not create; move it"):
        refuse_others_pieces(work_of(tmp_path / "curated"))


def test_link_in_place_of_pieces_keeps_its_target(tmp_path: Path):
    pieces(tmp_path / "disk")
    (tmp_path / "run").mkdir()
    work = work_of(tmp_path / "run" / "curated")
    work.symlink_to(tmp_path / "disk")
    discard(work)
    assert not list((tmp_path / "run").iterdir()) and (tmp_path / "disk" / JOB).is_file()


def test_half_deleted_pieces_are_recognised(tmp_path: Path, monkeypatch):
    work = work_of(tmp_path / "curated")
    pieces(work)
    right = provenance.shutil.rmtree

    def killed(folder: Path, **how: bool) -> None:
        right(folder, **how)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(provenance.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            discard(work)
    (half,) = tmp_path.iterdir()
    assert [path.name for path in half.iterdir()] == [JOB]
    discard(work)
    assert not list(tmp_path.iterdir())


def test_link_in_place_of_unfinished_output_keeps_its_target(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".curated.partial").symlink_to(tmp_path / "mine")
    with pytest.raises(MachineError, match="is a link to"), publishing(tmp_path / "run" / "curated", **WHAT):
        pass
    assert [p.read_text() for p in (tmp_path / "mine").iterdir()] == ["dear"]


@pytest.mark.parametrize("name", [".curated.partial", ".curated.old"])
@pytest.mark.parametrize("there", [True, False], ids=["with an output", "without"])
def test_foreign_folder_is_not_taken_for_leftovers(tmp_path: Path, name: str, there: bool):
    if there:
        with publishing(tmp_path / "curated", **WHAT):
            pass
    (tmp_path / name).mkdir()
    (tmp_path / name / "letter").write_text("dear")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    says = f"{name} is needed while .*curated is written"
    with pytest.raises(MachineError, match=says), publishing(tmp_path / "curated", **WHAT):
        raise AssertionError("the work begins")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", [".curated.partial", ".curated.old"])
def test_half_deleted_output_is_recognised(tmp_path: Path, monkeypatch, name: str):
    """This must hold for any order in which the system lists files."""
    out, names = tmp_path / "curated", ("a", "z", ".a", "~")
    right = Path.unlink

    def killed(path: Path, **how: bool) -> None:
        right(path, **how)
        if path.parent.name == name:
            raise KeyboardInterrupt

    def write(*, stop: bool = False) -> None:
        with publishing(out, **WHAT) as partial:
            for each in names:
                (partial / each).touch()
            if stop:
                raise ValueError

    write()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "unlink", killed)
        write(stop=name == ".curated.partial")
    assert (tmp_path / name).is_dir()
    write()
    assert [path.name for path in tmp_path.iterdir()] == ["curated"]


def test_concurrent_writers_of_one_output_are_rejected(tmp_path: Path):
    out = tmp_path / "tokens"
    with publishing(out, **WHAT) as first:
        (first / "x").write_text("1")
        with pytest.raises(MachineError, match="another process"), publishing(out, **WHAT):
            pass
        assert (first / "x").read_text() == "1"
    assert sorted(p.name for p in out.iterdir()) == [STAMP, "x"]
    with publishing(out, **WHAT) as again:
        assert [p.name for p in again.iterdir()] == [LOCK]


def test_output_is_written_without_file_locks(tmp_path: Path, monkeypatch):
    def without_locks(*_) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(provenance.fcntl, "flock", without_locks)
    with publishing(tmp_path / "tokens", **WHAT):
        pass
    assert stamp_hash(tmp_path / "tokens")


def test_crash_between_renames_loses_no_output(tmp_path: Path):
    with publishing(tmp_path / "curated", **WHAT) as partial:
        (partial / "x").write_text("old")
    (tmp_path / "curated").rename(tmp_path / ".curated.old")
    with pytest.raises(ValueError), publishing(tmp_path / "curated", **WHAT):
        raise ValueError("stop")
    assert (tmp_path / "curated" / "x").read_text() == "old"


@pytest.mark.parametrize(
    "change", [{"verb": "b"}, {"config": {"seed": 2}}, {"inputs": {"harvest": "abd"}}, {"inputs": {}}]
)
def test_key_depends_on_verb_config_and_inputs(change: dict):
    assert stage_key(**WHAT) != stage_key(**{**WHAT, **change})


def test_key_does_not_depend_on_order():
    assert (
        fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1}) != fingerprint({"a": 1, "b": [2, 1]})
    )


@pytest.mark.parametrize("damage", ["{", "[]", "", DEEP])
def test_damaged_stamp_means_unfinished(tmp_path: Path, damage: str):
    (tmp_path / STAMP).write_text(damage)
    assert read_stamp(tmp_path) is None
    assert stamp_hash(tmp_path) == "" == stamp_hash(tmp_path / "absent")


def test_stamp_describes_how_output_was_made():
    stamp = describe(**WHAT)
    assert {"command", "trivium", "commit", "python", "platform", "finished", "config", "inputs", "key"} <= stamp.keys()


def test_json_is_replaced_atomically(tmp_path: Path):
    write_json(tmp_path / "x.json", {"b": 1, "a": "é"})
    write_json(tmp_path / "x.json", {"b": 2})
    assert json.loads((tmp_path / "x.json").read_text()) == {"b": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_json_is_not_written_through_a_link(tmp_path: Path):
    mine, path = tmp_path / "letter", tmp_path / "x.json"
    mine.write_text("dear")
    (tmp_path / f".x.json.{os.getpid()}.partial").symlink_to(mine)
    write_json(path, [1])
    assert (mine.read_text(), json.loads(path.read_text())) == ("dear", [1])
    assert not path.is_symlink()


def test_json_may_be_written_concurrently(tmp_path: Path, monkeypatch):
    path, fsync = tmp_path / "seconds.json", os.fsync

    def let_another_write_meanwhile(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        other = get_context("fork").Process(target=write_json, args=(path, {"other": 1}))
        other.start()
        other.join()
        assert other.exitcode == 0 and json.loads(path.read_text()) == {"other": 1}

    monkeypatch.setattr(os, "fsync", let_another_write_meanwhile)
    write_json(path, {"this": 1})
    assert json.loads(path.read_text()) == {"this": 1}


def test_failed_write_leaves_no_json(tmp_path: Path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_json(tmp_path / "x.json", {"a": 1})
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_json(tmp_path / "x.json", {"a": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}


def test_file_hash_is_sha256(tmp_path: Path):
    (tmp_path / "x").write_bytes(b"abc" * 100_000)
    assert file_sha256(tmp_path / "x") == hashlib.sha256(b"abc" * 100_000).hexdigest()


def test_json_is_durable(tmp_path: Path, monkeypatch):
    """Check the content before the rename, and the name after it."""
    synced, fsync = [], os.fsync

    def seen(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), (tmp_path / "x.json").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    write_json(tmp_path / "x.json", {"a": 1})
    assert synced == [(False, False), (True, True)]


@pytest.mark.parametrize("content", ["[1]", "7", '"text"', "{}", '{"format": "other"}', "{", b"\xff\xfe", DEEP])
def test_invalid_manifest_is_named_with_remedy(tmp_path, content):
    path = tmp_path / "manifest.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    for read, remedy in ((read_manifest, "curate the corpus again"), (read_tokens_manifest, "tokenize` again")):
        with pytest.raises(DataError, match=rf"manifest\.json is not .*; .*{remedy}"):
            read(tmp_path)
        with pytest.raises(DataError, match=r"holds no .* \(manifest\.json is missing\)"):
            read(tmp_path / "nowhere")


def test_non_utf8_names_round_trip(tmp_path: Path):
    value = {os.fsdecode(b"caf\xe9"): ["é", "新闻", os.fsdecode(b"\xff")]}
    write_json(tmp_path / "x.json", value)
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == value
    assert "新闻" in (tmp_path / "x.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("place", [".", "/"])
def test_folder_in_place_of_file_is_rejected(place: str) -> None:
    with pytest.raises(IsADirectoryError) as refused:
        write_json(Path(place), {})
    assert refused.value.filename == place


def test_temporary_file_does_not_overwrite_link_target(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("kept")
    (tmp_path / ".piece.partial").symlink_to(mine)
    partial_of(tmp_path / "piece").write_text("new")
    assert mine.read_text() == "kept" and (tmp_path / ".piece.partial").read_text() == "new"
    assert not partial_of(tmp_path / "piece").exists()
