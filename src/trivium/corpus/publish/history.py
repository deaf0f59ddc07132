"""What became of one document, from the files a curation leaves: every figure, every decision."""

import gzip
import json
from collections.abc import Iterable, Iterator
from heapq import nsmallest
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from trivium.corpus.curate import REJECTS
from trivium.corpus.document import PIECE, origin_of
from trivium.corpus.read.inputs import DOCUMENTS
from trivium.corpus.store import documents_in, read_manifest
from trivium.errors import DataError
from trivium.seeds import seed_for


def rejects_of(curated: Path) -> Iterator[dict[str, Any]]:
    """Every reject of a curation, in the order written."""
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
    """So many rejects of a curation, drawn evenly from those of a step (none: of all) whose reason holds a text."""
    asked = (row for row in rejects_of(curated) if step in ("", row["step"]) and reason in row["reason"])
    return nsmallest(count, asked, key=lambda row: seed_for(0, "rejects", row["id"], row["step"]))


def reject_lines(rows: Iterable[dict[str, Any]], *, characters: int) -> list[str]:
    """Rejects for a terminal, with so many characters of the beginning of each."""
    lines: list[str] = []
    for row in rows:
        lines.append(f"{row['id']} of {row['source']}: dropped by '{row['step']}': {row['reason']}")
        begin = " ".join(row["text"][:characters].split())
        lines += [f"  {begin}{' …' if len(row['text']) > characters else ''}"] if begin else []
    return lines


def history(curated: Path, identity: str) -> dict[str, Any]:
    """The history of the document with this id, or of the one it is a piece of; DataError when there is none.

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
    """A history for a terminal."""
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
        copies = ", ".join(
            f"{one['id']} ({one.get('jaccard', one.get('reason'))})" for one in found["copies"]
        )
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
