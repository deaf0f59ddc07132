"""Sections of prose → honest documents of the default corpus, every paragraph in it only once."""

from typing import Any

from trivium.corpus.config import HarvestConfig
from trivium.corpus.dedup.exact import keys_of_texts
from trivium.corpus.document import Document
from trivium.corpus.read.plant import new_id
from trivium.corpus.read.python_prose import SourceFile, default_sources
from trivium.errors import DataError
from trivium.progress import Progress, silent

_TYPICAL = 0.35  # of the longest: once a document has so much, the next section begins a new one
_PHRASE = 5  # words
_REPEATED = 0.20  # share of a paragraph's phrases that may stand in its document already


def compose_documents(
    config: HarvestConfig, *, seed: int, progress: Progress = silent
) -> tuple[list[Document], list[dict[str, Any]]]:
    """Documents of `config.shortest` to about `config.longest` characters, and one entry per file read."""
    documents: list[Document] = []
    entries: list[dict[str, Any]] = []
    seen: set[bytes] = set()
    total = 0
    most = config.max_bytes // (len(config.packages) + 2) if config.max_bytes else None
    for files in default_sources(config.packages):
        taken = 0
        leftover = _Draft()
        for file in files:
            progress(total, None, file.path)
            made, leftover = _file_documents(file, config, seen, leftover, seed=seed)
            size = sum(document.text_bytes for document in made)
            documents += made
            entries.append(_entry(file, len(made), size))
            taken, total = taken + size, total + size
            if most is not None and taken >= most:
                break
    if not documents:
        raise DataError(
            f"no prose was found in the standard library and {', '.join(config.packages)}: this Python has no "
            f"source files; give a corpus of your own with --corpus PATH"
        )
    return documents, entries


def _file_documents(
    file: SourceFile, config: HarvestConfig, seen: set[bytes], draft: "_Draft", *, seed: int
) -> tuple[list[Document], "_Draft"]:
    """The documents that end in this file; what is too short waits for the next file of its source."""
    made: list[Document] = []
    for section in file.sections:
        for place, (paragraph, key) in enumerate(zip(section, keys_of_texts(section), strict=True)):
            if key in seen:
                continue
            seen.add(key)
            full = draft.size + len(paragraph) > config.longest
            if draft.size and (full or (place == 0 and draft.size >= _TYPICAL * config.longest)):
                made.append(_document(file, len(made), draft.paragraphs, seed=seed))
                draft = _Draft()
            draft.add(paragraph)
    # A little more than the shortest, so that trimming of blanks does not cost a document its place.
    if draft.size > config.shortest + 64:
        made.append(_document(file, len(made), draft.paragraphs, seed=seed))
        draft = _Draft()
    return made, draft


class _Draft:
    """A document in the making; a paragraph that mostly repeats phrases already in it is left out.

    Programmers document twenty like functions in like words; twenty copies of a phrase are not unique prose.
    """

    def __init__(self) -> None:
        self.paragraphs: list[str] = []
        self.size = 0
        self._phrases: set[str] = set()

    def add(self, paragraph: str) -> None:
        words = paragraph.lower().split()
        phrases = {" ".join(words[i : i + _PHRASE]) for i in range(max(len(words) - _PHRASE + 1, 1))}
        if len(phrases & self._phrases) > _REPEATED * len(phrases):
            return
        self._phrases |= phrases
        self.paragraphs.append(paragraph)
        self.size += len(paragraph) + 2


def _document(file: SourceFile, number: int, paragraphs: list[str], *, seed: int) -> Document:
    words = (
        file.path.removesuffix(".py").removesuffix("/__init__").replace("/", " ").replace("_", " ").split()
    )
    return Document(
        new_id(seed, file.path, number),
        "\n\n".join(paragraphs),
        file.source,
        {"title": " ".join(words).capitalize()},
    )


def _entry(file: SourceFile, documents: int, text_bytes: int) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "path": file.path,
        "source": file.source,
        "sha256": file.sha256,
        "licence": file.licence,
        "documents": documents,
        "text_bytes": text_bytes,
        "quarantined": int(bool(file.problem)),
    }
    return {**entry, "reason": file.problem} if file.problem else entry
