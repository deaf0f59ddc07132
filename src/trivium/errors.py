"""Errors that a user can act on. A message names the field's path, its value, the rule and the remedy."""

import difflib
from collections.abc import Iterable
from itertools import islice

MAX_SUGGESTIONS = 3  # for a misplaced name


class TriviumError(Exception):
    """Base of all intentional errors. The command line prints the message and exits with `exit_code`.

    on_every_rank: whether all ranks of the job raise it, because they agreed that none can continue.
    """

    exit_code = 1
    on_every_rank = False


class ConfigError(TriviumError):
    """The request is contradictory or impossible. Nothing has been started."""

    exit_code = 2


class MachineError(TriviumError):
    """This machine lacks something: memory, disk space, a port or a library."""

    exit_code = 3


class DataError(TriviumError):
    """Input data (a corpus, token shards, results) is missing, empty or damaged."""

    exit_code = 4


class CheckpointError(TriviumError):
    """A checkpoint does not fit the run, or differs from what was written."""

    exit_code = 5


class Preempted(TriviumError):
    """The job stopped on request. It resumes when the same command is run again, whether or not it saved a
    checkpoint."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: try again later


class Interrupted(Preempted):
    """The job stopped because the user pressed Ctrl-C, so no scheduler should restart it."""

    exit_code = 130


# An invalid config, machine, data or checkpoint would fail again.
NOT_WORTH_REPEATING = tuple(kind.exit_code for kind in (ConfigError, MachineError, DataError, CheckpointError))


def error_of(exit_code: object, text: str) -> TriviumError:
    """Return the error that another process ended with, from its exit code."""
    kinds: dict[object, type[TriviumError]] = {
        kind.exit_code: kind for kind in (ConfigError, MachineError, DataError, CheckpointError)
    }
    return kinds.get(exit_code, TriviumError)(text)


def nearest(name: str, known: Iterable[str], *, also: Iterable[str] = (), listed: Iterable[str] = ()) -> str:
    """Return a hint for an unknown name: the most similar known one, or all known names. also: further candidates.
    listed: the names to list in place of all, where these are too many."""
    names = sorted(known)
    close = [*islice(also, MAX_SUGGESTIONS), *difflib.get_close_matches(name, names, n=1, cutoff=0.5)]
    if close:
        return f"did you mean {' or '.join(map(repr, dict.fromkeys(close)))}?"
    return f"known: {', '.join(listed or names)}"
