"""Harvesting: a raw corpus on disk, the documents held out of it, and the evaluation passages.

Writes warc/*.warc.gz, jsonl/*.jsonl.gz, sources.json, heldout/, evaluation_items.jsonl and, for the default
corpus, planted.json.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trivium.corpus.config import HarvestConfig
from trivium.corpus.document import RAW, Document
from trivium.corpus.engine import Engine
from trivium.corpus.harvest.harvest_files import HELDOUT, ITEMS, SOURCES, harvest_files, summary, write_items
from trivium.corpus.harvest.heldout import choose_documents
from trivium.corpus.harvest.plant import Planted, html_page, plant
from trivium.corpus.harvest.raw_files import RawFiles
from trivium.corpus.harvest.stories import story_documents
from trivium.corpus.publish.store import write_documents
from trivium.progress import Progress, silent
from trivium.provenance import discard, write_json
from trivium.seeds import generator_for

PLANTED = "planted.json"


def harvest(
    config: HarvestConfig,
    out: Path,
    *,
    seed: int,
    corpus: Path | str | None = None,
    progress: Progress = silent,
    engine: Engine | None = None,
    work: Path | None = None,
) -> dict[str, Any]:
    """Collect the default corpus, or the files at `corpus` (a path, or a URL for fsspec), into `out`. Return a summary.

    out: an existing folder. The other arguments are for files only. engine: where the work runs; the result does not
    depend on it. work: the folder of finished pieces, from which an interrupted harvest continues; the caller deletes
    it.
    """
    if corpus is None:
        return _harvest_default(config, out, seed=seed)
    pieces = work or out / ".work"
    found = harvest_files(config, out, corpus, seed=seed, work=pieces, progress=progress, engine=engine)
    if work is None:
        discard(pieces)
    return found


def _harvest_default(config: HarvestConfig, out: Path, *, seed: int) -> dict[str, Any]:
    documents, entries = story_documents(config, seed=seed)
    heldout, items = choose_documents(documents, config, seed=seed)
    held_out = {document.id for document in heldout}
    honest = [document for document in documents if document.id not in held_out]
    planted = plant(honest, items, config.planted, seed=seed)
    crawl = _in_order(honest, planted, seed=seed)
    files = RawFiles(out, shard_bytes=config.shard_bytes)
    for document in _as_crawled(crawl, config, seed=seed):
        files.add(document)
    files.close()
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for one in planted:
        by_kind.setdefault(one.kind, []).append(one.as_json())
    write_json(out / PLANTED, by_kind)
    write_json(out / SOURCES, entries)
    write_documents(out / HELDOUT, heldout)
    write_items(out / ITEMS, items)
    text_bytes = sum(one.document.text_bytes for one in crawl)
    counts = {"documents": files.documents, "text_bytes": text_bytes, "heldout": len(heldout), "items": len(items)}
    planted_counts = {kind: len(entries) for kind, entries in by_kind.items()}
    return {"honest": len(honest), "planted": planted_counts, **summary(entries, **counts)}


def _in_order(honest: Sequence[Document], planted: Sequence[Planted], *, seed: int) -> list[Planted]:
    """Return everything in the order of a crawl: shuffled, with each copy somewhere after its original."""
    leaked = {one.document.id: one for one in planted if one.kind == "leaked_item"}
    everything = [leaked.get(d.id, Planted("", d)) for d in honest]
    everything += [one for one in planted if one.kind != "leaked_item"]
    drawn = generator_for(seed, "harvest", "order").random(len(everything)).tolist()
    place_of = {one.document.id: place for one, place in zip(everything, drawn, strict=True)}
    for one in everything:
        if one.follows:
            start = place_of[one.follows]
            place_of[one.document.id] = start + (1 - start) * place_of[one.document.id]
    return sorted(everything, key=lambda one: place_of[one.document.id])


def _as_crawled(crawl: Iterable[Planted], config: HarvestConfig, *, seed: int) -> Iterator[Document]:
    """Yield each document in the form in which a crawl would find it: an HTML page, or text."""
    # Curation reads WARC files before JSON lines, so the copy of a text that is no page must not be a page.
    not_pages: set[str] = set()
    for one in crawl:
        document = one.document
        generator = generator_for(seed, "harvest", "dress", document.id)
        url = f"https://docs.example/{document.source}/{document.id}.html"
        title = str(document.metadata.get("title", document.source))
        if generator.random() >= config.html_fraction or one.follows in not_pages:
            not_pages.add(document.id)
            yield replace(document, metadata={"url": url, "title": title})
        else:
            paragraphs = document.text.replace("\n\n", "\n").split("\n")
            page = html_page(paragraphs, title=title, generator=generator)
            yield replace(document, text=page, metadata={"url": url, RAW: "html"})
