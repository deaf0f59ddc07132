"""The run directory: which station writes where, so that each verb finds what it reads."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.checkpoint.format import published
from trivium.errors import DataError
from trivium.provenance import write_json
from trivium.untrusted import read_json


@dataclass(frozen=True)
class Workspace:
    """The directory that --out names."""

    root: Path

    def folder(self, name: str) -> Path:
        """The folder of a station."""
        return self.root / name

    @property
    def config(self) -> Path:
        """The resolved config of the last verb that ran here; later verbs start from it."""
        return self.root / "config.json"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints of training."""
        return self.root / "training" / "checkpoints"

    @property
    def imported(self) -> Path:
        """The folder of imported weights, with which a training of this run begins."""
        return self.root / "imported"

    @property
    def saved(self) -> Path:
        """The folder of the run's checkpoints: those of its training, or of the imported one if there are none."""
        return self.imported if not published(self.checkpoints) and published(self.imported) else self.checkpoints

    def seconds(self) -> dict[str, float]:
        """The seconds of the last run of each stage; empty if none has run."""
        path = self.root / "seconds.json"
        found = read_result(path) if path.is_file() else {}
        return {str(stage): float(seconds) for stage, seconds in found.items()}

    def record_seconds(self, stage: str, seconds: float) -> None:
        """Remember how long a stage took; the others keep their figures."""
        write_json(self.root / "seconds.json", self.seconds() | {stage: round(seconds, 2)})


def read_result(path: Path) -> dict[str, Any]:
    """A station's JSON result; DataError when it is missing or damaged."""
    try:
        found = read_json(path)
    except FileNotFoundError:
        raise DataError(f"{path} is missing; run the stage that writes it again") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as JSON ({error}); run the stage that writes it again") from None
    if not isinstance(found, dict):
        raise DataError(f"{path} holds a {type(found).__name__}, not an object; run its stage again")
    return found
