"""A curation that is killed at any moment resumes to the bytes of one that was not."""

import errno
import gc
import json
import os
import resource
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest

from corpus.kills import Killed, digests, ends
from trivium.config import build
from trivium.corpus import pipeline
from trivium.corpus import work as unfinished
from trivium.corpus.config import CurateConfig, DedupConfig, HarvestConfig
from trivium.corpus.dedup import comparison
from trivium.corpus.dedup.index import find_duplicates, numbered, write_part
from trivium.corpus.document import Document
from trivium.corpus.harvest import harvest_files
from trivium.corpus.harvest.harvest import harvest
from trivium.corpus.pipeline import begin_curation, curate
from trivium.corpus.work import lay_down, mapped, parts_in, read_job, write_array
from trivium.errors import DataError, MachineError
from trivium.seeds import generator_for
from trivium.tokens.config import TokensConfig
from trivium.tokens.encode import tokenize

CONFIG = CurateConfig(shard_bytes=150_000)
MANY, ROOM = 24, 16  # parts or sources, and files that may be opened in addition to those that are open


@pytest.fixture(scope="module", autouse=True)
def small_parts():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unfinished, "PART_BYTES", 100_000)
        yield


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume") / "raw"
    folder.mkdir()
    harvest(HarvestConfig(max_bytes=500_000, evaluation_items=30), folder, seed=7)
    return folder


@pytest.fixture(scope="module")
def finished_work(tmp_path_factory):
    return tmp_path_factory.mktemp("finished") / "work"


@pytest.fixture(scope="module")
def expected(raw, finished_work):
    out = finished_work.with_name("out")
    out.mkdir()
    curate(CONFIG, raw, out, seed=1, work=finished_work)
    result = digests(out)
    assert len([name for name in result if name.suffix == ".parquet"]) > 1
    return result


def run_killed(monkeypatch, raw, out, work, *, survive, before):
    """Curate until `survive` pieces have been renamed. Return whether the curation ended before that."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    job = partial(curate, CONFIG, raw, out, seed=1, work=work)
    return ends(job, monkeypatch, work, survive=survive, before=before)


@pytest.mark.broad
def test_wrong_blend_costs_no_finished_work(raw, tmp_path, monkeypatch):
    out, work = tmp_path / "out", tmp_path / "work"
    out.mkdir()
    with pytest.raises(DataError, match="did you mean 'carroll'"):
        curate(build(CurateConfig, {"blend": {"carrol": 1.0}}), raw, out, seed=1, work=work)
    shutil.rmtree(out)
    out.mkdir()
    monkeypatch.setattr(pipeline, "read_any", None)
    result = curate(build(CurateConfig, {"blend": {"carroll": 1.0}}), raw, out, seed=1, work=work)
    assert result["blend"]["carroll"]["weight"] == 1.0


@pytest.mark.broad
def test_curation_killed_after_every_piece_gives_the_same_bytes(raw, expected, tmp_path, monkeypatch):
    kills = 0
    while not run_killed(monkeypatch, raw, tmp_path / "out", tmp_path / "work", survive=1, before=False):
        kills += 1
        assert kills < 300
    assert kills > 20
    assert digests(tmp_path / "out") == expected


@pytest.mark.broad
@pytest.mark.parametrize("seed", range(6))
def test_curation_killed_before_pieces_are_renamed_gives_the_same_bytes(raw, expected, tmp_path, monkeypatch, seed):
    out, work = tmp_path / "out", tmp_path / "work"
    for survive in generator_for(seed, "kills").integers(1, 25, size=5).tolist():
        run_killed(monkeypatch, raw, out, work, survive=survive, before=True)
    assert run_killed(monkeypatch, raw, out, work, survive=10**6, before=True)
    assert digests(out) == expected


@pytest.mark.broad
def test_each_part_is_read_once_for_the_ids_of_survivors(raw, expected, tmp_path, monkeypatch):
    """A corpus of a terabyte has 60,000 parts, which must not each be read for each of them."""
    reads = Counter()

    class CountedPart(comparison.Part):
        def table(self, columns=None):
            reads[self.folder] += columns == ["id"]
            return super().table(columns)

    monkeypatch.setattr(comparison, "Part", CountedPart)
    (tmp_path / "out").mkdir()
    curate(CONFIG, raw, tmp_path / "out", seed=1)
    assert digests(tmp_path / "out") == expected
    assert len(reads) > 4 and set(reads.values()) == {0, 1}


def test_pieces_of_another_config_or_seed_are_not_used(raw, expected, tmp_path, monkeypatch):
    out, work = tmp_path / "out", tmp_path / "work"
    out.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "decide", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            curate(CurateConfig(quality={"characters": 2000}), raw, out, seed=2, work=work)
    curate(CONFIG, raw, out, seed=1, work=work)
    assert digests(out) == expected


def test_finished_work_is_not_done_again_after_the_output_is_lost(raw, expected, finished_work, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "read_any", None)
    monkeypatch.setattr(comparison, "pairs_of_band", None)
    (tmp_path / "out").mkdir()
    curate(CONFIG, raw, tmp_path / "out", seed=1, work=finished_work)
    assert digests(tmp_path / "out") == expected


@pytest.mark.parametrize("shape", [(0, 2), (24, 0), (3, 5), (7,)])
def test_numpy_reads_written_arrays(tmp_path, shape):
    array = np.arange(np.prod(shape, dtype=int), dtype=np.uint64).reshape(shape)
    for one in (array, array.T, array[::-1]):
        write_array(tmp_path / "a.npy", one)
        result = np.load(tmp_path / "a.npy", allow_pickle=False)
        assert np.array_equal(result, one) and result.dtype == one.dtype


def test_full_disk_is_reported_as_such():
    with pytest.raises(OSError) as full:
        write_array(Path("/dev/full"), np.arange(9))
    assert full.value.errno == errno.ENOSPC


class Cycle:
    """Garbage that lets other threads run when it is collected."""

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        time.sleep(1e-4)


@pytest.mark.broad
def test_threads_read_arrays_while_the_collector_interrupts_them(tmp_path):
    """Python 3.11 parses their headers with a counter that threads share: SystemError, in a few of such runs."""
    write_array(tmp_path / "one.npy", np.arange(10))

    def read() -> bool:
        for _ in range(200):
            Cycle(), Cycle(), Cycle()
            assert len(mapped(tmp_path / "one.npy")) == 10
        return True

    before = gc.get_threshold()
    try:
        for often in range(17, 45, 5):
            gc.set_threshold(often)
            with ThreadPoolExecutor(4) as threads:
                assert all(t.result() for t in [threads.submit(read) for _ in range(4)])
    finally:
        gc.set_threshold(*before)


def test_pieces_made_with_another_model_are_deleted(tmp_path):
    source, model, work = tmp_path / "raw", tmp_path / "model.npz", tmp_path / "work"
    (source / "jsonl").mkdir(parents=True)
    (source / "jsonl" / "part-00000.jsonl").write_text("{}")
    model.write_bytes(b"one")
    config = build(CurateConfig, {"filters": ["classifier"], "classifier": {"model": str(model)}})
    piece = begin_curation(work, source, config, seed=1).path("piece")
    piece.mkdir()
    begin_curation(work, source, config, seed=1)
    assert piece.is_dir()
    model.write_bytes(b"another")
    begin_curation(work, source, config, seed=1)
    assert not piece.exists()


def test_folder_of_other_files_is_neither_used_nor_deleted(raw, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "letter").write_text("dear")
    with pytest.raises(MachineError, match="work is the folder .* did not create; move it"):
        begin_curation(tmp_path / "work", raw, CONFIG, seed=1)
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["letter"]


def test_job_is_read_once_in_a_process_and_again_when_it_changes(raw, tmp_path):
    job = begin_curation(tmp_path / "work", raw, CONFIG, seed=1)
    assert read_job(str(job.work), CurateConfig) is job
    other = begin_curation(tmp_path / "work", raw, CONFIG, seed=2)
    assert read_job(str(other.work), CurateConfig) is other and other.seed == 2


def test_pieces_that_a_worker_of_another_job_still_writes_are_not_used(raw, tmp_path):
    """A worker may outlive its killed process, and also its job, if the user has changed the config."""
    killed = begin_curation(tmp_path / "work", raw, CONFIG, seed=1)
    job = begin_curation(tmp_path / "work", raw, CONFIG, seed=2)
    killed.path("parts", "00000", "00000").mkdir(parents=True)
    assert parts_in(job.path("parts", "00000")) == []
    assert begin_curation(tmp_path / "work", raw, CONFIG, seed=2) == job and job.work.is_dir()


def test_two_workers_may_write_the_same_piece(tmp_path, monkeypatch):
    def write(into):
        (into / "a").write_text("the same")

    def while_another_writes(into):
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            lay_down(tmp_path / "piece", write)
        write(into)

    lay_down(tmp_path / "piece", while_another_writes)
    assert [p.name for p in tmp_path.iterdir()] == ["piece"]
    assert (tmp_path / "piece" / "a").read_text() == "the same"


@contextmanager
def few_open_files():
    """Inside, no more than ROOM files may be opened in addition to those that are open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    free = (number for number in count() if number not in taken)  # a new file takes the least
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(islice(free, ROOM, None)), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def text(number):
    words = (f"word{number}x{n}" for n in range(40))
    return f"Document {number} is of its own, and that is all there is to say of it: {' '.join(words)}."


@pytest.mark.broad
def test_corpus_of_many_parts_and_sources_needs_few_open_files(tmp_path, monkeypatch):
    monkeypatch.setattr(unfinished, "PART_BYTES", 1)
    monkeypatch.setattr(harvest_files, "PART_BYTES", 1)
    for number in range(MANY):
        (tmp_path / "mine" / f"s{number}").mkdir(parents=True)
        rows = [json.dumps({"id": n, "text": text(7 * number + n)}) + "\n" for n in range(3)]
        (tmp_path / "mine" / f"s{number}" / "x.jsonl").write_text("".join(rows))
    shutil.copytree(tmp_path / "mine" / "s0", tmp_path / "first")
    folders = [(tmp_path / one / name) for one in ("warm", "few") for name in ("harvest", "curated", "tokens")]
    for folder in folders:
        folder.mkdir(parents=True)
    # The first time, kernels open files too.
    harvest(HarvestConfig(shard_bytes=1), folders[0], seed=3, corpus=tmp_path / "first")
    curate(CurateConfig(filters=()), folders[0], folders[1], seed=3)
    with few_open_files():
        harvest(HarvestConfig(shard_bytes=1), folders[3], seed=3, corpus=tmp_path / "mine")
        curate(CurateConfig(filters=()), folders[3], folders[4], seed=3)
        manifest = tokenize(TokensConfig(vocabulary=300), folders[4], folders[5], seed=3)
    assert len(manifest["sources"]) == MANY
    assert sum(split["documents"] for split in manifest["totals"].values()) > 2 * MANY


def test_index_of_many_parts_needs_few_open_files(tmp_path):
    config = DedupConfig()
    folders = [tmp_path / f"{number:05d}" for number in range(4 * MANY)]
    for number, folder in enumerate(folders):
        write_part(folder, [Document(str(number), text(number % (4 * MANY - 1)), "s")], config, seed=3)
    every = numbered(folders)
    with few_open_files():
        survivors, _ = find_duplicates(every[:-1], every[-1:], config)
    assert survivors.tolist() == [0]
