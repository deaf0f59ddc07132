"""Download the rows of a benchmark from the Hugging Face Hub (extra `eval`)."""

import importlib
from typing import Any

from trivium.errors import DataError, MachineError
from trivium.evaluation.tasks.definition import Definition
from trivium.evaluation.tasks.rows import Rows


def hub_rows(of: Definition) -> Rows:
    """Return the rows of a benchmark. Raises DataError if the Hub does not provide them, and MachineError without its
    library or a connection."""
    shots = None if of.hub.shots is None else _split(of, of.hub.shots)
    return Rows(
        _split(of, of.hub.asked),
        shots,
        f"{of.hub.path}, {of.hub.asked}",
        f"{of.hub.path}, {of.hub.shots or of.hub.asked}",
    )


def _split(of: Definition, split: str) -> list[dict[str, Any]]:
    datasets = _library()
    try:
        return [dict(row) for row in datasets.load_dataset(of.hub.path, of.hub.name, split=split)]
    except Exception as error:  # the library's exceptions have no common base class
        if isinstance(error, ConnectionError):
            raise MachineError(
                f"the Hub cannot be reached for task {of.name} ({type(error).__name__}); give local rows: --data DIR, "
                "or for a training training.evaluation.data"
            ) from None
        raise DataError(
            f"the Hub did not give {of.hub.path} ({split}) for task {of.name}: {type(error).__name__}: {error}; "
            "give local rows with --data DIR"
        ) from None


def _library() -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise MachineError(
            f"rows of the Hub need datasets ({error}); install it with `pip install -e '.[eval]'`, or give local rows "
            "with --data DIR"
        ) from None
