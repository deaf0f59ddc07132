"""Files of the Hugging Face Hub by name, `hf:ORG/NAME` or `hf:ORG/NAME@REVISION`.

huggingface_hub downloads them and is imported only here. Files that its cache has already need no network.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from trivium.errors import ConfigError, DataError, MachineError
from trivium.redact import redact

PREFIX = "hf:"
_NAME = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_ETAG_SECONDS = 10.0  # to wait for the metadata of a file


def is_hub_name(name: str) -> bool:
    """Return whether a text names a repository of the Hub and is no URL."""
    return name.startswith(PREFIX) and not name.startswith("hf://")


def hub_folder(name: str, files: Sequence[str], *, required: str) -> Path:
    """Return a local folder with those of `files` (names or patterns) that a model repository has.

    required: a file without which the cached copy is not used and the repository is of no use. Raises ConfigError for
    a malformed name, MachineError if huggingface_hub is missing or the Hub cannot be reached, and DataError if the
    repository or the required file does not exist or may not be read.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ConfigError(f"{name} does not name a repository of the Hub; write hf:ORG/NAME or hf:ORG/NAME@REVISION")
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise MachineError(
            f"{name}: the package huggingface_hub is not installed; run `pip install huggingface_hub`, or give a "
            f"local folder"
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
            remedy = "check the name, or log in with `hf auth login`"
            raise DataError(f"{name} cannot be read: {_reason(error)}; {remedy}") from None
        except Exception as error:  # of huggingface_hub, of its HTTP client, or OSError
            if is_cached:
                continue
            raise MachineError(
                f"{name}: the Hub cannot be reached ({_reason(error)}); connect to a network, or give a local folder"
            ) from None
        if (folder / required).is_file():
            return folder
    raise DataError(f"{name} has no {required}; give a repository that has one, or a local folder")


def _reason(error: Exception) -> str:
    """Return the first line of an error, without secrets."""
    return redact(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
