"""The first pass of a curation: each raw file becomes parts, by everything that one document alone decides.

A part holds the documents of a run of records that passed every filter, the keys by which they are compared with all
others, the evaluation text in them, the rejects, and the counts. With a folder for kept work, the parts of a file stay
there for later curations, and so do its extracted texts.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trivium.corpus.clean.extract import extract_step
from trivium.corpus.config import CurateConfig
from trivium.corpus.dedup.groups import url_key
from trivium.corpus.dedup.minhash import MinHash
from trivium.corpus.document import Damage, Document, PassedOver, whole_of
from trivium.corpus.engine import Result
from trivium.corpus.files import Input, name_of
from trivium.corpus.filters import named_steps
from trivium.corpus.harvest.raw_files import AS_WRITTEN
from trivium.corpus.kept import files_beside, kept_folders, raw_files
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.kernels.words import text_keys
from trivium.corpus.parts import ADDRESS, BANDS, HELDOUT, KEY, PARTS, TABLE, CurationJob
from trivium.corpus.read.read import read_any
from trivium.corpus.select.decontaminate import Keys
from trivium.corpus.select.evaluation_texts import EVALUATION_ITEMS, evaluation_texts
from trivium.corpus.steps import PART_REJECTS, Judged, Reject, Steps, as_read
from trivium.corpus.store import MANIFEST, PASSING_PACKING, documents_table, read_documents
from trivium.corpus.work import (
    COUNTS,
    NewPart,
    begin_job,
    counts_of,
    is_sound,
    lay_down,
    parts_in,
    put,
    read_job,
    stream_folder,
    write_array,
    write_parts,
)
from trivium.provenance import write_json

TEXTS = "texts.parquet"  # of a part of kept texts
_TEXTS_COLUMNS = ["id", "text", "source", "metadata", "step", "reason"]
Records = list[Document | Damage | PassedOver]


def begin_curation(
    work: Path, source: Path, config: CurateConfig, *, seed: int, kept: Path | None = None
) -> CurationJob:
    """Return the job of curating the harvest at `source`.

    No piece depends on the blend, so the job does not either: a typo in it, which shows at the end, costs nothing.
    """
    heldout = source / HELDOUT
    beside = [*(sorted(heldout.iterdir()) if heldout.is_dir() else ()), source / EVALUATION_ITEMS]
    beside = [*filter(Path.is_file, beside), *files_beside(config)]
    config = config.model_copy(update={"blend": {}})
    read = Input(source, AS_WRITTEN)
    return begin_job(work, config, read, raw_files(source), seed=seed, beside=beside, kept=kept)


def filter_file(work: str, item: str) -> Result:
    """Write the missing parts of the raw file of this number: the task of the first pass."""
    job = read_job(work, CurateConfig)
    number = int(item)

    def read() -> Iterator[Document | Damage | PassedOver]:
        path = job.files[number]
        return read_any(path, source=name_of(path).split(".")[0], limits=job.limits)

    if job.kept is None:
        write_parts(stream_folder(job.path(PARTS), number), read, partial(_filter, job))
        return {}
    texts, parts = kept_folders(job.kept, Path(job.source), job.config, seed=job.seed)[number]
    for folder in (texts, parts):
        if not all(map(is_sound, parts_in(folder))):
            shutil.rmtree(folder)
    write_parts(texts, read, partial(_keep_texts, job), summed=True)
    for part in parts_in(texts):
        mine = stream_folder(job.path(PARTS), number) / part.name
        if not mine.is_dir():
            if not (parts / part.name).is_dir():
                lay_down(parts / part.name, partial(_filter_kept, job, part), summed=True)
            lay_down(mine, partial(_link_all, parts / part.name))
    return {}


def _link_all(part: Path, into: Path) -> None:
    for path in part.iterdir():
        put(path, into / path.name)


def index_heldout(job: CurationJob) -> None:
    """Write the part of the held-out documents, which only holds what finds copies of them."""
    if not job.path(HELDOUT).is_dir():
        source = Path(job.source) / HELDOUT
        documents = list(read_documents(source)) if (source / MANIFEST).is_file() else []
        nothing = Keys({}, job.config.decontamination)
        lay_down(job.path(HELDOUT), lambda into: write_json(into / COUNTS, _features(job, into, documents, nothing)))


@lru_cache(maxsize=2)
def evaluation_keys(job: CurationJob) -> Keys:
    """Return the n-grams of the evaluation texts, with common phrases; made once in a process."""
    return Keys(evaluation_texts(Path(job.source), job.config), job.config.decontamination)


def _extracted(job: CurationJob, records: Records) -> tuple[Judged, int]:
    """Return the extracted texts of records, and how many documents took too long."""
    steps = Steps([extract_step(job.config.extract)], document_seconds=job.config.document_seconds)
    return as_read(records, job.source).by(steps), steps.timed_out


def _filter(job: CurationJob, part: NewPart, records: Records) -> dict[str, Any]:
    return _write_part(job, part.into, _extracted(job, records)[0])


def _write_part(job: CurationJob, into: Path, extracted: Judged) -> dict[str, Any]:
    """Filter extracted documents and write what is left, with its features, and the rejects. Return the counts."""
    steps = Steps(named_steps(job.config, seed=job.seed), document_seconds=job.config.document_seconds)
    found = extracted.by(steps)
    (into / PART_REJECTS).write_bytes(found.rejects)
    features = _features(job, into, found.kept, evaluation_keys(job))
    return {**features, "tallies": found.tallies, "damage": found.damage, "timed_out": steps.timed_out}


def _features(job: CurationJob, into: Path, documents: Sequence[Document], evaluation: Keys) -> dict[str, Any]:
    """Write documents and what they are compared by.

    Return their counts, the ids that look like those of pieces, and the rows that hold evaluation text.
    """
    table, dedup = documents_table(documents), job.config.dedup
    texts = texts_of(table["text"])
    minhash = MinHash(bands=dedup.bands, rows=dedup.rows, shingle=dedup.shingle, seed=job.seed)
    write_array(into / BANDS, minhash.band_keys(texts))
    keys = pa.array([key.tobytes() for key in text_keys(texts)], pa.binary(16))
    addresses = list(map(url_key, documents)) if dedup.urls else [b""] * len(documents)
    compared = table.append_column(KEY, keys).append_column(ADDRESS, pa.array(addresses, pa.binary()))
    pq.write_table(compared, into / TABLE, **PASSING_PACKING)
    found = evaluation.hits(texts)
    return {
        "documents": table.num_rows,
        "text_bytes": int(texts.offsets[-1] - texts.offsets[0]),
        "marked": [document.id for document in documents if whole_of(document.id) != document.id],
        "hits": {str(row): [evaluation.text_of(hit.key) for hit in hits] for row, hits in found.items()},
    }


def _keep_texts(job: CurationJob, part: NewPart, records: Records) -> dict[str, Any]:
    found, timed_out = _extracted(job, records)
    rows = [_row_of(item) for item in found.items]
    columns = zip(*rows, strict=True) if rows else [()] * len(_TEXTS_COLUMNS)
    arrays = [pa.array(column, pa.large_binary()) for column in columns]
    pq.write_table(pa.table(arrays, names=_TEXTS_COLUMNS), part.into / TEXTS, compression="zstd")
    return {"tallies": found.tallies, "damage": found.damage, "timed_out": timed_out}


def _filter_kept(job: CurationJob, part: Path, into: Path) -> None:
    counts = counts_of(part)
    items = [_item_of(row) for row in pq.read_table(part / TEXTS).to_pylist()]
    found = _write_part(job, into, Judged(items, counts["tallies"], counts["damage"]))
    write_json(into / COUNTS, {**found, "raw": counts["raw"], "last": counts["last"]})


def _row_of(item: Document | Reject) -> tuple[bytes | None, ...]:
    document, step, reason = item if isinstance(item, Reject) else (item, None, None)
    # Unlike a store's, metadata keeps the order of its keys, which the lines of rejects show.
    values = (document.id, document.text, document.source, json.dumps(document.metadata), step, reason)
    return tuple(None if value is None else value.encode("utf-8", "surrogatepass") for value in values)


def _item_of(row: dict[str, bytes | None]) -> Document | Reject:
    texts = {name: (value or b"").decode("utf-8", "surrogatepass") for name, value in row.items()}
    document = Document(texts["id"], texts["text"], texts["source"], json.loads(texts["metadata"]))
    return document if row["step"] is None else Reject(document, texts["step"], texts["reason"])
