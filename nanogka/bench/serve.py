"""Measure the throughput of a running server (scripts.serve) with streamed requests at several levels of concurrency.

    python -m scripts.bench serve --url http://127.0.0.1:8000 --concurrency 1,8,32 --requests 32 --max-tokens 64

Every request has its own text and seed. Its number also draws its lengths: 1 to 4 sentences of prompt, and between
`--min-tokens` and `--max-tokens` tokens of reply. Requests of one length would start and end together, which is a
server's best case. The server reports the token counts. Any server with OpenAI's protocol works.

The client uses only the standard library. On a small machine it shares the cores with the server, and openai's client
would use a large part of the measured time.
"""

import http.client
import json
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

from nanogka.bench.common import integers, table
from nanogka.common.cli import flag, json_flag, print_json
from nanogka.common.errors import Errors

COLUMNS = {
    "at once": lambda load: f"{load['concurrency']}",
    "requests": lambda load: f"{load['requests']}",
    "tokens": lambda load: f"{load['tokens']:,}",
    "seconds": lambda load: f"{load['seconds']:.1f}",
    "tokens/s": lambda load: f"{load['tokens_per_second']:,.0f}",
    "first token, median": lambda load: f"{load['first_token_median']:.2f} s",
    "worst": lambda load: f"{load['first_token_worst']:.2f} s",
}


@dataclass(frozen=True)
class Settings:
    """Settings."""

    url: str = flag("http://127.0.0.1:8000", "address of the server")
    api_key: str = flag("", "the server's API key, if it has one")
    concurrency: str = flag("1,32", "numbers of simultaneous requests, separated by commas")
    requests: int = flag(32, "requests per measurement", ge=1)
    min_tokens: int | None = flag(None, "minimum tokens per request (default: a tenth of the maximum)", ge=1)
    max_tokens: int = flag(128, "maximum tokens per request", ge=1)
    json: bool = json_flag()


def _get(settings: Settings, path: str, body: dict | None = None) -> http.client.HTTPResponse:
    """Return the response to a GET, or to a POST of `body`. Raises OSError if the server refuses or does not answer."""
    parts = urlsplit(settings.url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=600)
    headers = {"Authorization": f"Bearer {settings.api_key}", "Content-Type": "application/json", "Connection": "close"}
    try:
        connection.request("GET" if body is None else "POST", path, body and json.dumps(body), headers)
        response = connection.getresponse()
    except OSError as error:
        raise OSError(f"{settings.url}: no answer ({error})") from error
    if response.status != 200:
        raise OSError(f"{settings.url}: {response.status}: {response.read().decode(errors='replace')[:200]}")
    return response


def one_request(settings: Settings, model: str, number: int) -> tuple[int, float]:
    """Return the tokens generated and the seconds until the first event. Raises OSError if it fails."""
    lengths, least = random.Random(number), settings.min_tokens or max(1, settings.max_tokens // 10)
    prompt = f"Number {number}: " + " The with statement is used to" * lengths.randint(1, 4)
    body = {"model": model, "prompt": prompt, "seed": number, "max_tokens": lengths.randint(least, settings.max_tokens)}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    first, tokens, began = 0.0, 0, time.perf_counter()
    with _get(settings, "/v1/completions", body) as response:
        for line in response:
            if line.startswith(b"data: {"):
                first = first or time.perf_counter() - began
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    raise OSError(f"{settings.url}: {event['error']['message']}")
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    return tokens, first


def measure_load(settings: Settings, model: str, concurrency: int) -> dict:
    """Send all requests, `concurrency` of them at a time, and return their costs."""
    began = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        done = list(pool.map(lambda number: one_request(settings, model, number), range(settings.requests)))
    elapsed, firsts = time.perf_counter() - began, [first for _, first in done]
    tokens = sum(tokens for tokens, _ in done)
    return {
        "concurrency": concurrency,
        "requests": settings.requests,
        "tokens": tokens,
        "seconds": elapsed,
        "first_token_median": statistics.median(firsts),
        "first_token_worst": max(firsts),
        "tokens_per_second": tokens / elapsed,
    }


def bench(settings: Settings, errors: Errors) -> None:
    """Send requests at every concurrency and print the table."""
    counts = integers("--concurrency", settings.concurrency, errors)
    parts = urlsplit(settings.url)
    errors.require(parts.scheme == "http" and bool(parts.hostname), "url", settings.url, "http://HOST:PORT")
    fits = settings.min_tokens is None or settings.min_tokens <= settings.max_tokens
    errors.require(fits, "min_tokens", settings.min_tokens, f"at most --max-tokens, {settings.max_tokens}")
    errors.raise_if_any()
    with _get(settings, "/v1/models") as response:
        model = json.load(response)["data"][0]["id"]
    one_request(settings, model, 0)  # warms up
    loads = [measure_load(settings, model, count) for count in counts]
    print(table(COLUMNS, loads))
    print_json(loads, settings.json)
