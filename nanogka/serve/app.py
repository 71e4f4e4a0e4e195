"""The server's routes: from HTTP to the scheduler and back.

app = make_app(served, limits, api_key="", hosts=["*"])       # an ASGI application, for uvicorn or a test
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import re
from collections.abc import AsyncIterator
from importlib import resources

from markdown_it import MarkdownIt
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Send

from nanogka.generate.continuous import Job, Token
from nanogka.serve.errors import ApiError
from nanogka.serve.replies import Reply
from nanogka.serve.requests import Request, Served, read_request
from nanogka.serve.scheduler import QueueFull, Scheduler, Stopped
from nanogka.serve.settings import Limits

DRAINED = 16  # times the limit: as much of a body that is too large is read, so that its sender hears of it


def make_app(served: Served, limits: Limits, api_key: str, hosts: list[str]) -> Starlette:
    """The application. Its scheduler runs from start-up to shutdown.

    Args:
        served: the model.
        limits: of every request, and of all together.
        api_key: that clients must know; empty: none.
        hosts: names by which it may be called, `*` for any: a page elsewhere must not reach it by a name of its own.
    """
    server = _Server(served, limits, api_key)
    routes = [
        Route("/", server.page),
        Route("/health", server.health),
        Route("/v1/models", server.models),
        Route("/v1/models/{name:path}", server.model),
        Route("/v1/chat/completions", server.chat, methods=["POST"]),
        Route("/v1/completions", server.complete, methods=["POST"]),
        Route("/markdown", server.markdown, methods=["POST"]),
    ]
    handlers = {
        ApiError: lambda _, error: error.response(),
        HTTPException: lambda _, error: ApiError(error.status_code, error.detail).response(),
        ClientDisconnect: lambda *_: Response(status_code=499),  # nobody reads it
        Exception: lambda *_: ApiError(500, "an error of the server; its log has more").response(),
    }
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)]
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=server.lifespan)


class _Server:
    """The state that the routes share."""

    def __init__(self, served: Served, limits: Limits, api_key: str) -> None:
        self.served, self.limits, self.api_key = served, limits, api_key
        self.scheduler: Scheduler | None = None
        page = (resources.files(__package__) / "page.html").read_text("utf-8")
        script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        self._page = page
        self._policy = (
            f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        # Nothing that a model writes may fetch anything, so no images; HTML in it is shown as text.
        self._markdown = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Own the scheduler."""
        self.scheduler = Scheduler(self.served.engine, self.limits.max_batch, self.limits.max_queue)
        try:
            yield
        finally:
            await run_in_threadpool(self.scheduler.close)

    # ---- what is there ----

    async def page(self, _: HttpRequest) -> Response:
        """The page to chat on."""
        headers = {"Content-Security-Policy": self._policy, "X-Content-Type-Options": "nosniff"}
        return HTMLResponse(self._page, headers=headers | {"Referrer-Policy": "no-referrer"})

    async def health(self, _: HttpRequest) -> Response:
        """That it lives, and how busy it is."""
        return JSONResponse({"status": "ok", **self.scheduler.load})

    async def models(self, request: HttpRequest) -> Response:
        """The one model."""
        self._authorize(request)
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: HttpRequest) -> Response:
        """The one model, by its name."""
        self._authorize(request)
        name = request.path_params["name"]
        if name != self.served.name:
            raise ApiError(404, f"model: got {name!r}, takes {self.served.name!r}", "model", "model_not_found")
        return JSONResponse(self._model())

    def _model(self) -> dict:
        kind = "chat" if self.served.chats else "base"
        own = {"kind": kind, "context": self.served.engine.context}
        return {"id": self.served.name, "object": "model", "created": self.served.created, "owned_by": "nanogka", **own}

    async def markdown(self, request: HttpRequest) -> Response:
        """The `text` of a JSON object as HTML that is safe to show."""
        document = await self._document(request)
        text = document.get("text") if isinstance(document, dict) else None
        if not isinstance(text, str):
            raise ApiError(400, "text: takes a text", "text", "invalid_value")
        made = await run_in_threadpool(self._markdown.render, text.encode("utf-8", "replace").decode())
        return JSONResponse({"html": made})

    # ---- generation ----

    async def chat(self, request: HttpRequest) -> Response:
        """Reply in a conversation."""
        return await self._generate(request, chat=True)

    async def complete(self, request: HttpRequest) -> Response:
        """Continue texts."""
        return await self._generate(request, chat=False)

    async def _generate(self, request: HttpRequest, chat: bool) -> Response:
        document = await self._document(request)
        asked = await run_in_threadpool(read_request, document, self.served, self.limits, chat)
        tokens = self._submit(asked.job)
        if asked.stream:
            return _EventStream(_events(asked, self.served, tokens), lambda: self.scheduler.cancel(asked.job))
        reply = Reply(asked, self.served)
        watch = asyncio.create_task(_notice_disconnect(request, tokens))
        try:
            while not reply.complete:
                for token in _checked(await tokens.get()):
                    reply.take(token)
        finally:
            watch.cancel()
            self.scheduler.cancel(asked.job)
        return JSONResponse(reply.whole())

    def _submit(self, job: Job) -> asyncio.Queue:
        """Queue a job; its tokens, step by step, or the exception that ended it, come through the queue returned."""
        loop, tokens = asyncio.get_running_loop(), asyncio.Queue()

        def deliver(part: list[Token] | Exception) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(tokens.put_nowait, part)

        try:
            self.scheduler.submit(job, deliver)
        except QueueFull:
            waiting = f"{self.limits.max_queue} requests wait already: try again later"
            raise ApiError(429, waiting, code="queue_full") from None
        except Stopped:
            raise ApiError(503, "the server is stopping", code="stopping") from None
        return tokens

    # ---- requests ----

    def _authorize(self, request: HttpRequest) -> None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        # A header's bytes arrive as Latin-1.
        known = hmac.compare_digest(key.encode("latin-1"), self.api_key.encode()) and scheme.lower() == "bearer"
        if self.api_key and not known:
            text = "the API key is wrong or missing: takes the header `Authorization: Bearer KEY`"
            raise ApiError(401, text, code="invalid_api_key")

    async def _document(self, request: HttpRequest) -> object:
        """The parsed JSON of a request that may be made.

        Only with this content type: a browser sends it to another site's server after asking that, others at once.
        """
        self._authorize(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(415, f"Content-Type: got {kind!r}, takes application/json", code="invalid_content_type")
        try:
            body = await asyncio.wait_for(self._body(request), self.limits.request_seconds)
        except asyncio.TimeoutError:
            text = f"the body: has not come within {self.limits.request_seconds:g} seconds"
            raise ApiError(408, text, code="timeout") from None
        try:
            return json.loads(body, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"the body: is not JSON ({error})", code="invalid_json") from None

    async def _body(self, request: HttpRequest) -> bytes:
        most, parts, size = self.limits.max_request_bytes, [], 0
        async for part in request.stream():
            size += len(part)
            if size > DRAINED * most:
                break
            if size <= most:
                parts.append(part)
            else:
                parts.clear()
        if size > most:
            raise ApiError(413, f"the body: takes at most {most:,} bytes", code="request_too_large")
        return b"".join(parts)


class _EventStream(StreamingResponse):
    """A stream of server-sent events; `cancel` is called when it ends, whoever ends it."""

    media_type = "text/event-stream"

    def __init__(self, content: AsyncIterator[str], cancel) -> None:
        super().__init__(content, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self.cancel = cancel

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        finally:
            self.cancel()


async def _events(asked: Request, served: Served, tokens: asyncio.Queue) -> AsyncIterator[str]:
    """The events of a reply, as text."""
    reply = Reply(asked, served)
    for chunk in reply.first_chunks():
        yield _event(chunk)
    while not reply.complete:
        try:
            part = _checked(await tokens.get())
        except ApiError as error:  # the status has been sent already
            yield _event(error.to_json())
            return
        yield "".join(map(_event, reply.chunks(part)))
    yield "".join(map(_event, reply.last_chunks())) + "data: [DONE]\n\n"


async def _notice_disconnect(request: HttpRequest, tokens: asyncio.Queue) -> None:
    """End the wait for tokens when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    tokens.put_nowait(ClientDisconnect())


def _event(document: dict) -> str:
    return f"data: {json.dumps(document, ensure_ascii=False)}\n\n"


def _checked(part: list[Token] | Exception) -> list[Token]:
    """Tokens that the scheduler delivered. Raises ApiError if it delivered a failure, ClientDisconnect as it is."""
    if isinstance(part, Stopped):
        raise ApiError(503, "the server is stopping", code="stopping")
    if isinstance(part, ClientDisconnect):
        raise part
    if isinstance(part, Exception):
        raise ApiError(500, "generation failed; the server's log has more", code="generation_failed")
    return part


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number in JSON")
