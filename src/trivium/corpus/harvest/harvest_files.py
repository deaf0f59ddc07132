"""A user's files as a harvest, in parts: surveyed in parallel, then decided on, then written in parallel.

Files are read twice, because what a document is called and whether it is held out depends on all others.
"""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trivium.corpus.clean.extract import extract_step
from trivium.corpus.config import HarvestConfig
from trivium.corpus.document import Damage, Document, PassedOver
from trivium.corpus.engine import Engine, Here, Result
from trivium.corpus.harvest.heldout import choose, place_in_line, pool
from trivium.corpus.harvest.raw_files import JSONL_FOLDER, WARC_FOLDER, RawFiles
from trivium.corpus.kernels.warm_up import compile_once, warm_up
from trivium.corpus.publish.store import PASSING_PACKING, documents_in, documents_table, write_documents
from trivium.corpus.read.cutting import is_later_piece
from trivium.corpus.read.files import Input, list_files, relative_name, source_of
from trivium.corpus.read.ids import KEYS, keys_of, names_in, write_ids
from trivium.corpus.read.read import read_any
from trivium.corpus.read.streams import open_binary
from trivium.corpus.steps import Drop
from trivium.corpus.work import (
    PART_BYTES,
    Job,
    NewPart,
    all_parts_in,
    begin_job,
    counts_of,
    lay_down,
    mapped,
    put,
    read_job,
    read_json,
    run_streams,
    state_of,
    stream_folder,
    write_parts,
)
from trivium.errors import DataError
from trivium.progress import Progress
from trivium.provenance import write_json

SOURCES, ITEMS, HELDOUT = "sources.json", "evaluation_items.jsonl", "heldout"
SURVEYED, DECIDED, WRITTEN = "surveyed", "decided", "written"
CANDIDATES = "candidates.parquet"  # of a surveyed part
# Counts of each file: records = documents - added + quarantined + passed_over.
_COUNTED = ("documents", "added", "text_bytes", "quarantined")
_ROW_GROUP = 64  # candidates that are read together

HarvestJob = Job[HarvestConfig]


class Record(NamedTuple):
    """A document, damage or a record of another kind, and the number of its file."""

    file: int
    item: Document | Damage | PassedOver

    @property
    def text_bytes(self) -> int:
        """Size of the document's text."""
        return self.item.text_bytes


def harvest_files(
    config: HarvestConfig,
    out: Path,
    corpus: Path | str,
    *,
    seed: int,
    work: Path,
    progress: Progress,
    engine: Engine | None,
) -> dict[str, Any]:
    """Collect the files at `corpus` into the existing folder `out`. Return a summary.

    work: the folder of finished pieces, from which an interrupted harvest continues. Raises DataError if there is no
    document, or if a file changed meanwhile.
    """
    where = corpus if isinstance(corpus, str) else corpus.absolute()
    listing = list_files(where)
    read = Input(where, config.read)
    job = begin_job(work, config, read, listing.files, seed=seed, streams=_streams(listing.files))
    prepare = compile_once if engine is None else warm_up  # workers inherit what is loaded
    prepare(progress)
    runner = engine or Here()
    run_streams(runner, survey, job, progress, "reading")
    parts = all_parts_in(job.path(SURVEYED), len(job.streams))
    counts = list(map(counts_of, parts))
    entries = _entries(job, counts)
    if not any(entry["documents"] for entry in entries):
        first = entries[0]
        why = first.get("reason") or ", ".join(first["passed_over"]) or "no text in it"
        raise DataError(f"{corpus} holds no document: {first['path']}: {why}")
    progress(0, None, "choosing what is held out")
    decided = job.path(DECIDED)
    if not decided.is_dir():
        lay_down(decided, lambda into: _decide(job, parts, counts, into))
    run_streams(runner, write, job, progress, "writing")
    _publish(job, out)
    write_json(out / SOURCES, entries)
    heldout = write_documents(out / HELDOUT, _held_out(job, parts))
    shutil.copyfile(decided / ITEMS, out / ITEMS)
    with open(decided / ITEMS, "rb") as file:
        items_made = sum(1 for _ in file)
    documents = sum(entry["documents"] for entry in entries) - heldout["documents"]
    text_bytes = sum(entry["text_bytes"] for entry in entries) - heldout["text_bytes"]
    found = summary(entries, documents=documents, text_bytes=text_bytes, heldout=heldout["documents"], items=items_made)
    return {**found, "not_read": dict(listing.others)}


def summary(
    entries: Sequence[dict[str, Any]], *, documents: int, text_bytes: int, heldout: int, items: int
) -> dict[str, Any]:
    """Return a summary of a harvest. entries: those of sources.json, which include held-out documents."""
    passed_over: Counter[str] = Counter()
    for entry in entries:
        passed_over.update(entry.get("passed_over", {}))
    return {
        "files": len(entries),
        "documents": documents,
        "text_bytes": text_bytes,
        "heldout": heldout,
        "evaluation_items": items,
        "quarantined": sum(entry.get("quarantined", 0) for entry in entries),
        "passed_over": dict(sorted(passed_over.items())),
        "added": sum(entry.get("added", 0) for entry in entries),
        "damaged": [f"{e['path']}: {e['reason']}" for e in entries if e.get("reason")],
    }


def survey(work: str, item: str) -> Result:
    """Write the ids of the documents of a stream, by its number, and those documents that may be held out."""
    return _each_part(work, item, SURVEYED)


def write(work: str, item: str) -> Result:
    """Write the documents of a stream, by its number, as raw files, once everything is decided."""
    return _each_part(work, item, WRITTEN)


def _each_part(work: str, item: str, name: str) -> Result:
    job, stream = read_job(work, HarvestConfig), int(item)
    do = _survey_part if name == SURVEYED else _write_part
    folder = stream_folder(job.path(name), stream)
    write_parts(folder, lambda: _records(job, stream), partial(do, job, stream), min_bytes=job.config.shard_bytes)
    return {}


def _streams(files: Sequence[Path | str]) -> list[tuple[int, int]]:
    """Group consecutive files until they fill a part. A file on another machine counts as a whole part."""
    found: list[tuple[int, int]] = []
    size = PART_BYTES
    for number, file in enumerate(files):
        if size >= PART_BYTES:
            found.append((number, number))
            size = 0
        found[-1] = (found[-1][0], number + 1)
        size += state_of(file)[1] if isinstance(file, Path) else PART_BYTES
    return found


def _records(job: HarvestJob, stream: int) -> Iterator[Record]:
    for number in range(*job.streams[stream]):
        path = job.files[number]
        source = source_of(path, job.source)
        for item in read_any(path, source=source, longest=job.config.longest, limits=job.limits):
            yield Record(number, item)


def _survey_part(job: HarvestJob, stream: int, part: NewPart, records: list[Record]) -> dict[str, Any]:
    extract, read = extract_step(), pool(job.config)
    files: dict[int, dict[str, Any]] = {}
    ids: list[str] = []
    offered: list[tuple[float, int, Document]] = []  # place, row, document
    seen, first = 0, 2.0
    for number, item in records:
        counts_of_file = files.setdefault(number, {**dict.fromkeys(_COUNTED, 0), "passed_over": Counter()})
        if isinstance(item, Damage):
            counts_of_file["quarantined"] += item.records
            counts_of_file.setdefault("reason", item.reason)
            continue
        if isinstance(item, PassedOver):
            counts_of_file["passed_over"][item.kind] += 1
            continue
        verdict = extract.judge(item)
        counts_of_file["documents"] += 1
        counts_of_file["added"] += is_later_piece(item)
        ids.append(item.id)
        if isinstance(verdict, Drop):
            continue
        seen += 1
        counts_of_file["text_bytes"] += verdict.document.text_bytes
        # The text alone decides. It is the same in every kind of file, whereas ids and raw bytes differ.
        text = blake2b(verdict.document.text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        place = place_in_line(job.seed, text)
        if place < max(read, first):
            offered.append((place, len(ids) - 1, verdict.document))
            first = min(first, place)
    _write_survey(part.into, ids, [one for one in offered if one[0] < read or one[0] == first])
    hashes = _hashes(job, stream) if part.is_last else {}
    return {"documents": len(ids), "seen": seen, "files": files, "hashes": hashes}


def _write_survey(into: Path, ids: list[str], candidates: Sequence[tuple[float, int, Document]]) -> None:
    write_ids(into, ids)
    table = documents_table([document for _, _, document in candidates])
    table = table.append_column("place", pa.array([place for place, _, _ in candidates], pa.float64()))
    table = table.append_column("row", pa.array([row for _, row, _ in candidates], pa.int64()))
    pq.write_table(table, into / CANDIDATES, row_group_size=_ROW_GROUP, **PASSING_PACKING)


def _hashes(job: HarvestJob, stream: int) -> dict[int, dict[str, str]]:
    """Return the sha256 of each file of a stream."""
    found: dict[int, dict[str, str]] = {}
    for number in range(*job.streams[stream]):
        try:
            with open_binary(job.files[number]) as file:
                found[number] = {"sha256": hashlib.file_digest(file, "sha256").hexdigest()}  # type: ignore[arg-type]
        except OSError as error:
            found[number] = {"sha256": "", "reason": f"it cannot be read: {error.strerror}"}
    return found


def _entries(job: HarvestJob, counts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each file's entry in sources.json."""
    entries: list[dict[str, Any]] = [
        {
            "path": relative_name(path, job.source),
            "source": source_of(path, job.source),
            "sha256": "",
            "licence": "not stated",
            **dict.fromkeys(_COUNTED, 0),
            "passed_over": {},
        }
        for path in job.files
    ]
    for one in counts:
        for number, counts_of_file in one["files"].items():
            entry = entries[int(number)]
            for name in _COUNTED:
                entry[name] += counts_of_file[name]
            kinds = Counter(entry["passed_over"]) + Counter(counts_of_file["passed_over"])
            entry["passed_over"] = dict(sorted(kinds.items()))
            if "reason" in counts_of_file:
                entry.setdefault("reason", counts_of_file["reason"])
        for number, counts_of_file in one["hashes"].items():
            entries[int(number)] |= counts_of_file
    return entries


def _decide(job: HarvestJob, parts: Sequence[Path], counts: Sequence[dict[str, Any]], into: Path) -> None:
    """Write the documents that need another id, those that are held out, and their passages."""
    named = names_in(parts)
    line = _line(job.config, parts)

    def document_of(one: tuple[int, int]) -> Document:
        number, at = one
        return _candidate(parts[number], at, named[number])

    chosen, items = choose(line, document_of, sum(one["seen"] for one in counts), job.config)
    held: dict[int, list[int]] = {}
    for number, at in sorted(chosen):
        held.setdefault(number, []).append(at)
    for number, part in enumerate(parts):
        write_json(into / _decided_file(part), {"named": named[number], "held": held.get(number, [])})
    lines = [json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in items]
    (into / ITEMS).write_text("".join(lines), encoding="utf-8")


def _line(config: HarvestConfig, parts: Sequence[Path]) -> Iterator[tuple[int, int]]:
    """Yield the candidates as (part, row), the lowest place first; only the first one if none is in the pool."""
    places: list[NDArray[np.float64]] = [
        pq.read_table(part / CANDIDATES, columns=["place"])["place"].to_numpy() for part in parts
    ]
    number = np.repeat(np.arange(len(parts)), [len(one) for one in places])
    at = np.concatenate([np.arange(len(one)) for one in places])
    every = np.concatenate(places)
    order = np.lexsort((at, number, every))
    inside = int((every < pool(config)).sum())
    return ((int(number[one]), int(at[one])) for one in order[: max(inside, 1)])


def _candidate(part: Path, at: int, named: dict[int, str]) -> Document:
    table = _candidates(part, at // _ROW_GROUP).slice(at % _ROW_GROUP, 1)
    (document,) = documents_in(table)
    return replace(document, id=named.get(table["row"][0].as_py(), document.id))


@lru_cache(maxsize=64)
def _candidates(part: Path, group: int) -> pa.Table:
    with pq.ParquetFile(part / CANDIDATES) as file:
        return file.read_row_group(group)


def _write_part(job: HarvestJob, stream: int, part: NewPart, records: list[Record]) -> dict[str, Any]:
    surveyed = stream_folder(job.path(SURVEYED), stream) / part.name
    documents = [item for _, item in records if isinstance(item, Document)]
    keys = keys_of([document.id for document in documents])
    if not surveyed.is_dir() or not np.array_equal(keys, mapped(surveyed / KEYS)):
        names = ", ".join(str(job.files[number]) for number in range(*job.streams[stream]))
        raise DataError(f"{names}: it changed while it was read; harvest again when nobody writes there")
    decided = read_json(job.path(DECIDED) / _decided_file(surveyed))
    rows = pq.read_table(surveyed / CANDIDATES, columns=["row"])["row"].to_pylist()
    held = {rows[at] for at in decided["held"]}
    files = RawFiles(part.into, shard_bytes=job.config.shard_bytes)
    for row, document in enumerate(documents):
        if row not in held:
            files.add(replace(document, id=decided["named"].get(str(row), document.id)))
    files.close()
    return {}


def _decided_file(part: Path) -> str:
    return f"{part.parent.name}-{part.name}.json"


def _held_out(job: HarvestJob, parts: Sequence[Path]) -> Iterator[Document]:
    """Yield the documents that are held out, in the order of the files."""
    for part in parts:
        decided = read_json(job.path(DECIDED) / _decided_file(part))
        if decided["held"]:
            table = pq.read_table(part / CANDIDATES).take(decided["held"])
            for row, document in zip(table["row"].to_pylist(), documents_in(table), strict=True):
                yield replace(document, id=decided["named"].get(str(row), document.id))


def _publish(job: HarvestJob, out: Path) -> None:
    """Put the raw files of all parts into one folder of each kind, with consecutive numbers."""
    parts = all_parts_in(job.path(WRITTEN), len(job.streams))
    for folder, suffix in ((WARC_FOLDER, ".warc.gz"), (JSONL_FOLDER, ".jsonl.gz")):
        (out / folder).mkdir()
        pieces = [file for part in parts for file in sorted((part / folder).iterdir())]
        digits = max(5, len(str(len(pieces))))  # files are read in the order of their names
        for number, piece in enumerate(pieces):
            put(piece, out / folder / f"part-{number:0{digits}d}{suffix}")
