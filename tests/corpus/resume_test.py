"""Laws of resuming: wherever a curation is killed, going on gives the bytes of one that was not."""

import errno
import gc
import hashlib
import os
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from corpus.kills import Killed, ends
from trivium.config import build
from trivium.corpus import first_pass
from trivium.corpus import parts as part_list
from trivium.corpus import work as unfinished
from trivium.corpus.config import CurateConfig, HarvestConfig
from trivium.corpus.curate import curate
from trivium.corpus.first_pass import begin_curation
from trivium.corpus.harvest.harvest import harvest
from trivium.corpus.work import lay_down, mapped, parts_in, read_job, write_array
from trivium.errors import DataError, MachineError
from trivium.seeds import generator_for

SMALL = HarvestConfig(max_bytes=500_000, packages=("networkx",), evaluation_items=30)
CONFIG = CurateConfig(shard_bytes=150_000)


@pytest.fixture(scope="module", autouse=True)
def small_parts():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unfinished, "PART_BYTES", 100_000)
        yield


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume") / "raw"
    folder.mkdir()
    harvest(SMALL, folder, seed=7)
    return folder


def digests(folder):
    return {
        path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def finished_work(tmp_path_factory):
    return tmp_path_factory.mktemp("finished") / "work"


@pytest.fixture(scope="module")
def whole(raw, finished_work):
    out = finished_work.with_name("out")
    out.mkdir()
    curate(CONFIG, raw, out, seed=1, work=finished_work)
    found = digests(out)
    assert len([name for name in found if name.suffix == ".parquet"]) > 1
    return found


def run_killed(monkeypatch, raw, out, work, *, survive, before):
    """Curate until so many pieces have taken their place; whether it came to the end instead."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    job = partial(curate, CONFIG, raw, out, seed=1, work=work)
    return ends(job, monkeypatch, work, survive=survive, before=before)


@pytest.mark.broad
def test_a_slip_in_the_blend_costs_nothing_that_was_done(raw, tmp_path, monkeypatch):
    out, work = tmp_path / "out", tmp_path / "work"
    out.mkdir()
    with pytest.raises(DataError, match="did you mean 'networkx'"):
        curate(build(CurateConfig, {"blend": {"netwrkx": 1.0}}), raw, out, seed=1, work=work)
    shutil.rmtree(out)
    out.mkdir()
    monkeypatch.setattr(first_pass, "read_any", None)  # what is read now would be read twice
    result = curate(build(CurateConfig, {"blend": {"networkx": 1.0}}), raw, out, seed=1, work=work)
    assert result["blend"]["networkx"]["weight"] == 1.0


@pytest.mark.broad
def test_a_curation_killed_after_every_single_piece_ends_with_the_same_bytes(raw, whole, tmp_path, monkeypatch):
    out, work = tmp_path / "out", tmp_path / "work"
    kills = 0
    while not run_killed(monkeypatch, raw, out, work, survive=1, before=False):
        kills += 1
        assert kills < 300
    assert kills > 20
    assert digests(out) == whole


@pytest.mark.broad
def test_rejects_are_given_their_survivors_names_by_reading_each_part_once(raw, whole, tmp_path, monkeypatch):
    """Not each part for each part: a corpus of a terabyte has 60,000."""
    reads = Counter()

    class Watched(part_list.Part):
        def table(self, columns=None):
            reads[self.folder] += columns == ["id"]
            return super().table(columns)

    monkeypatch.setattr(part_list, "Part", Watched)
    (tmp_path / "out").mkdir()
    curate(CONFIG, raw, tmp_path / "out", seed=1, work=tmp_path / "work")
    assert digests(tmp_path / "out") == whole
    assert len(reads) > 4 and set(reads.values()) == {0, 1}


@pytest.mark.broad
@pytest.mark.parametrize("seed", range(6))
def test_a_curation_killed_before_pieces_take_their_place_ends_with_the_same_bytes(
    raw, whole, tmp_path, monkeypatch, seed
):
    out, work = tmp_path / "out", tmp_path / "work"
    for survive in generator_for(seed, "kills").integers(1, 25, size=5).tolist():
        run_killed(monkeypatch, raw, out, work, survive=survive, before=True)
    assert run_killed(monkeypatch, raw, out, work, survive=10**6, before=True)
    assert digests(out) == whole


def test_pieces_of_another_config_seed_or_harvest_are_not_gone_on_with(raw, whole, tmp_path, monkeypatch):
    out, work = tmp_path / "out", tmp_path / "work"
    out.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("trivium.corpus.curate.decide", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            curate(CurateConfig(quality={"characters": 2000}), raw, out, seed=2, work=work)
    curate(CONFIG, raw, out, seed=1, work=work)
    assert digests(out) == whole


def test_a_curation_whose_output_was_lost_before_it_had_its_name_does_nothing_again(
    raw, whole, finished_work, tmp_path, monkeypatch
):
    monkeypatch.setattr(first_pass, "read_any", None)
    monkeypatch.setattr("trivium.corpus.dedup.comparison.pairs_of_band", None)
    (tmp_path / "out").mkdir()
    curate(CONFIG, raw, tmp_path / "out", seed=1, work=finished_work)
    assert digests(tmp_path / "out") == whole


def test_without_a_folder_for_its_pieces_a_curation_leaves_none(raw, whole, tmp_path):
    (tmp_path / "out").mkdir()
    curate(CONFIG, raw, tmp_path / "out", seed=1)
    assert digests(tmp_path / "out") == whole


@pytest.mark.parametrize("shape", [(0, 2), (24, 0), (3, 5), (7,)])
def test_arrays_are_files_that_numpy_reads_and_a_full_disk_is_told_as_such(tmp_path, shape):
    array = np.arange(np.prod(shape, dtype=int), dtype=np.uint64).reshape(shape)
    for place, one in enumerate((array, array.T, array[::-1])):
        write_array(tmp_path / f"{place}.npy", one)
        found = np.load(tmp_path / f"{place}.npy", allow_pickle=False)
        assert np.array_equal(found, one) and found.dtype == one.dtype
    with pytest.raises(OSError) as full:
        write_array(Path("/dev/full"), array)
    assert full.value.errno == errno.ENOSPC


class Cycle:
    """Garbage that lets other threads go on when it is collected."""

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        time.sleep(1e-4)


@pytest.mark.broad
def test_threads_read_arrays_while_the_collector_interrupts_them(tmp_path):
    """Python 3.11 reads their headers with a count that its threads share: SystemError, in a few of such runs."""
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


def test_pieces_judged_by_another_model_are_not_gone_on_with(tmp_path):
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


def test_a_folder_that_somebody_else_filled_is_not_taken_for_pieces_nor_deleted(raw, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "letter").write_text("dear")
    with pytest.raises(MachineError, match="work is the folder .* did not create; move it"):
        begin_curation(tmp_path / "work", raw, CONFIG, seed=1)
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["letter"]


def test_a_worker_reads_what_a_job_is_once_and_again_when_it_is_another(raw, tmp_path):
    """A job of a million files names them all; its million tasks cannot each read that."""
    job = begin_curation(tmp_path / "work", raw, CONFIG, seed=1)
    assert read_job(str(job.work), CurateConfig) is job
    other = begin_curation(tmp_path / "work", raw, CONFIG, seed=2)
    assert read_job(str(other.work), CurateConfig) is other and other.seed == 2


def test_what_a_worker_of_another_job_still_writes_is_not_gone_on_with(raw, tmp_path):
    """A worker may outlive its process, which was killed, and its job, as the user has changed the config."""
    killed = begin_curation(tmp_path / "work", raw, CONFIG, seed=1)
    job = begin_curation(tmp_path / "work", raw, CONFIG, seed=2)
    killed.path("parts", "00000", "00000").mkdir(parents=True)
    assert parts_in(job.path("parts", "00000")) == []
    assert begin_curation(tmp_path / "work", raw, CONFIG, seed=2) == job and job.work.is_dir()


def test_two_workers_may_lay_down_the_same_piece(tmp_path, monkeypatch):
    def write(into):
        (into / "a").write_text("the same")

    def while_another_does(into):
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            lay_down(tmp_path / "piece", write)
        write(into)

    lay_down(tmp_path / "piece", while_another_does)
    assert [p.name for p in tmp_path.iterdir()] == ["piece"]
    assert (tmp_path / "piece" / "a").read_text() == "the same"
