"""The exact crates of a build: Cargo.pins has name, version and digest of each, Cargo.lock is made from it.

A Cargo.lock also says which registry the crates come from; that is the machine's own affair, so it is not checked in.
"""

import tomllib
from pathlib import Path
from typing import NamedTuple

from sbf_build.errors import BuildError, run
from sbf_build.places import PROGRAMS

PINS = PROGRAMS / "Cargo.pins"
LOCK = PROGRAMS / "Cargo.lock"
_LOCK_VERSION = 4


class Pin(NamedTuple):
    """One crate in one version."""

    name: str
    version: str
    digest: str  # SHA-256 of the crate's archive


def read_pins(text: str) -> list[Pin]:
    """The pins; raises BuildError with the line that cannot be read."""
    pins: list[Pin] = []
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        if len(parts) != len(Pin._fields):
            raise BuildError(f"{PINS.name}, line {number}: a name, a version and a digest are expected, not {line!r}")
        pins.append(Pin(*parts))
    return pins


def _read_lock() -> tuple[list[Pin], set[str]]:
    """The crates of Cargo.lock that come from a registry, and which registries these are."""
    packages = [package for package in tomllib.loads(LOCK.read_text())["package"] if "source" in package]
    pins = sorted(Pin(package["name"], package["version"], package["checksum"]) for package in packages)
    return pins, {package["source"] for package in packages}


def _write_lock(pins: list[Pin], source: str) -> None:
    """A Cargo.lock without dependencies: cargo completes it, and keeps to the versions."""
    entries = [
        f'[[package]]\nname = "{pin.name}"\nversion = "{pin.version}"\nsource = "{source}"\nchecksum = "{pin.digest}"\n'
        for pin in pins
    ]
    LOCK.write_text(f"version = {_LOCK_VERSION}\n\n" + "\n".join(entries))


def lock_crates(environment: dict[str, str]) -> None:
    """Make Cargo.lock, and download its crates.

    Raises BuildError where the pins do not fit the manifests.
    """
    pins = sorted(read_pins(PINS.read_text()))
    if not LOCK.exists() or _read_lock()[0] != pins:
        run(["cargo", "generate-lockfile", "--quiet"], environment, PROGRAMS)  # to learn the registry's name
        (source,) = _read_lock()[1]
        _write_lock(pins, source)
    run(["cargo", "fetch", "--quiet"], environment, PROGRAMS)
    locked = _read_lock()[0]
    if locked != pins:
        LOCK.unlink()
        names = sorted({f"{pin.name} {pin.version}" for pin in set(locked) ^ set(pins)})
        raise BuildError(
            f"The crates that the manifests ask for are not those of {PINS.name}: {', '.join(names)}.\n"
            "  This writes Cargo.pins anew, with the newest versions that the manifests allow:\n"
            "  bash scripts/build-programs --pin"
        )


def pin_newest(environment: dict[str, str]) -> int:
    """Write Cargo.pins anew from what the manifests ask for, in the newest versions; returns how many crates it has."""
    LOCK.unlink(missing_ok=True)
    run(["cargo", "generate-lockfile", "--quiet"], environment, PROGRAMS)
    pins = _read_lock()[0]
    PINS.write_text("".join(" ".join(pin) + "\n" for pin in pins))
    return len(pins)


def find_crates(cargo_home: Path) -> list[Path]:
    """The folders with the unpacked sources of crates, one for each registry."""
    return sorted((cargo_home / "registry" / "src").glob("*"))
