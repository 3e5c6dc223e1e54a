"""Compiles a program for Solana: with Debian's rustc and the linker beside this folder, or with Solana's own tools."""

import os
import shutil
from pathlib import Path

from sbf_build.debian import Tools
from sbf_build.errors import BuildError, run
from sbf_build.pins import find_crates
from sbf_build.places import PROGRAMS, TARGET, TOOLS, get_crate

_FOREIGN = ("CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "RUSTFLAGS")
_TARGET_SPECIFICATION = TOOLS / "sbf-solana.json"
_OUTPUT = TARGET / "sbf"
_STD = ["-Z", "json-target-spec", "-Z", "build-std=std,panic_abort", "-Z", "build-std-features="]


def get_environment(tools: Tools | None) -> dict[str, str]:
    """The environment of cargo, without the user's settings that would change what comes out.

    With tools: cargo uses Debian's rustc.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    return environment if tools is None else {**environment, "RUSTC": str(tools.rustc)}


def _get_remaps(std: Path) -> str:
    """Flags that take this machine's folders out of the texts of panics, so that all machines build the same bytes."""
    cargo_home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
    folders = [(std, "/std"), (PROGRAMS, "/src"), *((folder, "/crates") for folder in find_crates(cargo_home))]
    return " ".join(f"--remap-path-prefix={folder}={name}" for folder, name in folders)


def build_program(tools: Tools, std: Path, name: str) -> dict[int, bytes]:
    """A program's bytes by SBPF version.

    Programs are built one by one: features of crates that are built together are joined, and a program that is another
    one's library has no entry point.
    """
    environment = {
        **get_environment(tools),
        "RUSTC_BOOTSTRAP": "1",  # build-std wants an unstable cargo
        "RUSTC_BOOTSTRAP_SYNTHETIC_TARGET": "1",
        "__CARGO_TESTS_ONLY_SRC_ROOT": str(std),
        "CARGO_TARGET_SBF_SOLANA_LINKER": str(TOOLS / "sbf-ld"),
        "RUSTFLAGS": _get_remaps(std),
    }
    options = ["--release", "--locked", "--package", get_crate(name), "--target-dir", str(_OUTPUT)]
    run(["cargo", "build", "--quiet", *options, "--target", str(_TARGET_SPECIFICATION), *_STD], environment, PROGRAMS)
    folder = _OUTPUT / "sbf-solana" / "release"
    files = {0: folder / f"libpsyche_{name}.so", 3: folder / "deps" / f"libpsyche_{name}.v3.so"}
    built = {sbpf: file.read_bytes() for sbpf, file in files.items()}
    if not all(built.values()):
        raise BuildError(f"{name} has no entry point. Is its feature no-entrypoint on?")
    return built


def has_solana_tools() -> bool:
    """Whether cargo build-sbf is there."""
    return shutil.which("cargo-build-sbf") is not None


def build_with_solana_tools(name: str, sbpf: int) -> bytes:
    """A program's bytes, compiled by `cargo build-sbf`."""
    folder = TARGET / f"solana-v{sbpf}"
    manifest = PROGRAMS / name / "Cargo.toml"
    command = ["cargo", "build-sbf", "--manifest-path", str(manifest), "--sbf-out-dir", str(folder)]
    run([*command, "--arch", f"v{sbpf}", "--", "--locked"], get_environment(None), PROGRAMS)
    return (folder / f"psyche_{name}.so").read_bytes()
