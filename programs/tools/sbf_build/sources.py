"""What a program is built from, as a digest: where it is the recorded one, no build is needed."""

import hashlib
import tomllib
from collections.abc import Iterator
from pathlib import Path

from sbf_build.places import NAMES, PROGRAMS, TOOLS

_COMMON = ("Cargo.toml", "Cargo.pins")
# What decides about bytes: the linker, how crates are compiled, the edits of std, how interfaces are written.
_DECIDING = ("sbf-ld", "sbf-solana.json", "sbf_link/*", "sbf_build/crates.py", "sbf_build/std.py", "sbf_build/idl.py")
_PREFIX = "psyche-"


def _list_tools() -> Iterator[Path]:
    for pattern in _DECIDING:
        yield from (path for path in TOOLS.glob(pattern) if path.is_file())


def _list_crate(crate: str) -> Iterator[Path]:
    folder = PROGRAMS / crate
    yield folder / "Cargo.toml"
    yield from (folder / "src").rglob("*.rs")


def find_crates(name: str) -> set[str]:
    """The crates of this workspace that a program is made of: its own and those that it depends on."""
    found, waiting = set[str](), [name]
    while waiting:
        crate = waiting.pop()
        if crate not in found:
            found.add(crate)
            manifest = tomllib.loads((PROGRAMS / crate / "Cargo.toml").read_text())
            dependencies = manifest.get("dependencies", {})
            waiting += [one.removeprefix(_PREFIX) for one in dependencies if one.startswith(_PREFIX)]
    return found


def get_digest(name: str) -> str:
    """The digest of all files that a program is built from: their paths and their contents."""
    paths = [PROGRAMS / file for file in _COMMON] + list(_list_tools())
    for crate in find_crates(name):
        paths += _list_crate(crate)
    digest = hashlib.sha256()
    for path in sorted(paths):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{content}  {path.relative_to(PROGRAMS)}\n".encode())
    return digest.hexdigest()


def get_digests() -> dict[str, str]:
    """The digest of each program's sources."""
    return {name: get_digest(name) for name in NAMES}
