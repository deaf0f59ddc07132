"""Copies the records of a training to the URL of `training.store`, whenever a checkpoint is saved."""

import threading
from pathlib import Path

from trivium.checkpoint.agree import wait_for_all
from trivium.comms.mesh import Mesh
from trivium.errors import TriviumError
from trivium.stores.folder import upload
from trivium.stores.remote import Remote
from trivium.training.loop import Loop, Observer
from trivium.training.metrics import warn
from trivium.training.record import RECORDS, records_in


class Mirror(Observer):
    """Has at most one upload in progress, in a thread of the first rank. A failure costs the copy, not the training:
    the next one sends what is missing."""

    def __init__(self, store: str | None, out: Path, mesh: Mesh) -> None:
        """store: the URL of `training.store`. out: the folder of the records."""
        self._url = Remote(store) / RECORDS if store is not None and mesh.rank == 0 else None
        self._out, self._mesh = out, mesh
        self._thread: threading.Thread | None = None
        self._due = threading.Event()  # set when a checkpoint is saved, also while an upload is in progress

    def at_checkpoint(self, loop: Loop) -> None:
        self._due.set()
        self._begin()

    def finish(self, loop: Loop) -> None:
        wait_for_all(self._thread, self._mesh, loop.alive)
        self._begin()  # where one became due just as the thread ended
        wait_for_all(self._thread, self._mesh, loop.alive)

    def _begin(self) -> None:
        is_busy = self._thread is not None and self._thread.is_alive()
        if self._url is not None and self._due.is_set() and not is_busy:
            self._thread = threading.Thread(target=self._upload, args=(self._url,), daemon=True, name="mirror")
            self._thread.start()

    def _upload(self, url: Remote) -> None:
        while self._due.is_set():
            self._due.clear()
            try:
                upload(self._out, url, records_in(self._out))
            except (OSError, TriviumError) as error:
                warn(f"the records were not copied to {url}: {error}")
