"""The type of every option and argument that is a file or folder: a path of this machine's file system, not a URL."""

import re
from pathlib import Path

from trivium.errors import ConfigError
from trivium.redact import redact

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://")


def local_path(value: str | Path) -> Path:
    """Return the path. Raises ConfigError for a URL: as a path, s3://bucket/run would be a folder named `s3:`."""
    if found := _URL.match(str(value)):
        address = str(value)[found.end() :].partition("?")[0].rpartition("@")[2]
        name = address.rstrip("/").rpartition("/")[2] or "run"
        raise ConfigError(
            f"{redact(str(value))} is a URL, and this option or argument takes a path: Trivium has no reader or writer "
            f"for {found['scheme']}:// here. Give a path on a file system of this machine, such as ./{name}; mount the "
            f"storage first, or copy the files afterwards"
        )
    return Path(value)
