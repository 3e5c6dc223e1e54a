"""Blocks of the documentation's pages that are drawn from the code, between `<!-- BEGIN name -->` and its END."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

Blocks = Mapping[str, Callable[[], Iterable[str]]]  # by name: what draws the lines


def draw_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    return ["| " + " | ".join(map(str, line)) + " |" for line in (head, ["---"] * len(head), *rows)]


def draw_blocks(texts: Sequence[str], blocks: Blocks) -> list[str]:
    """The pages with every block redrawn.

    Raises:
        ValueError: a block's markers do not occur exactly once on all pages together.
    """
    drawn = list(texts)
    for name, draw in blocks.items():
        pattern = re.compile(rf"(<!-- BEGIN {name} -->\n).*?(<!-- END {name} -->)", re.DOTALL)
        block = "\n" + "\n".join(draw()) + "\n\n"
        found = [pattern.subn(lambda match, block=block: match[1] + block + match[2], text) for text in drawn]
        times = sum(count for _, count in found)
        if times != 1:
            raise ValueError(f"the markers of {name!r} are there {times} times, must be once")
        drawn = [text for text, _ in found]
    return drawn


def find_stale(pages: Sequence[Path], blocks: Blocks) -> dict[Path, str]:
    """The pages that the code would draw otherwise, with what they should be."""
    texts = [page.read_text(encoding="utf-8") for page in pages]
    pairs = zip(pages, texts, draw_blocks(texts, blocks), strict=True)
    return {page: drawn for page, text, drawn in pairs if drawn != text}


def run(script: str, usage: str | None, arguments: Sequence[str], pages: Sequence[Path], blocks: Blocks) -> int:
    """Write the pages, or with `--check` only report whether one is stale; return the exit code."""
    if list(arguments) not in ([], ["--check"]):
        print(usage)
        return 2
    stale = find_stale(pages, blocks)
    if arguments:
        print(f"stale: run `python scripts/{script}`" if stale else "up to date")
        return int(bool(stale))
    for page, text in stale.items():
        page.write_text(text, encoding="utf-8")
    return 0
