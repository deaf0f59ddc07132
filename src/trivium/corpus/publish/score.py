"""What curation caught of the planted junk, and what honest documents it lost: counted after the fact."""

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
    planted: Mapping[str, Sequence[Mapping[str, Any]]],
    items: Mapping[str, str],
    documents: Path,
    rejects: Path,
) -> tuple[dict[str, dict[str, int]], dict[str, Any]]:
    """(kind → planted, caught; honest documents, lost, lost by step).

    Junk is caught when its document is gone; a leak when no 13-gram of the passage is left in its host. An
    honest document is lost when nothing of it is left; being cut is not being lost.
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
