"""Kept work: what the first pass of a curation made of each raw file, for later curations.

Each raw file has two folders of parts: its extracted texts, and its filtered documents. They are named after all that
their contents depend on. So a file that is unchanged is not read again, and if no setting of the filters changed, it is
not filtered again.
"""

import hashlib
import platform
import shutil
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

from trivium import __version__
from trivium.config import to_tree
from trivium.corpus.config import CurateConfig
from trivium.corpus.files import input_files
from trivium.corpus.harvest.raw_files import JSONL_FOLDER, WARC_FOLDER
from trivium.corpus.select.classifier import model_file
from trivium.corpus.select.evaluation_texts import EVALUATION_ITEMS, files_against
from trivium.corpus.work import COUNTS, counts_of, is_sound, parts_in, state_of
from trivium.errors import DataError
from trivium.provenance import fingerprint

# Packages that decide, beside our own code, what text is found and how it is judged.
_PACKAGES = ("ftfy", "justext", "lxml", "numpy", "pyarrow", "pycld2", "resiliparse", "trafilatura")
# Settings that change nothing in the parts of the first pass.
_LATER_SECTIONS = ("blend", "selection", "shard_bytes")
_LATER_FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "dedup": ("threshold", "shortest", "priority", "quality"),
        "decontamination": ("common", "margin", "piece", "pieces"),
    }
)
Folders = list[tuple[Path, Path]]


def raw_files(source: Path) -> list[Path]:
    """Return the raw files of a harvest, in order. DataError if it has none."""
    folders = [source / name for name in (WARC_FOLDER, JSONL_FOLDER) if (source / name).is_dir()]
    if not folders:
        raise DataError(
            f"{source} is no harvest ({WARC_FOLDER}/ and {JSONL_FOLDER}/ are missing); run `trivium corpus harvest`"
        )
    filled = [folder for folder in folders if any(folder.iterdir())]
    if not filled:
        raise DataError(f"{source} holds no raw file in {WARC_FOLDER}/ or {JSONL_FOLDER}/; harvest again")
    return [path for folder in filled for path in input_files(folder)]


def files_beside(config: CurateConfig) -> list[Path]:
    """Return the files named in a config that documents are judged by: a model, if it exists, and evaluation texts."""
    model = config.classifier.model if "classifier" in config.filters else None
    found = [file for file in ([model_file(Path(model))] if model else []) if file.is_file()]
    return found + files_against(config.decontamination)


def kept_folders(kept: Path, source: Path, config: CurateConfig, *, seed: int) -> Folders:
    """Return, for each raw file, the folders of its extracted texts and of its filtered documents."""
    tree = to_tree(config)
    extracting = [tree["extract"], config.document_seconds, code_version()]
    filtering = {name: value for name, value in tree.items() if name not in _LATER_SECTIONS}
    for section, fields in _LATER_FIELDS.items():
        filtering[section] = {name: value for name, value in tree[section].items() if name not in fields}
    beside = [path for path in (*files_beside(config), source / EVALUATION_ITEMS) if path.is_file()]
    depends = [filtering, seed, list(map(state_of, beside))]
    found = []
    for path in raw_files(source):
        texts = fingerprint([path.relative_to(source).as_posix(), state_of(path), extracting])
        found.append((kept / texts, kept / fingerprint([texts, depends])))
    return found


def reuse_lines(kept: Path, source: Path, config: CurateConfig, *, seed: int) -> list[str]:
    """Return lines for a terminal: how many raw files need not be read, or not be filtered again."""
    folders = kept_folders(kept, source, config, seed=seed)
    texts, filtered = (sum(map(_is_whole, some)) for some in zip(*folders, strict=True))
    return [
        f"  used again: the extracted texts of {texts} of {len(folders)} raw files, and the filtered documents of "
        f"{filtered}; the rest is done again"
    ]


def forget_unused(kept: Path, source: Path, config: CurateConfig, *, seed: int) -> None:
    """Delete kept work that this curation did not use, and any that depends on the speed of the machine."""
    used = set()
    for folder in (folder for both in kept_folders(kept, source, config, seed=seed) for folder in both):
        if not any(counts_of(part)["timed_out"] for part in parts_in(folder)):
            used.add(folder)
    for folder in kept.iterdir():
        if folder not in used and any((part / COUNTS).is_file() for part in parts_in(folder)):
            shutil.rmtree(folder, ignore_errors=True)


def kept_bytes(kept: Path) -> int:
    """Return the size of all kept work."""
    return sum(path.stat().st_size for path in kept.rglob("*") if path.is_file())


def _is_whole(folder: Path) -> bool:
    parts = parts_in(folder)
    return bool(parts) and is_sound(parts[-1]) and bool(counts_of(parts[-1])["last"])


@lru_cache(maxsize=1)
def code_version() -> str:
    """Return a hash of all code that kept work depends on: our own sources, and the versions of other packages."""
    sources = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(Path(__file__).parent.rglob("*.py"))]
    return fingerprint([__version__, platform.python_version(), sources, list(map(_version, _PACKAGES))])


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
