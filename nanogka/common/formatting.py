"""Format numbers, tables and foreign text for a terminal and for Markdown."""

import re
import sys
from collections.abc import Sequence
from numbers import Real
from pathlib import Path

MISSING = "—"
MAX_LINE = 2000  # characters of a message

BUNDLED = Path(__file__).parents[1] / "bundled"  # scripts/, tasks/ and speedrun.sh in a wheel
SHORT_NAMES = {
    "base_train": "train",
    "base_eval": "eval",
    "chat_cli": "chat",
    "chat_sft": "sft",
    "model_info": "info",
    "tok_train": "tokenizer",
}

# Control and bidirectional characters in names and samples could send commands to a terminal or disguise text.
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_CONTROLS |= dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)
_CONTROLS |= dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)  # lone surrogates cannot be written as UTF-8


def number(value: float | int | None, digits: int = 4) -> str:
    """`value` with `digits` decimals, or an integer with separated thousands. A dash if it is not a number."""
    if not isinstance(value, Real):
        return MISSING
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def scientific(value: float | None) -> str:
    """`value` with five digits and a power of ten (`2.4143e9`). A dash if it is not a number."""
    if not isinstance(value, Real):
        return MISSING
    mantissa, _, exponent = f"{value:.4e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def si(value: float | None) -> str:
    """`value` in three digits with an SI prefix (12.3k, 4.57M, 2.78G). A dash for None."""
    if value is None:
        return MISSING
    for factor, prefix in ((1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{prefix}"
    return f"{value:.3g}"


def byte_size(count: int | None) -> str:
    """Bytes in KiB, MiB or GiB. A dash for None."""
    if count is None:
        return MISSING
    for prefix, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:,.1f} {prefix}"
    return f"{count} B"


def gigabytes(count: float) -> str:
    """Bytes in GB, or in MB if they are fewer than 0.1 GB; powers of ten, as disks and GPUs are sold."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"


def duration(seconds: float | None) -> str:
    """Seconds as 45s, 3m05s, 2h10m or 1d03h. A dash if it is not a number."""
    if not isinstance(seconds, Real):
        return MISSING
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days or hours:
        return f"{days}d{hours:02d}h" if days else f"{hours}h{minutes:02d}m"
    return f"{minutes}m{seconds:02d}s" if minutes else f"{seconds}s"


def printable(text: object) -> str:
    """`text` with control characters as pictures (␛ for escape). Line ends and tabs stay."""
    return str(text).translate(_CONTROLS)


def one_line(text: object) -> str:
    """`text` with all control characters as pictures, also line ends and tabs. For names."""
    return printable(text).replace("\n", "␊").replace("\t", "␉")


def shorten(text: object, most: int = 60) -> str:
    """`text` in at most `most` characters; a longer one ends with …"""
    text = str(text)
    return text if len(text) <= most else text[: most - 1] + "…"


def say(text: object) -> None:
    """Print one line to stderr. `text` may hold foreign names: controls become pictures, a long line is shortened."""
    print(shorten(one_line(text), MAX_LINE), file=sys.stderr, flush=True)


def first_few(items: Sequence[str], most: int = 4) -> str:
    """The first `most` items, and the number of the others."""
    more = f"; and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more


def plain_table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table for a terminal. The first `left` columns are aligned left, the others right."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for row in rows:
        cells = [cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A Markdown table. The first `left` columns are aligned left, the others right."""
    rule = ["---" if column < left else "---:" for column in range(len(header))]
    lines = [[one_line(cell).replace("|", "\\|") for cell in row] for row in (header, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))


def plain(text: object) -> str:
    """`text` as one line of Markdown that shows it literally, without links, images, code or HTML."""
    return re.sub(r"[\\`*\[\]<&]", r"\\\g<0>", one_line(text))


def code_span(text: object) -> str:
    """`text` as inline Markdown code. It may contain back-ticks."""
    text = one_line(text)
    fence = _fence(text, 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def code_block(text: object, language: str = "text") -> str:
    """`text` as a Markdown code block. It may contain fences."""
    text = printable(text)
    fence = _fence(text, 3)
    return f"{fence}{language}\n{text}\n{fence}"


def _fence(text: str, length: int) -> str:
    """The shortest run of at least `length` back-ticks that does not occur in `text`."""
    while "`" * length in text:
        length += 1
    return "`" * length


def as_started(text: str) -> str:
    """`text` with its commands as this installation has them.

    `python -m scripts.base_eval` becomes `nanogka eval` if the process was started by that command, or from a wheel,
    which has no top-level scripts/.
    """
    if not (BUNDLED.is_dir() or sys.argv[0].startswith("nanogka ")):
        return text

    def translate(found: re.Match) -> str:
        return ("nanogka " if found[1] else "-m nanogka ") + SHORT_NAMES.get(found[2], found[2])

    return re.sub(r"(python )?-m scripts\.(\w+)", translate, text).replace("bash speedrun.sh", "nanogka speedrun")
