"""Find checkpoints and tokenizer of a run, a checkpoint or a Hugging Face folder."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trivium.checkpoint.format import published, refuse_at_url
from trivium.checkpoint.load import Checkpoint
from trivium.errors import CheckpointError, DataError
from trivium.families.common.hf_config import is_adapter_folder, is_model_folder
from trivium.interchange.bring import import_hf, tokenizer_files
from trivium.interchange.peft import base_named_by, with_adapters
from trivium.stores.remote import Location
from trivium.tokens.manifest import tokens_of_training
from trivium.tokens.tokenizer import tokenizer_file

_OF_A_RUN, _IMPORTED = Path("training", "checkpoints"), "imported"


@dataclass(frozen=True)
class Target:
    """Checkpoints, oldest first, and their tokenizer. run: the run directory, if they are part of one."""

    checkpoints: tuple[Path, ...]
    tokenizer: Path
    run: Path | None = None

    @property
    def newest(self) -> Path:
        """The last checkpoint."""
        return self.checkpoints[-1]

    @property
    def documents(self) -> Path | None:
        """The curated corpus of the training, or None if it is unknown."""
        folder = self.run / "curated" / "documents" if self.run else None
        return folder if folder is not None and folder.is_dir() else None


@contextmanager
def opened(
    place: str | Path, tokenizer: str | Path | None = None, adapter: str | Path | None = None
) -> Iterator[Target]:
    """Open a target. A Hugging Face folder is imported into a temporary folder, which is removed afterwards; so is a
    model with the adapters of a PEFT folder.

    tokenizer: tokenizer.json or its folder; None searches near the target. adapter: a PEFT folder for the target. The
    target may be that folder itself, which then names its base. Raises DataError if nothing is there, and
    CheckpointError for a checkpoint without tokenizer and for adapters of another base.
    """
    place, words = Path(place), None if tokenizer is None else tokenizer_file(str(tokenizer))
    place, adapter = base_and_adapter(place, None if adapter is None else Path(adapter))
    if adapter is not None:
        with opened(place, words) as base, tempfile.TemporaryDirectory(prefix="trivium-peft-") as folder:
            adapted = with_adapters(Checkpoint.open(base.newest), adapter, Path(folder))
            yield Target((adapted,), base.tokenizer)
        return
    if is_model_folder(place):
        with tempfile.TemporaryDirectory(prefix="trivium-hf-") as folder:
            words = words or _existing(place / "tokenizer.json", place)
            yield Target((import_hf(place, Path(folder)),), words)
        return
    yield _native(place, words)


def import_adapted(base: Path, adapter: Path, root: Path) -> Path:
    """Write a base with the adapters of a PEFT folder as a checkpoint under `root`, with the files of the base's
    tokenizer beside it, and return its directory."""
    with opened(base) as target:
        path = with_adapters(Checkpoint.open(target.newest), adapter, root)
        for name in tokenizer_files(target.tokenizer.parent):
            shutil.copyfile(target.tokenizer.parent / name, root / name)
    return path


def carry_tokenizer(source: Location, root: Path) -> None:
    """Copy the tokenizer of the checkpoint `source`, with the files beside it, to a checkpoint that was made of it in
    `root`, unless both are in one run. A checkpoint in a store has none beside it."""
    words = tokenizer_near(source) if isinstance(source, Path) else None
    if words is not None and tokenizer_near(root) != words:
        for name in tokenizer_files(words.parent):
            shutil.copyfile(words.parent / name, root / name)


def base_and_adapter(place: Path, adapter: Path | None) -> tuple[Path, Path | None]:
    """Return the model and the PEFT folder that a user means, who may have named the folder alone."""
    return (_base_of(place), place) if adapter is None and is_adapter_folder(place) else (place, adapter)


def _base_of(folder: Path) -> Path:
    """Return the base that a PEFT folder names, if it is on this machine."""
    named = base_named_by(folder)
    for place in (Path(named), folder / named):
        if place.is_dir():
            return place
    raise DataError(
        f"{folder} is an adapter of {named!r}, which is no folder here; name the base as MODEL (hf:{named} takes it "
        f"from the Hub), and give --adapter {folder}"
    )


def _native(place: Path, tokenizer: Path | None) -> Target:
    if not place.is_dir():
        what = "is a file" if place.exists() else "does not exist"
        raise DataError(f"{place} {what}; name a run directory, a checkpoint, or a folder of Hugging Face")
    if (place / "manifest.json").is_file():
        found: tuple[Path, ...] = (place,)
    else:
        refuse_at_url(place)
        folders = (place / _OF_A_RUN, place / _IMPORTED, place)
        found = next((tuple(checkpoints) for each in folders if (checkpoints := published(each))), ())
    if not found:
        raise CheckpointError(
            f"{place} holds no checkpoint; name a run directory, a checkpoint, or a folder of Hugging Face"
        )
    words = _existing(tokenizer or tokenizer_near(place) or tokenizer_near(found[-1]), place)
    return Target(found, words, run_of(place))


def tokenizer_near(place: Path) -> Path | None:
    """Return the tokenizer.json of the training's tokens, or the one of the run that contains `place`; None if there
    is none."""
    for folder in (place, *list(place.resolve().parents)[:3]):  # the nearest folder takes precedence
        trained = tokens_of_training(folder)
        places = [*([trained] if trained else []), folder / "tokens", folder]
        for found in (p / "tokenizer.json" for p in places):
            if found.is_file():
                return found
    return None


def _existing(tokenizer: Path | None, place: Path) -> Path:
    if tokenizer is None or not tokenizer.is_file():
        raise CheckpointError(
            f"{place} has no tokenizer.json with it, in its run's tokens, or beside it; copy the tokenizer's "
            "files there, or name it (evaluate: --set tokenizer=FILE, lm_eval: tokenizer=FILE)"
        )
    return tokenizer


def run_of(place: Location) -> Path | None:
    """Return the run directory that is or contains `place` (RUN/training/checkpoints/step-…), or None."""
    if not isinstance(place, Path):
        return None
    above = list(place.resolve().parents)[:3]
    return next((p for p in (place, *above) if (p / _OF_A_RUN).is_dir() or _begins_with_imported(p)), None)


def _begins_with_imported(place: Path) -> bool:
    """Whether a directory is a run that has imported weights and no training yet."""
    return (place / "config.json").is_file() and bool(published(place / _IMPORTED))
