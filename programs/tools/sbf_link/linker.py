"""What rustc calls as its linker: LLVM bitcode in, a Solana program out.

rustc hands over bitcode, as objects and in libraries. It is linked and optimized as one module, rewritten where the BPF
back end of LLVM has no lowering, compiled, and packed as SBPF. Variables of the environment: RUSTC, whose LLVM version
says which tools to use; LLVM_BIN, a folder of tools without version instead; SBF_KEEP=1 keeps the steps between in a
folder and says where. The file that rustc asks for is SBPFv0; beside it, called *.v3.so, is the same program as SBPFv3.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sbf_link.elf import LinkError
from sbf_link.legalize import drop_bodies, legalize
from sbf_link.program import link
from sbf_link.soft_float import SOFT_FLOAT, SOFT_FLOAT_MODULE

_WITH_VALUE = ("--export-symbols", "-L", "--cpu", "--target", "--cpu-features")
_MEMORY_FUNCTIONS = ("memcpy", "memmove", "memset", "memcmp", "bcmp")
_ENTRY = re.compile(r"^define [^\n]*@entrypoint\(", re.MULTILINE)
_OPTIMIZE = "internalize,globaldce,default<O2>,lower-atomic,globaldce,function(instnamer)"
_TIDY = "internalize,always-inline,globaldce,function(sroa,early-cse,simplifycfg,adce),globaldce"
_CODE_GENERATION = [
    "-march=bpfel",
    "-mcpu=v2",
    "-mattr=+allows-misaligned-mem-access",
    "-bpf-stack-size=4096",
    "-bpf-disable-trap-unreachable",
    "-O2",
    "-filetype=obj",
]


def get_tool(name: str) -> str:
    """The command of an LLVM tool, in the version that rustc has."""
    if folder := os.environ.get("LLVM_BIN"):
        return str(Path(folder) / name)
    command = [os.environ.get("RUSTC", "rustc"), "-vV"]
    versions = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"LLVM version: (\d+)", versions)
    if found is None:
        raise LinkError(f"{command[0]} does not say which LLVM it has; name a folder of LLVM tools as LLVM_BIN")
    return f"{name}-{found.group(1)}"


def _run(name: str, *arguments: str | Path) -> None:
    tool = get_tool(name)
    try:
        returncode = subprocess.run([tool, *map(str, arguments)], check=False).returncode
    except FileNotFoundError:
        package = "llvm-" + tool.rpartition("-")[2]
        raise LinkError(f"{tool} is missing: install the package {package}") from None
    if returncode:
        raise LinkError(f"{tool} failed; its message is above")


def read_arguments(arguments: list[str]) -> tuple[list[Path], list[Path], Path]:
    """Objects of bitcode, libraries, and the file to write."""
    objects, libraries, output = [], [], Path("a.so")
    remaining = iter(arguments)
    for argument in remaining:
        if argument in _WITH_VALUE:
            next(remaining)
        elif argument == "-o":
            output = Path(next(remaining))
        elif argument.startswith("-"):
            pass
        elif argument.endswith((".rlib", ".a")):
            libraries.append(Path(argument).resolve())
        elif Path(argument).read_bytes()[:2] == b"BC":  # rustc's list of symbols is another object, not needed
            objects.append(Path(argument))
    return objects, libraries, output


def _extract(libraries: list[Path], folder: Path) -> list[Path]:
    members: list[Path] = []
    for number, library in enumerate(libraries):
        target = folder / str(number)
        target.mkdir()
        _run("llvm-ar", "x", "--output", target, library)
        members += sorted(target.glob("*.o"))
    return members


def compile_program(objects: list[Path], libraries: list[Path], folder: Path) -> bytes:
    """One relocatable object with all that the program uses; nothing where it has no entry point.

    The steps between are in `folder`.
    """
    (folder / "soft.ll").write_text(SOFT_FLOAT_MODULE)
    _run("llvm-link", "-S", "-o", folder / "main.ll", *objects, folder / "soft.ll")
    if not _ENTRY.search((folder / "main.ll").read_text()):
        return b""
    members = _extract(libraries, folder)
    # Twice: std needs core, and core needs std's entry of panics.
    _run("llvm-link", "-S", "-only-needed", "-o", folder / "all.ll", folder / "main.ll", *members, *members)
    (folder / "in.ll").write_text(drop_bodies((folder / "all.ll").read_text(), _MEMORY_FUNCTIONS))
    public = "-internalize-public-api-list=" + ",".join(["entrypoint", *SOFT_FLOAT])
    _run("opt", f"-passes={_OPTIMIZE}", public, "-S", "-o", folder / "optimized.ll", folder / "in.ll")
    (folder / "legal.ll").write_text(legalize((folder / "optimized.ll").read_text()))
    public = "-internalize-public-api-list=entrypoint"
    _run("opt", f"-passes={_TIDY}", public, "-o", folder / "final.bc", folder / "legal.ll")
    _run("llc", *_CODE_GENERATION, "-o", folder / "final.o", folder / "final.bc")
    return (folder / "final.o").read_bytes()


def main(arguments: list[str]) -> None:
    """Link as rustc asks. An empty file stands for a program that is built as another one's library."""
    folder = Path(tempfile.mkdtemp(prefix="sbf-link-"))
    try:
        objects, libraries, output = read_arguments(arguments)
        compiled = compile_program(objects, libraries, folder)
        output.write_bytes(link(compiled, sbpf=0) if compiled else b"")
        output.with_suffix(".v3.so").write_bytes(link(compiled, sbpf=3) if compiled else b"")
    except (LinkError, ValueError) as error:
        sys.exit(f"sbf-ld: {error}")
    finally:
        if os.environ.get("SBF_KEEP"):
            print(f"sbf-ld: the steps are in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder)
