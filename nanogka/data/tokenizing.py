"""A tokenizer and a corpus together: training one on the other, and measuring how well it compresses text."""

import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from nanogka.data.corpus import Corpus
from nanogka.tokenizer import Tokenizer

BATCH = 256  # documents encoded together

# Short passages of several kinds, written for this project.
SAMPLES = {
    "English story": """\
The ferry left before sunrise, when the harbour was still the color of slate and the gulls had not yet begun to argue.
Margaret stood at the rail with her collar turned up and counted the lights on the far shore, as she had done every
winter since her father first took her across. There were fewer of them now.

"You could have written," said the man beside her, without turning his head.

"I did write," she answered. "I just never posted any of it."
""",
    "Python code": '''\
@dataclass(order=True)
class Job:
    """One entry of the queue; lower priorities run first."""

    priority: int
    name: str = field(compare=False)


def run_all(jobs, handler, max_retries=3):
    pending, results = sorted(jobs), {}
    while pending:
        job = pending.pop(0)
        try:
            results[job.name] = handler(job)
        except (OSError, TimeoutError) as error:
            raise RuntimeError(f"{job.name} failed") from error
    return {name: value for name, value in results.items() if value is not None}
''',
    "other languages": """\
Am Abend saßen wir auf der Veranda und hörten den Regen auf das Blechdach fallen; niemand wollte als Erster aufstehen.
Mañana saldremos temprano: el camino es largo, la niebla baja hasta el río y los niños todavía duermen.
Вчера вечером мы долго говорили о море, хотя никто из нас никогда там не был.
昨日、古い本屋で祖父の名前が書かれた地図を見つけました。
어제 산에서 내려오는 길에 작은 절을 보았습니다.
في الصباح الباكر كانت السوق هادئة، ولم يكن هناك سوى بائع واحد يرتب البرتقال.
कल रात बहुत तेज़ बारिश हुई और सुबह तक पूरी सड़क पानी से भर गई।
""",
    "maths and numbers": """\
Let f(x) = 3x^2 - 5x + 2. Then f'(x) = 6x - 5, which is zero at x = 5/6 ≈ 0.8333, and f(5/6) = -1/12.
∑_{k=0}^{n} C(n, k) = 2^n, so for n = 10 it is 1024, for n = 20 it is 1048576, and for n = 32 it is 4294967296.
2024-02-29 17:45:03, 98.6 °F = 37.0 °C, 1,299.00 + 19% = 1,545.81, 0x7FFF = 32767, 6.022e23.
""",
    "emoji and symbols": """\
😀 👩‍👩‍👧 🇫🇮 👍🏽 ☕️ → ⇒ ∀x∈ℝ ∃y: y > x; naïve café (e\u0301), Z\u0351\u036a\u0342a\u0321l\u0334go;
“quoted” – dashes — ½ ™ © №
""",
}


def capped(texts: Iterable[str], max_chars: int, doc_cap: int) -> Iterator[str]:
    """The first `doc_cap` characters of each text, until `max_chars` characters have been given."""
    left = max_chars
    for text in texts:
        text = text[: min(doc_cap, left)]
        yield text
        left -= len(text)
        if left <= 0:
            return


def train_on_corpus(corpus: Corpus, vocab_size: int, *, max_chars: int, doc_cap: int) -> Tokenizer:
    """A tokenizer trained on a corpus' training split, which its `meta["trained_on"]` describes."""
    tokenizer = Tokenizer.train(capped(corpus.documents("train"), max_chars, doc_cap), vocab_size)
    tokenizer.meta["trained_on"].update(
        corpus=str(corpus.path),
        corpus_fingerprint=corpus.fingerprint,
        max_chars=max_chars,
        doc_cap=doc_cap,
        python=platform.python_version(),
    )
    return tokenizer


@dataclass(frozen=True)
class Compression:
    """How well a tokenizer compresses a text: counts and ratios."""

    kind: str
    bytes: int
    tokens: int
    round_trip: bool

    @property
    def bytes_per_token(self) -> float:
        return self.bytes / max(1, self.tokens)


def compression(tokenizer: Tokenizer, kind: str, texts: Iterable[str]) -> Compression:
    """Measure all of `texts` together, one batch of documents in memory at a time."""
    n_bytes, n_tokens, same, texts = 0, 0, True, iter(texts)
    while batch := list(islice(texts, BATCH)):
        for text, ids in zip(batch, tokenizer.encode_batch(batch)):
            n_bytes += len(text.encode())
            n_tokens += len(ids)
            same = same and tokenizer.decode(ids) == text
    return Compression(kind, n_bytes, n_tokens, same)


def compression_table(tokenizer: Tokenizer, corpus: Corpus | None, max_chars: int) -> list[Compression]:
    """`compression` of every sample and of the first `max_chars` characters of each split of `corpus`."""
    rows = [compression(tokenizer, kind, [text]) for kind, text in SAMPLES.items()]
    if corpus is not None:
        for split, kind in (("train", "corpus, training"), ("val", "corpus, validation")):
            rows.append(compression(tokenizer, kind, capped(corpus.documents(split), max_chars, max_chars)))
    return rows
