"""A user's files as a harvest, in parts: surveyed side by side, then decided on, then written side by side.

Where parts begin depends on the files alone, and every part is there whole or not at all: neither the number of
processes nor a kill shows in any byte. Files are read twice, as what a document is called and whether it is held out
depends on all others.
"""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trivium import __version__
from trivium.config import build, to_tree
from trivium.corpus.clean.extract import extract_step
from trivium.corpus.config import HarvestConfig
from trivium.corpus.document import Document
from trivium.corpus.engine import Engine, Here, Result
from trivium.corpus.ids_of_parts import KEYS, names_in, write_ids
from trivium.corpus.job import folder_of_job, lay_down, mapped, read_json, state_of
from trivium.corpus.parts import PART_BYTES, Piece, counts_of, do_parts, part_names, stretches
from trivium.corpus.publish.shards import put
from trivium.corpus.read.cutting import is_later_piece
from trivium.corpus.read.heldout import choose, place_in_line, pool
from trivium.corpus.read.listing import list_files, relative_name, source_of
from trivium.corpus.read.own_ids import keys_of
from trivium.corpus.read.quarantine import Damage, PassedOver
from trivium.corpus.read.raw_files import JSONL_FOLDER, WARC_FOLDER, RawFiles
from trivium.corpus.read.read import read_any
from trivium.corpus.read.streams import open_binary
from trivium.corpus.steps import Drop
from trivium.corpus.store import PASSING_PACKING, documents_in, documents_table, write_documents
from trivium.corpus.warm_up import compile_once, warm_up
from trivium.errors import DataError
from trivium.progress import Progress
from trivium.provenance import JOB, fingerprint, write_json

SOURCES, ITEMS, HELDOUT = "sources.json", "evaluation_items.jsonl", "heldout"
SURVEYED, DECIDED, WRITTEN = "surveyed", "decided", "written"
CANDIDATES = "candidates.parquet"  # of a part that was surveyed
# Of each file; records read = documents - added + quarantined + passed_over.
_COUNTED = ("documents", "added", "text_bytes", "quarantined")
_GROUP = 64  # candidates that are read together


@dataclass(frozen=True)
class Job:
    """One harvest of files: its folder of pieces; where they lie; which follow each other as one stream."""

    work: Path
    corpus: Path | str
    files: tuple[Path | str, ...]
    streams: tuple[tuple[int, int], ...]  # the first file of each, and the one behind its last
    config: HarvestConfig
    seed: int


class Record(NamedTuple):
    """A document, or what is none, and the number of its file."""

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
    """Collect the files at `corpus` into the existing folder `out`; returns a summary.

    work: the folder of finished pieces, from which an interrupted harvest goes on. Raises DataError when no document is
    there, or a file changed meanwhile.
    """
    where = corpus if isinstance(corpus, str) else corpus.absolute()
    listing = list_files(where)
    job = _begin(work, config, where, listing.files, seed=seed)
    prepare = compile_once if engine is None else warm_up  # workers take over what is loaded
    prepare(progress)
    runner, items = engine or Here(), [str(number) for number in range(len(job.streams))]

    def told(what: str) -> Callable[[int], None]:
        return lambda done: progress(done, len(items), what)

    runner.map(partial(survey, str(job.work)), items, told("reading"))
    parts = part_names(job.work / SURVEYED, len(items))
    counts = [counts_of(job.work / SURVEYED / name) for name in parts]
    entries = _entries(job, counts)
    if not any(entry["documents"] for entry in entries):
        first = entries[0]
        why = first.get("reason") or ", ".join(first["passed_over"]) or "no text in it"
        raise DataError(f"{corpus} holds no document: {first['path']}: {why}")
    progress(0, None, "choosing what is held out")
    decided = job.work / DECIDED
    if not decided.is_dir():
        lay_down(decided, lambda into: _decide(job, parts, counts, into))
    runner.map(partial(write, str(job.work)), items, told("writing"))
    _publish(job, out)
    write_json(out / SOURCES, entries)
    heldout = write_documents(out / HELDOUT, _held_out(job, parts))
    shutil.copyfile(decided / ITEMS, out / ITEMS)
    with open(decided / ITEMS, "rb") as file:
        items_made = sum(1 for _ in file)
    documents = sum(entry["documents"] for entry in entries) - heldout["documents"]
    text_bytes = sum(entry["text_bytes"] for entry in entries) - heldout["text_bytes"]
    found = summary(
        entries,
        documents=documents,
        text_bytes=text_bytes,
        heldout=heldout["documents"],
        items=items_made,
    )
    return {**found, "not_read": dict(listing.others)}


def summary(
    entries: Sequence[dict[str, Any]], *, documents: int, text_bytes: int, heldout: int, items: int
) -> dict[str, Any]:
    """What a harvest says of itself; entries: those of sources.json, which count what is held out, too."""
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
    """The task of one stream, by its number: what its documents are called, and those that may be held out."""
    return _each_part(work, item, SURVEYED, _survey_part)


def write(work: str, item: str) -> Result:
    """The task of one stream, by its number, when all is decided: its documents as raw files."""
    return _each_part(work, item, WRITTEN, _write_part)


def _each_part(
    work: str, item: str, folder: str, do: Callable[[Job, Piece[list[Record]]], dict[str, Any]]
) -> Result:
    job = _read_job(work)
    return do_parts(
        job.work / folder,
        int(item),
        stretches(lambda: _records(job, int(item)), at_least=job.config.shard_bytes),
        partial(do, job),
    )


def _begin(
    work: Path, config: HarvestConfig, corpus: Path | str, files: Sequence[Path | str], *, seed: int
) -> Job:
    described = {
        "trivium": __version__,
        "corpus": str(corpus),
        "remote": isinstance(corpus, str),
        "files": [str(file) for file in files],
        "streams": _streams(files),
        "config": to_tree(config),
        "seed": seed,
        "inputs": fingerprint([state_of(file) for file in files if isinstance(file, Path)]),
    }
    return _read_job(str(folder_of_job(work, described)))


def _streams(files: Sequence[Path | str]) -> list[tuple[int, int]]:
    """Consecutive files, as many as fill a part; how large one that is not on this machine is, is not asked."""
    found: list[tuple[int, int]] = []
    size = PART_BYTES
    for number, file in enumerate(files):
        if size >= PART_BYTES:
            found.append((number, number))
            size = 0
        found[-1] = (found[-1][0], number + 1)
        size += state_of(file)[1] if isinstance(file, Path) else PART_BYTES
    return found


def _read_job(work: str) -> Job:
    return _job_of(work, state_of(Path(work) / JOB))


@lru_cache(maxsize=2)
def _job_of(work: str, _: tuple[str, int, int]) -> Job:
    # Read once a process, not once a task: a job of a million files names them all.
    described = read_json(Path(work) / JOB)
    place: Callable[[str], Path | str] = str if described["remote"] else Path
    return Job(
        Path(work),
        place(described["corpus"]),
        tuple(map(place, described["files"])),
        tuple((first, stop) for first, stop in described["streams"]),
        build(HarvestConfig, described["config"]),
        described["seed"],
    )


def _records(job: Job, stream: int) -> Iterator[Record]:
    for number in range(*job.streams[stream]):
        path = job.files[number]
        source = source_of(path, job.corpus)
        for item in read_any(path, source=source, longest=job.config.longest, limits=job.config.read):
            yield Record(number, item)


def _survey_part(job: Job, piece: Piece[list[Record]]) -> dict[str, Any]:
    extract, read = extract_step(), pool(job.config)
    files: dict[int, dict[str, Any]] = {}
    ids: list[str] = []
    offered: list[tuple[float, int, Document]] = []  # place, row, document
    seen, first = 0, 2.0
    for number, item in piece.records:
        told = files.setdefault(number, {**dict.fromkeys(_COUNTED, 0), "passed_over": Counter()})
        if isinstance(item, Damage):
            told["quarantined"] += item.records
            told.setdefault("reason", item.reason)
            continue
        if isinstance(item, PassedOver):
            told["passed_over"][item.kind] += 1
            continue
        verdict = extract.judge(item)
        told["documents"] += 1
        told["added"] += is_later_piece(item)
        ids.append(item.id)
        if isinstance(verdict, Drop):
            continue
        seen += 1
        told["text_bytes"] += verdict.document.text_bytes
        # The text alone decides: it is the same in every kind of file, where ids and raw bytes differ.
        text = blake2b(verdict.document.text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        place = place_in_line(job.seed, text)
        if place < max(read, first):
            offered.append((place, len(ids) - 1, verdict.document))
            first = min(first, place)
    _write_survey(piece.into, ids, [one for one in offered if one[0] < read or one[0] == first])
    hashes = _hashes(job, piece) if piece.last else {}
    return {"documents": len(ids), "seen": seen, "files": files, "hashes": hashes}


def _write_survey(into: Path, ids: list[str], candidates: Sequence[tuple[float, int, Document]]) -> None:
    write_ids(into, ids)
    table = documents_table([document for _, _, document in candidates])
    table = table.append_column("place", pa.array([place for place, _, _ in candidates], pa.float64()))
    table = table.append_column("row", pa.array([row for _, row, _ in candidates], pa.int64()))
    pq.write_table(table, into / CANDIDATES, row_group_size=_GROUP, **PASSING_PACKING)


def _hashes(job: Job, piece: Piece[list[Record]]) -> dict[int, dict[str, str]]:
    """The sha256 of each file of the stream that a part ends."""
    found: dict[int, dict[str, str]] = {}
    for number in range(*job.streams[piece.stream]):
        try:
            with open_binary(job.files[number]) as file:
                found[number] = {"sha256": hashlib.file_digest(file, "sha256").hexdigest()}  # type: ignore[arg-type]
        except OSError as error:
            found[number] = {"sha256": "", "reason": f"it cannot be read: {error.strerror}"}
    return found


def _entries(job: Job, counts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each file's entry in sources.json."""
    entries: list[dict[str, Any]] = [
        {
            "path": relative_name(path, job.corpus),
            "source": source_of(path, job.corpus),
            "sha256": "",
            "licence": "not stated",
            **dict.fromkeys(_COUNTED, 0),
            "passed_over": {},
        }
        for path in job.files
    ]
    for one in counts:
        for number, told in one["files"].items():
            entry = entries[int(number)]
            for name in _COUNTED:
                entry[name] += told[name]
            kinds = Counter(entry["passed_over"]) + Counter(told["passed_over"])
            entry["passed_over"] = dict(sorted(kinds.items()))
            if "reason" in told:
                entry.setdefault("reason", told["reason"])
        for number, told in one["hashes"].items():
            entries[int(number)] |= told
    return entries


def _decide(job: Job, parts: Sequence[str], counts: Sequence[dict[str, Any]], into: Path) -> None:
    """Write what every document is called that cannot keep its name, which are held out, and their passages."""
    named = names_in([job.work / SURVEYED / name for name in parts])
    line = _line(job, parts)

    def document_of(one: tuple[int, int]) -> Document:
        part, at = one
        return _candidate(job.work / SURVEYED / parts[part], at, named[part])

    chosen, items = choose(line, document_of, sum(one["seen"] for one in counts), job.config)
    held: dict[int, list[int]] = {}
    for part, at in sorted(chosen):
        held.setdefault(part, []).append(at)
    for part, name in enumerate(parts):
        write_json(into / f"{name}.json", {"named": named[part], "held": held.get(part, [])})
    lines = [json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in items]
    (into / ITEMS).write_text("".join(lines), encoding="utf-8")


def _line(job: Job, parts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The candidates as (part, number in it), the lowest place first; the first of all where none is in the pool."""
    places: list[NDArray[np.float64]] = [
        pq.read_table(job.work / SURVEYED / name / CANDIDATES, columns=["place"])["place"].to_numpy()
        for name in parts
    ]
    part = np.repeat(np.arange(len(parts)), [len(one) for one in places])
    at = np.concatenate([np.arange(len(one)) for one in places])
    every = np.concatenate(places)
    order = np.lexsort((at, part, every))
    inside = int((every < pool(job.config)).sum())
    return ((int(part[one]), int(at[one])) for one in order[: max(inside, 1)])


def _candidate(part: Path, at: int, named: dict[int, str]) -> Document:
    table = _candidates(part, at // _GROUP).slice(at % _GROUP, 1)
    (document,) = documents_in(table)
    return replace(document, id=named.get(table["row"][0].as_py(), document.id))


@lru_cache(maxsize=64)
def _candidates(part: Path, group: int) -> pa.Table:
    with pq.ParquetFile(part / CANDIDATES) as file:
        return file.read_row_group(group)


def _write_part(job: Job, piece: Piece[list[Record]]) -> dict[str, Any]:
    surveyed, files = (
        job.work / SURVEYED / piece.name,
        RawFiles(piece.into, shard_bytes=job.config.shard_bytes),
    )
    documents = [item for _, item in piece.records if isinstance(item, Document)]
    keys = keys_of([document.id for document in documents])
    if not surveyed.is_dir() or not np.array_equal(keys, mapped(surveyed / KEYS)):
        names = ", ".join(str(job.files[number]) for number in range(*job.streams[piece.stream]))
        raise DataError(f"{names}: it changed while it was read; harvest again when nobody writes there")
    decided = read_json(job.work / DECIDED / f"{piece.name}.json")
    rows = pq.read_table(surveyed / CANDIDATES, columns=["row"])["row"].to_pylist()
    held = {rows[at] for at in decided["held"]}
    for row, document in enumerate(documents):
        if row not in held:
            files.add(replace(document, id=decided["named"].get(str(row), document.id)))
    files.close()
    return {}


def _held_out(job: Job, parts: Sequence[str]) -> Iterator[Document]:
    """The documents that are held out, in the order of the files."""
    for name in parts:
        decided = read_json(job.work / DECIDED / f"{name}.json")
        if decided["held"]:
            table = pq.read_table(job.work / SURVEYED / name / CANDIDATES).take(decided["held"])
            for row, document in zip(table["row"].to_pylist(), documents_in(table), strict=True):
                yield replace(document, id=decided["named"].get(str(row), document.id))


def _publish(job: Job, out: Path) -> None:
    """The raw files of all parts, numbered through."""
    parts = part_names(job.work / WRITTEN, len(job.streams))
    for folder, suffix in ((WARC_FOLDER, ".warc.gz"), (JSONL_FOLDER, ".jsonl.gz")):
        (out / folder).mkdir()
        pieces = [file for name in parts for file in sorted((job.work / WRITTEN / name / folder).iterdir())]
        digits = max(5, len(str(len(pieces))))  # files are read in the order of their names
        for number, piece in enumerate(pieces):
            put(piece, out / folder / f"part-{number:0{digits}d}{suffix}")
