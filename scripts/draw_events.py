"""Draws the tables of docs/events.md from the event classes, between their markers.

python scripts/draw_events.py           write them
python scripts/draw_events.py --check   only report whether the page is stale
"""

import inspect
import re
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Final

from psyche.telemetry import kinds
from psyche.telemetry.kinds import network, rounds, run, server, simulator, testnet, waits, weights

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "events.md"
SUBJECTS: Final = (run, rounds, weights, waits, network, server, testnet, simulator)
BLOCK: Final = re.compile(r"(<!-- BEGIN kinds -->\n).*?(<!-- END kinds -->)", re.DOTALL)


def get_defined(module: ModuleType, base: type) -> list[type]:
    """The classes that a module defines, in order."""
    found = [cls for _, cls in inspect.getmembers(module, inspect.isclass) if cls.__module__ == module.__name__]
    return sorted((cls for cls in found if issubclass(cls, base)), key=lambda cls: inspect.getsourcelines(cls)[1])


def draw_subject(module: ModuleType) -> Iterator[str]:
    title, _, about = inspect.cleandoc(module.__doc__ or "").removesuffix(".").partition(": ")
    yield from (f"### {title}", "")
    if about:
        yield from (f"{about[0].upper()}{about[1:]}.", "")
    yield from ("| kind | fields | meaning |", "|---|---|---|")
    for cls in get_defined(module, kinds.Event):
        fields = [one.name if one.default is kinds.REQUIRED else f"[{one.name}]" for one in kinds.get_fields(cls)]
        meaning = " ".join(inspect.cleandoc(cls.__doc__ or "").split())
        yield f"| `{kinds.get_kind_name(cls)}` | {', '.join(fields)} | {meaning} |"
    yield ""
    for code in get_defined(module, StrEnum):
        values = ", ".join(f"`{one.value}`" for one in code)
        yield from (f"{inspect.cleandoc(code.__doc__ or '').removesuffix('.')}: {values}.", "")


def draw_page(text: str) -> str:
    block = "\n" + "\n".join(line for module in SUBJECTS for line in draw_subject(module))
    drawn, times = BLOCK.subn(lambda match: match[1] + block + match[2], text)
    if times != 1:
        raise ValueError(f"the markers of the kinds are there {times} times, must be once")
    return drawn


def main(arguments: list[str]) -> int:
    text = PAGE.read_text(encoding="utf-8")
    drawn = draw_page(text)
    if arguments == ["--check"]:
        print("up to date" if drawn == text else "stale: run `python scripts/draw_events.py`")
        return int(drawn != text)
    if arguments:
        print(__doc__)
        return 2
    PAGE.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
