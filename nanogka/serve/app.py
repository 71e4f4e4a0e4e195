"""The HTTP server: routes, startup and shutdown."""

import asyncio
import contextlib
import hmac
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import uvicorn
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Send

from nanogka.api import Model
from nanogka.common.errors import Errors
from nanogka.common.formatting import one_line, shorten
from nanogka.common.runtime import pick_device_and_dtype
from nanogka.common.signals import EXIT_CODES, handled
from nanogka.generate.continuous import Request, TokenOutput
from nanogka.generate.scoring import score_prompt
from nanogka.runs import Run, find_run, load_run
from nanogka.serve.attention import AttentionPages
from nanogka.serve.metrics import TYPE, CountRequests, Metrics
from nanogka.serve.network import BACKLOG, AcceptErrors, KnownHosts, PlainRequests, hide_cancelled, raise_file_limit
from nanogka.serve.protocol import ApiError, Served, read_request
from nanogka.serve.responses import Answer
from nanogka.serve.scheduler import QueueFull, Scheduler, Stopped
from nanogka.serve.settings import KEY_VARIABLE, LOOPBACK, ServeSettings
from nanogka.web.page import document, parts_of

# A body that is too large is read up to this many times the limit. A client that is still sending when the connection
# closes would see a broken connection instead of the 413.
DRAIN_FACTOR = 16
MAX_READERS = 2  # requests that are tokenized at the same time; the others wait as JSON, which takes less memory
GRACE_SECONDS = 30  # for running requests after SIGTERM or Ctrl-C


def serve(
    settings: ServeSettings, errors: Errors, questions_to_show: Callable[[Run, bool], tuple[Sequence[str], str]]
) -> int:
    """Load the model and serve it until SIGTERM or Ctrl-C. Returns the exit code.

    `questions_to_show(run, with_own)` returns the questions that every client may see, and a text about them.
    """
    settings.check(errors)
    device, dtype = pick_device_and_dtype(settings.device, settings.dtype, errors, decode=True)
    errors.capture(lambda: find_run(settings.run))
    errors.raise_if_any()
    raise_file_limit()
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # The port is bound before the model is loaded, so that a port in use is reported without waiting for the weights.
    with socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG) as listening:
        run = load_run(settings.run, device, settings.step, dtype)
        model = Model(run)
        model.generate(" ", max_tokens=2)  # compiles kernels now, not during the first reply
        created = int((run.checkpoint_folder / "manifest.json").stat().st_mtime)
        questions, about = questions_to_show(run, settings.own_questions)
        served = Served(settings.name or run.tag, model, settings, created, questions)
        api_key = settings.api_key or os.environ.get(KEY_VARIABLE, "")
        app = make_app(served, api_key, settings.hosts, settings.origins)
        server = make_server(app, settings.access_log)
        host, port = listening.getsockname()[:2]
        where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        with _stop_by_signal(server):  # before the line from which others learn that it runs
            print(f"serving {served.name}, step {run.step} ({run.kind}, {device}), at {where}", flush=True)
            if run.examples and (settings.own_questions or not questions):
                print(one_line(f"questions on the chat page: {about}"), flush=True)
            if settings.host not in LOOPBACK and not api_key:
                text = f"everyone who can reach {settings.host} can use it; --api-key or {KEY_VARIABLE} sets a key"
                print(text, flush=True)
            server.run(sockets=[listening])
    return 0


@contextlib.contextmanager
def _stop_by_signal(server: uvicorn.Server) -> Iterator[None]:
    """Let SIGTERM, SIGINT and SIGHUP stop the server within the block, also while it starts.

    At the end SIGINT and SIGHUP are raised again. SIGTERM is the usual way to stop a server and no failure.
    """
    received = []

    def stop(number: int, frame: object) -> None:
        received.append(number)  # uvicorn has its own handlers while it runs, and raises their signals again afterwards
        server.handle_exit(number, None)

    with handled(stop, [number for number in EXIT_CODES if signal.getsignal(number) != signal.SIG_IGN]):
        yield
    if received and received[0] != signal.SIGTERM:
        signal.raise_signal(received[0])


def make_server(app: Starlette, access_log: bool = False) -> uvicorn.Server:
    """Return a server of an application, with GRACE_SECONDS for running requests at its end."""
    config = uvicorn.Config(
        app,
        log_level="info" if access_log else "warning",
        access_log=access_log,
        server_header=False,
        http="h11",  # another parser may be installed, which hides the host of an absolute target
        ws="none",
        backlog=BACKLOG,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    hide_cancelled()  # after Config, which sets up the logs
    return uvicorn.Server(config)


def make_app(served: Served, api_key: str, hosts: list[str], origins: Sequence[str] = ()) -> Starlette:
    """Return the ASGI application. Clients must send `api_key`, unless it is empty.

    Requests must use one of the host names `hosts` (`*` for any). Otherwise a foreign web page could reach the server
    by resolving its own name to this address ("DNS rebinding"). Pages of `origins` may send requests (CORS).
    """
    server = _Server(served, api_key)
    routes = [
        Route("/", server.page),
        Route("/health", server.health),
        Route("/metrics", server.prometheus),
        Route("/v1/models", server.models),
        Route("/v1/models/{name:path}", server.model),
        Route("/v1/chat/completions", partial(server.generate, chat=True), methods=["POST"]),
        Route("/v1/completions", partial(server.generate, chat=False), methods=["POST"]),
        Route("/v1/attention", server.attention, methods=["POST"]),
        Route("/attention/{name}", server.attention_page),
    ]
    handlers = {
        ApiError: lambda _, error: _error_response(error),
        HTTPException: lambda http, error: _refuse_route(http, error),
        ClientDisconnect: lambda *_: Response(status_code=499),  # the client has left and receives nothing
        Exception: lambda *_: _error_response(ApiError(500, "an error of the server; its log has more")),
    }
    counted = tuple(route.path for route in routes if "{" not in route.path and route.path != "/")
    middleware = [
        Middleware(PlainRequests),
        Middleware(CountRequests, metrics=server.metrics, routes=(*counted, "/attention")),
        Middleware(KnownHosts, names=hosts),
    ]
    if origins:
        # Chrome asks before a page at a public address uses a local server. Not every page that there is may do so.
        allowed = {"allow_origins": origins, "allow_private_network": "*" not in origins}
        middleware.append(Middleware(CORSMiddleware, allow_methods=["*"], allow_headers=["*"], **allowed))
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=server.lifespan)


def _refuse_route(http: HttpRequest, error: HTTPException) -> JSONResponse:
    """Refuse a request for a path that does not exist, or whose path has another method, which a header names."""
    text = error.detail
    if error.status_code == 404:
        text = f"{http.method}: got {shorten(repr(http.url.path))}, which does not exist; the API is at /v1"
    return JSONResponse(ApiError(error.status_code, text).to_json(), error.status_code, error.headers)


def _error_response(error: ApiError) -> JSONResponse:
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}.get(error.status)
    return JSONResponse(error.to_json(), error.status, headers)


class _Server:
    """The state that the routes share."""

    def __init__(self, served: Served, api_key: str) -> None:
        self.served, self.limits, self.api_key = served, served.limits, api_key
        self.scheduler: Scheduler  # from the start of `lifespan`
        self.attention_pages, self.metrics = AttentionPages(served), Metrics()
        parts = parts_of("nanogka.serve")
        reach = "connect-src 'self'; frame-src 'self'"
        page = document("nanogka", parts["page.html"], parts["page.css"], parts["page.js"], reach)
        self._page = self._html(page, "'none'")

    @staticmethod
    def _html(page: str, framed_by: str) -> HTMLResponse:
        """A page, which states its other policies itself; this one counts only in a header."""
        headers = {"Content-Security-Policy": f"frame-ancestors {framed_by}", "X-Content-Type-Options": "nosniff"}
        return HTMLResponse(page, headers=headers | {"Referrer-Policy": "no-referrer"})

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Run the scheduler while the server runs."""
        asyncio.get_running_loop().set_exception_handler(AcceptErrors())
        self._readers = CapacityLimiter(MAX_READERS)
        self.scheduler = Scheduler(self.served.engine, self.limits.max_batch, self.limits.max_queue)
        try:
            yield
        finally:
            await to_thread.run_sync(self.scheduler.close)

    async def page(self, _: HttpRequest) -> Response:
        """Send the chat page."""
        return self._page

    async def health(self, _: HttpRequest) -> Response:
        """Report that the server is alive, and its load."""
        return JSONResponse({"status": "ok", **self.scheduler.load})

    async def prometheus(self, request: HttpRequest) -> Response:
        """Send the metrics for Prometheus."""
        self._authorize(request)
        return Response(self.metrics.text(self.scheduler.load), media_type=TYPE)

    async def models(self, request: HttpRequest) -> Response:
        """List the one model."""
        self._authorize(request)
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: HttpRequest) -> Response:
        """Describe the one model."""
        self._authorize(request)
        name = request.path_params["name"]
        if name != self.served.name:
            got = shorten(repr(name))
            raise ApiError(404, f"model: got {got}, expected {self.served.name!r}", "model", "model_not_found")
        return JSONResponse(self._model())

    def _model(self) -> dict:
        return {
            "id": self.served.name,
            "object": "model",
            "created": self.served.created,
            "owned_by": "nanogka",
            "kind": "chat" if self.served.model.is_chat_model else "base",  # this and the following are not OpenAI's
            "context": self.served.engine.context,
            "attention": self.attention_pages.available,
            "promise": self.served.model.run.promise,  # what the model can do
            "examples": list(self.served.examples),  # questions for the chat page
        }

    async def generate(self, http: HttpRequest, chat: bool) -> Response:
        """Reply in a conversation, or continue texts."""
        document = await self._document(http)
        # In another thread, because tokenizing a long prompt would hold up the tokens of everybody else.
        api_request, request = await self._in_thread(read_request, document, self.served, chat)
        echoed = await self._score(http, request) if api_request.echoes_logprobs else None
        answer = Answer(api_request, request, self.served, echoed)
        if answer.complete:  # with `max_tokens: 0`
            return JSONResponse(answer.whole())
        queue = self._add(request)
        if api_request.stream:
            return _EventStream(_chunks(answer, queue), lambda: self.scheduler.abort(request))
        watch = asyncio.create_task(_notice_disconnect(http, queue))
        try:
            while not answer.complete:
                for output in await _next_outputs(queue):
                    answer.add(output)
        finally:
            watch.cancel()
            self.scheduler.abort(request)
        return JSONResponse(answer.whole())

    async def _score(self, http: HttpRequest, request: Request) -> list[list[TokenOutput]]:
        """Score each prompt of a request. Each is a separate call, so that other texts get tokens meanwhile."""
        engine, scores = self.served.engine, []
        for prompt in request.prompts:
            with self._queue_errors():
                call = self.scheduler.call(partial(score_prompt, engine, prompt, request.top_logprobs))
                scores.append(await _unless_client_leaves(http, call))
        return scores

    async def attention(self, http: HttpRequest) -> Response:
        """Show where each head looked in a conversation: `{"page": path}` of an attention page."""
        pages = self.attention_pages
        ids = await self._in_thread(pages.read, await self._document(http))
        with self._queue_errors():
            page = await _unless_client_leaves(http, self.scheduler.call(lambda: pages.build(ids)))
        return JSONResponse({"page": f"attention/{pages.keep(page)}"})

    async def attention_page(self, request: HttpRequest) -> Response:
        """Send an attention page. Only the client that asked for it knows its random name."""
        return self._html(self.attention_pages.get(request.path_params["name"]), "'self'")

    async def _in_thread(self, function: Callable, *arguments: object) -> Any:
        return await to_thread.run_sync(function, *arguments, limiter=self._readers)

    @contextlib.contextmanager
    def _queue_errors(self) -> Iterator[None]:
        """Turn exceptions of the scheduler's queue into answers."""
        try:
            yield
        except QueueFull:
            text = f"{self.limits.max_queue} requests are waiting: try again later"
            raise ApiError(429, text, code="queue_full") from None
        except Stopped:
            raise ApiError(503, "the server is stopping", code="stopping") from None

    def _add(self, request: Request) -> asyncio.Queue:
        """Queue a request. Returns a queue that receives its tokens, step by step, or the exception that ended it."""
        loop, queue = asyncio.get_running_loop(), asyncio.Queue()
        count: Callable[[list[TokenOutput] | Exception], None]

        def deliver(part: list[TokenOutput] | Exception) -> None:
            count(part)
            queue.put_nowait(part)

        def on_outputs(part: list[TokenOutput] | Exception) -> None:
            # This runs in the scheduler's thread, but only the loop's thread may touch asyncio's queues. The queue is
            # unbounded, because a slow client must not hold up the scheduler. The context bounds how many tokens wait.
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the client's connection with it
                loop.call_soon_threadsafe(deliver, part)

        with self._queue_errors():
            self.scheduler.add(request, on_outputs)
        # `deliver` runs in this thread, too, so not before this.
        count = self.metrics.admit(sum(map(len, request.prompts)))
        return queue

    def _authorize(self, request: HttpRequest) -> None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        # compare_digest needs the same time for every key, so that a client cannot find the right one letter by letter.
        # A header's bytes arrive as Latin-1.
        known = hmac.compare_digest(key.encode("latin-1"), self.api_key.encode()) and scheme.lower() == "bearer"
        if self.api_key and not known:
            text = "the API key is wrong or missing: expected the header `Authorization: Bearer KEY`"
            raise ApiError(401, text, code="invalid_api_key")

    async def _document(self, request: HttpRequest) -> object:
        """Return the parsed JSON of an authorized request."""
        self._authorize(request)
        # A page of another site cannot send this type without a CORS preflight.
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(415, f"Content-Type: got {kind!r}, expected application/json", code="invalid_content_type")
        encoding = request.headers.get("content-encoding", "identity")
        if encoding.strip().lower() != "identity":
            got = shorten(repr(encoding))
            raise ApiError(415, f"Content-Encoding: got {got}, expected none", code="invalid_content_encoding")
        try:
            return json.loads(await self._body(request), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"the body: is not JSON ({error})", code="invalid_json") from None

    async def _body(self, request: HttpRequest) -> bytes:
        limit, parts, size = self.limits.max_request_bytes, [], 0
        async for part in request.stream():
            size += len(part)
            if size <= limit:
                parts.append(part)
            elif size > DRAIN_FACTOR * limit:
                break
        if size > limit:
            raise ApiError(413, f"the body: expected at most {limit:,} bytes", code="request_too_large")
        return b"".join(parts)


class _EventStream(StreamingResponse):
    """A stream of server-sent events. `on_end` is called when it ends or the client leaves.

    A `finally` in the generator would not do: it does not run if the client leaves before the first event.
    """

    media_type = "text/event-stream"

    def __init__(self, content: AsyncIterator[str], on_end: Callable[[], None]) -> None:
        super().__init__(content, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self.on_end = on_end

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        finally:
            self.on_end()


async def _chunks(answer: Answer, queue: asyncio.Queue) -> AsyncIterator[str]:
    """Yield an answer as server-sent events."""
    for chunk in answer.first_chunks():
        yield _sse(chunk)
    while not answer.complete:
        try:
            outputs = await _next_outputs(queue)
        except ApiError as error:  # the status has been sent already
            yield _sse(error.to_json())
            return
        yield "".join(map(_sse, answer.chunks(outputs)))
    yield "".join(map(_sse, answer.last_chunks())) + "data: [DONE]\n\n"


async def _next_outputs(queue: asyncio.Queue) -> list[TokenOutput]:
    """Wait for the next tokens of a request. Raises ApiError if it failed, ClientDisconnect if the client left."""
    part = await queue.get()
    if isinstance(part, Stopped):
        raise ApiError(503, "the server is stopping", code="stopping")
    if isinstance(part, ClientDisconnect):
        raise part
    if isinstance(part, Exception):
        raise ApiError(500, "generation failed; the server's log has more", code="generation_failed")
    return part


async def _notice_disconnect(http: HttpRequest, queue: asyncio.Queue) -> None:
    """End the wait for tokens when the client disconnects."""
    await _disconnected(http)
    queue.put_nowait(ClientDisconnect())


async def _unless_client_leaves(http: HttpRequest, future: Future) -> Any:
    """Wait for a result of the scheduler's thread. Cancels the call if the client leaves or the server stops."""
    result, left = asyncio.wrap_future(future), asyncio.create_task(_disconnected(http))
    try:
        await asyncio.wait([result, left], return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise ClientDisconnect
        return result.result()
    finally:
        left.cancel()
        result.cancel()  # cancels `future`, too


async def _disconnected(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _sse(document: dict) -> str:
    # ASCII alone: some clients end a line at U+2028 or U+0085, and some cut UTF-8 within a character.
    return f"data: {json.dumps(document)}\n\n"


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number in JSON")
