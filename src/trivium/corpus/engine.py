"""The interface of engines, and the simplest one, which runs one task after the other in this process."""

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from trivium.errors import TriviumError, error_of

Result = dict[str, Any]
Task = Callable[[str], Result]  # pickled by its name: a function of a module, or a partial of one
Done = Callable[[int], None]


class Engine(Protocol):
    """Runs a task on every item.

    A task is a pure function of its item and of files that do not change meanwhile. So what it returns and writes
    depends on neither the order nor the place.
    """

    def map(self, task: Task, items: Sequence[str], done: Done, *, light: bool = False) -> list[Result]:
        """Return the result of every item, in the items' order. `done` is called with the number of finished items.

        light: the task spends its time in kernels, which release the GIL, so a thread is enough.
        """


class Here:
    """The engine of one process."""

    def map(self, task: Task, items: Sequence[str], done: Done, *, light: bool = False) -> list[Result]:
        """Run the tasks; see Engine.map."""
        results = []
        for item in items:
            results.append(task(item))
            done(len(results))
        return results


def end_with(parent: int) -> None:
    """End this process soon after its parent has ended, also if the parent was killed."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def packed_outcome(task: Task, item: str) -> str:
    """Return the result of a task, or its error, as text for another process."""
    try:
        return json.dumps({"result": task(item)})
    except TriviumError as error:
        return json.dumps({"error": str(error), "exit_code": error.exit_code})
    except OSError as error:  # the error number determines the remedy
        arguments = [error.errno, error.strerror, error.filename]
        return json.dumps({"os_error": arguments if error.errno else [str(error)]}, default=str)


def unpacked(outcomes: Iterable[tuple[int, str]], done: Done) -> list[Result]:
    """Return results in order from outcomes in any order. The first error that arrives is raised again."""
    results: dict[int, Result] = {}
    for number, text in outcomes:
        outcome = json.loads(text)
        if "error" in outcome:
            raise error_of(outcome["exit_code"], outcome["error"])
        if "os_error" in outcome:
            raise OSError(*outcome["os_error"])
        results[number] = outcome["result"]
        done(len(results))
    return [results[number] for number in sorted(results)]
