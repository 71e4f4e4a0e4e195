"""Tables of text, for a terminal and for Markdown, and the numbers in them as people write them."""

from collections.abc import Sequence

MISSING = "—"


def plain_table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows as aligned lines of plain text: the first `left` columns to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A Markdown table: the first `left` columns to the left, the others to the right."""
    rule = ["---" if column < left else "---:" for column in range(len(header))]
    lines = [" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in (header, *rows)]
    return "\n".join(f"| {line} |" for line in (lines[0], " | ".join(rule), *lines[1:]))


def number(value: float | int | None, digits: int = 4) -> str:
    """`value` with `digits` decimals, an integer with thousands separated, None as a dash."""
    if value is None:
        return MISSING
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def scientific(value: float | None) -> str:
    """`value` with five digits and a power of ten (`2.4143e+09` as `2.4143e9`), None as a dash."""
    if value is None:
        return MISSING
    mantissa, _, exponent = f"{value:.4e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def size(count: float | None, unit: str = "") -> str:
    """A large count in three or four digits and a metric prefix: `378.8M`, `2.41GFLOP` with a unit."""
    if count is None:
        return MISSING
    for prefix, scale in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G" if unit else "B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= scale:
            return f"{count / scale:.4g} {prefix}{unit}".strip()
    return f"{count:.4g} {unit}".strip()


def byte_size(count: int | None) -> str:
    """Bytes in KiB, MiB or GiB."""
    if count is None:
        return MISSING
    for prefix, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:,.1f} {prefix}"
    return f"{count} B"


def duration(seconds: float | None) -> str:
    """Seconds as `41 s`, `7 min 12 s` or `3 h 05 min`."""
    if seconds is None:
        return MISSING
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
