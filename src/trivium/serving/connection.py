"""An HTTP connection that is closed if no full head of a request arrives in time, or nobody reads the answer."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle


class Connection(H11Protocol):
    """uvicorn's connection, which by itself waits without limit for the first request, for the rest of any head, and
    for a client that does not read."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._limit_wait()

    def on_response_complete(self) -> None:
        self._limit_wait()  # first, because uvicorn may begin the next request here if its head has arrived already
        super().on_response_complete()

    def _limit_wait(self) -> None:
        self.loop.call_later(self.timeout_keep_alive, self._close_if_idle, self.cycle)

    def _close_if_idle(self, last: RequestResponseCycle | None) -> None:
        """Close the connection if `last` is still the latest request whose head has arrived."""
        if self.cycle is last:
            self.timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        super().pause_writing()
        # At the end the server waits as long for such clients.
        self._unread = self.loop.call_later(self.config.timeout_graceful_shutdown or 0, self.transport.abort)

    def resume_writing(self) -> None:
        self._unread.cancel()
        super().resume_writing()
