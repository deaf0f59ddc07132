"""Models of the Hugging Face Hub, named hf:ORG/NAME: their files, in the cache of huggingface_hub."""

import difflib
import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trivium.config import preset_names, read_preset
from trivium.errors import ConfigError, DataError, MachineError
from trivium.units import shown

PREFIX = "hf:"
_DESCRIPTION = ("config.json", "generation_config.json", "tokenizer*.json", "special_tokens_map.json")
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
_SNAPSHOTS, _REPOSITORY = "snapshots", "models--"  # of the cache: models--ORG--NAME/snapshots/COMMIT
_MIN_SIMILARITY = 0.6  # of two names, by difflib


def is_hub_name(name: str) -> bool:
    """Whether a name stands for a model of the Hub."""
    return name.startswith(PREFIX)


def downloaded(name: str, *, weights: bool) -> Path:
    """Return the folder of a model of the Hub, downloaded unless the cache has it. weights: with its tensors, and not
    only with config.json and the tokenizer's files.

    Raises ConfigError for a name that the Hub does not have, MachineError without the package, a connection or the
    right to read the model, and DataError for a model without the files that are needed.
    """
    repository = name.removeprefix(PREFIX)
    if not _NAME.fullmatch(repository):
        raise ConfigError(f"'{shown(name)}' does not name a model of the Hub as hf:ORG/NAME; {nearest_hub_name(name)}")
    try:
        hub: Any = importlib.import_module("huggingface_hub")
        errors: Any = importlib.import_module("huggingface_hub.errors")
    except ImportError as error:
        raise MachineError(
            f"{name} needs huggingface_hub ({error}); install it with `pip install huggingface_hub`, or {_BY_HAND}"
        ) from None
    patterns = [*_DESCRIPTION, *(_WEIGHTS if weights else ())]
    try:
        folder = Path(hub.snapshot_download(repository, allow_patterns=patterns))
    except errors.GatedRepoError:
        raise MachineError(
            f"{name} is gated, and this machine may not read it; accept its licence at "
            f"https://huggingface.co/{repository}, and run `hf auth login`"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ConfigError(f"the Hub has no model {name} that this machine may read; {nearest_hub_name(name)}") from None
    except Exception as error:  # the exceptions of the package and of its HTTP client have no common base class
        raise MachineError(
            f"{name} is not in the cache of huggingface_hub, and the Hub cannot be reached ({type(error).__name__}); "
            f"connect this machine, or {_BY_HAND}"
        ) from None
    if not (folder / "config.json").is_file() or (weights and not any(folder.glob("*.safetensors"))):
        missing = "config.json" if not (folder / "config.json").is_file() else ".safetensors files"
        raise DataError(f"{name} has no {missing} on the Hub; name another model")
    return folder


_BY_HAND = "run `hf download ORG/NAME --local-dir DIR` where there is a network, copy DIR here, and name it instead"


def name_of(folder: Path) -> str:
    """Return the name of a folder: ORG/NAME in the cache of huggingface_hub, where folders are named by commits."""
    folder = folder.absolute()
    repository = folder.parent.parent.name
    if folder.parent.name != _SNAPSHOTS or not repository.startswith(_REPOSITORY):
        return folder.name
    return repository.removeprefix(_REPOSITORY).replace("--", "/", 1)


def hub_names() -> Mapping[str, str]:
    """Return the models of the Hub whose settings are shipped, by the names of their presets."""
    named = {name: read_preset(name).get("tokens", {}).get("tokenizer") for name in preset_names()}
    return {name: hub for name, hub in named.items() if hub is not None}


def nearest_hub_name(name: str) -> str:
    """Return a hint for a name that is not one of the Hub's: the most similar model that is known."""
    known = hub_names()
    spelt = {**{hub.rpartition("/")[2].lower(): hub for hub in known.values()}, **known}
    spelt |= {hub.lower(): hub for hub in known.values()}
    close = difflib.get_close_matches(name.lower(), spelt, n=1, cutoff=_MIN_SIMILARITY) or difflib.get_close_matches(
        name.removeprefix(PREFIX).rpartition("/")[2].lower(), spelt, n=1, cutoff=_MIN_SIMILARITY
    )
    return f"did you mean '{spelt[close[0]]}'?" if close else "`trivium models` lists those that are known"
