"""How fast rows are made: from text, from tokens, and beside them tiktoken alone on the same text."""

import itertools
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from nanogka.data.corpus import Corpus
from nanogka.data.loader import PREFETCH, PackingLoader
from nanogka.tokenizer import Tokenizer

BATCH = 256  # documents that plain tiktoken is given together


@dataclass(frozen=True)
class Throughput:
    """One way to make tokens. `cpu_seconds` is the processor time of all threads together."""

    kind: str
    tokens: int
    seconds: float
    cpu_seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def tokens_per_core_second(self) -> float:
        """Of one core that does nothing else: it does not change with what else the machine is doing."""
        return self.tokens / self.cpu_seconds


@dataclass(frozen=True)
class Packed(Throughput):
    """Rows from a loader; `filled` is the share of positions that hold tokens of documents, not document tokens."""

    filled: float
    dropped_share: float


def measure_tiktoken(corpus: Corpus, tokenizer: Tokenizer, tokens: int, threads: int) -> Throughput:
    """tiktoken alone on the first documents of the training split, until they are `tokens`; reading is not counted."""
    done = wall = cpu = 0.0
    documents = corpus.documents("train")
    with ThreadPoolExecutor(threads) as pool:
        while done < tokens and (texts := list(itertools.islice(documents, BATCH))):
            began, began_cpu = time.perf_counter(), time.process_time()
            done += sum(map(len, tokenizer.encode_arrays(texts, pool)))
            wall += time.perf_counter() - began
            cpu += time.process_time() - began_cpu
    return Throughput("tiktoken alone", int(done), wall, cpu)


def measure_loader(
    kind: str,
    corpus: Corpus,
    tokenizer: Tokenizer,
    tokens: int,
    threads: int,
    *,
    batch_size: int,
    sequence_len: int,
    packing: str,
) -> Packed:
    """A loader's batches, in steady state, until they have `tokens` inputs."""
    options = {"batch_size": batch_size, "sequence_len": sequence_len, "packing": packing, "num_threads": threads}
    done = bos = 0
    with PackingLoader(corpus, "train", tokenizer, seed=1, **options) as loader:
        for _ in range(2 * PREFETCH):  # those that were made while nobody waited
            next(loader)
        began, began_cpu = time.perf_counter(), time.process_time()
        while done < tokens:
            inputs = next(loader).inputs
            done += inputs.numel()
            bos += int((inputs == tokenizer.bos_id).sum())
        seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
        dropped = loader.stats["dropped_share"]
    return Packed(kind, done, seconds, cpu, 1 - bos / done, dropped)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def format_table(rows: list[Throughput]) -> str:
    """The measurements as a table for people."""
    lines = [f"{'':<16} {'tokens':>12} {'tokens/s':>13} {'per core':>13} {'documents':>10} {'dropped':>8}"]
    for row in rows:
        packed = f"{row.filled:>10.2%} {row.dropped_share:>8.2%}" if isinstance(row, Packed) else ""
        speed = f"{row.tokens_per_second:>13,.0f} {row.tokens_per_core_second:>13,.0f}"
        lines.append(f"{row.kind:<16} {row.tokens:>12,} {speed} {packed}".rstrip())
    return "\n".join(lines)


def as_json(rows: list[Throughput]) -> Iterator[dict]:
    """The measurements as plain numbers."""
    for row in rows:
        yield {
            **vars(row),
            "tokens_per_second": round(row.tokens_per_second),
            "tokens_per_core_second": round(row.tokens_per_core_second),
        }
