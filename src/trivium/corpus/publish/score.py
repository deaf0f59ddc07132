"""What a curation caught of the planted junk, and which honest documents it lost."""

import gzip
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trivium.corpus.config import DecontaminationConfig
from trivium.corpus.select.decontaminate import keys_of
from trivium.corpus.store import read_documents

LEAKED = "leaked_item"  # the only kind that is an honest document with something inserted


def score(
    planted: Mapping[str, Sequence[Mapping[str, Any]]], items: Mapping[str, str], documents: Path, rejects: Path
) -> tuple[dict[str, dict[str, int]], dict[str, Any]]:
    """Return ({kind: planted and caught}, honest documents and those lost, also by step).

    Junk is caught if its document was dropped; a leak, if no 13-gram of the passage is left in its host. An honest
    document is lost if nothing of it is left. A cut document is not lost.
    """
    hosts = {str(one["id"]) for one in planted.get(LEAKED, ())}
    junk = {str(one["id"]) for kind, ones in planted.items() if kind != LEAKED for one in ones}
    kept: set[str] = set()
    host_texts: dict[str, list[str]] = {}
    for document in read_documents(documents, verify=False):
        whole = str(document.metadata.get("decontamination", {}).get("of", document.id))
        kept.add(whole)
        if whole in hosts:
            host_texts.setdefault(whole, []).append(document.text)
    dropped = {i: step for i, step in _rejected(rejects) if i not in kept}
    caught = {
        kind: {
            "planted": len(ones),
            "caught": sum(
                _cut_out(items.get(str(one["item"]), ""), host_texts.get(str(one["id"]), []))
                if kind == LEAKED
                else str(one["id"]) not in kept
                for one in ones
            ),
        }
        for kind, ones in sorted(planted.items())
    }
    lost_by = Counter(step for identity, step in dropped.items() if identity not in junk)
    honest = len((kept | dropped.keys()) - junk)
    return caught, {"documents": honest, "lost": lost_by.total(), "lost_by": dict(sorted(lost_by.items()))}


def _cut_out(passage: str, texts: Sequence[str]) -> bool:
    config = DecontaminationConfig()
    keys = set(keys_of(passage, config))
    return all(keys.isdisjoint(keys_of(text, config)) for text in texts)


def _rejected(path: Path) -> list[tuple[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = (json.loads(line) for line in file)
        return [(str(row["id"]), str(row["step"])) for row in rows if row["step"] != "read"]
