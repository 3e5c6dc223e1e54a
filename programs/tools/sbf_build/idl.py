"""A program's interface as JSON, which clients in other languages read: Anchor's IDL, spec 0.1.0.

Anchor prints it in parts, from tests that its macros write.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from sbf_build.crates import get_environment
from sbf_build.debian import Tools
from sbf_build.errors import BuildError, run
from sbf_build.places import PROGRAMS, TARGET, get_crate

_PART = re.compile(r"^--- IDL begin (\w+) ---\n(.*?)^--- IDL end \1 ---", re.MULTILINE | re.DOTALL)
_TEST = "__anchor_private_print_idl"


def describe_program(tools: Tools | None, name: str) -> bytes:
    """The IDL of a program, as the file has it."""
    options = ["--quiet", "--locked", "--package", get_crate(name), "--features", "idl-build", "--lib"]
    target = ["--target-dir", str(TARGET / "idl")]
    environment = {**get_environment(tools), "CARGO_PROFILE_DEV_DEBUG": "0"}
    printed = run(
        ["cargo", "test", *options, *target, _TEST, "--", "--show-output", "--test-threads=1"], environment, PROGRAMS
    )
    return (json.dumps(_join(list(_read_parts(printed))), indent=2) + "\n").encode()


def _read_parts(printed: str) -> Iterator[tuple[str, Any]]:
    for kind, text in _PART.findall(printed):
        yield kind, json.loads(text)


def _join(parts: list[tuple[str, Any]]) -> dict[str, Any]:
    programs = [part for kind, part in parts if kind == "program"]
    if len(programs) != 1:
        raise BuildError(f"Anchor printed {len(programs)} descriptions of a program, and one is expected.")
    (idl,) = programs
    idl["address"] = next(part for kind, part in parts if kind == "address")
    types = idl.pop("types", [])
    events = [part for kind, part in parts if kind == "event"]
    for event in events:
        types += event["types"]
    idl["events"] = sorted((event["event"] for event in events), key=lambda event: event["name"])
    idl["errors"] = [error for kind, part in parts if kind == "errors" for error in part]
    idl["constants"] = [part for kind, part in parts if kind == "const"]
    idl["types"] = [types for _, types in sorted({one["name"]: one for one in types}.items())]
    return _shorten_names({key: part for key, part in idl.items() if part != []})


def _shorten_names(idl: dict[str, Any]) -> dict[str, Any]:
    """Names of types without the modules that they are in; raises BuildError where two would be the same."""
    names = {one["name"]: one["name"].rpartition("::")[2] for one in idl.get("types", [])}
    if len(set(names.values())) < len(names):
        raise BuildError(f"Two types of the interface have one name: {', '.join(sorted(names))}")
    text = json.dumps(idl)
    for long, short in names.items():
        text = text.replace(f'"{long}"', f'"{short}"')
    return json.loads(text)
