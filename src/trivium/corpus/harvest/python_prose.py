"""The default corpus: English prose of the installed Python and of packages beside it, composed into documents.

Source files are read, and never run. No paragraph occurs twice.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trivium.corpus.config import HarvestConfig
from trivium.corpus.dedup.groups import keys_of_texts
from trivium.corpus.document import Document
from trivium.corpus.harvest.plant import new_id
from trivium.errors import DataError
from trivium.progress import Progress, silent

_ROLE = re.compile(r":(?:[a-z]+:)?[a-z]+:`~?\.?([^`<]+?)(?:\s*<[^`>]*>)?`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?")
_TICKS = re.compile(r"`{1,2}([^`]+)`{1,2}_{0,2}")
_STRONG = re.compile(r"\*\*([^*\s][^*]*)\*\*|\*([^*\s][^*]*)\*(?!\w)")
_BULLET = re.compile(r"^(?:[-*+•]|\d+[.)]|[a-z]\))\s+")
_LABEL = re.compile(r"^\*{0,2}\w+(?:, \*{0,2}\w+)*\s*(?:\([^)]*\))?\s*:\s.*$")
_RULE = re.compile(r"^[\s=\-~^#*_+.|]{3,}$")
_CODE = re.compile(r"[=<>{}\[\]|\\^_@$&;/~+]|\(\)|::|--|\d")
_WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")
_COMMON = frozenset(
    [
        "the",
        "of",
        "to",
        "and",
        "a",
        "in",
        "is",
        "that",
        "for",
        "be",
        "it",
        "this",
        "with",
        "as",
        "are",
        "by",
        "not",
        "or",
        "if",
        "on",
        "an",
        "can",
        "will",
    ]
)
_LEGAL = re.compile(r"copyright|\(c\)|licen[sc]e|all rights reserved|warrant(?:y|ies)|coding[:=]", re.I)
_FOR_PROGRAMMERS = (  # how comments begin that are no prose
    "TODO",
    "FIXME",
    "XXX",
    "HACK",
    "type:",
    "noqa",
    "pylint:",
)
_DIRECTIVE = re.compile(r"^\.\. (\S+)::")
_TEXT_DIRECTIVES = frozenset({"note", "warning", "versionadded", "versionchanged", "deprecated", "seealso", "tip"})


def prose_paragraphs(docstring: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring that read as English sentences, each on one line, markup removed."""
    for lines in _blocks(inspect.cleandoc(docstring).split("\n")):
        for part in _items(lines):
            text = plain(" ".join(part))
            if is_prose(text):
                yield text


def comment_paragraphs(comment: str) -> Iterator[str]:
    """Yield the English paragraphs of a block of comment lines; legal notices are left out."""
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


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Yield runs of text lines without doctests, literal blocks and the bodies of unknown directives."""
    block: list[str] = []
    skip_deeper_than: int | None = None
    in_doctest = False
    for line in lines:
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if not stripped or _RULE.match(line):
            # a rule under a line makes that line a heading
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
        elif directive or stripped.startswith(".. "):
            if not directive or directive.group(1) not in _TEXT_DIRECTIVES:
                skip_deeper_than = indent
        else:
            block.append(line)
            if stripped.endswith("::"):
                yield block
                block, skip_deeper_than = [], indent
    if block:
        yield block


def _items(lines: list[str]) -> Iterator[list[str]]:
    """Yield a block's list items and labelled parameters as parts of their own."""
    part: list[str] = []
    for number, line in enumerate(lines):
        stripped = line.strip()
        deeper = number > 0 and _indent(line) > _indent(lines[number - 1])
        label = deeper and len(part) == 1 and not part[0].endswith((".", ","))
        if part and (
            _BULLET.match(stripped)
            or _LABEL.match(_spaced(stripped))
            or label
            or _indent(line) < _indent(lines[number - 1])
        ):
            yield part
            part = []
        part.append(stripped)
    if part:
        yield part


def _spaced(text: str) -> str:
    """Collapse runs of spaces: patterns would try each of a million in turn."""
    return " ".join(text.split())


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


# Folders that hold tests, vendored or generated code, or (torch) little prose for the time they take to parse.
SKIPPED = frozenset(
    [
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "testing",
        "idlelib",
        "lib2to3",
        "turtledemo",
        "__pycache__",
        "_vendor",
        "vendored",
        "ensurepip",
        "include",
        "lib",
        "share",
        "bin",
        "third_party",
        "fx_passes",
        "_pyinstaller",
        "distutils",
    ]
)
_COMMENTS = re.compile(r"(?m)(?:^[ \t]*#[^\n]*\n){2,}")
_DOCSTRING = re.compile(r"\"\"\"|'''")
_Documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(slots=True)
class SourceFile:
    """One file read: `path` is relative to its installation, `sections` hold paragraphs in file order."""

    path: str
    source: str
    sha256: str
    licence: str
    sections: list[list[str]] = field(default_factory=list)
    problem: str = ""


def default_sources(packages: tuple[str, ...]) -> Iterator[Iterator[SourceFile]]:
    """Yield the files with prose of the standard library, of pydoc_data.topics, and of each package installed."""
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
    """Return where a package is installed, without importing it; None when it is not."""
    spec = importlib.util.find_spec(package) if "." not in package else None
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) if places else None


def licence_of(package: str) -> str:
    """The licence an installed distribution states: its SPDX expression, else its classifiers, else its field."""
    try:
        meta = importlib.metadata.metadata(package)
    except importlib.metadata.PackageNotFoundError:
        return "not stated"
    stated = _field(meta, "License-Expression")
    classifiers = [c.rpartition("::")[2].strip() for c in meta.get_all("Classifier", []) if "License ::" in c]
    first_line = _field(meta, "License").strip().partition("\n")[0][:80]
    return stated or ", ".join(classifiers) or first_line or "not stated"


def _field(meta: importlib.metadata.PackageMetadata, name: str) -> str:
    return str(meta[name]) if name in meta else ""


def _read_tree(root: Path, *, source: str, licence: str, skip: frozenset[str]) -> Iterator[SourceFile]:
    for path in sorted(_python_files(root, skip)):
        file = _read_python(path, f"{source}/{path.relative_to(root).as_posix()}", source, licence)
        if file.sections or file.problem:
            yield file


def _python_files(root: Path, skip: frozenset[str]) -> Iterator[Path]:
    """Yield Python files without entering skipped folders: site-packages has many times the files of the library."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in skip]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _read_python(path: Path, name: str, source: str, licence: str) -> SourceFile:
    try:
        raw = path.read_bytes()
    except OSError as error:
        return SourceFile(name, source, "", licence, problem=f"it cannot be read: {error.strerror}")
    file = SourceFile(name, source, hashlib.sha256(raw).hexdigest(), licence)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding).replace("\r\n", "\n")
        if _DOCSTRING.search(text):
            file.sections += _docstring_sections(_parse(text))
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError) as error:
        file.problem = f"it is not Python that {sysconfig.get_python_version()} reads: {error}"
        return file
    for match in _COMMENTS.finditer(text):
        paragraphs = list(comment_paragraphs(match.group()))
        if paragraphs:
            file.sections.append(paragraphs)
    return file


def _docstring_sections(tree: ast.Module) -> Iterator[list[str]]:
    """Yield the prose of each docstring, and of long texts handed to add_docstr-like functions, in file order."""
    pending: list[ast.stmt | ast.Module] = [tree]
    while pending:
        node = pending.pop()
        text = _long_text(node)
        if isinstance(node, _Documented):
            text = ast.get_docstring(node, clean=False)
            pending += reversed(node.body)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            pending += reversed(node.body)
        if text:
            paragraphs = list(prose_paragraphs(text))
            if paragraphs:
                yield paragraphs


def _long_text(node: ast.AST) -> str | None:
    """`add_docstr(torch.abs, r\"\"\"…\"\"\")`: documentation of functions written in another language."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or "doc" not in ast.unparse(call.func):
        return None
    for argument in call.args:
        text = argument.func.value if _is_format(argument) else argument  # type: ignore[attr-defined]
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and len(text.value) > 200:
            return text.value
    return None


def _is_format(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format"


def _read_topics(path: Path) -> SourceFile:
    raw = path.read_bytes()
    file = SourceFile("pydoc_data/topics.py", "pydoc", hashlib.sha256(raw).hexdigest(), "PSF-2.0")
    assignments = [node for node in _parse(raw.decode("utf-8")).body if isinstance(node, ast.Assign)]
    for assignment in assignments:
        for _, text in sorted(ast.literal_eval(assignment.value).items()):
            paragraphs = list(prose_paragraphs(text))
            if paragraphs:
                file.sections.append(paragraphs)
    return file


def _parse(text: str) -> ast.Module:
    with warnings.catch_warnings(), _without_garbage_collection():
        warnings.simplefilter("ignore")
        return ast.parse(text)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Syntax trees hold no cycles; looking for them doubles the time of parsing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


_TYPICAL = 0.35  # of the longest: once a document has so much, the next section begins a new one
_PHRASE = 5  # words
_REPEATED = 0.20  # share of a paragraph's phrases that may stand in its document already


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
    """Return the documents that end in this file; what is too short waits for the next file of its source."""
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
    """A document that is being composed. A paragraph that mostly repeats its phrases is left out.

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
    words = file.path.removesuffix(".py").removesuffix("/__init__").replace("/", " ").replace("_", " ").split()
    return Document(
        new_id(seed, file.path, number), "\n\n".join(paragraphs), file.source, {"title": " ".join(words).capitalize()}
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
