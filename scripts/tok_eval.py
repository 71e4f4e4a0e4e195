"""Measure how many bytes per token a tokenizer reaches.

    python -m scripts.tok_eval
    python -m scripts.tok_eval --tokenizer fineweb --data ~/fineweb

The texts are samples of several kinds and the splits of a corpus. With `--json`, or if stdout is a file or pipe, the
last line is one JSON document. The exit code is 1 if encoding and decoding changes any text.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from nanogka.common.cli import command, flag, json_flag, print_json
from nanogka.common.errors import Errors
from nanogka.data import open_corpus
from nanogka.data.vocabulary import capped, measure_tokenizer
from nanogka.tokenizer import Tokenizer, tokenizer_folder

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


@dataclass(frozen=True)
class TokenizerEvalSettings:
    """Settings."""

    tokenizer: str = flag("default", "name under NANOGKA_BASE_DIR/tokenizers, or the path of a folder (with a slash)")
    data: str = flag("embedded", "corpus to measure as well, in the format of --data of tok_train, or 'none'")
    max_chars: int = flag(10_000_000, "maximum number of characters to measure per split", ge=1)
    json: bool = json_flag()


def evaluate(settings: TokenizerEvalSettings, errors: Errors) -> int:
    """Measure and print every text."""
    tokenizer = errors.capture(lambda: Tokenizer.load(tokenizer_folder(settings.tokenizer)))
    corpus = None if settings.data == "none" else errors.capture(lambda: open_corpus(settings.data))
    errors.raise_if_any()
    texts: dict[str, Iterable[str]] = {kind: [text] for kind, text in SAMPLES.items()}
    if corpus is not None:
        cap = settings.max_chars
        texts["corpus, training"] = capped(corpus.documents("train"), cap, cap)
        texts["corpus, validation"] = capped(corpus.documents("val"), cap, cap)
    print(f"tokenizer {settings.tokenizer}: {tokenizer.vocab_size:,} ids, fingerprint {tokenizer.fingerprint[:12]}")
    print(f"{'text':<20} {'bytes':>12} {'tokens':>12} {'bytes/token':>12}  round trip")
    ratios, survived = {}, True
    for kind, of_kind in texts.items():
        n_bytes, n_tokens, same = measure_tokenizer(tokenizer, of_kind)
        ratios[kind], survived = n_bytes / max(1, n_tokens), survived and same
        print(f"{kind:<20} {n_bytes:>12,} {n_tokens:>12,} {ratios[kind]:>12.2f}  {'ok' if same else 'CHANGED'}")
    rounded = {kind: round(ratio, 4) for kind, ratio in ratios.items()}
    about = {"vocab_size": tokenizer.vocab_size, "fingerprint": tokenizer.fingerprint, "bytes_per_token": rounded}
    print_json(about, settings.json)
    return 0 if survived else 1


main = command("tok_eval", TokenizerEvalSettings, evaluate, __doc__)

if __name__ == "__main__":
    sys.exit(main())
