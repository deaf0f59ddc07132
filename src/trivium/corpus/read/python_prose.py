"""The default corpus: English prose of the installed Python and of packages beside it, read and never run."""

import ast
import gc
import hashlib
import importlib.metadata
import importlib.util
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

from trivium.corpus.read.prose import comment_paragraphs, prose_paragraphs

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
    """The files with prose of the standard library, of pydoc_data.topics, and of each package installed."""
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
    """Where a package is installed, without importing it; None when it is not."""
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
    """Without going into what is skipped: site-packages holds many times the files of the standard library."""
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
    """The prose of each docstring, and of long texts handed to add_docstr-like functions, in file order."""
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
