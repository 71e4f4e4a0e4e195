"""Connections: the limit of open files, requests that are ambiguous, and the end."""

import asyncio
import contextlib
import errno
import logging
import re
import sys
import time
from collections.abc import Sequence

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from nanogka.common.formatting import shorten

# asyncio tries to accept this many connections in a row, and when no file is left it reports each of them as an error.
BACKLOG = 64
MOST_FILES = 2**16  # a connection that sends nothing costs memory, too
NOTICE_SECONDS = 60
HOST = re.compile(r"(\[(?P<address>[^\]]*)\]|(?P<name>[^:\[\]]*?)\.?)(:[0-9]*)?")  # an IPv6 address, or a name
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def raise_file_limit() -> None:
    """Raise the number of files that may be open, and thereby of connections, to what the system allows."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS may refuse what it states
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class AcceptErrors:
    """An exception handler for the event loop that reports connections that cannot be accepted once a minute.

    asyncio's own handler writes a traceback for each attempt, many per second, which would fill the disk.
    """

    def __init__(self) -> None:
        self._next_notice = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict) -> None:
        """Report an exception of the loop."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in OUT_OF_FILES and "socket" in context):
            loop.default_exception_handler(context)
        elif time.monotonic() >= self._next_notice:
            self._next_notice = time.monotonic() + NOTICE_SECONDS
            text = f"no more connections can be accepted ({error.strerror}); clients wait until others leave"
            print(text, file=sys.stderr, flush=True)


class PlainRequests:
    """Middleware that refuses requests that servers and proxies may understand differently, and closes the connection.

    With both Content-Length and Transfer-Encoding, a proxy may see another end of the body: what the server would then
    read as the next request may be a part of this one. An absolute target (`GET http://host/path`) names a host that
    differs from the header `Host`, by which hosts are checked. Only clients of proxies send one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http":
            names = [name for name, _ in scope["headers"]]
            fault = None
            if b"content-length" in names and b"transfer-encoding" in names:
                fault = "Content-Length and Transfer-Encoding exclude each other"
            elif not scope["path"].startswith("/") and scope["path"] != "*":
                fault = "the target must be a path, and the host belongs in the header Host"
            if fault is not None:
                return await PlainTextResponse(fault, 400, {"Connection": "close"})(scope, receive, send)
            # Clients join a base address and a path as they like. A redirect would name another scheme and path behind
            # a proxy.
            scope = {**scope, "path": "/" + "/".join(filter(None, scope["path"].split("/")))}
        return await self.app(scope, receive, send)


class KnownHosts:
    """Middleware that refuses requests whose header `Host` has another name than `names`: `*` for any, `*.NAME`."""

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        self.app, self.names = app, [name.lower() for name in names]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http" and "*" not in self.names:
            given = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            host = HOST.fullmatch(given.lower())
            name = host["address"] or host["name"] if host else ""
            if not any(name == known or (known[:1] == "*" and name.endswith(known[1:])) for known in self.names):
                text = f"Host: got {shorten(repr(given))}, expected {', '.join(self.names)}; --allowed-hosts adds names"
                return await PlainTextResponse(text, 400)(scope, receive, send)
        return await self.app(scope, receive, send)


def hide_cancelled() -> None:
    """Keep tracebacks of requests that the server itself ends at its shutdown out of its log."""

    def is_kept(record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))

    logging.getLogger("uvicorn.error").addFilter(is_kept)
