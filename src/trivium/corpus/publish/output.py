"""The output of every verb that writes documents: documents/, rejects.jsonl.gz and funnel.json."""

import gzip
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from trivium.corpus.document import Document
from trivium.corpus.steps import PART_REJECTS, Reject, Tally, packed_lines, reject_line
from trivium.corpus.store import DOCUMENTS, documents_table, shard_name, write_manifest, write_shard
from trivium.corpus.work import COUNTS, PART_BYTES, counts_of, put
from trivium.errors import DataError, nearest
from trivium.provenance import write_json


def blend(sources: Mapping[str, Mapping[str, int]], weights: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Return documents, bytes, weight and epochs of each source. sources: as in a document store's manifest.

    Without `weights`, each source weighs its share of the bytes. epochs: how often a source is seen while as many bytes
    are read as the whole corpus has.
    """
    unknown = sorted(set(weights) - set(sources))
    if unknown:
        raise DataError(
            f"blend names the source '{unknown[0]}', which the corpus lacks; {nearest(unknown[0], sources)}"
        )
    total = sum(counts["text_bytes"] for counts in sources.values())
    raw = {s: weights.get(s, 0.0) if weights else counts["text_bytes"] for s, counts in sources.items()}
    whole = sum(raw.values())
    if whole <= 0:
        raise DataError(f"the blend's weights add up to {whole}; give at least one source a weight above 0")
    return {
        source: {
            "documents": counts["documents"],
            "bytes": counts["text_bytes"],
            "weight": raw[source] / whole,
            "epochs": raw[source] / whole * total / max(counts["text_bytes"], 1),
        }
        for source, counts in sources.items()
    }


REJECTS, FUNNEL = "rejects.jsonl.gz", "funnel.json"
_COUNTED = ("documents", "bytes", "added", "quarantined")
_COUNTED_BY_REASON = ("dropped", "dropped_bytes", "passed_over")


class Output(NamedTuple):
    """What was written: the manifest of the documents, the funnel, and the counts of each piece."""

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
    _join([folder / PART_REJECTS for folder in (*rejected_before, *pieces)], out / REJECTS)
    funnel = summed(one["tallies"] for one in (*map(counts_of, rejected_before), *counts))
    write_json(out / FUNNEL, funnel)
    return Output(manifest, funnel, counts)


def write_results(results: Iterable[Document | Reject], out: Path, tallies: Sequence[Tally]) -> dict[str, Any]:
    """Write documents and rejects, as they come, as the output `out`. The tallies are read at the end.

    Returns {"funnel": …}.
    """
    folders: list[Path] = []
    work = out / ".parts"
    kept: list[Document] = []
    lines: list[bytes] = []
    held = 0

    def flush() -> None:
        folders.append(work / f"{len(folders):05d}")
        folders[-1].mkdir(parents=True)
        entry = write_piece(folders[-1], kept, packed_lines(lines))
        write_json(folders[-1] / COUNTS, {"entry": entry, "tallies": []})
        kept.clear()
        lines.clear()

    for result in results:
        if isinstance(result, Reject):
            lines.append(reject_line(*result))
            held += result.document.text_bytes
        else:
            kept.append(result)
            held += result.text_bytes
        if held >= PART_BYTES:
            flush()
            held = 0
    flush()
    publish(folders, out)
    shutil.rmtree(work)
    funnel = [tally.as_json() for tally in tallies]
    write_json(out / FUNNEL, funnel)
    return {"funnel": funnel}


def write_piece(into: Path, documents: Sequence[Document] | pa.Table, rejects: bytes) -> dict[str, Any]:
    """Write the shard and the rejects of a folder for `publish`. Return the shard's entry in a manifest."""
    table = documents if isinstance(documents, pa.Table) else documents_table(documents)
    (into / PART_REJECTS).write_bytes(rejects)
    return write_shard(into / shard_name(0), table)


def summed(lists: Iterable[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Add up tallies that belong to the same step."""
    totals: dict[str, dict[str, Any]] = {}
    for tally in (tally for tallies in lists for tally in tallies):
        total = totals.setdefault(tally["step"], {**Tally(tally["step"]).as_json(), **_counters()})
        for name in _COUNTED_BY_REASON:
            total[name].update(tally[name])
        for name in _COUNTED:
            total[name] += tally[name]
        total["remedies"] |= tally["remedies"]
    for total in totals.values():
        for name in (*_COUNTED_BY_REASON, "remedies"):
            total[name] = dict(sorted(total[name].items()))
    return list(totals.values())


def _counters() -> dict[str, Counter[str]]:
    return {name: Counter() for name in _COUNTED_BY_REASON}


def _join(pieces: Sequence[Path], place: Path) -> None:
    """Concatenate gzip files. If all are empty, write an empty member: gzip refuses a file of 0 bytes."""
    with open(place, "wb") as whole:
        for piece in pieces:
            with open(piece, "rb") as file:
                shutil.copyfileobj(file, whole)
        if whole.tell() == 0:
            whole.write(gzip.compress(b"", mtime=0))
