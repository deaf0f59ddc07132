"""Any error as the command line tells it: cause, remedy and exit code."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from trivium.checkpoint.durable import remedy_of
from trivium.errors import NOT_WORTH_REPEATING, DataError, MachineError, TriviumError


def told(error: BaseException) -> TriviumError:
    """The error itself when it was raised on purpose; MachineError, with what to do, when the system refused to read
    or write; DataError for a file that breaks off; otherwise what it was, and how to see where it came from."""
    if isinstance(error, TriviumError):
        return error
    remedy = remedy_of(error.errno) if isinstance(error, OSError) else ""
    if isinstance(error, OSError) and remedy:
        return MachineError(f"{error.filename or 'a file'}: {error.strerror}; {remedy}")
    if isinstance(error, IsADirectoryError | NotADirectoryError):
        place = error.filename2 or error.filename or "a path"  # of a file that is renamed, its new name
        what = "a folder; name a file" if isinstance(error, IsADirectoryError) else "below a file; name another path"
        return MachineError(f"{place} is {what}")
    if isinstance(error, FileNotFoundError) and error.filename and not Path(error.filename).parent.exists():
        return MachineError(f"{Path(error.filename).parent}: there is no such folder; make it, or name another")
    if isinstance(error, FileNotFoundError) and error.filename:
        place = error.filename2 or error.filename  # of a file that is renamed, its new name
        if why := no_new_files_in(Path(place).parent):
            return MachineError(f"{place} cannot be made: {why}; name a folder elsewhere")
    if isinstance(error, EOFError):
        return DataError(
            f"a file that was read breaks off ({error}); run again with --debug to see which, and make it anew"
        )
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return TriviumError(f"{text}\nrun again with --debug for the traceback")


def no_new_files_in(folder: Path) -> str:
    """Why nothing can be written in a folder; nothing where it can. It is tried: /proc has mode bits that allow it."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"{folder} accepts no new files ({error.strerror})"


def leave_exit_code(code: int) -> None:
    """Write the exit code of what would fail again into the file that TRIVIUM_EXIT_CODE names, where it does.

    Job files name one: torchrun ends with 1 whatever its ranks end with, and srun with the highest code of all, which
    is of ranks that were killed because another had ended. The first rank that fails is the cause.
    """
    path = os.environ.get("TRIVIUM_EXIT_CODE")
    if path and code in NOT_WORTH_REPEATING:
        with suppress(OSError), open(path, "x", encoding="ascii") as file:
            file.write(str(code))
