"""Any error as the command line tells it: cause, remedy and exit code."""

import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

from trivium.checkpoint.durable import remedy_of
from trivium.errors import NOT_WORTH_REPEATING, DataError, MachineError, TriviumError, error_of
from trivium.units import plain


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
    """Return why no file can be written in a folder, or an empty text. It is tried, because mode bits can mislead."""
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


ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Raise SystemExit(128 + signal) on a signal that ends this process, so that it first deletes a copied model or
    ends a training. Forked processes end by the signal itself and do not clean up for this one."""
    own = os.getpid()

    def end(number: int, _: FrameType | None) -> None:
        if os.getpid() != own:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        for other in ENDING:  # one request may come several times
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    heard = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]  # nohup ignores one
    for number in heard:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)


def ended_by_signals() -> None:
    """Let signals end this forked process at once: it cleans up nothing, and no handler would run in a collective."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def ignore_signals() -> None:
    """Ignore the signals that end a process: the process that forked this one receives them too."""
    for number in (*ENDING, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def ended_by_request(send: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Send SIGTERM on at the first signal that ends this process, so that others finish their work. This process then
    ends as that signal says; a second signal ends it at once."""
    asked: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        asked.append(number)
        if len(asked) > 1:
            raise SystemExit(128 + number)
        send(signal.SIGTERM)

    heard = [n for n in (*ENDING, signal.SIGINT) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked and asked[0] != signal.SIGINT:  # Ctrl-C is the usual way to end a server
        raise SystemExit(128 + asked[0])


def apart(work: Callable[[], None]) -> None:
    """Run `work` in a forked process; an error in it is raised here, of the same kind and with the same text.

    Ranks are forked from the process that trains. What earlier stages left in its memory would be in every rank, and
    an accelerator that one of them used would be lost to all.
    """
    ours, theirs = get_context("fork").Pipe(duplex=False)
    sys.stdout.flush()
    sys.stderr.flush()
    process = get_context("fork").Process(target=_run, args=(work, theirs))
    process.start()
    theirs.close()
    try:
        said = json.loads(ours.recv_bytes())
    except EOFError:
        process.join()
        raise TriviumError(f"the process of this stage ended with {process.exitcode} before it was done") from None
    process.join()
    if said["code"] is not None:
        raise error_of(said["code"], said["text"])


def _run(work: Callable[[], None], pipe: Connection) -> None:
    said: dict[str, object] = {"code": None, "text": ""}
    try:
        work()
    except KeyboardInterrupt:
        os._exit(1)  # the process that waits here was interrupted too, and says so
    except Exception as error:
        if "--debug" in sys.argv and not isinstance(error, TriviumError):
            traceback.print_exc()
        failure = told(error)
        said = {"code": failure.exit_code, "text": str(failure)}
    pipe.send_bytes(json.dumps(said).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


Commands = Callable[[str], Iterator[tuple[str, Any]]]
_MAX_PROPOSED = 3  # options or fields that an unknown option may mean
_MIN_OPTION_SIMILARITY = 0.75  # ratio of difflib


@contextmanager
def usage_errors_told(commands: Commands) -> Iterator[None]:
    """Complete the error of usage that is raised inside. commands: yields the name and the command of all that there
    are, the nearest to one of them first."""
    try:
        yield
    except Exception as error:  # typer keeps the class of these errors private
        if getattr(error, "message", None) and hasattr(error, "format_message"):
            _complete(error, commands)
        raise


def _complete(error: Any, commands: Commands) -> None:
    error.message = plain(error.message).replace("Value error, ", "")
    if not hasattr(error, "possibilities"):
        return
    meant = " or ".join(list(_meant(error))[:_MAX_PROPOSED])
    command = getattr(getattr(error, "ctx", None), "command_path", "trivium")
    if others := _others_with(error, command, commands)[:_MAX_PROPOSED]:
        remedy = f"{', '.join(others)} {'has' if len(others) == 1 else 'have'} it; `{command} --help` lists its own"
    else:
        remedy = f"did you mean {meant}?" if meant else f"`{command} --help` lists those that there are"
    error.message, error.possibilities = plain(f"{error.option_name}: no such option; {remedy}"), None


def _others_with(error: Any, asked: str, commands: Commands) -> list[str]:
    """Return the commands other than `asked` whose help lists this very option."""
    return [
        f"`{name}`"
        for name, command in commands(asked)
        if name != asked
        and any(
            error.option_name in one.opts and not one.hidden
            for one in command.get_params(error.ctx)
            if one.opts[0][:1] == "-"
        )
    ]


def _meant(error: Any) -> Iterator[str]:
    """Yield what an unknown option may mean, as it is typed, the likeliest first: options of the command, and fields of
    the config that --set takes there."""
    from trivium.cli.settings import SETS, is_shown, options_of, root_of
    from trivium.config import field_paths

    command = error.ctx.command
    settings = options_of(command)
    similar = get_close_matches(error.option_name, error.possibilities or (), cutoff=_MIN_OPTION_SIMILARITY)
    paths = {setting.path: option for option, setting in settings.items()}
    yield from (option for option in similar if option not in settings)
    fields = [settings[option].path for option in similar if option in settings]
    if any(SETS in param.opts for param in command.params):
        root = root_of(command)
        fields = [*root.meant(error.option_name, field_paths(root)), *fields]
    for path in dict.fromkeys(path for path in fields if is_shown(command, path)):
        yield f"{paths[path]} ({path})" if path in paths else f"{SETS} {path}=VALUE"
