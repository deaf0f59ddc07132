"""A user's files as a harvest, in parts: surveyed in parallel, then decided on, then written in parallel.

Files are read twice, because a document's id and whether it is held out depend on all other documents.
"""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trivium.corpus.clean.extract import extract_step
from trivium.corpus.config import HarvestConfig
from trivium.corpus.document import Damage, Document, PassedOver
from trivium.corpus.engine import Engine, Here, Result
from trivium.corpus.harvest.heldout import Item, choose, place_in_line, pool
from trivium.corpus.harvest.raw_files import JSONL_FOLDER, WARC_FOLDER, RawFiles
from trivium.corpus.kernels.warm_up import compile_once, warm_up
from trivium.corpus.publish.store import PASSING_PACKING, documents_in, documents_table, write_documents
from trivium.corpus.read.cutting import is_later_piece
from trivium.corpus.read.files import Input, list_files, marks_of, relative_name, source_of
from trivium.corpus.read.ids import KEYS, keys_of, names_in, write_ids
from trivium.corpus.read.read import read_any
from trivium.corpus.read.remote import refuse_changed
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
SURVEYED, DECIDED, WRITTEN = "surveyed", "decided", "written"  # folders of a job
CANDIDATES = "candidates.parquet"  # the documents of a surveyed part that may be held out
# Counts of each file. A file without damage has documents - added + passed_over records.
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
    document, or if a file changes during the harvest.
    """
    where = corpus if isinstance(corpus, str) else corpus.absolute()
    listing = list_files(where)
    source = Input(where, config.read, marks_of(where))
    job = begin_job(work, config, source, listing.files, seed=seed, streams=_streams(listing.files))
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
        lay_down(decided, lambda into: _decide(job, parts, sum(one["seen"] for one in counts), into))
    run_streams(runner, write, job, progress, "writing")
    _publish(job, out)
    write_json(out / SOURCES, entries)
    heldout = write_documents(out / HELDOUT, _held_out(job, parts))
    shutil.copyfile(decided / ITEMS, out / ITEMS)
    written = {name: sum(entry[name] for entry in entries) - heldout[name] for name in ("documents", "text_bytes")}
    with open(decided / ITEMS, "rb") as file:
        found = summary(entries, **written, heldout=heldout["documents"], items=sum(1 for _ in file))
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


def write_items(path: Path, items: Sequence[Item]) -> None:
    """Write evaluation passages as JSON lines."""
    lines = [json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in items]
    path.write_text("".join(lines), encoding="utf-8")


def survey(work: str, item: str) -> Result:
    """Write the ids of the documents of a stream, by its number, and those documents that may be held out."""
    job, stream = read_job(work, HarvestConfig), int(item)
    return _write_stream(job, stream, SURVEYED, partial(_survey_part, job, stream))


def write(work: str, item: str) -> Result:
    """Write the documents of a stream, by its number, as raw files, once everything is decided."""
    job, stream = read_job(work, HarvestConfig), int(item)
    return _write_stream(job, stream, WRITTEN, partial(_write_part, job, stream))


def _write_stream(job: HarvestJob, stream: int, name: str, fill: Any) -> Result:
    def records() -> Iterator[Record]:
        for number in range(*job.streams[stream]):
            path = job.files[number]
            source = source_of(path, job.source)
            if path in job.marks:
                refuse_changed(str(path), job.marks[str(path)], job.remedy)
            for item in read_any(
                path, source=source, longest=job.config.longest, cut_rows=job.config.cut_rows, limits=job.limits
            ):
                yield Record(number, item)

    write_parts(stream_folder(job.path(name), stream), records, fill, min_bytes=job.config.shard_bytes)
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


def _survey_part(job: HarvestJob, stream: int, part: NewPart, records: list[Record]) -> dict[str, Any]:
    extract, limit = extract_step(), pool(job.config)
    files: dict[int, dict[str, Any]] = {}
    ids: list[str] = []
    offered: list[tuple[float, int, Document]] = []  # place, row, document
    seen, first = 0, 2.0
    for number, item in records:
        counts = files.setdefault(number, {**dict.fromkeys(_COUNTED, 0), "passed_over": Counter()})
        if isinstance(item, Damage):
            counts["quarantined"] += item.records
            counts.setdefault("reason", item.reason)
            continue
        if isinstance(item, PassedOver):
            counts["passed_over"][item.kind] += 1
            continue
        verdict = extract.judge(item)
        counts["documents"] += 1
        counts["added"] += is_later_piece(item)
        ids.append(item.id)
        if isinstance(verdict, Drop):
            continue
        seen += 1
        counts["text_bytes"] += verdict.document.text_bytes
        # Only the text decides, because it is the same in every kind of file, whereas ids and raw bytes differ.
        text = blake2b(verdict.document.text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        place = place_in_line(job.seed, text)
        if place < max(limit, first):
            offered.append((place, len(ids) - 1, verdict.document))
            first = min(first, place)
    write_ids(part.into, ids)
    candidates = [one for one in offered if one[0] < limit or one[0] == first]
    table = documents_table([document for _, _, document in candidates])
    table = table.append_column("place", pa.array([place for place, _, _ in candidates], pa.float64()))
    table = table.append_column("row", pa.array([row for _, row, _ in candidates], pa.int64()))
    pq.write_table(table, part.into / CANDIDATES, row_group_size=_ROW_GROUP, **PASSING_PACKING)
    hashes = {number: _identity_of(job, number) for number in range(*job.streams[stream])} if part.is_last else {}
    return {"documents": len(ids), "seen": seen, "files": files, "hashes": hashes}


def _identity_of(job: HarvestJob, number: int) -> dict[str, Any]:
    """Return the hash of a file, or the mark of a remote one, which would have to be read again for its hash."""
    path = job.files[number]
    if isinstance(path, str):
        return {"mark": job.marks[path]}
    try:
        with open_binary(path) as file:
            return {"sha256": hashlib.file_digest(file, "sha256").hexdigest()}  # pyrefly: ignore[no-matching-overload]
    except OSError as error:
        return {"sha256": "", "reason": f"it cannot be read: {error.strerror}"}


def _entries(job: HarvestJob, counts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each file's entry in sources.json."""
    entries: list[dict[str, Any]] = []
    for path in job.files:
        named = {"path": relative_name(path, job.source), "source": source_of(path, job.source)}
        entries.append({**named, "license": "not stated", **dict.fromkeys(_COUNTED, 0), "passed_over": Counter()})
    for one in counts:
        for number, of_file in one["files"].items():
            entry = entries[int(number)]
            for name in _COUNTED:
                entry[name] += of_file[name]
            entry["passed_over"].update(of_file["passed_over"])
            if "reason" in of_file:
                entry.setdefault("reason", of_file["reason"])
        for number, of_file in one["hashes"].items():
            entries[int(number)] |= of_file
    return entries


def _decide(job: HarvestJob, parts: Sequence[Path], seen: int, into: Path) -> None:
    """Write which documents need another id, which are held out, and their passages. seen: documents with a text."""
    renamed = names_in(parts)
    every = [pq.read_table(part / CANDIDATES, columns=["place"])["place"].to_numpy() for part in parts]
    places = np.concatenate(every)
    part_of = np.repeat(np.arange(len(parts)), list(map(len, every)))
    row_of = np.concatenate([np.arange(len(one)) for one in every])
    order = np.lexsort((row_of, part_of, places))[: max(int((places < pool(job.config)).sum()), 1)]

    def document_of(candidate: tuple[int, int]) -> Document:
        number, row = candidate
        table = _candidates(parts[number], row // _ROW_GROUP).slice(row % _ROW_GROUP, 1)
        return next(_documents(table, renamed[number]))

    line = ((int(part_of[n]), int(row_of[n])) for n in order)
    chosen, items = choose(line, document_of, seen, job.config)
    for number, part in enumerate(parts):
        rows = sorted(row for in_part, row in chosen if in_part == number)
        write_json(into / _decided_file(part), {"named": renamed[number], "held": rows})
    write_items(into / ITEMS, items)


@lru_cache(maxsize=64)
def _candidates(part: Path, group: int) -> pa.Table:
    with pq.ParquetFile(part / CANDIDATES) as file:
        return file.read_row_group(group)


def _documents(candidates: pa.Table, renamed: Mapping[int, str]) -> Iterator[Document]:
    """Yield candidates under their ids. renamed: ids by the rows of a part."""
    for row, document in zip(candidates["row"].to_pylist(), documents_in(candidates), strict=True):
        yield replace(document, id=renamed.get(row, document.id))


def _decided_file(part: Path) -> str:
    return f"{part.parent.name}-{part.name}.json"


def _decided(job: HarvestJob, part: Path) -> tuple[dict[int, str], list[int]]:
    """Return the new ids of a part by row, and the candidates that are held out."""
    found = read_json(job.path(DECIDED) / _decided_file(part))
    return {int(row): name for row, name in found["named"].items()}, found["held"]


def _write_part(job: HarvestJob, stream: int, part: NewPart, records: list[Record]) -> dict[str, Any]:
    surveyed = stream_folder(job.path(SURVEYED), stream) / part.name
    documents = [item for _, item in records if isinstance(item, Document)]
    keys = keys_of([document.id for document in documents])
    if not surveyed.is_dir() or not np.array_equal(keys, mapped(surveyed / KEYS)):
        names = ", ".join(str(job.files[number]) for number in range(*job.streams[stream]))
        raise DataError(f"{names}: it changed while it was read; harvest again when nobody writes there")
    renamed, candidates = _decided(job, surveyed)
    rows = pq.read_table(surveyed / CANDIDATES, columns=["row"])["row"].to_pylist()
    held = {rows[candidate] for candidate in candidates}
    files = RawFiles(part.into, shard_bytes=job.config.shard_bytes)
    for row, document in enumerate(documents):
        if row not in held:
            files.add(replace(document, id=renamed.get(row, document.id)))
    files.close()
    return {}


def _held_out(job: HarvestJob, parts: Sequence[Path]) -> Iterator[Document]:
    """Yield the documents that are held out, in the order of the files."""
    for part in parts:
        renamed, candidates = _decided(job, part)
        if candidates:
            yield from _documents(pq.read_table(part / CANDIDATES).take(candidates), renamed)


def _publish(job: HarvestJob, out: Path) -> None:
    """Put the raw files of all parts into one folder of each kind, with consecutive numbers."""
    parts = all_parts_in(job.path(WRITTEN), len(job.streams))
    for folder, suffix in ((WARC_FOLDER, ".warc.gz"), (JSONL_FOLDER, ".jsonl.gz")):
        (out / folder).mkdir()
        pieces = [file for part in parts for file in sorted((part / folder).iterdir())]
        digits = max(5, len(str(len(pieces))))  # files are read in the order of their names
        for number, piece in enumerate(pieces):
            put(piece, out / folder / f"part-{number:0{digits}d}{suffix}")
