"""Data sets in Arrow files, as the library `datasets` saves them. They are not read; that library writes Parquet.

Beside the data, their folders have settings in JSON, and Arrow files of cached results.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TypeVar

from trivium.errors import DataError
from trivium.units import shown

ARROW = ".arrow"
_STATE = "state.json"
_SPLITS = "dataset_dict.json"
_SETTINGS = (_SPLITS, "dataset_info.json", _STATE)
F = TypeVar("F", Path, str, Path | str)


def without_arrow(files: Sequence[F]) -> list[F]:
    """Return the files or URLs that are neither Arrow files nor settings of their data sets.

    Raises DataError, with the command that writes Parquet, if there are Arrow files and nothing else.
    """
    arrow = [file for file in files if _is_arrow(file)]
    places = {place for file in arrow for place in PurePath(file).parents[:2]}
    rest = [
        file
        for file in files
        if not (_is_arrow(file) or (PurePath(file).name in _SETTINGS and PurePath(file).parent in places))
    ]
    if arrow and not rest:
        raise DataError(_refusal(arrow))
    return rest


def _is_arrow(file: Path | str) -> bool:
    return PurePath(file).suffix.lower() == ARROW


def _refusal(files: Sequence[Path | str]) -> str:
    """files: local ones, or URLs, which are taken for a saved data set. A folder may hold one for each split."""
    places = [file if isinstance(file, str) else str(file.absolute()) for file in files]
    folders = {place.rpartition("/")[0] for place in places}
    first, source = places[0], places[0].rpartition("/")[0]
    written, opened = f"{source}.parquet", "datasets.load_from_disk(sys.argv[1]).to_parquet(sys.argv[2])"
    if not isinstance(files[0], str):
        if not (files[0].parent / _STATE).exists():
            source, written = (first, f"{first}.parquet") if len(files) == 1 else (f"{source}/*{ARROW}", written)
            opened = "datasets.load_dataset('arrow', data_files=sys.argv[1])['train'].to_parquet(sys.argv[2])"
        elif len(folders) > 1 and (files[0].parents[1] / _SPLITS).exists():
            source = source.rpartition("/")[0]
            written = f"{source}-parquet"
            opened = (
                "os.mkdir(sys.argv[2]); [split.to_parquet(f'{sys.argv[2]}/{name}.parquet') "
                "for name, split in datasets.load_from_disk(sys.argv[1]).items()]"
            )
    command = f'python -c "import os, sys, datasets; {opened}" {shlex.quote(source)} {shlex.quote(written)}'
    others = f" (as are {len(files) - 1:,} more)" if len(files) > 1 else ""
    return (
        f"{shown(first)} is an Arrow file{others}, which is not read; write its data set as Parquet with `{command}`, "
        f"and give {shown(written)} instead"
    )
