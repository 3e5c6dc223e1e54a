"""The command line of scripts/build-programs."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from sbf_build.crates import build_program, build_with_solana_tools, get_environment, has_solana_tools
from sbf_build.debian import Tools, find_missing, find_tools, install
from sbf_build.errors import BuildError, run
from sbf_build.idl import describe_program
from sbf_build.pins import lock_crates, pin_newest
from sbf_build.places import BUILT, FORMATS, NAMES, PROGRAMS, WITH_IDL, get_crate, get_file, get_idl
from sbf_build.record import compare, read_tools, verify, write_files, write_record
from sbf_build.std import make_std

_RECENT_S = 24 * 60 * 60
_EPILOG = """\
Without options: all programs are built into programs/built, for both formats that Solana loads, with Debian's packages
and with exact versions of all crates, so that the same sources give the same bytes on every machine. The first time
takes about three minutes on two cores, later times seconds for each program that has changed.

examples:
  bash scripts/build-programs                          build what has changed; commit what comes out
  bash scripts/build-programs --program coordinator    only this one
  bash scripts/build-programs --check                  build, and compare with what is checked in
  bash scripts/build-programs --verify                 compare digests only: needs neither Rust nor packages
  bash scripts/build-programs --test                   the tests of the rules, on this machine: needs cargo alone
  bash scripts/build-programs --out /tmp/programs      build for a deployment of your own; with `cargo build-sbf`
                                                       where Solana's tools are on PATH
  bash scripts/build-programs --install                install the Debian packages that are missing (as root)
  bash scripts/build-programs --pin                    choose the newest crates that the manifests allow

What is built from what, and how to deploy it: programs/README.md
"""


class _Progress:
    """Lines that say what is being done, with the seconds since the beginning."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._started:4.0f} s] {text}", flush=True)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bash scripts/build-programs",
        description="Builds the Solana programs of programs/ from source.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--program", action="append", choices=NAMES, help="only this one; may be given several times")
    parser.add_argument("--arch", type=int, choices=FORMATS, help="only this SBPF version (without it: both)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="build into this folder instead of programs/built")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="write nothing; fail where programs/built has other bytes")
    mode.add_argument("--verify", action="store_true", help="no build; fail where sources have changed since the last")
    mode.add_argument("--test", action="store_true", help="test the rules with cargo, and look at the format of Rust")
    mode.add_argument("--install", action="store_true", help="install the Debian packages that are missing, and stop")
    mode.add_argument("--pin", action="store_true", help="write programs/Cargo.pins anew, and stop")
    parser.add_argument("--recent", action="store_true", help="with --check: build only what changed within a day")
    parser.add_argument("--debian", action="store_true", help="with --out: use Debian's tools, also beside Solana's")
    chosen = parser.parse_args(arguments)
    if chosen.out and (chosen.check or chosen.verify or chosen.test):
        parser.error("--out is for builds of your own; --check and --verify look at programs/built")
    if chosen.arch is not None and not (chosen.out or chosen.check):
        parser.error("programs/built has both formats; --arch goes with --out or --check")
    if chosen.recent and not chosen.check:
        parser.error("--recent goes with --check")
    return chosen


def has_recent_changes() -> bool:
    """Whether a commit of the day before the newest one changed programs/, or the work tree has changes there."""
    folder = str(PROGRAMS.relative_to(PROGRAMS.parent))

    def ask(*arguments: str) -> str:
        command = ["git", "-C", str(PROGRAMS.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    if ask("status", "--porcelain", "--", folder):
        return True
    newest, changed = (int(ask("log", "-1", "--format=%ct", *path) or 0) for path in ([], ["--", folder]))
    return newest - changed < _RECENT_S


def _build_here(progress: _Progress, tools: Tools, names: list[str], formats: list[int]) -> dict[Path, bytes]:
    """The files of the programs: built ones, and descriptions of their interfaces."""
    files: dict[Path, bytes] = {}
    std = make_std(tools)
    progress.say(f"crates, as programs/Cargo.pins names them ({tools.text})")
    lock_crates(get_environment(tools))
    for name in names:
        progress.say(f"{name}: program")
        built = build_program(tools, std, name)
        files |= {get_file(name, sbpf): built[sbpf] for sbpf in formats}
        if name in WITH_IDL:
            progress.say(f"{name}: interface")
            files[get_idl(name)] = describe_program(tools, name)
    return files


def _build_by_solana_tools(progress: _Progress, names: list[str], formats: list[int]) -> dict[Path, bytes]:
    files: dict[Path, bytes] = {}
    lock_crates(get_environment(None))
    for name in names:
        for sbpf in formats:
            progress.say(f"{name}: program, SBPFv{sbpf}, by cargo build-sbf")
            files[get_file(name, sbpf)] = build_with_solana_tools(name, sbpf)
        if name in WITH_IDL:
            progress.say(f"{name}: interface")
            files[get_idl(name)] = describe_program(None, name)
    return files


def _check(progress: _Progress, names: list[str], formats: list[int], *, recent: bool) -> None:
    verify()
    if recent and not has_recent_changes():
        progress.say("programs/ has not changed within a day, and belongs to programs/built: no build is needed.")
        return
    try:
        if recent and "CI" in os.environ and shutil.which("dpkg") and (missing := find_missing()):
            progress.say(f"installing {', '.join(missing)}")
            install()
        tools = find_tools()
    except BuildError as error:  # a mirror that does not answer says nothing about the programs
        if not recent:
            raise
        progress.say(f"By their digests, programs/built belongs to the sources. No build, to compare bytes:\n{error}")
        return
    if recent and tools.text != read_tools():
        progress.say(f"programs/built belongs to the sources, and was built with {read_tools()}; {tools.text} differs.")
        return
    compare(_build_here(progress, tools, names, formats), tools.text)
    progress.say("The sources give the same bytes as the files in programs/built.")


def _test(progress: _Progress) -> None:
    environment = get_environment(None)
    lock_crates(environment)
    progress.say("tests of the rules")
    print(run(["cargo", "test", "--quiet", "--locked", "--package", get_crate("rules")], environment, PROGRAMS))
    progress.say("format of all crates")
    run(["cargo", "fmt", "--check"], environment, PROGRAMS)
    progress.say("The rules pass their tests, and all Rust is formatted.")


def _build(progress: _Progress, chosen: argparse.Namespace, names: list[str], formats: list[int]) -> None:
    if chosen.out and has_solana_tools() and not chosen.debian:
        changed = write_files(chosen.out, _build_by_solana_tools(progress, names, formats))
    else:
        tools = find_tools()
        changed = write_files(chosen.out or BUILT, _build_here(progress, tools, names, formats))
        if not chosen.out:
            write_record(tools.text, names)
    folder = chosen.out or BUILT.relative_to(PROGRAMS.parent)
    progress.say(f"{folder}: {', '.join(map(str, changed)) or 'nothing'} changed.")


def _run(chosen: argparse.Namespace) -> None:
    progress = _Progress()
    names = [name for name in NAMES if not chosen.program or name in chosen.program]
    formats = [sbpf for sbpf in FORMATS if chosen.arch in (None, sbpf)]
    if chosen.test:
        _test(progress)
    elif chosen.install:
        install()
        make_std(find_tools())
        progress.say("Everything that a build needs is installed.")
    elif chosen.pin:
        progress.say(f"programs/Cargo.pins has {pin_newest(get_environment(find_tools()))} crates.")
    elif chosen.verify:
        verify()
        progress.say("programs/built belongs to these sources.")
    elif chosen.check:
        _check(progress, names, formats, recent=chosen.recent)
    else:
        _build(progress, chosen, names, formats)


def main(arguments: list[str]) -> int:
    """Build as asked; returns the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        _run(_parse(arguments))
    except BuildError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. What is finished is kept; the next run goes on from there.", file=sys.stderr)
        return 130
    return 0
