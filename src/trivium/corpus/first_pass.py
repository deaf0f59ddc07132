"""The first pass: each raw file → parts, with everything that one document alone decides.

A part is a run of a file's records: the documents that passed every filter, the keys by which they are later
compared with all others, the places of evaluation text in them, the rejects, and the counts.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic_core import PydanticSerializationError, to_json

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
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.kernels.words import text_keys
from trivium.corpus.quarantine import Damage
from trivium.corpus.read import read_any
from trivium.corpus.steps import Reject, Steps, Tally
from trivium.corpus.store import MANIFEST, PASSING_PACKING, documents_table, read_documents
from trivium.corpus.urls import url_key
from trivium.provenance import write_json

PART_BYTES = 16 << 20  # of raw text in a part: what is lost when a process is killed, at most
PARTS, TABLE, BANDS, COUNTS, REJECTS = "parts", "documents.parquet", "bands.npy", "counts.json", "rejects.gz"
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
    done = finished_parts(job, number)
    if done and done[-1]["last"]:
        return {"parts": len(done)}
    path = job.files[number]
    raw = read_any(path, source=path.name.split(".")[0])
    for _ in islice(raw, sum(part["raw"] for part in done)):
        pass  # reading is cheap beside what was done to these
    last, count = False, len(done)
    while not last:
        taken, last = take(raw, PART_BYTES)
        _write_part(job, part_name(number, count), taken, last=last)
        count += 1
    return {"parts": count}


def index_heldout(work: str, item: str) -> Result:
    """The task of the held-out documents: one part of their own, with nothing but what finds copies of them."""
    job = read_job(work)
    folder = job.path(PARTS, HELDOUT)
    if not folder.is_dir():
        source = job.source / HELDOUT
        documents = list(read_documents(source)) if (source / MANIFEST).is_file() else []
        lay_down(folder, lambda into: _write_features(job, into, documents, Counter(), []))
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
        return _counts(self.folder)


def list_parts(job: Job) -> list[Part]:
    """Every part in order, the held-out documents first; written down for the tasks that follow."""
    if job.path(PART_LIST).is_file():
        return all_parts(job)
    names = [HELDOUT]
    for number in range(len(job.files)):
        names += [part_name(number, place) for place in range(len(finished_parts(job, number)))]
    rows, first = [], 0
    for name in names:
        counts = _counts(job.path(PARTS, name))
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


def finished_parts(job: Job, number: int) -> list[dict[str, Any]]:
    """The counts of a file's parts that are done, in order."""
    found: list[dict[str, Any]] = []
    while (folder := job.path(PARTS, part_name(number, len(found)))).is_dir():
        found.append(_counts(folder))
    return found


def part_name(number: int, place: int) -> str:
    """The name of a file's part."""
    return f"{number:05d}-{place:05d}"


@lru_cache(maxsize=2)
def evaluation_keys(job: Job) -> Keys:
    """The n-grams of the evaluation texts, none spared; made once in a process."""
    return Keys(evaluation_texts(job), job.config.decontamination)


def reject_line(document: Document, step: str, reason: str, **detail: Any) -> bytes:
    """A reject as a line of rejects.jsonl."""
    row = {"id": document.id, "source": document.source, "step": step, "reason": reason, **detail}
    row |= {"metadata": document.metadata, "text": document.text}
    try:
        return to_json(row) + b"\n"
    except PydanticSerializationError:  # half characters, which only the standard library writes
        return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def packed_lines(lines: list[bytes]) -> bytes:
    """Lines as one gzip member, so that members make a file when they are joined; nothing for no line."""
    return gzip.compress(b"".join(lines), compresslevel=1, mtime=0) if lines else b""


def take(raw: Iterator[Document | Damage], size: int) -> tuple[list[Document | Damage], bool]:
    """The next records of at least so many bytes, and whether they are the last."""
    taken: list[Document | Damage] = []
    held = 0
    for item in raw:
        taken.append(item)
        held += 0 if isinstance(item, Damage) else item.text_bytes
        if held >= size:
            return taken, False
    return taken, True


def _write_part(job: Job, name: str, raw: list[Document | Damage], *, last: bool) -> None:
    read, steps = Tally("read"), filter_steps(job.config, seed=job.seed)
    lines: list[bytes] = []
    damage: list[str] = []

    def documents() -> Iterator[Document]:
        for item in raw:
            if isinstance(item, Damage):
                where = Path(item.path).relative_to(job.source).as_posix()
                damage.append(f"{where}: {item.reason}")
                read.quarantined += item.records
                lines.append(reject_line(Document(where, "", ""), read.step, item.reason))
            else:
                read.keep(item)
                yield item

    kept: list[Document] = []
    for result in steps.run(documents()):
        if isinstance(result, Reject):
            lines.append(reject_line(result.document, result.step, result.reason))
        else:
            kept.append(result)
    counts = Counter(raw=len(raw), last=int(last))
    tallies = [tally.as_json() for tally in (read, *steps.tallies)]

    def write(into: Path) -> None:
        _write_features(job, into, kept, counts, tallies, damage[:1])
        (into / REJECTS).write_bytes(packed_lines(lines))

    lay_down(job.path(PARTS, name), write)


def _write_features(
    job: Job,
    into: Path,
    documents: Sequence[Document],
    counts: Counter[str],
    tallies: list[dict[str, Any]],
    damage: list[str] | None = None,
) -> None:
    """The documents, and what they are compared by."""
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
    evaluation = evaluation_keys(job)
    hits = evaluation.hits(texts) if tallies else {}
    found = {
        **counts,
        "documents": table.num_rows,
        "text_bytes": int(texts.offsets[-1] - texts.offsets[0]),
        "tallies": tallies,
        "damage": damage or [],
        "hits": {str(row): [evaluation.text_of(hit.key) for hit in places] for row, places in hits.items()},
    }
    write_json(into / COUNTS, found)


def _counts(folder: Path) -> dict[str, Any]:
    counts: dict[str, Any] = json.loads((folder / COUNTS).read_text(encoding="utf-8"))
    return counts
