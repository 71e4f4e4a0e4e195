"""Throughput of a server that runs: the same streamed requests, so many at a time.

Every request continues a text of its own for a fixed number of tokens (a reply may end before), with a seed of its
own; tokens are those that the server counts. Nothing here imports the server: any with OpenAI's protocol will do.
"""

import http.client
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from nanogka.formatting import markdown_table


@dataclass(frozen=True)
class Load:
    """Requests that were sent: `concurrency` of `requests` at a time, and what came of them, times in seconds."""

    concurrency: int
    requests: int
    tokens: int
    seconds: float
    first_token_median: float
    first_token_worst: float

    @property
    def tokens_per_second(self) -> float:
        """Of all requests together."""
        return self.tokens / self.seconds


def one_request(url: str, model: str, number: int, max_tokens: int, api_key: str) -> tuple[int, float]:
    """Tokens generated, and seconds until the first text. Raises OSError if the server refuses or is not there."""
    parts, began = urlsplit(url), time.perf_counter()
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=600)
    prompt = f"Number {number}: the with statement is used to"
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "seed": number, "stream": True}
    body["stream_options"] = {"include_usage": True}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {api_key}"}
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise OSError(f"{url}: {answer.status}: {answer.read().decode(errors='replace')[:200]}")
        first, tokens = None, 0
        for line in answer:
            if line.startswith(b"data: {"):
                document = json.loads(line[6:])
                if "error" in document:
                    raise OSError(f"{url}: {document['error']['message']}")
                first = first or time.perf_counter() - began
                tokens = (document.get("usage") or {}).get("completion_tokens", tokens)
        return tokens, first
    finally:
        connection.close()


def model_of(url: str, api_key: str) -> str:
    """The name of the first model that a server has. Raises OSError if it refuses or is not there."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    try:
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {api_key}"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise OSError(f"{url}: {answer.status}: {answer.read().decode(errors='replace')[:200]}")
        return json.loads(answer.read())["data"][0]["id"]
    finally:
        connection.close()


def measure_load(url: str, concurrency: int, requests: int, max_tokens: int, api_key: str = "") -> Load:
    """Send requests, `concurrency` of them at any time. Raises OSError if one fails."""
    model = model_of(url, api_key)
    one_request(url, model, 0, max_tokens, api_key)  # warm
    began = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        done = list(pool.map(lambda i: one_request(url, model, i, max_tokens, api_key), range(requests)))
    seconds, firsts = time.perf_counter() - began, [first for _, first in done]
    tokens = sum(tokens for tokens, _ in done)
    return Load(concurrency, requests, tokens, seconds, statistics.median(firsts), max(firsts))


def table(loads: list[Load]) -> str:
    """A line for each load, in Markdown."""
    head = ["at once", "requests", "tokens", "seconds", "tokens/s", "first token, median", "worst"]
    rows = [
        [
            str(load.concurrency),
            str(load.requests),
            f"{load.tokens:,}",
            f"{load.seconds:.1f}",
            f"{load.tokens_per_second:,.0f}",
            f"{load.first_token_median:.2f} s",
            f"{load.first_token_worst:.2f} s",
        ]
        for load in loads
    ]
    return markdown_table(head, rows)


def documents(loads: list[Load]) -> list[dict]:
    """The same as JSON."""
    return [asdict(load) | {"tokens_per_second": load.tokens_per_second} for load in loads]
