"""The first pass: each raw file → parts, with everything that one document alone decides.

A part is a run of a file's records: the documents that passed every filter, the keys by which they are later
compared with all others, the places of evaluation text in them, the rejects, and the counts.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trivium.corpus.clean.extract import extract_step
from trivium.corpus.config import CurateConfig, DedupConfig
from trivium.corpus.dedup.minhash import MinHash
from trivium.corpus.dedup.urls import url_key
from trivium.corpus.document import Document, whole_of
from trivium.corpus.engine import Result
from trivium.corpus.filters import named_steps
from trivium.corpus.job import (
    HELDOUT,
    Job,
    evaluation_texts,
    lay_down,
    read_job,
    state_of,
    write_array,
)
from trivium.corpus.judged import REJECTS, Judged, as_read
from trivium.corpus.kept import KeptFile, folder_of_file
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.kernels.words import text_keys
from trivium.corpus.measure import Ask, Found, Measure, measured
from trivium.corpus.parts import (
    COUNTS,
    Piece,
    Stretch,
    Take,
    counts_of,
    do_parts,
    part_names,
    place_of,
    stretches,
)
from trivium.corpus.read.raw_files import AS_WRITTEN
from trivium.corpus.read.read import read_any
from trivium.corpus.select.decontaminate import Keys
from trivium.corpus.steps import Steps, asking
from trivium.corpus.store import MANIFEST, PASSING_PACKING, documents_table, read_documents
from trivium.provenance import write_json

PARTS, TABLE, BANDS = "parts", "documents.parquet", "bands.npy"
PART_LIST = "parts.json"
# columns of 16 bytes that are equal for texts with the same words, and for documents of the same address
KEY, ADDRESS = "key", "address"


def filter_file(work: str, kept: str, item: str) -> Result:
    """The task of one raw file, by its number: write the parts of it that are not there yet.

    kept: the folder of kept work, or nothing.
    """
    job = read_job(work)
    number = int(item)
    path = job.files[number]
    folder = folder_of_file(Path(kept), path, job.source, job.config.extract) if kept else None
    return do_parts(
        job.path(PARTS),
        number,
        _extracted(job, path, KeptFile(folder)),
        lambda piece: _write_part(job, piece, KeptFile(folder)),
    )


def index_heldout(work: str, item: str) -> Result:
    """The task of the held-out documents: one part of their own, with nothing but what finds copies of them."""
    job = read_job(work)
    folder = job.path(PARTS, HELDOUT)
    if not folder.is_dir():
        source = job.source / HELDOUT
        documents = list(read_documents(source)) if (source / MANIFEST).is_file() else []
        nothing = Keys({}, job.config.decontamination)
        lay_down(
            folder, lambda into: write_json(into / COUNTS, _features(job, into, documents, nothing, measured))
        )
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


def _extracted(job: Job, path: Path, kept: KeptFile) -> Take[Judged]:
    """Takes stretches of a raw file, extracted: those that are kept, and the others by reading it."""
    raw = stretches(lambda: read_any(path, source=path.name.split(".")[0], limits=AS_WRITTEN))

    def take(place: int, before: int) -> Stretch[Judged]:
        found = kept.texts(place)
        if found is None:
            records, count, last = raw(place, before)
            steps = Steps([extract_step(job.config.extract)], document_seconds=job.config.document_seconds)
            found = Stretch(as_read(records, job.source).by(steps), count, last)
            if not steps.timed_out:  # which depends on the machine, not on the text alone
                kept.keep_texts(place, found)
        return found

    return take


def _write_part(job: Job, piece: Piece[Judged], kept: KeptFile) -> dict[str, Any]:
    figures = kept.figures(place_of(piece.name))
    steps = [asking(step, figures) for step in named_steps(job.config, seed=job.seed)]
    found = piece.records.by(Steps(steps, document_seconds=job.config.document_seconds))
    (piece.into / REJECTS).write_bytes(found.rejects)
    told = {"tallies": found.tallies, "damage": found.damage}
    features = _features(job, piece.into, found.kept, evaluation_keys(job), figures)
    figures.save()
    return {**features, **told}


def measures_of(config: CurateConfig, *, seed: int) -> list[Measure]:
    """What a curation measures of single texts."""
    steps = named_steps(config, seed=seed)
    return [*(step.measure for step in steps if step.measure), _compared_by(config.dedup, seed=seed)]


def _compared_by(config: DedupConfig, *, seed: int) -> Measure:
    settings = {"bands": config.bands, "rows": config.rows, "shingle": config.shingle, "seed": seed}
    return Measure("comparison", _keys_of_all, settings)


def _keys_of_all(strings: Sequence[str], *, bands: int, rows: int, shingle: int, seed: int) -> list[Found]:
    """What texts are compared by: of each its key, and its key in every band, as bytes."""
    texts = texts_of(strings)
    in_bands = MinHash(bands=bands, rows=rows, shingle=shingle, seed=seed).band_keys(texts)
    keys = text_keys(texts)
    return [(key.tobytes(), column.tobytes()) for key, column in zip(keys, in_bands.T, strict=True)]


def _features(
    job: Job, into: Path, documents: Sequence[Document], evaluation: Keys, ask: Ask
) -> dict[str, Any]:
    """Write the documents, and what they are compared by; returns their counts, the ids that look like those of
    pieces, and which hold evaluation text."""
    table, dedup = documents_table(documents), job.config.dedup
    texts = texts_of(table["text"])
    keys = ask(_compared_by(dedup, seed=job.seed), [document.text for document in documents])
    in_bands = np.frombuffer(b"".join(columns for _, columns in keys), np.uint64)
    write_array(into / BANDS, in_bands.reshape(-1, dedup.bands).T)
    of_texts = pa.array([key for key, _ in keys], pa.binary(16))
    addresses = list(map(url_key, documents)) if dedup.urls else [b""] * len(documents)
    compared = table.append_column(KEY, of_texts).append_column(ADDRESS, pa.array(addresses, pa.binary()))
    pq.write_table(compared, into / TABLE, **PASSING_PACKING)
    found = evaluation.hits(texts)
    return {
        "documents": table.num_rows,
        "text_bytes": int(texts.offsets[-1] - texts.offsets[0]),
        "marked": [document.id for document in documents if whole_of(document.id) != document.id],
        "hits": {str(row): [evaluation.text_of(hit.key) for hit in hits] for row, hits in found.items()},
    }
