"""Short texts that ranks exchange outside the collectives, in the store through which they connected."""

import datetime
import uuid
from collections.abc import Sequence

import torch.distributed as dist

from trivium.comms.launch import meeting_point


class Board:
    """A connection to the store of ranks that torchrun or a scheduler started, for one thread of one rank.

    Every method raises RuntimeError when the store does not answer within `timeout_seconds`, or is gone.
    """

    def __init__(self, timeout_seconds: float, meeting_seconds: float) -> None:
        """meeting_seconds: how long to wait for the process that opens the store."""
        host, port, attempt = meeting_point()
        self._prefix = f"trivium/{attempt}"
        self._signature = f"\0{uuid.uuid4().hex}"  # appended to each text, so that equal texts of two ranks differ
        self._store = dist.TCPStore(
            host, port, is_master=False, wait_for_workers=False, timeout=datetime.timedelta(seconds=meeting_seconds)
        )
        self._store.set_timeout(datetime.timedelta(seconds=timeout_seconds))

    def write(self, name: str, text: str) -> None:
        """Store a text under a name, replacing an earlier one."""
        self._store.set(self._key(name), text + self._signature)

    def write_first(self, name: str, text: str) -> bool:
        """Store a text under a name that has none. Return whether this text is the one stored."""
        signed = text + self._signature
        found: bytes = self._store.compare_set(self._key(name), "", signed)
        return found.decode() == signed

    def has(self, *names: str) -> bool:
        """Return whether each of the names has a text."""
        found: bool = self._store.check([self._key(name) for name in names])
        return found

    def read(self, names: Sequence[str]) -> list[str]:
        """Return the texts of names that all have one."""
        found: list[bytes] = self._store.multi_get([self._key(name) for name in names])
        return [text.decode().rpartition("\0")[0] for text in found]

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"
