"""A published folder comes back byte for byte, sends only what is missing, and is never a mixture."""

import json
import os

import pytest

from trivium.errors import DataError, MachineError
from trivium.stores import folder as folders
from trivium.stores.folder import download, published_files, upload

NAMES = ("metrics.jsonl", "inner/b.bin")


@pytest.fixture
def local(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "PART_BYTES", 1000)
    (tmp_path / "local" / "inner").mkdir(parents=True)
    (tmp_path / "local" / NAMES[0]).write_bytes(b"".join(b"%d\n" % n for n in range(700)))
    (tmp_path / "local" / NAMES[1]).write_bytes(bytes(range(256)) * 9)
    return tmp_path / "local"


def contents(folder):
    return {name: (folder / name).read_bytes() for name in NAMES}


def test_what_is_downloaded_is_what_was_uploaded(bucket, local, tmp_path):
    sizes = {name: len(data) for name, data in contents(local).items()}
    assert upload(local, bucket, NAMES) == sum(sizes.values()) and published_files(bucket) == sizes
    assert download(bucket, tmp_path / "back") == sum(sizes.values())
    assert contents(tmp_path / "back") == contents(local)
    assert download(bucket, tmp_path / "back") == 0


def test_a_file_that_grew_sends_what_was_appended(bucket, local, tmp_path):
    upload(local, bucket, NAMES)
    with (local / NAMES[0]).open("ab") as file:
        file.write(b"one more\n")
    assert upload(local, bucket, NAMES) == len(b"one more\n")
    (local / NAMES[0]).write_bytes((local / NAMES[0]).read_bytes()[:1500])  # as a resumed run forgets later steps
    assert upload(local, bucket, NAMES) == 500
    download(bucket, tmp_path / "back")
    assert contents(tmp_path / "back") == contents(local)
    files = json.loads((bucket / "folder.json").read())["files"].values()
    assert (bucket / "parts").sizes().keys() == {part["sha256"] for parts in files for part in parts}


def test_an_interrupted_upload_sends_what_is_missing(store, bucket, local, tmp_path):
    store.put_faults = ["", "", *[503] * 9]
    with pytest.raises(MachineError, match="503"):
        upload(local, bucket, NAMES)
    store.put_faults = []
    with pytest.raises(DataError, match="holds no published folder"):
        download(bucket, tmp_path / "back")
    assert upload(local, bucket, NAMES) == sum(map(len, contents(local).values())) - 2000
    download(bucket, tmp_path / "back")
    assert contents(tmp_path / "back") == contents(local)


def test_a_damaged_part_is_named_and_no_file_is_made_of_it(store, bucket, local, tmp_path):
    upload(local, bucket, NAMES)
    path = next(path for path, data in store.files.items() if "/parts/" in path and len(data) == 1000)
    store.files[path] = b"x" + store.files[path][1:]
    with pytest.raises(DataError, match="does not have its sha256, so it is damaged; delete it, and publish"):
        download(bucket, tmp_path / "back")
    assert not list((tmp_path / "back").rglob("*.partial"))
    del store.files[path]
    with pytest.raises(DataError, match="is missing; publish the folder again"):
        download(bucket, tmp_path / "back")
    assert upload(local, bucket, NAMES) == 1000
    download(bucket, tmp_path / "back")
    assert contents(tmp_path / "back") == contents(local)


@pytest.mark.parametrize("damage", [lambda data: data[:500], lambda data: b"x" + data[1:]], ids=["cut", "changed"])
def test_a_part_that_an_interrupted_upload_left_damaged_is_sent_again(store, bucket, local, damage):
    upload(local, bucket, NAMES)
    path = next(path for path, data in store.files.items() if "/parts/" in path and len(data) == 1000)
    store.files[path] = damage(store.files[path])
    (bucket / "folder.json").write(b'{"format": "trivium-folder-1", "files": {}}')
    assert upload(local, bucket, NAMES) == 1000


def test_a_partial_file_of_a_process_that_died_does_not_stop_the_next_one(bucket, local, tmp_path):
    """In containers all of them may have the same process ID."""
    upload(local, bucket, NAMES)
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / f".{NAMES[0]}.{os.getpid()}.partial").write_bytes(b"half")
    download(bucket, tmp_path / "back")
    assert contents(tmp_path / "back") == contents(local)


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", ".", "", "a\0b"])
def test_a_folder_that_writes_outside_is_refused(bucket, name, tmp_path):
    (bucket / "folder.json").write(json.dumps({"format": "trivium-folder-1", "files": {name: []}}).encode())
    with pytest.raises(DataError, match="is no folder of trivium"):
        download(bucket, tmp_path / "back")


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": "another", "files": {}}', "{"])
def test_a_damaged_manifest_is_named_with_a_remedy(bucket, text, tmp_path):
    (bucket / "folder.json").write(text.encode())
    with pytest.raises(DataError, match="(?s)run/folder.json is damaged .*delete this object and publish") as caught:
        download(bucket, tmp_path / "back")
    assert "--set" not in str(caught.value)


@pytest.mark.parametrize("name", ["x" * 300, "file/below", "folder"])
def test_a_name_that_a_file_cannot_have_here_is_refused(bucket, name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (bucket / "folder.json").write(json.dumps({"format": "trivium-folder-1", "files": {name: []}}).encode())
    with pytest.raises(DataError, match="cannot be written in .*; name an empty folder"):
        download(bucket, tmp_path)


def test_a_file_with_the_longest_possible_name_comes_back(bucket, tmp_path):
    name = "x" * 255
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / name).write_bytes(b"1")
    upload(tmp_path / "local", bucket, [name])
    assert download(bucket, tmp_path / "back") == 1
