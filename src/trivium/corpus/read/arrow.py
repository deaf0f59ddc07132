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
_SETTINGS = ("dataset_dict.json", "dataset_info.json", _STATE)
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
        raise DataError(_refusal(arrow[0]))
    return rest


def _is_arrow(file: Path | str) -> bool:
    return PurePath(file).suffix.lower() == ARROW


def _refusal(file: Path | str) -> str:
    is_saved = isinstance(file, str) or (file.parent / _STATE).exists()
    where = str(file if isinstance(file, str) else file.absolute())
    source = where.rpartition("/")[0] if is_saved else where
    opened = "load_from_disk(sys.argv[1])" if is_saved else "load_dataset('arrow', data_files=sys.argv[1])['train']"
    command = ["python", "-c", f'"import sys, datasets; datasets.{opened}.to_parquet(sys.argv[2])"']
    command += map(shlex.quote, (source, f"{source}.parquet"))
    return (
        f"{shown(where)} is an Arrow file, which is not read; write its data set as Parquet with "
        f"`{' '.join(command)}`, and give that file instead"
    )
