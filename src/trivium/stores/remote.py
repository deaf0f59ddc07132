"""An object or a folder at a URL, named as in pathlib. Objects are written whole and at once; nothing is renamed."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.errors import DataError
from trivium.redact import redact
from trivium.stores.requests import Truncated, file_system, patiently, status_of
from trivium.units import format_bytes
from trivium.untrusted import DOCUMENT_BYTES, read_bytes

PRECONDITION_FAILED = 412  # the HTTP status of a conditional write to a name that is taken


@dataclass(frozen=True, order=True)
class Remote:
    """The object or folder at a URL. Every method raises MachineError if the store does not answer, and DataError if it
    refuses."""

    url: str

    def __truediv__(self, name: str) -> "Remote":
        return Remote(f"{self.url.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return redact(self.url)

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> "Remote":
        """The folder that holds it."""
        return Remote(self.url.rstrip("/").rpartition("/")[0])

    def size(self) -> int | None:
        """Return the bytes of an object; None if there is none."""
        system, path = file_system(self.url)

        def found() -> int | None:
            system.invalidate_cache()
            try:
                info = system.info(path)
            except FileNotFoundError:
                return None
            return None if info["type"] == "directory" else int(info["size"])

        return patiently(self.url, found)

    def is_file(self) -> bool:
        """Whether there is an object."""
        return self.size() is not None

    def contains(self, data: bytes) -> bool:
        """Whether there is an object with this content. One of another size is not read."""
        return self.size() == len(data) and self.read() == data

    def sizes(self) -> dict[str, int]:
        """Return the bytes of the objects in a folder by name; empty if there are none."""
        return {name: int(info["size"]) for name, info in self._listed() if info["type"] != "directory"}

    def folders(self) -> list["Remote"]:
        """Return the folders in a folder, by name."""
        return sorted(self / name for name, info in self._listed() if info["type"] == "directory")

    def _listed(self) -> Iterator[tuple[str, Any]]:
        system, path = file_system(self.url)

        def found() -> list[Any]:
            system.invalidate_cache()
            try:
                return list(system.ls(path, detail=True))
            except FileNotFoundError:
                return []

        own = path.strip("/")
        for info in patiently(self.url, found):
            if (name := info["name"].strip("/")) != own:  # some stores keep an empty object for a folder
                yield name.rpartition("/")[2], info

    def read(self, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes [start, stop) of an object. Raises FileNotFoundError if there is none."""
        system, path = file_system(self.url)

        def found() -> bytes | None:
            try:
                data = bytes(system.cat_file(path) if stop is None else system.cat_file(path, start=start, end=stop))
            except FileNotFoundError:
                return None
            if stop is not None and len(data) != stop - start:
                raise Truncated(f"it sent {len(data)} of the {stop - start} bytes from byte {start}")
            return data

        data = patiently(self.url, found)
        if data is None:
            raise FileNotFoundError(f"{self} does not exist")
        return data[start:] if stop is None else data

    def write(self, data: bytes) -> None:
        """Write an object, or replace it."""
        system, path = file_system(self.url)
        patiently(self.url, lambda: system.pipe_file(path, data), "written")

    def create(self, data: bytes) -> bool:
        """Write a new object; return False if there is one already. Of several writers at once only one gets True,
        where the store has conditional writes. An attempt whose answer was lost may have written it, so that the
        content tells."""
        system, path = file_system(self.url)

        def written() -> bool:
            try:
                system.pipe_file(path, data, mode="create")
            except FileExistsError:
                return bool(system.cat_file(path) == data)
            except (NotImplementedError, ValueError):  # of a store without conditional writes
                if system.exists(path):
                    return bool(system.cat_file(path) == data)
                system.pipe_file(path, data)
            except OSError as error:
                if status_of(error) != PRECONDITION_FAILED:
                    raise
                return bool(system.cat_file(path) == data)
            return True

        return patiently(self.url, written, "written")

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects of a folder; those that are gone are ignored."""
        system, path = file_system(self.url)

        def gone(name: str) -> None:
            try:
                system.rm_file(f"{path.rstrip('/')}/{name}")
            except FileNotFoundError:
                return

        for name in names:
            patiently(f"{self.url}/{name}", lambda name=name: gone(name), "deleted")


def is_object_store(url: str) -> bool:
    """Whether a URL names a store that other processes and machines can reach."""
    return url.partition("://")[0] not in ("file", "local", "memory")


Location = Path | Remote


def location_of(named: str | Path) -> Location:
    """Return the place that a path or a URL names."""
    return Remote(named) if isinstance(named, str) and "://" in named else Path(named)


def contents(place: Location, at_most: int = DOCUMENT_BYTES) -> bytes:
    """Return the content of a file or an object. Raises FileNotFoundError, and OSError or DataError if it is too
    large or cannot be read."""
    if isinstance(place, Path):
        return read_bytes(place, at_most)
    size = place.size()
    if size is not None and size > at_most:
        raise DataError(f"{place} has more than {format_bytes(at_most)}, the limit for such a file; name another one")
    return place.read()
