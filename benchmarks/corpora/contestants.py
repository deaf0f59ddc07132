"""Trivium and the plain reference, each in a process of its own: `python -m corpora.contestants NAME IN OUT`.

Prints one JSON line: CPU seconds of this process and its children from the moment the libraries are imported and
the kernels loaded (`import_cpu` says what that took), and whatever the row judges.
"""

import json
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corpora.tokenizing import tokenize_as_megatron, tokenize_ours
from trivium.corpus.clean.quality import gopher_step
from trivium.corpus.clean.repetition import repetition_step
from trivium.corpus.config import CurateConfig, DecontaminationConfig, DedupConfig, QualityConfig, RepetitionConfig
from trivium.corpus.daft_engine import Daft
from trivium.corpus.dedup.deduplicate import deduplicate as station
from trivium.corpus.dedup.groups import components, survivors
from trivium.corpus.dedup.minhash import MAX_COMPARED_TEXTS, MinHash, merged_pairs
from trivium.corpus.document import Document
from trivium.corpus.engine import Engine, Here
from trivium.corpus.kernels.shingles import jaccard_of_pairs, pairs_in_band, shingle_sets
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.kernels.warm_up import warm_up
from trivium.corpus.kernels.words import text_keys
from trivium.corpus.pipeline import curate
from trivium.corpus.read.files import Input
from trivium.corpus.select.decontaminate import Keys, cut, keys_of
from trivium.corpus.steps import Steps

BATCH = 1024  # documents read at once
_WORD = re.compile(r"\w+")


def cpu_seconds() -> float:
    """User and system time of this process and of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def deduplicate(source: Path, out: Path) -> None:
    """Read, find, verify, group, keep the first of each group, write."""
    table = pq.read_table(source, columns=["id", "text"])
    config, texts = DedupConfig(), texts_of(table["text"])
    pairs = merged_pairs(
        pairs_in_band(band, chain=MAX_COMPARED_TEXTS) for band in MinHash(config, seed=1).band_keys(texts)
    )
    rows = np.unique(pairs)
    sets = shingle_sets(texts_of(table["text"].take(pa.array(rows))), size=config.shingle)
    similar = jaccard_of_pairs(sets, sets, np.searchsorted(rows, pairs)) >= config.threshold
    best = survivors(components(pairs[similar], documents=table.num_rows), np.zeros(table.num_rows))
    kept = table.filter(pa.array(best == np.arange(table.num_rows)))
    pq.write_table(kept, out, compression="zstd")


def first_of_each_text(source: Path, out: Path) -> None:
    """Read, key every text by its words, keep the first of each key, write."""
    table = pq.read_table(source, columns=["id", "text"])
    _, first = np.unique(text_keys(texts_of(table["text"])), axis=0, return_index=True)
    pq.write_table(table.take(pa.array(np.sort(first))), out, compression="zstd")


def gopher_filters(source: Path, out: Path) -> None:
    """Read, judge every document by Gopher's rules on quality and on repetition, keep those that break none, write."""
    filters, kept = Steps((gopher_step(QualityConfig()), repetition_step(RepetitionConfig()))), []
    for batch in pq.ParquetFile(source).iter_batches(BATCH, columns=["id", "text"]):
        judged = filters.run(Document("", text, "") for text in batch["text"].to_pylist())
        kept.append(batch.filter(pa.array([isinstance(one, Document) for one in judged])))
    pq.write_table(pa.Table.from_batches(kept), out, compression="zstd")


def dedup_station(source: Path, out: Path) -> None:
    """`corpus dedup --by near`: the same, from reading any kind of file to documents, rejects and funnel."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    station(CurateConfig(), Input(source), out, by="near", seed=1, work=out.with_name(f".{out.name}.work"))


def dedup_command(source: Path, out: Path) -> None:
    """The command as it is typed, in a process of its own: starting Python, importing and loading kernels count."""
    shutil.rmtree(out, ignore_errors=True)
    words = ("corpus", "dedup", str(source), str(out), "--set", "harvest.read.text=[text]")
    subprocess.run([sys.executable, "-m", "trivium", *words], check=True, stdout=subprocess.DEVNULL)


def curate_here(source: Path, out: Path) -> None:
    """The whole station in this process: read, filter, deduplicate, decontaminate, write."""
    _curate(source, out, Here())


def curate_native(source: Path, out: Path) -> None:
    """The whole station on Daft's native runner, one worker."""
    _curate(source, out, Daft("native", workers=1))


def _curate(source: Path, out: Path, engine: Engine) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    curate(CurateConfig(), source.with_name("raw"), out, seed=1, engine=engine)


def decontaminate_kernel(source: Path, out: Path) -> None:
    """Pieces left of every document, by the index and the scan."""
    config = DecontaminationConfig()
    keys, pieces, first = Keys(_items(source), config), {}, 0
    for batch in pq.ParquetFile(source).iter_batches(BATCH, columns=["text"]):
        column = batch["text"]
        for row, hits in keys.hits(texts_of(column)).items():
            left = cut(column[row].as_py(), hits, config)
            pieces[first + row] = (left.pieces, left.splits)
        first += len(column)
    _write_pieces(pieces, out)


def decontaminate_plainly(source: Path, out: Path) -> None:
    """The same rule, word by word in plain Python."""
    keys = {key for text in _items(source).values() for key in keys_of(text, DecontaminationConfig())}
    sizes = sorted({key.count(" ") + 1 for key in keys}, reverse=True)
    pieces = {}
    batches = pq.ParquetFile(source).iter_batches(BATCH, columns=["text"])
    for row, text in enumerate(text for batch in batches for text in batch["text"].to_pylist()):
        left = _plain_cut(text, keys, sizes)
        if left[1]:
            pieces[row] = left
    _write_pieces(pieces, out)


def _plain_cut(text: str, keys: set[str], sizes: list[int]) -> tuple[list[tuple[int, int]], int]:
    pieces, start, splits = [], 0, 0
    while True:
        matches = list(_WORD.finditer(text, start))
        words = [match.group().lower() for match in matches]
        hit = _first_hit(words, keys, sizes)
        if hit is None:
            pieces.append((start, len(text)))
            break
        splits += 1
        left = matches[hit[0]].start() - 200
        while left > start and text[left] not in ".!?":
            left -= 1
        if left > start:
            pieces.append((start, left + 1))
        right = matches[hit[0] + hit[1] - 1].end() + 200
        while right < len(text) and text[right] not in ".!?":
            right += 1
        if right + 1 >= len(text):
            break
        start = right + 1
    return ([p for p in pieces if p[1] - p[0] >= 200] if splits else pieces), splits


def _first_hit(words: list[str], keys: set[str], sizes: list[int]) -> tuple[int, int] | None:
    for first in range(len(words)):
        for size in sizes:
            if first + size <= len(words) and " ".join(words[first : first + size]) in keys:
                return first, size
    return None


def _items(source: Path) -> dict[str, str]:
    items: dict[str, str] = json.loads(source.with_name("items.json").read_text(encoding="utf-8"))
    return items


def _write_pieces(pieces: dict[int, tuple[list[tuple[int, int]], int]], out: Path) -> None:
    rows = {str(row): [list(map(list, left)), splits] for row, (left, splits) in sorted(pieces.items())}
    out.write_text(json.dumps(rows))


CONTESTANTS: dict[str, Callable[[Path, Path], None]] = {
    "corpus dedup": dedup_station,
    "kernels alone": deduplicate,
    "the command, imports included": dedup_command,
    "curate here": curate_here,
    "curate native": curate_native,
    "decontaminate": decontaminate_kernel,
    "decontaminate plainly": decontaminate_plainly,
    "first of each text": first_of_each_text,
    "gopher filters": gopher_filters,
    "tokenize": tokenize_ours,
    "tokenize as Megatron": tokenize_as_megatron,
}


def main() -> None:
    name, source, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    warm_up()
    before = cpu_seconds()
    CONTESTANTS[name](source, out)
    result: dict[str, Any] = {"cpu": cpu_seconds() - before, "import_cpu": before}
    result["peak_bytes"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps(result))


if __name__ == "__main__":
    main()
