"""Generates the tables of docs/events.md from the event classes, between their markers.

python scripts/generate_events.py           write them
python scripts/generate_events.py --check   only report whether the page is stale
"""

import inspect
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Final

import page_blocks

from psyche.telemetry import types
from psyche.telemetry.types import (
    chain,
    evals,
    network,
    rounds,
    run,
    server,
    simulator,
    testnet,
    verification,
    waits,
    weights,
)

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "events.md"
SUBJECTS: Final = (run, rounds, weights, evals, verification, waits, network, server, chain, testnet, simulator)


def get_defined(module: ModuleType, base: type) -> list[type]:
    """The classes that a module defines, in order."""
    found = [cls for _, cls in inspect.getmembers(module, inspect.isclass) if cls.__module__ == module.__name__]
    return sorted((cls for cls in found if issubclass(cls, base)), key=lambda cls: inspect.getsourcelines(cls)[1])


def generate_subject(module: ModuleType) -> Iterator[str]:
    title, _, about = inspect.cleandoc(module.__doc__ or "").removesuffix(".").partition(": ")
    yield from (f"### {title}", "")
    if about:
        yield from (f"{about[0].upper()}{about[1:]}.", "")
    yield from ("| kind | fields | meaning |", "|---|---|---|")
    for cls in get_defined(module, types.Event):
        fields = [one.name if one.default is types.REQUIRED else f"[{one.name}]" for one in types.get_fields(cls)]
        meaning = " ".join(inspect.cleandoc(cls.__doc__ or "").split())
        yield f"| `{types.get_type_name(cls)}` | {', '.join(fields)} | {meaning} |"
    yield ""
    for code in get_defined(module, StrEnum):
        values = ", ".join(f"`{one.value}`" for one in code)
        yield from (f"{inspect.cleandoc(code.__doc__ or '').removesuffix('.')}: {values}.", "")


def generate_subjects() -> list[str]:
    lines = [line for module in SUBJECTS for line in generate_subject(module)]
    return lines[:-1]  # without the empty line after the last


BLOCKS: Final = {"kinds": generate_subjects}


if __name__ == "__main__":
    sys.exit(page_blocks.run("generate_events.py", __doc__, sys.argv[1:], [PAGE], BLOCKS))
