"""Short texts that ranks leave for one another beside the collectives: in the store at which they met."""

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
        """meeting_seconds: that whoever opens the store may come later."""
        host, port, attempt = meeting_point()
        self._prefix = f"trivium/{attempt}"
        self._signature = f"\0{uuid.uuid4().hex}"  # ends texts: ranks that write the same are told apart
        self._store = dist.TCPStore(  # type: ignore[attr-defined]  # exported, as documented; not in its stubs
            host, port, is_master=False, wait_for_workers=False, timeout=datetime.timedelta(seconds=meeting_seconds)
        )
        self._store.set_timeout(datetime.timedelta(seconds=timeout_seconds))

    def write(self, name: str, text: str) -> None:
        """Leave a text under a name, in the place of an earlier one."""
        self._store.set(self._key(name), text + self._signature)

    def write_first(self, name: str, text: str) -> bool:
        """Leave a text under a name that has none; whether it was the first."""
        signed = text + self._signature
        found: bytes = self._store.compare_set(self._key(name), "", signed)
        return found.decode() == signed

    def has(self, *names: str) -> bool:
        """Whether there is a text under each of the names."""
        found: bool = self._store.check([self._key(name) for name in names])
        return found

    def read(self, names: Sequence[str]) -> list[str]:
        """The texts under names that have one."""
        found: list[bytes] = self._store.multi_get([self._key(name) for name in names])
        return [text.decode().rpartition("\0")[0] for text in found]

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"
