"""The tools that Debian has for this: a rustc that knows BPF, its sources, and the LLVM that it uses."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sbf_build.errors import BuildError, run

PACKAGES = ("rustc-web", "libstd-rust-web-dev-bpf", "rust-web-src")
# The other Rust that Debian packages for browsers brings has no cargo that reads today's lock files.
_CARGO = "Install Rust with rustup, or your system's package of cargo (1.80 or newer)."


@dataclass(frozen=True)
class Tools:
    """The installed tools."""

    rustc: Path
    version: str  # of rustc, as in 1.96.0
    llvm: str  # the version of its LLVM, as in 22.1.8
    library: Path  # the sources of std

    @property
    def text(self) -> str:
        return f"rustc {self.version}, LLVM {self.llvm}"


def _list_files(package: str) -> list[str]:
    return run(["dpkg", "-L", package]).splitlines()


def _is_installed(package: str) -> bool:
    command = ["dpkg-query", "-W", "-f", "${Status}", package]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.endswith(" installed")


def _find_rustc() -> tuple[Path, str, str]:
    rustc = next(Path(line) for line in _list_files("rustc-web") if line.endswith("/bin/rustc"))
    versions = run([str(rustc), "-vV"])
    release = re.search(r"^release: (\S+)", versions, re.MULTILINE)
    llvm = re.search(r"^LLVM version: (\S+)", versions, re.MULTILINE)
    if release is None or llvm is None:
        raise BuildError(f"{rustc} does not say which version it is, or which LLVM it has:\n{versions}")
    return rustc, release.group(1), llvm.group(1)


def find_missing() -> list[str]:
    """The packages that are not installed. LLVM's is only known once rustc is there: it must be of the same version."""
    missing = [package for package in PACKAGES if not _is_installed(package)]
    if "rustc-web" in missing:
        return [*missing, f"llvm-{_guess_llvm()}"]
    llvm = _find_rustc()[2].partition(".")[0]
    return [*missing, *([] if shutil.which(f"llc-{llvm}") else [f"llvm-{llvm}"])]


def _guess_llvm() -> str:
    """The LLVM that the newest rustc-web depends on, as apt knows; NN where apt does not say."""
    command = ["apt-cache", "depends", "--recurse", "--no-recommends", "--no-suggests", "rustc-web"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    versions = re.findall(r"\blibllvm(\d+)\b", found)
    return versions[0] if versions else "NN"


def install() -> None:
    """Install what is missing, by apt-get; raises BuildError where that is not possible."""
    if find_missing() and os.geteuid() != 0:
        raise BuildError("Only root can install packages:  sudo bash scripts/build-programs --install")
    for _ in range(2):  # LLVM's version is known for certain after rustc is installed
        missing = [package for package in find_missing() if package != "llvm-NN"]
        if not missing:
            return
        run(["apt-get", "update", "-qq"])
        options = ["-y", "-qq", "--no-install-recommends"]
        run(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", *options, *missing])
    if missing := find_missing():
        raise BuildError(f"apt-get went through, and yet these packages are missing: {' '.join(missing)}")


def find_tools() -> Tools:
    """The tools; raises BuildError with the command that installs what is missing."""
    if shutil.which("dpkg") is None:
        raise BuildError(
            "The programs are built with Debian's packages, and this system is not Debian (or made from it).\n"
            '  In a container it works: docker run --rm -it -v "$PWD":/psyche -w /psyche rust:1-bookworm \\\n'
            "    sh -c 'bash scripts/build-programs --install && bash scripts/build-programs'\n"
            "  With Solana's own tools (cargo build-sbf) on PATH: bash scripts/build-programs --out FOLDER"
        )
    if shutil.which("cargo") is None:
        raise BuildError(f"cargo is missing: it is not on PATH. {_CARGO}")
    if missing := find_missing():
        raise BuildError(
            f"Packages are missing (about 200 MB to download, 1.5 GB on disk): {' '.join(missing)}\n"
            "  This installs them:  sudo bash scripts/build-programs --install\n"
            f"  The same by hand:    sudo apt-get install --no-install-recommends {' '.join(missing)}"
        )
    rustc, version, llvm = _find_rustc()
    library = next(Path(line) for line in _list_files("rust-web-src") if line.endswith("/library"))
    return Tools(rustc, version, llvm, library)
