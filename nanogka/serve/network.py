"""Connections: the limit of open files, and requests whose target is an absolute address."""

import asyncio
import contextlib
import errno
import sys
import time
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

# asyncio tries to accept this many connections in a row, and when no file is left it reports each of them as an error.
BACKLOG = 64
MOST_FILES = 2**16  # a connection that sends nothing costs memory, too
NOTICE_SECONDS = 60
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


class AbsoluteTarget:
    """Middleware that treats `GET http://host/path` as `GET /path` with the header `Host: host`, as HTTP demands.

    So the check of host names sees the host that the client asked for. A request with both Content-Length and
    Transfer-Encoding is refused: a proxy may understand its end differently.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http":
            names = [name for name, _ in scope["headers"]]
            if b"content-length" in names and b"transfer-encoding" in names:
                response = PlainTextResponse("Content-Length and Transfer-Encoding exclude each other", 400)
                return await response(scope, receive, send)
            if scope["path"].lower().startswith(("http://", "https://")):
                parts = urlsplit(scope["path"])
                others = [(name, value) for name, value in scope["headers"] if name != b"host"]
                host = parts.netloc.encode("latin-1", "replace")
                scope = {**scope, "path": parts.path or "/", "headers": [(b"host", host), *others]}
        return await self.app(scope, receive, send)
