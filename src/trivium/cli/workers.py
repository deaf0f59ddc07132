"""Where the corpus' work runs: the engine that --engine and --workers ask for."""

import os
from typing import TYPE_CHECKING

from trivium.cli.tokenize import worker_count
from trivium.errors import ConfigError, nearest

if TYPE_CHECKING:
    from trivium.corpus.engine import Engine

ENGINES = ("here", "native", "ray")


def chosen_engine(name: str, workers: int | None) -> "Engine | None":
    """The engine of this name; None for this process."""
    if name not in ENGINES:
        raise ConfigError(f"--engine {name}: there is no such engine; {nearest(name, ENGINES)}")
    count = worker_count(workers)
    if name == "here":
        if workers is not None and workers > 1:
            raise ConfigError(
                f"--workers {workers}: under --engine here this process does all the work; give --engine native or "
                f"ray, or leave it out"
            )
        return None
    for variable, value in (("DAFT_ANALYTICS_ENABLED", "0"), ("DAFT_PROGRESS_BAR", "0")):
        os.environ.setdefault(variable, value)  # before Daft is imported
    from trivium.corpus.daft_engine import Daft

    return Daft(name, workers=count, address=os.environ.get("RAY_ADDRESS") or None)
