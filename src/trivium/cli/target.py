"""What a verb that asks a model was pointed at: a run, a checkpoint, or a folder of Hugging Face."""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.cli.workspace import Workspace
from trivium.errors import CheckpointError, ConfigError, DataError
from trivium.plan.layout import Layout


@dataclass(frozen=True)
class Target:
    """Checkpoints, oldest first, and the tokenizer of their ids; `run`: the run directory they are of."""

    checkpoints: tuple[Path, ...]
    tokenizer: Path
    run: Path | None = None

    @property
    def newest(self) -> Path:
        """The last checkpoint."""
        return self.checkpoints[-1]

    @property
    def documents(self) -> Path | None:
        """The curated corpus it was trained on, where that is known."""
        folder = self.run / "curated" / "documents" if self.run else None
        return folder if folder is not None and folder.is_dir() else None


@contextmanager
def opened(place: Path, named: str | Path | None) -> Iterator[Target]:
    """The target at a place; a folder of Hugging Face is imported beside, and removed afterwards.

    named: the path of its tokenizer.json, None to look for one near it. Raises DataError when nothing is there,
    CheckpointError for a checkpoint without tokenizer.
    """
    tokenizer = None if named is None else Path(named)
    if (place / "config.json").is_file() and any(place.glob("*.safetensors")):
        from trivium.interchange.bring import import_hf

        with tempfile.TemporaryDirectory(prefix="trivium-hf-") as folder:
            words = tokenizer or _existing(place / "tokenizer.json", place)
            yield Target((import_hf(place, Path(folder)),), words)
        return
    yield _native(place, tokenizer)


def _native(place: Path, tokenizer: Path | None) -> Target:
    from trivium.checkpoint.load import published

    if not place.is_dir():
        raise DataError(
            f"{place} does not exist; name a run directory, a checkpoint, or a folder of Hugging Face"
        )
    run = Workspace(place)
    root = place if run.checkpoints.is_dir() else _run_of(place)
    if (place / "manifest.json").is_file():
        found: tuple[Path, ...] = (place,)
    else:
        found = tuple(published(run.checkpoints if root == place else place))
    if not found:
        raise CheckpointError(
            f"{place} holds no checkpoint; name a run directory, a checkpoint, or a folder of Hugging Face"
        )
    return Target(found, _existing(tokenizer or tokenizer_near(place), place), root)


_WORDS = ("tokens/tokenizer.json", "tokenizer.json")


def tokenizer_near(place: Path) -> Path | None:
    """The tokenizer.json of the run that a directory is of, or lies in; None where there is none."""
    near = [p / n for p in (place, *list(place.resolve().parents)[:3]) for n in _WORDS]
    return next((p for p in near if p.is_file()), None)


def _existing(tokenizer: Path | None, place: Path) -> Path:
    if tokenizer is None or not tokenizer.is_file():
        raise CheckpointError(f"{place} has no tokenizer.json with it; name one with --set tokenizer=FILE")
    return tokenizer


def _run_of(place: Path) -> Path | None:
    """The run directory a checkpoint lies in: RUN/training/checkpoints/step-…"""
    above = place.resolve().parents
    return next((p for p in list(above)[:3] if (p / "training" / "checkpoints").is_dir()), None)


Ask = Callable[[Any], dict[str, Any]]


def answered(work: Ask, checkpoint: Path, tokenizer: Path, layout: Layout) -> dict[str, Any] | None:
    """What `work` finds with a scorer of this checkpoint, its ranks forked here or started by torchrun.

    Plain data; None on ranks of torchrun that have nothing to say.
    """
    from trivium.evaluation.answer import NativeScorer
    from trivium.parallel.launch import connected, run_ranks, torchrun_place
    from trivium.parallel.mesh import Mesh

    place = torchrun_place()
    if place is None and layout.world_size == 1:
        return work(NativeScorer.open(checkpoint, tokenizer))

    def on_rank(place: Any, out: Path) -> None:
        with connected(place):
            mesh = Mesh.connect(layout, place.rank, place.world_size, place.device)
            found = work(NativeScorer.open(checkpoint, tokenizer, mesh=mesh))
            if place.rank == 0:
                out.write_text(json.dumps(found), encoding="utf-8")  # in the order of one process

    with tempfile.TemporaryDirectory(prefix="trivium-answers-") as folder:
        out = Path(folder) / "found.json"
        if place is None:
            run_ranks(on_rank, layout.world_size, out)
        else:
            if place.world_size != layout.world_size:
                raise ConfigError(
                    f"torchrun started {place.world_size} ranks, and layout has {layout.world_size}; "
                    "set layout.tensor, layout.pipeline and layout.data so that their product is that"
                )
            on_rank(place, out)
        return json.loads(out.read_text(encoding="utf-8")) if out.is_file() else None
