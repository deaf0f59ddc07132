"""A harvest of remote files gives the bytes of local ones, resumes without reading again, and names what went wrong."""

import gzip
import json

import fsspec
import pytest

from corpus.kills import digests
from corpus.servers import Store, serving
from trivium.corpus.config import HarvestConfig
from trivium.corpus.harvest import harvest_files
from trivium.corpus.harvest.harvest import harvest
from trivium.corpus.publish.store import read_documents
from trivium.corpus.read import remote
from trivium.corpus.read.files import list_files, states_of
from trivium.corpus.read.streams import open_binary
from trivium.errors import DataError, MachineError
from trivium.stores import requests

CONFIG = HarvestConfig(evaluation_items=5)


def rows(name: str) -> bytes:
    texts = [f"Row {n} of {name} is about rivers, boats and the towns on their banks. " * (n % 7) for n in range(1, 40)]
    return "".join(json.dumps({"id": f"{name}-{n}", "text": text}) + "\n" for n, text in enumerate(texts)).encode()


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(requests, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(requests, "REQUEST_SECONDS", 60.0)
    store = Store()
    for name in ("a", "b", "c"):
        store.files[f"/bucket/text/{name}.jsonl"] = rows(name)
    store.files["/bucket/text/c.jsonl.gz"] = gzip.compress(store.files.pop("/bucket/text/c.jsonl"), mtime=0)
    with serving(store):
        yield store


@pytest.fixture(params=["s3", "hf", "memory"])
def url(request, store, monkeypatch):
    """The URL of a folder with the files of the store."""
    if request.param == "memory":
        memory = fsspec.filesystem("memory")
        memory.store.clear()
        for name, data in store.files.items():
            memory.pipe(name, data)
        return "memory://bucket/text"
    return s3(store, monkeypatch) if request.param == "s3" else hub(store, monkeypatch)


def hub(store, monkeypatch):
    hub_constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)  # the server is on this machine
    monkeypatch.setattr(fsspec.config, "conf", {"hf": {"endpoint": store.url, "token": False}})
    return "hf://datasets/bucket/text"


def s3(store, monkeypatch):
    pytest.importorskip("s3fs", reason="s3fs is an extra: pip install -e '.[remote]'")
    conf = {"s3": {"endpoint_url": store.url, "key": "k", "secret": "s", "use_listings_cache": False}}
    monkeypatch.setattr(fsspec.config, "conf", conf)
    return "s3://bucket/text"


def harvested(source, out, **how):
    out.mkdir(exist_ok=True)
    harvest(CONFIG, out, seed=4, corpus=source, work=out.with_suffix(".work"), **how)
    return digests(out)


def local(store, tmp_path):
    folder = tmp_path / "local" / "text"
    folder.mkdir(parents=True)
    for name, data in store.files.items():
        (folder / name.rpartition("/")[2]).write_bytes(data)
    return folder


def contents(out):
    """Return the contents of a harvest, however it is divided into files: each remote file is a separate part."""
    raw = b"".join(gzip.decompress(path.read_bytes()) for path in sorted((out / "jsonl").iterdir()))
    return raw, list(read_documents(out / "heldout")), (out / "evaluation_items.jsonl").read_bytes()


def test_a_remote_folder_gives_the_documents_of_a_local_one(store, url, tmp_path):
    harvested(url, tmp_path / "out")
    harvested(local(store, tmp_path), tmp_path / "same")
    assert contents(tmp_path / "out") == contents(tmp_path / "same")
    entries = json.loads((tmp_path / "out" / "sources.json").read_text())
    assert [entry["path"] for entry in entries] == ["a.jsonl", "b.jsonl", "c.jsonl.gz"]
    assert all(entry["mark"][0].startswith("size ") for entry in entries)


def test_hub_that_the_environment_forbids_is_refused_at_once(store, monkeypatch):
    url = hub(store, monkeypatch)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"cannot be read: HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set; unset it$"):
        list_files(url)
    assert not store.requests


def test_a_file_is_streamed_in_blocks_and_read_at_any_place(store, monkeypatch):
    monkeypatch.setattr(remote, "BLOCK_BYTES", 1000)
    data = store.files["/bucket/text/a.jsonl"]
    with open_binary(f"{store.url}/bucket/text/a.jsonl") as file:
        assert file.read(10) == data[:10]
        file.seek(len(data) - 7)
        assert file.read() == data[-7:]
        file.seek(2500)
        assert file.read(1200) == data[2500:3700]
        file.seek(0)
        assert file.read() == data


@pytest.mark.parametrize(
    "fault, error, told",
    [
        (403, DataError, "HTTP 403: .*; give this user access"),
        (404, DataError, "404.*; check the address"),
        (500, MachineError, "HTTP 500: .*, after 4 attempts; nothing that was read is lost"),
        ("truncate", MachineError, "after 4 attempts"),
        ("stall", MachineError, "no answer within 2 s, after 2 attempts"),
    ],
)
def test_a_server_that_fails_is_named_and_what_was_read_is_kept(store, tmp_path, monkeypatch, fault, error, told):
    """Every file is read twice: to decide, and to write."""
    a, b = "/bucket/text/a.jsonl", "/bucket/text/b.jsonl"
    urls = [store.url + a, store.url + b]
    monkeypatch.setattr(harvest_files, "list_files", lambda where: list_files(where)._replace(files=urls))
    monkeypatch.setattr(harvest_files, "marks_of", lambda where: {u: m for u in urls for _, _, *m in states_of(u)})
    if fault == "stall":
        monkeypatch.setattr(requests, "REQUEST_SECONDS", 2.0)
        monkeypatch.setattr(requests, "ATTEMPTS", 2)
    store.faults[b] = fault
    with pytest.raises(error, match=f"^{urls[1]} cannot be read: .*{told}"):
        harvested(urls[0], tmp_path / "out")
    assert not any((tmp_path / "out").iterdir())
    before = store.read(a)
    store.faults.clear()
    found = harvested(urls[0], tmp_path / "out")
    assert store.read(a) == before + 1, "the finished file was read again, and not only to be written"
    assert found == harvested(urls[0], tmp_path / "at once")


def test_a_failure_that_passes_is_not_noticed(store, tmp_path):
    path = "/bucket/text/a.jsonl"
    store.faults[path] = "once"
    harvested(store.url + path, tmp_path / "out")
    assert store.read(path) == 3


def test_a_file_that_changed_before_the_harvest_goes_on_is_refused_by_name(store, url, tmp_path, monkeypatch):
    stopped = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(harvest_files, "_decide", stopped)
        with pytest.raises(KeyboardInterrupt):
            harvested(url, tmp_path / "out")
    before = store.files["/bucket/text/b.jsonl"]
    after = before.replace(b"rivers", b"RIVERS")
    store.files["/bucket/text/b.jsonl"] = after
    if url.startswith("memory"):
        fsspec.filesystem("memory").pipe("/bucket/text/b.jsonl", after)
    with pytest.raises(
        DataError, match=rf"^{url}/b.jsonl changed since it was first read .*; put back .*delete {tmp_path}"
    ):
        harvested(url, tmp_path / "out")
    if url.startswith("s3"):
        store.files["/bucket/text/b.jsonl"] = before
        harvested(url, tmp_path / "out")


def test_a_file_that_changes_during_the_harvest_is_refused_by_name(store, tmp_path, monkeypatch):
    url, real = f"{store.url}/bucket/text/a.jsonl", harvest_files._decide

    def decide(*words):
        real(*words)
        store.files["/bucket/text/a.jsonl"] += b'{"text": "one more"}\n'

    monkeypatch.setattr(harvest_files, "_decide", decide)
    with pytest.raises(DataError, match=f"^{url} changed since it was first read"):
        harvested(url, tmp_path / "out")


def test_a_server_without_ranges_gives_small_files_only(store, monkeypatch):
    store.ranges = False
    url = f"{store.url}/bucket/text/a.jsonl"
    with open_binary(url) as file:
        assert file.read() == store.files["/bucket/text/a.jsonl"]
    monkeypatch.setattr(remote, "BLOCK_BYTES", 1000)
    with pytest.raises(DataError, match="the server ignores ranges"), open_binary(url) as file:
        file.read()


@pytest.mark.parametrize("place, package", [("s3://bucket/x", "s3fs"), ("gs://bucket/x", "gcsfs")])
def test_a_missing_package_is_named_with_the_command_that_installs_it(place, package, monkeypatch):
    def absent(url):
        raise ImportError(f"Install {package}")

    monkeypatch.setattr(fsspec.core, "url_to_fs", absent)
    with pytest.raises(MachineError, match=f":// needs the package {package}; run `pip install {package}`"):
        list_files(place)
