"""The default corpus: English prose of the installed Python and of packages beside it, composed into documents.

Source files are read and never executed. No paragraph occurs twice.
"""

import ast
import gc
import hashlib
import importlib.metadata
import importlib.util
import inspect
import io
import os
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trivium.corpus.config import HarvestConfig
from trivium.corpus.dedup.groups import keys_of_texts
from trivium.corpus.document import Document
from trivium.corpus.harvest.plant import new_id
from trivium.errors import DataError
from trivium.progress import Progress, silent
from trivium.untrusted import read_bytes

_ROLE = re.compile(r":(?:[a-z]+:)?[a-z]+:`~?\.?([^`<]+?)(?:\s*<[^`>]*>)?`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?")
_TICKS = re.compile(r"`{1,2}([^`]+)`{1,2}_{0,2}")
_STRONG = re.compile(r"\*\*([^*\s][^*]*)\*\*|\*([^*\s][^*]*)\*(?!\w)")
_BULLET = re.compile(r"^(?:[-*+•]|\d+[.)]|[a-z]\))\s+")
_LABEL = re.compile(r"^\*{0,2}\w+(?:, \*{0,2}\w+)*\s*(?:\([^)]*\))?\s*:\s.*$")
_RULE = re.compile(r"^[\s=\-~^#*_+.|]{3,}$")
_CODE = re.compile(r"[=<>{}\[\]|\\^_@$&;/~+]|\(\)|::|--|\d")
_WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")
_COMMON = frozenset("the of to and a in is that for be it this with as are by not or if on an can will".split())
_LEGAL = re.compile(r"copyright|\(c\)|licen[sc]e|all rights reserved|warrant(?:y|ies)|coding[:=]", re.I)
_FOR_PROGRAMMERS = ("TODO", "FIXME", "XXX", "HACK", "type:", "noqa", "pylint:")  # beginnings of comments
_DIRECTIVE = re.compile(r"^\.\. (\S+)::")
_TEXT_DIRECTIVES = frozenset("note warning versionadded versionchanged deprecated seealso tip".split())


def prose_paragraphs(docstring: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring that read as English sentences, each on one line, without markup."""
    for lines in _blocks(inspect.cleandoc(docstring).split("\n")):
        for part in _items(lines):
            text = plain(" ".join(part))
            if is_prose(text):
                yield text


def comment_paragraphs(comment: str) -> Iterator[str]:
    """Yield the English paragraphs of a block of comment lines, except legal notices."""
    text = "\n".join(line.strip().lstrip("#").removeprefix(" ") for line in comment.split("\n"))
    if not _LEGAL.search(text):
        yield from prose_paragraphs(text)


def plain(text: str) -> str:
    """Return a line without reStructuredText roles, links, ticks and stars."""
    text = _ROLE.sub(r"\1", _spaced(text))
    text = _TICKS.sub(r"\1", _LINK.sub(r"\1", text))
    text = _STRONG.sub(lambda m: m.group(1) or m.group(2), text)
    text = _BULLET.sub("", _spaced(text))
    return text.removesuffix("::").rstrip() + (":" if text.endswith("::") else "")


def is_prose(text: str) -> bool:
    """Return whether a paragraph is made of English sentences: enough words, common ones among them, little code."""
    words = _WORD.findall(text)
    if len(words) < 6 or not text[0].isalpha() or text[-1] in ",;-(=" or text.startswith(_FOR_PROGRAMMERS):
        return False
    letters = sum(map(len, words))
    common = sum(map(_COMMON.__contains__, map(str.lower, words)))
    return letters >= 0.70 * len(text) and common >= 0.12 * len(words) and len(_CODE.findall(text)) <= 0.06 * len(text)


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield runs of text lines without doctests, literal blocks and the bodies of unknown directives."""
    block: list[str] = []
    skip_deeper_than: int | None = None
    in_doctest = False
    for line in lines:
        stripped, indent = line.strip(), _indent(line)
        if not stripped or _RULE.match(line):
            # A single line above a rule is a heading.
            if block and not (stripped and len(block) == 1):
                yield block
            block, in_doctest = [], False
            continue
        if skip_deeper_than is not None and indent > skip_deeper_than:
            continue
        skip_deeper_than = None
        directive = _DIRECTIVE.match(stripped)
        if stripped.startswith((">>>", "...", "$ ", "|")) or in_doctest:
            in_doctest = in_doctest or stripped.startswith(">>>")
        elif stripped.startswith(".. "):
            if not directive or directive[1] not in _TEXT_DIRECTIVES:
                skip_deeper_than = indent
        else:
            block.append(line)
            if stripped.endswith("::"):
                yield block
                block, skip_deeper_than = [], indent
    if block:
        yield block


def _items(lines: list[str]) -> Iterator[list[str]]:
    """Split a block at its list items and labelled parameters."""
    part: list[str] = []
    for number, line in enumerate(lines):
        stripped = line.strip()
        step = _indent(line) - _indent(lines[number - 1]) if number else 0
        follows_label = step > 0 and len(part) == 1 and not part[0].endswith((".", ","))
        if part and (_BULLET.match(stripped) or _LABEL.match(_spaced(stripped)) or follows_label or step < 0):
            yield part
            part = []
        part.append(stripped)
    if part:
        yield part


def _spaced(text: str) -> str:
    """Collapse runs of spaces, because patterns take quadratic time on a million of them."""
    return " ".join(text.split())


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


# Folders that hold tests, vendored or generated code, or (torch) little prose for the time they take to parse.
SKIPPED = frozenset(
    "site-packages dist-packages test tests testing idlelib lib2to3 turtledemo __pycache__ _vendor vendored ensurepip "
    "include lib share bin third_party fx_passes _pyinstaller distutils".split()
)
_COMMENTS = re.compile(r"(?m)(?:^[ \t]*#[^\n]*\n){2,}")
_DOCSTRING = re.compile(r"\"\"\"|'''")


@dataclass(slots=True)
class SourceFile:
    """One file that was read.

    path: relative to its installation. sections: lists of paragraphs, in file order. problem: why it has none.
    """

    path: str
    source: str
    sha256: str
    licence: str
    sections: list[list[str]] = field(default_factory=list)
    problem: str = ""

    def add(self, paragraphs: Iterable[str]) -> None:
        """Append a section, unless it is empty."""
        if section := list(paragraphs):
            self.sections.append(section)


def default_sources(packages: Iterable[str]) -> Iterator[Iterator[SourceFile]]:
    """Yield the files with prose of the standard library, of pydoc_data.topics, and of each installed package."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    yield _read_tree(stdlib, source="stdlib", licence="PSF-2.0", skip=SKIPPED | {"pydoc_data", "config"})
    topics = stdlib / "pydoc_data" / "topics.py"
    if topics.is_file():
        yield (_read_topics(path) for path in (topics,))
    for package in packages:
        root = package_folder(package)
        if root is not None:
            yield _read_tree(root, source=package, licence=licence_of(package), skip=SKIPPED)


def package_folder(package: str) -> Path | None:
    """Return where a package is installed, without importing it, or None if it is not installed."""
    spec = importlib.util.find_spec(package) if "." not in package else None
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) if places else None


def licence_of(package: str) -> str:
    """Return the licence of an installed distribution: its SPDX expression, else its classifiers, else its field."""
    try:
        meta = importlib.metadata.metadata(package)
    except importlib.metadata.PackageNotFoundError:
        return "not stated"
    expression, text = (str(meta[name]) if name in meta else "" for name in ("License-Expression", "License"))
    classifiers = [c.rpartition("::")[2].strip() for c in meta.get_all("Classifier", []) if "License ::" in c]
    return expression or ", ".join(classifiers) or text.strip().partition("\n")[0][:80] or "not stated"


def _read_tree(root: Path, *, source: str, licence: str, skip: frozenset[str]) -> Iterator[SourceFile]:
    paths: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in skip]
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    for path in sorted(paths):
        file = _read_python(path, f"{source}/{path.relative_to(root).as_posix()}", source, licence)
        if file.sections or file.problem:
            yield file


def _read_python(path: Path, name: str, source: str, licence: str) -> SourceFile:
    try:
        raw = read_bytes(path)
    except OSError as error:
        return SourceFile(name, source, "", licence, problem=f"it cannot be read: {error.strerror}")
    file = SourceFile(name, source, hashlib.sha256(raw).hexdigest(), licence)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding).replace("\r\n", "\n")
        if _DOCSTRING.search(text):
            for docstring in _docstrings(_parse(text)):
                file.add(prose_paragraphs(docstring))
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError) as error:
        file.problem = f"it is not Python that {sysconfig.get_python_version()} reads: {error}"
        return file
    for match in _COMMENTS.finditer(text):
        file.add(comment_paragraphs(match.group()))
    return file


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield docstrings, and long texts passed to functions such as add_docstr, in file order."""
    pending: list[ast.stmt | ast.Module] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node, clean=False) or ""
            pending += reversed(node.body)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            pending += reversed(node.body)
        elif isinstance(node, ast.Expr):
            yield _long_text(node.value)


def _long_text(call: ast.expr) -> str:
    """Return the text in a call such as `add_docstr(torch.abs, r\"\"\"…\"\"\")`, which documents a function of C."""
    if isinstance(call, ast.Call) and "doc" in ast.unparse(call.func):
        for argument in call.args:
            match argument:
                case ast.Call(func=ast.Attribute(value=text, attr="format")) | text:
                    if isinstance(text, ast.Constant) and isinstance(text.value, str) and len(text.value) > 200:
                        return text.value
    return ""


def _read_topics(path: Path) -> SourceFile:
    raw = read_bytes(path)
    file = SourceFile("pydoc_data/topics.py", "pydoc", hashlib.sha256(raw).hexdigest(), "PSF-2.0")
    for assignment in _parse(raw.decode("utf-8")).body:
        if isinstance(assignment, ast.Assign):
            for _, text in sorted(ast.literal_eval(assignment.value).items()):
                file.add(prose_paragraphs(text))
    return file


def _parse(text: str) -> ast.Module:
    gc.disable()  # Syntax trees hold no cycles, and the search for cycles doubles the time of parsing.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    finally:
        gc.enable()


_TYPICAL_SIZE = 0.35  # share of `longest` from which on the next section begins a new document
_PHRASE_WORDS = 5
_MAX_REPEATED = 0.20  # share of a paragraph's phrases that may occur in its document already


def compose_documents(
    config: HarvestConfig, *, seed: int, progress: Progress = silent
) -> tuple[list[Document], list[dict[str, Any]]]:
    """Return documents of `config.shortest` to about `config.longest` characters, and one entry per file read."""
    documents: list[Document] = []
    entries: list[dict[str, Any]] = []
    seen: set[bytes] = set()
    total = 0
    most = config.max_bytes // (len(config.packages) + 2) if config.max_bytes else None
    for files in default_sources(config.packages):
        taken, draft = 0, _Draft()
        for file in files:
            progress(total, None, file.path)
            made, draft = _file_documents(file, config, seen, draft, seed=seed)
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
    """Return the documents that end in this file, and the draft that continues in the next file of its source."""
    made: list[Document] = []
    for section in file.sections:
        for place, (paragraph, key) in enumerate(zip(section, keys_of_texts(section), strict=True)):
            if key in seen:
                continue
            seen.add(key)
            full = draft.size + len(paragraph) > config.longest
            if draft.size and (full or (place == 0 and draft.size >= _TYPICAL_SIZE * config.longest)):
                made.append(_document(file, len(made), draft.paragraphs, seed=seed))
                draft = _Draft()
            draft.add(paragraph)
    # The margin keeps documents at least `shortest` long when blanks are trimmed.
    if draft.size > config.shortest + 64:
        made.append(_document(file, len(made), draft.paragraphs, seed=seed))
        draft = _Draft()
    return made, draft


class _Draft:
    """A document that is being composed, without paragraphs that mostly repeat its phrases.

    Similar functions are documented in similar words, and many copies of a phrase are not unique prose.
    """

    def __init__(self) -> None:
        self.paragraphs: list[str] = []
        self.size = 0
        self._phrases: set[str] = set()

    def add(self, paragraph: str) -> None:
        words = paragraph.lower().split()
        phrases = {" ".join(words[i : i + _PHRASE_WORDS]) for i in range(max(len(words) - _PHRASE_WORDS + 1, 1))}
        if len(phrases & self._phrases) <= _MAX_REPEATED * len(phrases):
            self._phrases |= phrases
            self.paragraphs.append(paragraph)
            self.size += len(paragraph) + 2


def _document(file: SourceFile, number: int, paragraphs: list[str], *, seed: int) -> Document:
    words = file.path.removesuffix(".py").removesuffix("/__init__").replace("/", " ").replace("_", " ").split()
    metadata = {"title": " ".join(words).capitalize()}
    return Document(new_id(seed, file.path, number), "\n\n".join(paragraphs), file.source, metadata)


def _entry(file: SourceFile, documents: int, text_bytes: int) -> dict[str, Any]:
    """Return the entry of sources.json."""
    read = {"path": file.path, "source": file.source, "sha256": file.sha256, "licence": file.licence}
    read |= {"documents": documents, "text_bytes": text_bytes, "quarantined": int(bool(file.problem))}
    return {**read, "reason": file.problem} if file.problem else read
