"""What people look at of a curated corpus: documents' histories, rejects, statistics, large losses, differences."""

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

from trivium.corpus.document import PIECE, origin_of
from trivium.corpus.publish.output import REJECTS
from trivium.corpus.steps import float_of
from trivium.corpus.store import DOCUMENTS, MANIFEST, documents_in, read_documents, read_manifest
from trivium.errors import DataError
from trivium.provenance import STAMP, file_sha256
from trivium.seeds import seed_for
from trivium.units import format_bytes

LARGE_SHARE = 0.2  # of the text, or of the records: a larger loss to one reason is said at the end of a run
_EXTRACT = "extract"


def losses_in(funnel: Path) -> list[str]:
    """Return the `loss_lines` of a funnel.json; none if there is no such file."""
    return loss_lines(json.loads(funnel.read_text(encoding="utf-8"))) if funnel.is_file() else []


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
    """Return a line for each file under `a` or `b` that the other lacks, or that differs; stamps do not count.

    If documents differ, further lines say how many and name the first.
    """
    for folder in (a, b):
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder; give the outputs of two curations")
    files = sorted(_files(a) | _files(b))
    lines = []
    for name in files:
        one, other = a / name, b / name
        if not one.is_file() or not other.is_file():
            lines.append(f"{name} is only in {a if one.is_file() else b}")
        elif file_sha256(one) != file_sha256(other):
            lines.append(f"{name} differs")
    if any(line.startswith(DOCUMENTS) for line in lines):
        lines += _documents_that_differ(a / DOCUMENTS, b / DOCUMENTS)
    return lines


def _documents_that_differ(a: Path, b: Path) -> list[str]:
    if not all((folder / MANIFEST).is_file() for folder in (a, b)):
        return []
    one, other = ({d.id: _digest(d.text) for d in read_documents(folder, verify=False)} for folder in (a, b))
    sets = {
        f"only in {a}": one.keys() - other.keys(),
        f"only in {b}": other.keys() - one.keys(),
        "with different text": {i for i in one.keys() & other.keys() if one[i] != other[i]},
    }
    return [f"{len(ids)} documents {what}, such as {min(ids)}" for what, ids in sets.items() if ids]


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _files(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != STAMP)
    return {path.relative_to(folder).as_posix() for path in found}


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


def _digits(value: float) -> str:
    """Format a number with four digits, or all of them if it has more."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def statistics_lines(found: Mapping[str, Any]) -> list[str]:
    """Return statistics as lines for a terminal."""
    width = max(map(len, found["figures"]), default=0)
    heads = "".join(f"{_head(q):>11}" for q in found["quantiles"])
    lines = [f"{'figure':<{width}}{heads}"]
    for name, values in found["figures"].items():
        lines.append(f"{name:<{width}}" + "".join(f"{_digits(value):>11}" for value in values))
    for step, reasons in found["rejected"].items():
        lines += [f"dropped by {step}: {count:,} {reason}" for reason, count in reasons.items()]
    for tenth, count in enumerate(found["similarities"]):
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


def _head(quantile: float) -> str:
    return {0.0: "least", 0.5: "median", 1.0: "most"}.get(quantile, f"{100 * quantile:.0f} %")


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
    """Return the history of the document with this id, or of the one it is a piece of. DataError if there is none.

    kept: what is left of it (id, source, metadata, text); dropped: its entries among the rejects; copies: those
    that were dropped in its favour, with their similarity or, where they are no near duplicates, the reason.
    """
    documents = [d for table in _tables_with(curated, identity) for d in documents_in(table)]
    documents = [d for d in documents if identity in (d.id, origin_of(d.id, d.metadata))]
    kept = [{"id": d.id, "source": d.source, "metadata": d.metadata, "text": d.text} for d in documents]
    whole = origin_of(documents[0].id, documents[0].metadata) if documents else identity
    dropped, copies = [], []
    for row in rejects_of(curated):
        if row["id"] in (identity, whole):
            dropped.append(row)
        elif row.get("survivor") in (identity, whole):
            why = "jaccard" if "jaccard" in row else "reason"
            copies.append({"id": row["id"], why: row[why]})
    if not kept and not dropped:
        raise DataError(
            f"no document of {curated} has the id '{identity}', kept or dropped; ids stand in {DOCUMENTS}/ "
            f"and {REJECTS}"
        )
    return {"id": identity, "kept": kept, "dropped": dropped, "copies": copies}


def history_lines(found: dict[str, Any]) -> list[str]:
    """Return a history as lines for a terminal."""
    lines: list[str] = []
    for one in found["kept"]:
        lines.append(f"{one['id']} was kept: {len(one['text']):,} characters of {one['source']}")
        lines += _figures(one["metadata"])
    for row in found["dropped"]:
        lines.append(f"{row['id']} was dropped by '{row['step']}': {row['reason']}")
        if "survivor" in row:
            near = f", largest Jaccard similarity {row['jaccard']}" if "jaccard" in row else ""
            lines.append(f"  survivor: {row['survivor']}{near}")
        lines += _figures(row.get("metadata", {}))
    if found["copies"]:
        copies = ", ".join(f"{one['id']} ({one.get('jaccard', one.get('reason'))})" for one in found["copies"])
        lines.append(f"dropped in its favour: {copies}")
    return lines


def _figures(metadata: dict[str, Any]) -> list[str]:
    return [f"  {name}: {_shown(value)}" for name, value in metadata.items()]


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(inner)}" for name, inner in value.items())
    return str(value)


def _tables_with(curated: Path, identity: str) -> Iterator[Any]:
    for shard in read_manifest(curated / DOCUMENTS)["shards"]:
        path = curated / DOCUMENTS / shard["file"]
        ids = pq.read_table(path, columns=["id"])["id"]
        same = pc.or_(pc.equal(ids, identity), pc.starts_with(ids, pattern=identity + PIECE))
        if pc.any(same).as_py():  # texts are most of a shard
            yield pq.read_table(path).filter(same)
