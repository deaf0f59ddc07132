"""Errors a user can act on: the field's path, its value, the law it breaks, the remedy."""

import difflib
from collections.abc import Iterable
from itertools import islice

MOST_OTHERS = 3  # of the names that a misplaced one may stand for


class TriviumError(Exception):
    """Base of everything raised on purpose; the command line prints it as one line and exits with `exit_code`.

    on_every_rank: whether all ranks of the job raise it, because they met and none of them may go on.
    """

    exit_code = 1
    on_every_rank = False


class ConfigError(TriviumError):
    """The request is contradictory or impossible; nothing has started yet."""

    exit_code = 2


class MachineError(TriviumError):
    """This machine lacks something the work needs (memory, disk, ports, a library)."""

    exit_code = 3


class DataError(TriviumError):
    """What was given as data (a corpus, token shards, results) is missing, empty or damaged."""

    exit_code = 4


class CheckpointError(TriviumError):
    """What is on disk is not what the run needs, or not what was written."""

    exit_code = 5


class Preempted(TriviumError):
    """The job was asked to end, and did: saved or not, it goes on when the same command is run again."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: try again later


class Interrupted(Preempted):
    """The same, by a user's Ctrl-C: no scheduler is to start it again."""

    exit_code = 130


# Of a config, machine, data or checkpoint that is wrong: it would be wrong again.
NOT_WORTH_REPEATING = tuple(
    kind.exit_code for kind in (ConfigError, MachineError, DataError, CheckpointError)
)


def error_of(exit_code: object, text: str) -> TriviumError:
    """The error that another process ended with, told by its exit code."""
    kinds: dict[object, type[TriviumError]] = {
        kind.exit_code: kind for kind in (ConfigError, MachineError, DataError, CheckpointError)
    }
    return kinds.get(exit_code, TriviumError)(text)


def nearest(name: str, known: Iterable[str], *, also: Iterable[str] = ()) -> str:
    """A hint for a misspelt name: the closest known one, or all of them. also: others that it may stand for."""
    names = sorted(known)
    close = [*islice(also, MOST_OTHERS), *difflib.get_close_matches(name, names, n=1, cutoff=0.5)]
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"known: {', '.join(names)}"
