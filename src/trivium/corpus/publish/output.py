"""The output of every command that writes documents: documents/, rejects.jsonl.gz and funnel.json."""

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from trivium.corpus.config import DecontaminationConfig
from trivium.corpus.document import Document, origin_of
from trivium.corpus.publish.store import (
    DOCUMENTS,
    documents_table,
    read_documents,
    shard_name,
    write_manifest,
    write_shard,
)
from trivium.corpus.select.decontaminate import keys_of
from trivium.corpus.steps import Reject, Tally, packed_lines, reject_line, summed
from trivium.corpus.work import COUNTS, PART_BYTES, counts_of, put
from trivium.errors import DataError, nearest
from trivium.provenance import write_json

REJECTS, FUNNEL = "rejects.jsonl.gz", "funnel.json"
PART_REJECTS = "rejects.gz"  # the rejects of a part
LEAKED = "leaked_item"  # the only kind of junk that is a clean document with something inserted


def blend(sources: Mapping[str, Mapping[str, int]], weights: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Return documents, bytes, weight and epochs of each source. sources: as in a document store's manifest.

    Without `weights`, the weight of a source is its share of the bytes. epochs: how often a source is read while the
    bytes read equal those of the corpus.
    """
    if unknown := sorted(set(weights) - set(sources)):
        raise DataError(
            f"blend names the source '{unknown[0]}', which the corpus lacks; {nearest(unknown[0], sources)}"
        )
    total = sum(counts["text_bytes"] for counts in sources.values())
    raw = {s: weights.get(s, 0.0) if weights else counts["text_bytes"] for s, counts in sources.items()}
    sum_of_weights = sum(raw.values())
    if sum_of_weights <= 0:
        raise DataError(f"the blend's weights add up to {sum_of_weights}; give at least one source a weight above 0")
    return {
        source: {
            "documents": counts["documents"],
            "bytes": counts["text_bytes"],
            "weight": raw[source] / sum_of_weights,
            "epochs": raw[source] / sum_of_weights * total / max(counts["text_bytes"], 1),
        }
        for source, counts in sources.items()
    }


class Output(NamedTuple):
    """The published output: the manifest of the documents, the funnel, and the counts of each piece."""

    manifest: dict[str, Any]
    funnel: list[dict[str, Any]]
    counts: list[dict[str, Any]]


def publish(pieces: Sequence[Path], out: Path, *, rejected_before: Sequence[Path] = ()) -> Output:
    """Join finished pieces to the output `out`.

    Each piece is a folder with a shard, rejects, and counts that hold the shard's `entry` and the `tallies` of steps.
    rejected_before: folders of earlier steps, of which only the rejects and tallies belong to the output.
    """
    counts = list(map(counts_of, pieces))
    store = out / DOCUMENTS
    store.mkdir(exist_ok=True)
    entries: list[dict[str, Any]] = []
    for folder, one in zip(pieces, counts, strict=True):
        if one["entry"]["documents"]:
            entries.append({**one["entry"], "file": shard_name(len(entries))})
            put(folder / one["entry"]["file"], store / entries[-1]["file"])
    manifest = write_manifest(store, entries)
    with open(out / REJECTS, "wb") as joined:
        for folder in (*rejected_before, *pieces):
            with open(folder / PART_REJECTS, "rb") as file:
                shutil.copyfileobj(file, joined)
        if joined.tell() == 0:  # gzip does not accept a file of 0 bytes
            joined.write(gzip.compress(b"", mtime=0))
    funnel = summed(one["tallies"] for one in (*map(counts_of, rejected_before), *counts))
    write_json(out / FUNNEL, funnel)
    return Output(manifest, funnel, counts)


def write_results(results: Iterable[Document | Reject], out: Path, tallies: Sequence[Tally]) -> dict[str, Any]:
    """Write documents and rejects, in their order, as the output `out`. The tallies are read at the end.

    Returns {"funnel": …}.
    """
    folders: list[Path] = []
    work = out / ".parts"
    kept: list[Document] = []
    lines: list[bytes] = []

    def flush() -> None:
        folders.append(work / f"{len(folders):05d}")
        folders[-1].mkdir(parents=True)
        entry = write_piece(folders[-1], documents_table(kept), packed_lines(lines))
        write_json(folders[-1] / COUNTS, {"entry": entry, "tallies": []})
        kept.clear()
        lines.clear()

    size = 0
    for result in results:
        if isinstance(result, Reject):
            lines.append(reject_line(*result))
        else:
            kept.append(result)
        size += (result.document if isinstance(result, Reject) else result).text_bytes
        if size >= PART_BYTES:
            flush()
            size = 0
    flush()
    publish(folders, out)
    shutil.rmtree(work)
    funnel = [tally.as_json() for tally in tallies]
    write_json(out / FUNNEL, funnel)
    return {"funnel": funnel}


def write_piece(into: Path, documents: pa.Table, rejects: bytes) -> dict[str, Any]:
    """Write the shard and the rejects of a folder for `publish`. Return the shard's entry in a manifest."""
    (into / PART_REJECTS).write_bytes(rejects)
    return write_shard(into / shard_name(0), documents)


def score(
    planted: Mapping[str, Sequence[Mapping[str, Any]]], items: Mapping[str, str], documents: Path, rejects: Path
) -> tuple[dict[str, dict[str, int]], dict[str, Any]]:
    """Return the planted and caught documents by kind, and the clean documents and those lost, also by step.

    Junk is caught if its document was dropped; a leak, if no 13-gram of the passage is left in its document. A clean
    document is lost if nothing of it is left. A document that was cut is not lost.
    """
    hosts = {str(one["id"]) for one in planted.get(LEAKED, ())}
    junk = {str(one["id"]) for kind, ones in planted.items() if kind != LEAKED for one in ones}
    kept: set[str] = set()
    texts: dict[str, list[str]] = {}  # texts of the documents with leaks
    for document in read_documents(documents, verify=False):
        origin = origin_of(document.id, document.metadata)
        kept.add(origin)
        if origin in hosts:
            texts.setdefault(origin, []).append(document.text)
    with gzip.open(rejects, "rt", encoding="utf-8") as file:
        rows = map(json.loads, file)
        dropped = {str(r["id"]): str(r["step"]) for r in rows if r["step"] != "read" and str(r["id"]) not in kept}

    def is_caught(kind: str, one: Mapping[str, Any]) -> bool:
        if kind == LEAKED:
            return _is_cut_out(items.get(str(one["item"]), ""), texts.get(str(one["id"]), []))
        return str(one["id"]) not in kept

    caught = {
        kind: {"planted": len(ones), "caught": sum(is_caught(kind, one) for one in ones)}
        for kind, ones in sorted(planted.items())
    }
    lost_by = Counter(step for identity, step in dropped.items() if identity not in junk)
    honest = len((kept | dropped.keys()) - junk)
    return caught, {"documents": honest, "lost": lost_by.total(), "lost_by": dict(sorted(lost_by.items()))}


def _is_cut_out(passage: str, texts: Sequence[str]) -> bool:
    config = DecontaminationConfig()
    keys = set(keys_of(passage, config))
    return all(keys.isdisjoint(keys_of(text, config)) for text in texts)
