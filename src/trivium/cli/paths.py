"""The type of every option and argument that is a file or folder: a path of this machine's file system, not a URL."""

import base64
import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from trivium.errors import ConfigError
from trivium.redact import redact

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://")


def local_path(value: str | Path) -> Path:
    """Return the path. Raises ConfigError for an empty one, which would be this folder, and for a URL: as a path,
    s3://bucket/run would be a folder named `s3:`."""
    _refuse_empty(str(value), "a path")
    if found := _URL.match(str(value)):
        address = str(value)[found.end() :].partition("?")[0].rpartition("@")[2]
        name = address.rstrip("/").rpartition("/")[2] or "run"
        raise ConfigError(
            f"{redact(str(value))} is a URL, and this option or argument takes a path: Trivium has no reader or writer "
            f"for {found['scheme']}:// here. Give a path on a file system of this machine, such as ./{name}; "
            f"training.store=URL saves checkpoints at one, and `trivium data push` and `pull` exchange folders with it"
        )
    return Path(value)


def _refuse_empty(value: str, what: str) -> None:
    if not value:
        raise ConfigError(f"{what} is empty; give a file or folder, and . for this folder")


_BY_NAME = ("ftp", "sftp", "ssh", "smb")  # fsspec's packages for these take `username` and `password`


def path_or_url(named: Path | str, option: str) -> Path | str:
    """A path, or a URL without secrets: its user name and password are handed to fsspec, here and in workers, as by its
    environment variable. Raises ConfigError where fsspec has no place for them."""
    _refuse_empty(str(named), option)
    if isinstance(named, Path) or "://" not in named:
        return Path(named)
    parts = urlsplit(named)
    user, at, host = parts.netloc.rpartition("@")
    url = parts._replace(netloc=host).geturl()
    settings = _settings(parts.scheme, *user.partition(":")[::2]) if at else None
    if redact(url) != url or (at and settings is None):
        raise ConfigError(
            f"{option} {redact(named)}: the address holds a secret, which would be stored with every output; leave it "
            f"out, and give it to fsspec's package for {parts.scheme}: in the environment (AWS_SECRET_ACCESS_KEY for "
            f"s3) or in ~/.config/fsspec; or download the files"
        )
    if settings is not None:
        _configure(parts.scheme, settings)
    return url


def _settings(scheme: str, user: str, password: str) -> dict[str, Any] | None:
    user, password = unquote(user), unquote(password)
    if scheme in ("http", "https"):
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        return {"client_kwargs": {"headers": {"Authorization": f"Basic {token}"}}}
    return {"username": user, "password": password} if scheme in _BY_NAME else None


def _configure(scheme: str, settings: dict[str, Any]) -> None:
    """Configure this process, which may have read the environment already, and processes that it starts."""
    import fsspec.config

    os.environ[f"FSSPEC_{scheme.upper()}"] = json.dumps(settings)
    fsspec.config.conf.setdefault(scheme, {}).update(settings)
