"""Files of the Hugging Face Hub by name, `hf:ORG/NAME` or `hf:ORG/NAME@REVISION`.

huggingface_hub downloads them and is imported only here. Files that its cache has already need no network.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from trivium.config import about_preset, preset_names, read_preset
from trivium.errors import ConfigError, DataError, MachineError
from trivium.redact import redact

PREFIX = "hf:"
_NAME = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_ETAG_SECONDS = 10.0  # to wait for the metadata of a file
_DESCRIPTION = (
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_SNAPSHOTS, _REPOSITORY = "snapshots", "models--"  # parts of the cache's paths: models--ORG--NAME/snapshots/COMMIT
_MIN_SIMILARITY = 0.6  # similarity of two names by difflib


def is_hub_name(name: str) -> bool:
    """Return whether a text names a repository of the Hub and is no URL."""
    return name.startswith(PREFIX) and not name.startswith("hf://")


def hub_folder(name: str, files: Sequence[str], *, required: str, instead: str = "give a local folder") -> Path:
    """Return a local folder with those of `files` (names or patterns) that a model repository has.

    required: a file or pattern without which a cached copy is not used and the repository is of no use. instead: what
    errors propose in place of the Hub. Raises ConfigError for a malformed name, MachineError if huggingface_hub is
    missing or the Hub cannot be reached, and DataError if the repository or the required file does not exist or may not
    be read.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ConfigError(
            f"{name} does not name a repository of the Hub; write hf:ORG/NAME or hf:ORG/NAME@REVISION; "
            f"{nearest_hub_name(name)}"
        )
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise MachineError(
            f"{name}: the package huggingface_hub is not installed; run `pip install huggingface_hub`, or {instead}"
        ) from None
    repository, revision = found["repository"], found["revision"]
    for is_cached in (True, False):
        try:
            folder = Path(
                snapshot_download(
                    repository,
                    revision=revision,
                    allow_patterns=list(files),
                    etag_timeout=_ETAG_SECONDS,
                    local_files_only=is_cached,
                )
            )
        except (errors.GatedRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
            raise DataError(
                f"{name} cannot be read: {_reason(error)}; check the name, or log in with `hf auth login`; "
                f"{nearest_hub_name(name)}"
            ) from None
        except Exception as error:  # errors of huggingface_hub, of its HTTP client, or OSError
            if is_cached:
                continue
            raise MachineError(
                f"{name}: the Hub cannot be reached ({_reason(error)}); connect to a network, or {instead}"
            ) from None
        if any(path.is_file() for path in folder.glob(required)):
            return folder
    raise DataError(f"{name} has no {required}; give a repository that has one, or {instead}")


def downloaded(name: str, *, weights: bool) -> Path:
    """Return the folder of a model. weights: with its tensors, and not only config.json and the tokenizer's files.
    Raises as `hub_folder` does."""
    files = (*_DESCRIPTION, *(_WEIGHTS if weights else ()))
    return hub_folder(name, files, required="*.safetensors" if weights else "config.json")


def name_of(folder: Path) -> str:
    """Return the name of a folder: ORG/NAME in the cache of huggingface_hub, where folders are named by commits."""
    folder = folder.absolute()
    repository = folder.parent.parent.name
    if folder.parent.name != _SNAPSHOTS or not repository.startswith(_REPOSITORY):
        return folder.name
    return repository.removeprefix(_REPOSITORY).replace("--", "/", 1)


def hub_names() -> Mapping[str, str]:
    """Return the models of the Hub whose settings are shipped, by the names of their presets."""
    named = {
        name: about_preset(name).get("weights") or read_preset(name).get("tokens", {}).get("tokenizer")
        for name in preset_names()
    }
    return {name: hub for name, hub in named.items() if hub is not None and is_hub_name(hub)}


def nearest_hub_name(name: str) -> str:
    """Return a hint for a name that is not one of the Hub's: the most similar model that is known."""
    known = hub_names()
    spelt = {**{hub.rpartition("/")[2].lower(): hub for hub in known.values()}, **known}
    spelt |= {hub.lower(): hub for hub in known.values()}
    tried = (name.lower(), name.removeprefix(PREFIX).rpartition("/")[2].lower())
    close = [one for each in tried for one in difflib.get_close_matches(each, spelt, n=1, cutoff=_MIN_SIMILARITY)]
    return f"did you mean '{spelt[close[0]]}'?" if close else "`trivium models` lists those that are known"


def _reason(error: Exception) -> str:
    """Return the first line of an error, without secrets."""
    return redact(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
