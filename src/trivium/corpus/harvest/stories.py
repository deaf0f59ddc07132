"""The default corpus: public-domain stories for children, which the package ships (stories.md names their source)."""

import hashlib
import json
import lzma
from collections.abc import Iterator, Sequence
from typing import Any

from trivium.config import shipped
from trivium.corpus.config import STORIES, HarvestConfig
from trivium.corpus.document import Document
from trivium.corpus.harvest.plant import new_id

LICENSE = "public domain"


def story_documents(config: HarvestConfig, *, seed: int) -> tuple[list[Document], list[dict[str, Any]]]:
    """Return the stories as documents of `config.shortest` to about `config.longest` characters, and an entry of
    sources.json for each book. `config.max_bytes` is divided equally among the sources."""
    chapters = read_stories()
    most = config.max_bytes // len({c["source"] for c in chapters}) if config.max_bytes else None
    taken: dict[str, int] = {}
    documents: list[Document] = []
    entries: dict[str, dict[str, Any]] = {}
    for chapter in chapters:
        source, book = chapter["source"], chapter["book"]
        if most is not None and taken.get(source, 0) >= most:
            continue
        made = [
            Document(new_id(seed, book, chapter["title"], number), text, source, {"title": chapter["title"]})
            for number, text in enumerate(cut(chapter["text"], shortest=config.shortest, longest=config.longest))
        ]
        size = sum(document.text_bytes for document in made)
        taken[source] = taken.get(source, 0) + size
        documents += made
        entry = entries.setdefault(book, _entry(chapter, chapters))
        entry["documents"] += len(made)
        entry["text_bytes"] += size
    return documents, list(entries.values())


def read_stories() -> list[dict[str, str]]:
    """Return the chapters: source, author, book, title, and a text of paragraphs."""
    lines = lzma.decompress(shipped(STORIES).read_bytes()).decode("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def cut(text: str, *, shortest: int, longest: int) -> Iterator[str]:
    """Yield pieces of a text of at most `longest` characters where its paragraphs allow it. A last piece shorter than
    `shortest` is omitted."""
    piece: list[str] = []
    size = 0
    for paragraph in text.split("\n\n"):
        if piece and size + len(paragraph) > longest:
            yield "\n\n".join(piece)
            piece, size = [], 0
        piece.append(paragraph)
        size += len(paragraph) + 2
    if size - 2 >= shortest:
        yield "\n\n".join(piece)


def _entry(chapter: dict[str, str], chapters: Sequence[dict[str, str]]) -> dict[str, Any]:
    """Return the entry of a book in sources.json before its documents are counted."""
    text = "\n\n".join(c["text"] for c in chapters if c["book"] == chapter["book"])
    return {
        "path": f"{chapter['author']}/{chapter['book']}",
        "source": chapter["source"],
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "license": LICENSE,
        "documents": 0,
        "text_bytes": 0,
        "quarantined": 0,
    }
