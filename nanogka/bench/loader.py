"""Throughput of the packing loader, and of tiktoken alone on the same text."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from nanogka.data import Corpus, PackingLoader
from nanogka.data.loader import PREFETCH
from nanogka.tokenizer import Tokenizer

BATCH = 256  # documents that plain tiktoken is given together


@dataclass(frozen=True)
class Throughput:
    """One measurement; `cpu_seconds` is the processor time of all threads together.

    `filled` is the share of positions that hold tokens of documents, not document tokens; `dropped_share` that of the
    documents' tokens that no row holds.
    """

    kind: str
    tokens: int
    seconds: float
    cpu_seconds: float
    filled: float = 1.0
    dropped_share: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def tokens_per_core_second(self) -> float:
        """Tokens per second of one core that does nothing else: independent of what else the machine is doing."""
        return self.tokens / self.cpu_seconds


def measure_tiktoken(corpus: Corpus, tokenizer: Tokenizer, tokens: int, threads: int) -> Throughput:
    """tiktoken alone on the first documents of the training split, until they are `tokens`; reading is not counted."""
    done, wall, cpu = 0, 0.0, 0.0
    documents = corpus.documents("train")
    with ThreadPoolExecutor(threads) as pool:
        while done < tokens and (texts := list(islice(documents, BATCH))):
            began, began_cpu = time.perf_counter(), time.process_time()
            done += sum(map(len, tokenizer.encode_arrays(texts, pool)))
            wall += time.perf_counter() - began
            cpu += time.process_time() - began_cpu
    return Throughput("tiktoken alone", done, wall, cpu)


def measure_loader(corpus: Corpus, tokenizer: Tokenizer, tokens: int, threads: int, **options) -> Throughput:
    """A loader's batches, in steady state, until they have `tokens` inputs; `options` are those of `PackingLoader`."""
    done = bos = 0
    with PackingLoader(corpus, "train", tokenizer, seed=1, num_threads=threads, **options) as loader:
        for _ in range(2 * PREFETCH):  # those that were made while nobody waited
            next(loader)
        began, began_cpu = time.perf_counter(), time.process_time()
        while done < tokens:
            inputs = next(loader).inputs
            done += inputs.numel()
            bos += int((inputs == tokenizer.bos_id).sum())
        seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
        return Throughput("loader", done, seconds, cpu, 1 - bos / done, loader.stats["dropped_share"])


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def table(rows: list[Throughput]) -> Iterator[str]:
    """The lines of a table for people."""
    yield f"{'':<16} {'tokens':>12} {'tokens/s':>13} {'per core':>13} {'documents':>10} {'dropped':>8}"
    for row in rows:
        speed = f"{row.tokens_per_second:>13,.0f} {row.tokens_per_core_second:>13,.0f}"
        yield f"{row.kind:<16} {row.tokens:>12,} {speed} {row.filled:>10.2%} {row.dropped_share:>8.2%}"
