"""The first pass: each raw file → parts, with everything that one document alone decides.

A part is a run of a file's records: the documents that passed every filter, the keys by which they are later
compared with all others, the places of evaluation text in them, the rejects, and the counts.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from trivium.corpus.config import CurateConfig
from trivium.corpus.decontaminate import Keys
from trivium.corpus.dedup.minhash import MinHash
from trivium.corpus.document import Document
from trivium.corpus.engine.engine import Result
from trivium.corpus.extract import extract_step
from trivium.corpus.filters.named import named_steps
from trivium.corpus.job import (
    HELDOUT,
    Job,
    evaluation_texts,
    lay_down,
    read_job,
    state_of,
    write_array,
)
from trivium.corpus.judged import REJECTS, judged
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.kernels.words import text_keys
from trivium.corpus.parts import COUNTS, Piece, counts_of, do_parts, part_names
from trivium.corpus.quarantine import Damage
from trivium.corpus.read import read_any
from trivium.corpus.steps import Steps
from trivium.corpus.store import MANIFEST, PASSING_PACKING, documents_table, read_documents
from trivium.corpus.urls import url_key
from trivium.provenance import write_json

PARTS, TABLE, BANDS = "parts", "documents.parquet", "bands.npy"
PART_LIST = "parts.json"
# columns of 16 bytes that are equal for texts with the same words, and for documents of the same address
KEY, ADDRESS = "key", "address"


def filter_steps(config: CurateConfig, *, seed: int) -> Steps:
    """The steps that judge one document at a time, in order, with fresh tallies."""
    return Steps([extract_step(config.extract), *named_steps(config, seed=seed)])


def filter_file(work: str, item: str) -> Result:
    """The task of one raw file, by its number: write the parts of it that are not there yet."""
    job = read_job(work)
    number = int(item)
    path = job.files[number]
    return do_parts(
        job.path(PARTS),
        number,
        lambda: read_any(path, source=path.name.split(".")[0]),
        lambda piece: _write_part(job, piece),
    )


def index_heldout(work: str, item: str) -> Result:
    """The task of the held-out documents: one part of their own, with nothing but what finds copies of them."""
    job = read_job(work)
    folder = job.path(PARTS, HELDOUT)
    if not folder.is_dir():
        source = job.source / HELDOUT
        documents = list(read_documents(source)) if (source / MANIFEST).is_file() else []
        nothing = Keys({}, job.config.decontamination)
        lay_down(folder, lambda into: write_json(into / COUNTS, _features(job, into, documents, nothing)))
    return {}


class Part(NamedTuple):
    """A finished part: its folder, the number of its first document among all, and how many it has."""

    folder: Path
    first: int
    documents: int
    text_bytes: int

    @property
    def end(self) -> int:
        """The number after its last document's."""
        return self.first + self.documents

    def table(self, columns: list[str] | None = None) -> pa.Table:
        """Its documents."""
        return pq.read_table(self.folder / TABLE, columns=columns)

    def counts(self) -> dict[str, Any]:
        """What happened to its records, and where evaluation text stands in its documents."""
        return counts_of(self.folder)


def list_parts(job: Job) -> list[Part]:
    """Every part in order, the held-out documents first; written down for the tasks that follow."""
    if job.path(PART_LIST).is_file():
        return all_parts(job)
    names = [HELDOUT, *part_names(job.path(PARTS), len(job.files))]
    rows, first = [], 0
    for name in names:
        counts = counts_of(job.path(PARTS, name))
        rows.append([name, first, counts["documents"], counts["text_bytes"]])
        first += counts["documents"]
    write_json(job.path(PART_LIST), rows)
    return all_parts(job)


def all_parts(job: Job) -> list[Part]:
    """The parts that `list_parts` found."""
    return list(_listed_parts(job, state_of(job.path(PART_LIST))))


@lru_cache(maxsize=2)
def _listed_parts(job: Job, _: tuple[str, int, int]) -> tuple[Part, ...]:
    # Read once a process, not once a task, as the job is.
    rows = json.loads(job.path(PART_LIST).read_text(encoding="utf-8"))
    return tuple(Part(job.path(PARTS, name), *numbers) for name, *numbers in rows)


@lru_cache(maxsize=2)
def evaluation_keys(job: Job) -> Keys:
    """The n-grams of the evaluation texts, none spared; made once in a process."""
    return Keys(evaluation_texts(job), job.config.decontamination)


def _write_part(job: Job, piece: Piece[Document | Damage]) -> dict[str, Any]:
    found = judged(piece.records, filter_steps(job.config, seed=job.seed), job.source)
    (piece.into / REJECTS).write_bytes(found.rejects)
    told = {"tallies": found.tallies, "damage": found.damage}
    return {**_features(job, piece.into, found.kept, evaluation_keys(job)), **told}


def _features(job: Job, into: Path, documents: Sequence[Document], evaluation: Keys) -> dict[str, Any]:
    """Write the documents, and what they are compared by; returns their counts, and which hold evaluation text."""
    table, dedup = documents_table(documents), job.config.dedup
    texts = texts_of(table["text"])
    minhash = MinHash(bands=dedup.bands, rows=dedup.rows, shingle=dedup.shingle, seed=job.seed)
    write_array(into / BANDS, minhash.band_keys(texts))
    keys = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), table.num_rows, [None, pa.py_buffer(text_keys(texts))]
    )
    addresses = list(map(url_key, documents)) if dedup.urls else [b""] * len(documents)
    compared = table.append_column(KEY, keys).append_column(ADDRESS, pa.array(addresses, pa.binary()))
    pq.write_table(compared, into / TABLE, **PASSING_PACKING)
    found = evaluation.hits(texts)
    return {
        "documents": table.num_rows,
        "text_bytes": int(texts.offsets[-1] - texts.offsets[0]),
        "hits": {str(row): [evaluation.text_of(hit.key) for hit in hits] for row, hits in found.items()},
    }
