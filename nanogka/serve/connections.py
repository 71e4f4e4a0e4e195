"""Connections of clients, of which those that wait for a request cannot keep others out, and an end that comes."""

import asyncio
import os
import sys
import threading
from functools import partial

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from nanogka.serve.settings import Limits

LAST_SECONDS = 3.0  # after those that running requests may take: for a step of the model, and to write the last replies


class Connection(H11Protocol):
    """Ends where a request's headers do not come in time, and where there are too many, the oldest that waits first.

    uvicorn has neither: its `timeout_keep_alive` ends with the first byte, `limit_concurrency` refuses newcomers.
    """

    def __init__(self, *args: object, limits: Limits, **options: object) -> None:
        super().__init__(*args, **options)
        self.limits, self.since = limits, 0.0  # the time at which it began to wait for a request

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._wait()
        own = [other for other in self.connections if other.client and other.client[0] == self.client[0]]
        for crowd, most in ((own, self.limits.max_per_address), (self.connections, self.limits.max_connections - 1)):
            idle = [other for other in crowd if other.waits and not other.transport.is_closing()]
            if len(crowd) > most and idle:
                min(idle, key=lambda other: other.since).transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    @property
    def waits(self) -> bool:
        """True if no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        self.since = self.loop.time()
        self.loop.call_later(self.limits.header_seconds, self._waited, self.since)

    def _waited(self, since: float) -> None:
        if self.waits and self.since == since:
            self.transport.close()


class Server(uvicorn.Server):
    """Serves an application until SIGTERM or Ctrl-C; running requests then get `stop_seconds`."""

    def __init__(self, app: ASGIApp, limits: Limits, access_log: bool = False) -> None:
        config = uvicorn.Config(
            app,
            http=partial(Connection, limits=limits),
            log_level="info" if access_log else "warning",
            access_log=access_log,
            server_header=False,
            ws="none",
            limit_concurrency=limits.max_connections,
            timeout_graceful_shutdown=max(1, round(limits.stop_seconds)),
        )
        super().__init__(config)

    async def shutdown(self, *args: object, **options: object) -> None:
        """Stop; the process ends even if a thread does not."""
        self.watchdog = threading.Timer(self.config.timeout_graceful_shutdown + LAST_SECONDS, end_now)
        self.watchdog.daemon = True
        self.watchdog.start()
        await super().shutdown(*args, **options)


def end_now() -> None:
    """End the process, whatever its threads are doing."""
    print("serve: work that would not end was cut off", file=sys.stderr, flush=True)
    os._exit(1)
