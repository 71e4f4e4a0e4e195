"""Counters of a server in the text format of Prometheus."""

import time
from collections import Counter
from collections.abc import Callable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nanogka.generate.continuous import TokenOutput

TYPE = "text/plain; version=0.0.4; charset=utf-8"
KINDS = {  # metric: its type and meaning
    "nanogka_running_texts": ("gauge", "texts that are generated now"),
    "nanogka_waiting_requests": ("gauge", "requests that wait for room"),
    "nanogka_requests_total": ("counter", "answered requests by route and HTTP status"),
    "nanogka_prompt_tokens_total": ("counter", "tokens of the prompts of admitted requests"),
    "nanogka_generated_tokens_total": ("counter", "generated tokens, and those of the calculator's results"),
    "nanogka_first_token_seconds": ("summary", "time from the admission of a request to its first token"),
}


class Metrics:
    """Counts of what a server has done. Only the event loop's thread may use them."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # by route and status
        self.prompt_tokens = self.generated_tokens = self.first_tokens = 0
        self.first_token_seconds = 0.0

    def admit(self, prompt_tokens: int) -> Callable[[list[TokenOutput] | Exception], None]:
        """Count an admitted request. Returns a function that counts a part of its reply."""
        self.prompt_tokens += prompt_tokens
        started, is_first = time.monotonic(), True

        def count(part: list[TokenOutput] | Exception) -> None:
            nonlocal is_first
            if isinstance(part, Exception):
                return
            self.generated_tokens += len(part)
            if is_first:
                is_first = False
                self.first_tokens += 1
                self.first_token_seconds += time.monotonic() - started

        return count

    def text(self, load: Mapping[str, int]) -> str:
        """Return all metrics; `load` is that of the scheduler."""
        samples = {
            "nanogka_running_texts": [("", load["running"])],
            "nanogka_waiting_requests": [("", load["waiting"])],
            "nanogka_requests_total": [
                (f'{{route="{route}",status="{status}"}}', count)
                for (route, status), count in sorted(self.requests.items())
            ],
            "nanogka_prompt_tokens_total": [("", self.prompt_tokens)],
            "nanogka_generated_tokens_total": [("", self.generated_tokens)],
            "nanogka_first_token_seconds": [("_sum", self.first_token_seconds), ("_count", self.first_tokens)],
        }
        lines = []
        for name, (kind, help) in KINDS.items():
            lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{label} {value}" for label, value in samples[name]]
        return "\n".join(lines) + "\n"


class CountRequests:
    """Middleware that counts answers. Requests of unknown paths share one label, so that clients cannot add labels."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: tuple[str, ...]) -> None:
        self.app, self.metrics, self.routes = app, metrics, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        path = scope["path"]
        route = next((route for route in self.routes if path == route or path.startswith(f"{route}/")), "other")

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.metrics.requests[route, message["status"]] += 1
            await send(message)

        return await self.app(scope, receive, counted)
