"""The harvest station: a raw corpus on disk, the documents held out of it, and the evaluation passages.

Writes warc/*.warc.gz, jsonl/*.jsonl.gz, sources.json, heldout/, evaluation_items.jsonl and, for the default
corpus, planted.json.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from trivium.corpus.compose import compose_documents
from trivium.corpus.config import HarvestConfig
from trivium.corpus.document import Document
from trivium.corpus.extract import RAW, extract_step
from trivium.corpus.heldout import HeldOut, Item
from trivium.corpus.html_page import html_page
from trivium.corpus.plant import Planted, plant
from trivium.corpus.quarantine import Damage
from trivium.corpus.raw_files import RawFiles
from trivium.corpus.read import input_files, read_any, relative_name, source_of
from trivium.corpus.steps import Drop
from trivium.corpus.store import write_documents
from trivium.corpus.streams import open_binary
from trivium.errors import DataError
from trivium.progress import Progress, silent
from trivium.provenance import write_json
from trivium.seeds import generator_for

SOURCES, ITEMS, HELDOUT, PLANTED = "sources.json", "evaluation_items.jsonl", "heldout", "planted.json"


class OwnIds:
    """Gives every document of a corpus an id of its own, as files number their rows each from 0.

    Asked in the same order it gives the same ids; memory holds every id.
    """

    def __init__(self) -> None:
        """Nothing is taken."""
        self._times: dict[str, int] = {}

    def of(self, identity: str) -> str:
        """The id itself where it is new, else with the first number behind it that makes it new: `7~2`."""
        own = identity
        while own in self._times:
            self._times[identity] += 1
            own = f"{identity}~{self._times[identity]}"
        self._times[own] = 1
        return own


def harvest(
    config: HarvestConfig,
    out: Path,
    *,
    seed: int,
    corpus: Path | str | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Collect the default corpus, or the files at `corpus` (a path, or a URL that fsspec knows), into `out`.

    `out` is an existing folder; returns a summary.
    """
    if corpus is None:
        return _harvest_default(config, out, seed=seed, progress=progress)
    return _harvest_files(config, out, corpus, seed=seed, progress=progress)


def _harvest_default(config: HarvestConfig, out: Path, *, seed: int, progress: Progress) -> dict[str, Any]:
    documents, entries = compose_documents(config, seed=seed, progress=progress)
    line = HeldOut(config, seed=seed)
    for document in documents:
        line.offer(document)
    heldout, items = line.choose()
    kept_away = {document.id for document in heldout}
    honest = [document for document in documents if document.id not in kept_away]
    planted = plant(honest, items, config.planted, seed=seed)
    files = RawFiles(out, shard_bytes=config.shard_bytes)
    for document in _dressed(_in_order(honest, planted, seed=seed), config, seed=seed):
        files.add(document)
    files.close()
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for one in planted:
        by_kind.setdefault(one.kind, []).append(one.as_json())
    write_json(out / PLANTED, by_kind)
    _write_aside(out, entries, heldout, items)
    return {
        "honest": len(honest),
        "planted": {kind: len(entries) for kind, entries in by_kind.items()},
        **_summary(entries, files, heldout, items),
    }


def _in_order(honest: Sequence[Document], planted: Sequence[Planted], *, seed: int) -> list[Planted]:
    """Everything in crawl order: shuffled, each copy somewhere after its original."""
    leaked = {one.document.id: one for one in planted if one.kind == "leaked_item"}
    everything = [leaked.get(d.id, Planted("", d)) for d in honest]
    everything += [one for one in planted if one.kind != "leaked_item"]
    places = generator_for(seed, "harvest", "order").random(len(everything)).tolist()
    place_of = {one.document.id: place for one, place in zip(everything, places, strict=True)}
    for one, place in zip(everything, places, strict=True):
        if one.follows:
            start = place_of[one.follows]
            place_of[one.document.id] = start + (1 - start) * place
    return sorted(everything, key=lambda one: place_of[one.document.id])


def _dressed(everything: Iterable[Planted], config: HarvestConfig, *, seed: int) -> Iterator[Document]:
    """Each document as it is found: an HTML page, or text."""
    # Curation reads WARC files before JSON lines, so the copy of a text that is no page must be no page.
    no_pages: set[str] = set()
    for one in everything:
        document = one.document
        generator = generator_for(seed, "harvest", "dress", document.id)
        url = f"https://docs.example/{document.source}/{document.id}.html"
        title = str(document.metadata.get("title", document.source))
        if generator.random() >= config.html_fraction or one.follows in no_pages:
            no_pages.add(document.id)
            yield replace(document, metadata={"url": url, "title": title})
        else:
            paragraphs = [p for part in document.text.split("\n\n") for p in part.split("\n")]
            page = html_page(paragraphs, title=title, generator=generator)
            yield replace(document, text=page, metadata={"url": url, RAW: "html"})


def _harvest_files(
    config: HarvestConfig, out: Path, corpus: Path | str, *, seed: int, progress: Progress
) -> dict[str, Any]:
    paths = input_files(corpus)
    line, ids = HeldOut(config, seed=seed), OwnIds()
    entries = [_survey(path, corpus, config, line, ids) for path in paths]
    if not any(entry["documents"] for entry in entries):
        first = entries[0]
        raise DataError(
            f"{corpus} holds no document: {first['path']}: {first.get('reason', 'no text in it')}"
        )
    heldout, items = line.choose()
    kept_away = {document.id for document in heldout}
    files, ids = RawFiles(out, shard_bytes=config.shard_bytes), OwnIds()
    for number, path in enumerate(paths):
        progress(number, len(paths), relative_name(path, corpus))
        for document in _documents(path, corpus, config, ids):
            if not isinstance(document, Damage) and document.id not in kept_away:
                files.add(document)
    files.close()
    _write_aside(out, entries, heldout, items)
    return _summary(entries, files, heldout, items)


def _survey(
    path: Path | str, corpus: Path | str, config: HarvestConfig, line: HeldOut, ids: OwnIds
) -> dict[str, Any]:
    """One file's entry in sources.json; its documents are offered for holding out."""
    extract = extract_step()
    entry: dict[str, Any] = {
        "path": relative_name(path, corpus),
        "source": source_of(path, corpus),
        "sha256": "",
        "licence": "not stated",
        "documents": 0,
        "text_bytes": 0,
        "quarantined": 0,
    }
    for document in _documents(path, corpus, config, ids):
        if isinstance(document, Damage):
            entry["quarantined"] += document.records
            entry.setdefault("reason", document.reason)
            continue
        verdict = extract.judge(document)
        entry["documents"] += 1
        if not isinstance(verdict, Drop):
            entry["text_bytes"] += verdict.document.text_bytes
            line.offer(verdict.document)
    try:
        with open_binary(path) as file:
            entry["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    except OSError as error:
        entry["reason"] = f"it cannot be read: {error.strerror}"
    return entry


def _documents(
    path: Path | str, corpus: Path | str, config: HarvestConfig, ids: OwnIds
) -> Iterator[Document | Damage]:
    source = source_of(path, corpus)
    for item in read_any(path, source=source, longest=config.longest, limits=config.read):
        yield item if isinstance(item, Damage) else replace(item, id=ids.of(item.id))


def _write_aside(
    out: Path, entries: Sequence[dict[str, Any]], heldout: Sequence[Document], items: Sequence[Item]
) -> None:
    write_json(out / SOURCES, entries)
    write_documents(out / HELDOUT, heldout)
    lines = [json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in items]
    (out / ITEMS).write_text("".join(lines), encoding="utf-8")


def _summary(
    entries: Sequence[dict[str, Any]], files: RawFiles, heldout: Sequence[Document], items: Sequence[Item]
) -> dict[str, Any]:
    return {
        "files": len(entries),
        "documents": files.documents,
        "text_bytes": sum(entry["text_bytes"] for entry in entries),
        "heldout": len(heldout),
        "evaluation_items": len(items),
        "quarantined": sum(entry.get("quarantined", 0) for entry in entries),
        "damaged": [f"{e['path']}: {e['reason']}" for e in entries if e.get("reason")],
    }
