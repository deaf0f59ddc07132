"""Laws of scale: a corpus may have more parts, and more sources, than a process may have open files."""

import json
import resource
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path

import pytest

from trivium.corpus import work
from trivium.corpus.config import CurateConfig, DedupConfig, HarvestConfig
from trivium.corpus.curate import curate
from trivium.corpus.dedup.index import find_duplicates, listed, write_part
from trivium.corpus.document import Document
from trivium.corpus.harvest import harvest_files
from trivium.corpus.harvest.harvest import harvest
from trivium.tokens.config import TokensConfig
from trivium.tokens.encode import tokenize

MANY, ROOM = 24, 16  # parts or sources, and files that may be opened beside those that are open
SEED = 3


@contextmanager
def few_open_files():
    """Inside, no more than ROOM files may be opened beside those that are open."""
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


def corpus(folder: Path, sources: int) -> Path:
    for number in range(sources):
        (folder / f"s{number}").mkdir(parents=True)
        rows = [{"id": n, "text": text(7 * number + n)} for n in range(3)]
        (folder / f"s{number}" / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.broad
def test_a_corpus_of_many_parts_and_sources_is_made_with_few_open_files(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(work, "PART_BYTES", 1)
    monkeypatch.setattr(harvest_files, "PART_BYTES", 1)
    harvesting, mine = HarvestConfig(shard_bytes=1), corpus(tmp_path / "mine", MANY)
    warm, few = tmp_path / "warm", corpus(tmp_path / "few", 2)
    for name in ("harvest", "curated", "tokens"):
        (tmp_path / name).mkdir()
        (warm / name).mkdir(parents=True)
    # The first time, kernels open files too.
    harvest(harvesting, warm / "harvest", seed=SEED, corpus=few)
    curate(CurateConfig(filters=()), warm / "harvest", warm / "curated", seed=SEED)
    with few_open_files():
        harvest(harvesting, tmp_path / "harvest", seed=SEED, corpus=mine)
        curate(CurateConfig(filters=()), tmp_path / "harvest", tmp_path / "curated", seed=SEED)
        manifest = tokenize(TokensConfig(vocabulary=300), tmp_path / "curated", tmp_path / "tokens", seed=SEED)
    assert len(manifest["sources"]) == MANY
    assert sum(split["documents"] for split in manifest["totals"].values()) > 2 * MANY


def test_an_index_of_many_parts_is_searched_with_few_open_files(tmp_path: Path):
    config = DedupConfig()
    folders = [tmp_path / f"{number:05d}" for number in range(4 * MANY)]
    for number, folder in enumerate(folders):
        write_part(folder, [Document(str(number), text(number % (4 * MANY - 1)), "s")], config, seed=SEED)
    every = listed(folders)
    with few_open_files():
        found = find_duplicates(every[:-1], every[-1:], config)
    assert found.survivors.tolist() == [0]
