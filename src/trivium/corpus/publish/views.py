"""Views of a curated corpus: the funnel, large losses, statistics, rejects, histories of documents, differences."""

import gzip
import json
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from heapq import nsmallest
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trivium.corpus.document import PIECE, Document, origin_of
from trivium.corpus.publish.output import REJECTS
from trivium.corpus.publish.store import DOCUMENTS, MANIFEST, documents_in, read_documents, read_manifest
from trivium.corpus.read.cutting import TEXT_PIECE, id_of_text
from trivium.corpus.steps import float_of
from trivium.errors import DataError
from trivium.provenance import STAMP, file_sha256
from trivium.seeds import seed_for
from trivium.units import counted, format_bytes

LARGE_SHARE = 0.2  # if one reason drops a larger share of text or records, the end of a run says so
_EXTRACT = "extract"


def losses_in(funnel: Path) -> list[str]:
    """Return the `loss_lines` of a funnel.json; none if there is no such file."""
    return loss_lines(json.loads(funnel.read_text(encoding="utf-8"))) if funnel.is_file() else []


def funnel_lines(result: Mapping[str, Any]) -> list[str]:
    """Return lines for a terminal: the funnel, and how much of the planted junk was caught."""
    lines = [f"{'step':<18}{'documents':>10}{'MB':>9}   dropped"]
    for entry in result["funnel"]:
        reasons = sorted(entry["dropped"].items(), key=lambda pair: (-pair[1], pair[0]))
        notes = [f"{count} {reason}" for reason, count in reasons[:3]]
        notes += [f"{sum(count for _, count in reasons[3:])} other"] if len(reasons) > 3 else []
        notes += [f"{entry['quarantined']} unreadable"] if entry["quarantined"] else []
        notes += [f"(+{entry['added']} by splitting)"] if entry["added"] else []
        row = f"{entry['step']:<18}{entry['documents']:>10}{entry['bytes'] / 1e6:>9.2f}   {', '.join(notes)}"
        lines.append(row.rstrip())
    if result.get("priority_absent"):
        names = ", ".join(result["priority_absent"])
        lines.append(f"curate.dedup.priority names sources of which no document is left: {names}")
    for kind, counts in (result.get("planted") or {}).items():
        share = 100 * counts["caught"] / max(counts["planted"], 1)
        lines.append(f"planted {kind:<16} {counts['caught']:>5} of {counts['planted']:>5} caught ({share:.1f} %)")
    if honest := result.get("honest"):
        share = 100 * honest["lost"] / max(honest["documents"], 1)
        by = ", ".join(f"{count} {step}" for step, count in honest["lost_by"].items())
        lines.append(f"honest documents lost   {honest['lost']} of {honest['documents']} ({share:.2f} %) {by}".rstrip())
    return lines


def loss_lines(funnel: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each reason that took more than a fifth of the text, with the setting that changes it.

    Pages are measured as HTML up to their extraction, and texts as they are after it.
    """
    lines: list[str] = []
    whole = 0
    for step in funnel:
        before = step["documents"] + step["quarantined"]
        if step["quarantined"] > LARGE_SHARE * before:
            lines.append(f"{step['quarantined']:,} of {before:,} records could not be read; rejects.jsonl.gz says why")
        for reason, size in sorted(step.get("dropped_bytes", {}).items(), key=lambda pair: (-pair[1], pair[0])):
            if size > LARGE_SHARE * whole:
                remedy = step.get("remedies", {}).get(reason)
                change = f"change this with --set curate.{remedy}" if remedy else "no setting changes this"
                lines.append(
                    f"{100 * size / whole:.0f} % of the text ({format_bytes(size)} of {format_bytes(whole)}) was "
                    f"dropped by '{step['step']}': {reason}; {change}"
                )
        if step["step"] == _EXTRACT or not whole:
            whole = step["bytes"]
    return lines


def differences_between(a: Path, b: Path) -> list[str]:
    """Return a line for each file under `a` or `b` that is missing in the other, or differs; stamps are ignored.

    If documents differ, further lines say how many and name the first.
    """
    for folder in (a, b):
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder; give the outputs of two curations")
    lines = []
    for name in sorted(_files(a) | _files(b)):
        one, other = a / name, b / name
        if not one.is_file() or not other.is_file():
            lines.append(f"{name} is only in {a if one.is_file() else b}")
        elif file_sha256(one) != file_sha256(other):
            lines.append(f"{name} differs")
    stores = [folder / DOCUMENTS for folder in (a, b)]
    if any(line.startswith(DOCUMENTS) for line in lines) and all((store / MANIFEST).is_file() for store in stores):
        first, second = ({d.id: _digest(d.text) for d in read_documents(store, verify=False)} for store in stores)
        different = {
            f"only in {stores[0]}": first.keys() - second.keys(),
            f"only in {stores[1]}": second.keys() - first.keys(),
            "with different text": {i for i in first.keys() & second.keys() if first[i] != second[i]},
        }
        lines += [f"{counted(len(i), 'document')} {where}, such as {min(i)}" for where, i in different.items() if i]
    return lines


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _files(folder: Path) -> set[str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != STAMP)
    return {path.relative_to(folder).as_posix() for path in files}


QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
SIMILARITY_BINS = 10  # between 0 and 1


def corpus_statistics(curated: Path) -> dict[str, Any]:
    """Return distributions over a curated corpus.

    figures: name → quantiles over kept documents (characters of each source; every number in the metadata).
    lengths: source → documents by characters, doubling from bin to bin (bin n: 2^n characters or more). rejected: step
    → reason → documents. similarities: near duplicates by tenths of their Jaccard similarity.
    """
    values: dict[str, array[float]] = defaultdict(lambda: array("d"))
    lengths: dict[str, Counter[int]] = defaultdict(Counter)
    for document in read_documents(curated / DOCUMENTS, verify=False):
        values[f"characters of {document.source}"].append(len(document.text))
        lengths[document.source][max(len(document.text), 1).bit_length() - 1] += 1
        for name, value in numbers_in(document.metadata):
            values[name].append(value)
    rejected: dict[str, Counter[str]] = defaultdict(Counter)
    similarities = array("d")
    for row in rejects_of(curated):
        rejected[row["step"]][row["reason"]] += 1
        if "jaccard" in row:
            similarities.append(row["jaccard"])
    counts, _ = np.histogram(similarities, bins=SIMILARITY_BINS, range=(0, 1))
    return {
        "quantiles": list(QUANTILES),
        "figures": {
            name: [round(float(q), 4) for q in np.quantile(found, QUANTILES)] for name, found in sorted(values.items())
        },
        "lengths": {source: [bins[n] for n in range(max(bins) + 1)] for source, bins in sorted(lengths.items())},
        "rejected": {step: dict(reasons.most_common()) for step, reasons in rejected.items()},
        "similarities": counts.tolist(),
    }


def statistics_lines(statistics: Mapping[str, Any]) -> list[str]:
    """Return statistics as lines for a terminal."""
    width = max(map(len, statistics["figures"]), default=0)
    names = {0.0: "least", 0.5: "median", 1.0: "most"}
    heads = "".join(f"{names.get(q, f'{100 * q:.0f} %'):>11}" for q in statistics["quantiles"])
    lines = [f"{'figure':<{width}}{heads}"]
    for name, values in statistics["figures"].items():
        digits = (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" for value in values)
        lines.append(f"{name:<{width}}" + "".join(f"{text:>11}" for text in digits))
    for step, reasons in statistics["rejected"].items():
        lines += [f"dropped by {step}: {count:,} {reason}" for reason, count in reasons.items()]
    for tenth, count in enumerate(statistics["similarities"]):
        if count:
            low = tenth / SIMILARITY_BINS
            lines.append(f"near duplicates at a similarity of {low:.1f} to {low + 0.1:.1f}: {count:,}")
    return lines


def numbers_in(metadata: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield every finite number of nested metadata, by its path."""
    for name, value in metadata.items():
        if isinstance(value, Mapping):
            yield from numbers_in(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and isfinite(float_of(value)):
            yield f"{prefix}{name}", float(value)


def rejects_of(curated: Path) -> Iterator[dict[str, Any]]:
    """Yield every reject of a curation, in order."""
    path = curated / REJECTS
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)
    except FileNotFoundError:
        raise DataError(f"{path} is missing; run `trivium corpus curate` first") from None
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); curate the corpus again") from None


def some_rejects(curated: Path, *, step: str = "", reason: str = "", count: int) -> list[dict[str, Any]]:
    """Draw `count` rejects uniformly from those of a step (empty: all) whose reason contains a text."""
    asked = (row for row in rejects_of(curated) if step in ("", row["step"]) and reason in row["reason"])
    return nsmallest(count, asked, key=lambda row: seed_for(0, "rejects", row["id"], row["step"]))


def reject_lines(rows: Iterable[dict[str, Any]], *, characters: int) -> list[str]:
    """Return rejects as lines for a terminal, with the first `characters` of each."""
    lines: list[str] = []
    for row in rows:
        lines.append(f"{row['id']} of {row['source']}: dropped by '{row['step']}': {row['reason']}")
        begin = " ".join(row["text"][:characters].split())
        lines += [f"  {begin}{' …' if len(row['text']) > characters else ''}"] if begin else []
    return lines


def history(curated: Path, identity: str) -> dict[str, Any]:
    """Return the history of the document with this id, of the one it is a piece of, or of the pieces of a long text
    with this id. Raises DataError if there is none.

    kept: what is left of it (id, source, metadata, text). dropped: its entries among the rejects. copies: documents
    that were dropped in its favour, with their similarity or, if they are not near duplicates, the reason.
    """
    similar = _documents_like(curated / DOCUMENTS, identity)
    documents = [d for d in similar if identity in (d.id, origin_of(d.id, d.metadata), id_of_text(d.id, d.metadata))]
    kept = [{"id": d.id, "source": d.source, "metadata": d.metadata, "text": d.text} for d in documents]
    names = {identity, *(origin_of(d.id, d.metadata) for d in documents)}
    dropped, copies = [], []
    for row in rejects_of(curated):
        if row["id"] in names or identity == id_of_text(row["id"], row.get("metadata", {})):
            dropped.append(row)
        elif row.get("survivor") in names:
            why = "jaccard" if "jaccard" in row else "reason"
            copies.append({"id": row["id"], why: row[why]})
    if not kept and not dropped:
        raise DataError(
            f"no document of {curated} has the id '{identity}', kept or dropped; {DOCUMENTS}/ and {REJECTS} have the "
            f"ids"
        )
    return {"id": identity, "kept": kept, "dropped": dropped, "copies": copies}


def _documents_like(store: Path, identity: str) -> Iterator[Document]:
    """Yield the documents with this id, and those whose id looks like that of a piece of it."""
    for shard in read_manifest(store)["shards"]:
        ids = pq.read_table(store / shard["file"], columns=["id"])["id"]
        same = pc.equal(ids, identity)
        for mark in (PIECE, TEXT_PIECE):
            same = pc.or_(same, pc.starts_with(ids, pattern=identity + mark))
        if pc.any(same).as_py():  # the texts are most of a shard, and are not read without need
            yield from documents_in(pq.read_table(store / shard["file"]).filter(same))


def history_lines(history: dict[str, Any]) -> list[str]:
    """Return a history as lines for a terminal."""
    lines: list[str] = []
    for one in history["kept"]:
        lines.append(f"{one['id']} was kept: {len(one['text']):,} characters of {one['source']}")
        lines += _figures(one["metadata"])
    for row in history["dropped"]:
        lines.append(f"{row['id']} was dropped by '{row['step']}': {row['reason']}")
        if "survivor" in row:
            near = f", largest Jaccard similarity {row['jaccard']}" if "jaccard" in row else ""
            lines.append(f"  survivor: {row['survivor']}{near}")
        lines += _figures(row.get("metadata", {}))
    if history["copies"]:
        copies = ", ".join(f"{one['id']} ({one.get('jaccard', one.get('reason'))})" for one in history["copies"])
        lines.append(f"dropped in its favour: {copies}")
    return lines


def _figures(metadata: dict[str, Any]) -> list[str]:
    return [f"  {name}: {_text_of(value)}" for name, value in metadata.items()]


def _text_of(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text_of(inner)}" for name, inner in value.items())
    return str(value)
