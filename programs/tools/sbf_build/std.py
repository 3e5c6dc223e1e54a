"""A copy of Rust's standard library for programs on Solana, made from Debian's sources.

Solana's own compiler has a fork of it. The differences that programs need are few: take the branches for targets
without an operating system, send panics to the program, have nothing happen after them, and do without randomness.
"""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from sbf_build.debian import Tools
from sbf_build.errors import BuildError

# cargo hashes this path into the names of crates, and these into the bytes of programs: it must be the same everywhere.
_FOLDER = Path("/usr/local/src")
_ZKVM = 'target_os = "zkvm"'
_ZKVM_OR_SOLANA = 'any(target_os = "zkvm", target_os = "solana")'
_EDITS = {  # file -> text that stands there once -> what takes its place
    "std/src/sys/alloc/mod.rs": {
        '    target_arch = "riscv64",': '    target_arch = "riscv64", target_arch = "bpf",',
    },
    "std/src/panicking.rs": {
        "pub fn panic_handler(info: &core::panic::PanicInfo<'_>) -> ! {\n": """\
pub fn panic_handler(info: &core::panic::PanicInfo<'_>) -> ! {
    #[cfg(target_os = "solana")]
    {
        unsafe extern "Rust" { fn custom_panic(info: &core::panic::PanicInfo<'_>); }
        unsafe extern "C" { fn abort() -> !; }
        unsafe { custom_panic(info); abort() }
    }
    #[cfg(not(target_os = "solana"))]
    {
        unwinding_panic_handler(info)
    }
}

#[cfg(not(target_os = "solana"))]
fn unwinding_panic_handler(info: &core::panic::PanicInfo<'_>) -> ! {
""",
    },
    # Anchor has a set of accounts. Programs have no randomness, and no writable data for a state per thread.
    "std/src/hash/random.rs": {
        "    pub fn new() -> RandomState {\n": """\
    #[cfg(target_os = "solana")]
    pub fn new() -> RandomState {
        RandomState { k0: 0, k1: 0 }
    }
    #[cfg(not(target_os = "solana"))]
    pub fn new() -> RandomState {
""",
    },
    "std/src/alloc.rs": {
        "pub fn rust_oom(layout: Layout) -> ! {": """\
pub fn rust_oom(layout: Layout) -> ! {
    #[cfg(target_os = "solana")]
    panic!("memory allocation of {} bytes failed", layout.size());
    #[cfg(not(target_os = "solana"))]""",
    },
}


def _describe_edits() -> str:
    """A short digest of the edits: another copy is made when they change."""
    return hashlib.sha256(repr((_ZKVM_OR_SOLANA, _EDITS)).encode()).hexdigest()[:8]


def _edit(library: Path) -> None:
    for path in sorted((library / "std" / "src").rglob("*.rs")):
        text = path.read_text()
        if _ZKVM in text:
            path.write_text(text.replace(_ZKVM, _ZKVM_OR_SOLANA))
    for name, edits in _EDITS.items():
        path = library / name
        text = path.read_text()
        for old, new in edits.items():
            if text.count(old) != 1:
                raise BuildError(
                    f"{name} of Debian's Rust sources is not as programs/tools/sbf_build/std.py knows it: this is not\n"
                    f"there exactly once: {old.strip()!r}. A newer Rust has other sources; change _EDITS to fit them."
                )
            text = text.replace(old, new)
        path.write_text(text)


def make_std(tools: Tools) -> Path:
    """The folder of the copy, made where it is not there yet.

    Raises BuildError where the folder cannot be written, or the sources are not as expected.
    """
    wanted = _FOLDER / f"psyche-sbf-std-{tools.version}-{_describe_edits()}"
    if wanted.is_dir():
        return wanted
    if not os.access(_FOLDER, os.W_OK):
        raise BuildError(
            f"{_FOLDER} must be writable once, for an edited copy of Rust's standard library (60 MB). Its path\n"
            "  is part of what is compiled, so that no other folder will do.\n"
            "  Run this once:  sudo bash scripts/build-programs --install"
        )
    unfinished = Path(tempfile.mkdtemp(prefix="psyche-sbf-std-", dir=_FOLDER))
    try:
        shutil.copytree(tools.library, unfinished / "library", symlinks=True)
        _edit(unfinished / "library")
        unfinished.chmod(0o755)
        (unfinished / "library").rename(wanted)
    finally:
        shutil.rmtree(unfinished)
    return wanted
