"""Blocks of the documentation's pages that are generated from the code, between `<!-- BEGIN name -->` and its END."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

Blocks = Mapping[str, Callable[[], Iterable[str]]]  # by name: what makes the lines


def format_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    return ["| " + " | ".join(map(str, line)) + " |" for line in (head, ["---"] * len(head), *rows)]


def generate_blocks(texts: Sequence[str], blocks: Blocks) -> list[str]:
    """The pages with every block made anew.

    Raises:
        ValueError: a block's markers do not occur exactly once on all pages together.
    """
    pages = list(texts)
    for name, generate in blocks.items():
        pattern = re.compile(rf"(<!-- BEGIN {name} -->\n).*?(<!-- END {name} -->)", re.DOTALL)
        block = "\n" + "\n".join(generate()) + "\n\n"
        found = [pattern.subn(lambda match, block=block: match[1] + block + match[2], text) for text in pages]
        times = sum(count for _, count in found)
        if times != 1:
            raise ValueError(f"the markers of {name!r} are there {times} times, must be once")
        pages = [text for text, _ in found]
    return pages


def find_stale(pages: Sequence[Path], blocks: Blocks) -> dict[Path, str]:
    """The pages that the code would make otherwise, with what they should be."""
    texts = [page.read_text(encoding="utf-8") for page in pages]
    pairs = zip(pages, texts, generate_blocks(texts, blocks), strict=True)
    return {page: made for page, text, made in pairs if made != text}


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
