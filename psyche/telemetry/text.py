"""Numbers in readable form: bytes, seconds, counts, tables."""

import time
from collections.abc import Sequence


def format_bytes(size_bytes: float) -> str:
    """`45.1 kB`, `1.8 MB`: decimal units, three figures."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 99.95 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def format_seconds(seconds: float) -> str:
    """`0.42 s`, `12 s`, `3 min 05 s`, `2 h 07 min`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.2f} s".replace(".00 s", " s")
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_count(count: float) -> str:
    """`950`, `10.2k`, `3.4M`."""
    value = float(count)
    for unit in ("", "k", "M", "G"):
        if abs(value) < 999.5:
            return f"{value:.0f}{unit}" if not unit or abs(value) >= 99.95 else f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:.1f}T"


def format_number(count: int, noun: str, plural: str = "") -> str:
    """`1 member`, `2 members`; `plural` if it is not the noun with an s."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def format_clock(unix_s: float) -> str:
    """The local time of day, `14:03:07`; `the end of time` if it is out of range."""
    try:
        return time.strftime("%H:%M:%S", time.localtime(unix_s))
    except (OverflowError, ValueError, OSError):
        return "the end of time"


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Columns as wide as their widest cell, two spaces apart; the first `left` columns left-aligned, others right."""
    table = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
    return "\n".join(lines)
