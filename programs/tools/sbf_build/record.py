"""The folder of built programs, and its record: digests of the files, and of the sources that they were built from."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from sbf_build.errors import BuildError
from sbf_build.places import BUILT
from sbf_build.sources import get_digests

SUMS = "SHA256SUMS"
RECORD = "build.json"
_AGAIN = "Build the programs and commit what comes out:  bash scripts/build-programs"


def _write_if_new(path: Path, content: bytes) -> bool:
    if path.exists() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return True


def write_files(folder: Path, files: Mapping[Path, bytes]) -> list[Path]:
    """Write the files, with SHA256SUMS over all that the folder has; returns the ones that changed."""
    changed = [file for file, content in files.items() if _write_if_new(folder / file, content)]
    paths = sorted(path for suffix in ("so", "json") for path in folder.rglob(f"*.{suffix}") if path.name != RECORD)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n" for path in paths]
    (folder / SUMS).write_text("".join(sums))
    return changed


def write_record(tools: str, names: list[str]) -> None:
    """Record the sources of the programs that were built into the project's folder, and the tools."""
    sources = _read_sources() if (BUILT / RECORD).exists() else {}
    sources |= {name: digest for name, digest in get_digests().items() if name in names}
    record = {"tools": tools, "sources": dict(sorted(sources.items()))}
    (BUILT / RECORD).write_text(json.dumps(record, indent=2) + "\n")


def _read_sources() -> dict[str, str]:
    return json.loads((BUILT / RECORD).read_text())["sources"]


def read_tools() -> str:
    """What the programs of the project's folder were built with."""
    return json.loads((BUILT / RECORD).read_text())["tools"]


def verify() -> None:
    """Without a build: the built programs belong to these sources, and are what the record says.

    Raises BuildError with the programs that do not.
    """
    if not (BUILT / RECORD).exists():
        raise BuildError(f"There are no built programs. {_AGAIN}")
    recorded = _read_sources()
    stale = [name for name, digest in get_digests().items() if recorded.get(name) != digest]
    if stale:
        raise BuildError(
            f"The sources of these programs have changed since they were built: {', '.join(stale)}.\n{_AGAIN}"
        )
    sums = [line.split("  ") for line in (BUILT / SUMS).read_text().splitlines()]
    wrong = [file for digest, file in sums if _get_digest(BUILT / file) != digest]
    if wrong:
        raise BuildError(f"These files are not the ones that {SUMS} records: {', '.join(wrong)}.\n{_AGAIN}")


def _get_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "missing"


def compare(files: Mapping[Path, bytes], tools: str) -> None:
    """What was just built is what is checked in; raises BuildError with the files that differ."""
    different = [
        str(file)
        for file, content in files.items()
        if not (BUILT / file).exists() or (BUILT / file).read_bytes() != content
    ]
    if not different:
        return
    reason = "" if read_tools() == tools else f"\nThey were built with {read_tools()}; here is {tools}."
    raise BuildError(f"These built programs are not what the sources give: {', '.join(different)}.{reason}\n{_AGAIN}")
