"""Numbers in readable form: bytes, seconds, counts, tables."""

import math
import textwrap
import time
from collections.abc import Sequence
from typing import Final

TEXT_COLUMNS: Final = 79  # what fits on a terminal of 80 without a line that wraps
VALUE_CHARACTERS: Final = 60
GAP: Final = 2  # spaces between the columns of a table
SEPARATOR: Final = " | "
BLOCKS: Final = "▁▂▃▄▅▆▇█"


def show_value(value: object) -> str:
    """A value of a file as it stands there, cut to 60 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of over 4,300 digits
        return "a number of over 4,300 digits"
    return text if len(text) <= VALUE_CHARACTERS else text[:VALUE_CHARACTERS] + "..."


def describe_parse_failure(error: Exception) -> str:
    """Why JSON or TOML could not be parsed; of a number too long to read, Python would speak of its own settings."""
    return "it has a number of over 4,300 digits" if type(error) is ValueError else str(error)


def format_bytes(size_bytes: float) -> str:
    """`45.1 kB`, `1.8 MB`: decimal units, three figures."""
    return _scale(size_bytes, (" B", " kB", " MB", " GB", " TB"))


def format_seconds(seconds: float) -> str:
    """`0.42 s`, `12 s`, `3 min 05 s`, `2 h 07 min`, `12 days 4 h`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.2f} s".replace(".00 s", " s")
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} days {whole % 86_400 // 3600} h"


def format_count(count: float) -> str:
    """`950`, `10.2k`, `3.4M`."""
    return _scale(count, ("", "k", "M", "G", "T"))


def _scale(value: float, units: Sequence[str]) -> str:
    for unit in units[:-1]:
        if abs(value) < 999.5:
            return f"{value:.0f}{unit}" if unit == units[0] or abs(value) >= 99.95 else f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:.1f}{units[-1]}"


def format_loss(loss: float | None) -> str:
    """`3.142`; `-` for what is no number, and few digits of what no loss could be."""
    if loss is None or not math.isfinite(loss):
        return "-"
    return f"{loss:.3f}" if abs(loss) < 1e5 else f"{loss:.1e}"


def draw_curve(values: Sequence[float], width: int) -> str:
    """A line of blocks, `▇▅▃▂▁`, as wide as there are values, at most `width`: each the mean of its share of them."""
    count = min(width, len(values))
    if not count:
        return ""
    parts = [values[n * len(values) // count : (n + 1) * len(values) // count] for n in range(count)]
    means = [math.fsum(part) / len(part) for part in parts]
    least, span = min(means), max(means) - min(means)
    return "".join(BLOCKS[round((mean - least) / span * (len(BLOCKS) - 1)) if span else 0] for mean in means)


def format_number(count: int, noun: str, plural: str = "") -> str:
    """`1 member`, `2 members`; `plural` if it is not the noun with an s."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def format_clock(unix_s: float) -> str:
    """The local time of day, `14:03:07`; `the end of time` if it is out of range."""
    try:
        return time.strftime("%H:%M:%S", time.localtime(unix_s))
    except (OverflowError, ValueError, OSError):
        return "the end of time"


def format_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, columns: int = 0, spare: Sequence[str] = ()
) -> str:
    """Columns as wide as their widest cell, two spaces apart; the first `left` columns left-aligned, others right.

    Where that is wider than `columns` (0: no limit), the columns named in `spare` are left out, the first name first.
    """
    table = [list(head), *(list(row) for row in rows)]
    left_out = list(spare)
    while columns and left_out and sum(_get_widths(table)) + GAP * (len(table[0]) - 1) > columns:
        place = table[0].index(left_out.pop(0))
        table = [row[:place] + row[place + 1 :] for row in table]
    widths = _get_widths(table)
    lines = [
        (" " * GAP)
        .join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        .rstrip()
        for row in table
    ]
    return "\n".join(lines)


def format_tables(head: Sequence[str], rows: Sequence[Sequence[str]], *, columns: int = TEXT_COLUMNS) -> str:
    """A table, and where it is wider than `columns` several below each other, each with the first column."""
    table = [list(head), *(list(row) for row in rows)]
    widths = _get_widths(table)
    blocks: list[list[int]] = [[]]
    used = widths[0]
    for column in range(1, len(head)):
        if blocks[-1] and used + GAP + widths[column] > columns:
            blocks.append([])
            used = widths[0]
        blocks[-1].append(column)
        used += GAP + widths[column]
    texts = [
        format_table(first, rest)
        for first, *rest in ([[row[0], *(row[c] for c in block)] for row in table] for block in blocks)
    ]
    return "\n\n".join(texts)


def _get_widths(table: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(row[column]) for row in table) for column in range(len(table[0]))]


def lay_out(parts: Sequence[str], waits: Sequence[str], columns: int = 0) -> str:
    """`place | figure | figure | wait` on one line where that fits in `columns` (0: no limit).

    Otherwise the waits stand below, whole, on as many lines as they need, and figures at the end are left out.
    """
    line = SEPARATOR.join([*parts, *waits])
    if not columns or len(line) <= columns:
        return line
    shown = 1
    while shown < len(parts) and len(SEPARATOR.join(parts[: shown + 1])) <= columns:
        shown += 1
    lines = [SEPARATOR.join(parts[:shown])] if parts else []
    for wait in waits:
        lines += textwrap.wrap(wait, columns, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)
