"""What a curation uses again of the kept work, and what it does anew and why; what nobody uses any more is deleted."""

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from trivium.config import differences, to_tree
from trivium.corpus.config import CurateConfig
from trivium.corpus.first_pass import measures_of
from trivium.corpus.job import raw_files
from trivium.corpus.kept import TEXTS, code, file_of_measure, folder_of_file
from trivium.provenance import write_json
from trivium.untrusted import read_json

LAST = "last.json"  # in the folder of kept work: on what the findings of the last curation depend
_NAMES = MappingProxyType({"comparison": "keys for comparison"})
_OURS = re.compile("[0-9a-f]{16}")  # how folders of raw files are named


class Reuse(NamedTuple):
    """How much of one kind of findings is kept, of how much there can be, and why it is not more.

    found, of: raw files for texts, parts of them for figures.
    """

    kind: str
    found: int
    of: int
    why: Sequence[str]


def reuse_of(kept: Path, source: Path, config: CurateConfig, *, seed: int) -> list[Reuse]:
    """What a curation of the harvest at `source` will use again: texts, then the figures of each measure.

    It is known by the names of files; what then turns out to be damaged is done anew all the same.
    """
    folders = _folders(kept, source, config)
    places = [place for folder in folders for place in folder.glob("*") if (place / TEXTS).is_file()]
    now = _depends(config, seed=seed)
    before = _last(kept) or now
    why = differences(before["extract"], now["extract"], "curate.extract.")
    if before["code"] != now["code"]:
        why = ["trivium or a package that it reads texts with has changed"]
    found = [Reuse("texts", len({place.parent for place in places}), len(folders), why)]
    for measure in measures_of(config, seed=seed):
        there = sum((place / file_of_measure(measure)).is_file() for place in places)
        old = before["measures"].get(measure.name)
        why = differences(old, dict(measure.settings)) if old else []
        found.append(Reuse(_NAMES.get(measure.name, measure.name), there, len(places), why))
    return found


def reuse_lines(found: Sequence[Reuse]) -> list[str]:
    """The same as lines for a terminal."""
    texts = found[0]
    if not texts.found:
        why = "; ".join(texts.why) if texts.why else "nothing is kept of these raw files"
        return [f"  everything is done anew: {why}"]
    again = [_text_of(one) for one in found if one.found]
    anew = [f"{one.kind} ({'; '.join(one.why) or 'not kept'})" for one in found if not one.found]
    return [
        f"  used again: {', '.join(again)}",
        f"  anew: {', '.join([*anew, 'what follows from them: verdicts, duplicates, decontamination, shards'])}",
    ]


def forget_unused(kept: Path, source: Path, config: CurateConfig, *, seed: int) -> None:
    """Delete the files of kept work that this curation did not use: texts stay once, and each measure once."""
    names = {TEXTS, *map(file_of_measure, measures_of(config, seed=seed))}
    folders = set(_folders(kept, source, config))
    kept.mkdir(parents=True, exist_ok=True)
    for folder in kept.iterdir():
        if folder.is_dir() and _OURS.fullmatch(folder.name) and folder not in folders:
            shutil.rmtree(folder, ignore_errors=True)
    for folder in folders:
        for path in folder.glob("*/*"):
            if path.name not in names:
                path.unlink(missing_ok=True)
    write_json(kept / LAST, _depends(config, seed=seed))


def kept_bytes(kept: Path) -> int:
    """The size of all kept work."""
    return sum(path.stat().st_size for path in kept.rglob("*") if path.is_file())


def _text_of(one: Reuse) -> str:
    return one.kind if one.found == one.of else f"{one.kind} ({one.found} of {one.of})"


def _folders(kept: Path, source: Path, config: CurateConfig) -> list[Path]:
    """The folder of each raw file; it need not exist."""
    return [folder_of_file(kept, path, source, config.extract) for path in raw_files(source)]


def _depends(config: CurateConfig, *, seed: int) -> dict[str, Any]:
    measures = {one.name: dict(one.settings) for one in measures_of(config, seed=seed)}
    return {"code": code(), "extract": to_tree(config.extract), "measures": measures}


def _last(kept: Path) -> Mapping[str, Any]:
    """What `forget_unused` wrote last; nothing where nothing was, or it is damaged: it only says why."""
    try:
        found = read_json(kept / LAST)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and {"code", "extract", "measures"} <= found.keys() else {}
