"""Do work in a process of its own, so that the memory it took is gone when it ends."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection

from trivium.cli.failure import told
from trivium.errors import TriviumError, error_of


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
