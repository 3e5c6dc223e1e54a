"""Puts faults into the Rust rules, one at a time: do traces and random events notice each?

    python scripts/faults.py --sample 120            so many faults, drawn by --seed
    python scripts/faults.py --files health.rs       all faults of one file, of several, or of lines (bits.rs:196)
    python scripts/faults.py --equivalents           those of the list: nothing must notice one

The rules are built as a library of this machine, in a copy. Right answers and hashes of the bytes are recorded, first
from traces, while core judges them; then each faulty library must give another answer, other bytes, or panic. Those
that do not are tried with random updates, then with random events. Faults that change nothing that anybody can see are
listed in equivalent_faults.toml with the reason, and are not counted. It needs cargo.
"""

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from blake3 import blake3
from mutants import read_equivalent
from rust_faults import Fault, find_faults

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "conformance")]

from conformance_traces import FOUND, TRACES, read_event, read_trace  # noqa: E402
from differential.backends import ACCEPTED, PANICKED, LibraryBackend, encode_event  # noqa: E402
from differential.players import play_events  # noqa: E402
from differential.updates import build_accounts, draw_case, judge_by_backend, judge_by_core  # noqa: E402
from kits.tier import TIERS  # noqa: E402

EQUIVALENT: Final = Path(__file__).with_name("equivalent_faults.toml")
LIBRARY: Final = Path("target/host/libpsyche_replay.so")
FAST_HASHES: Final = '\n[profile.host.package."*"]\nopt-level = 3\n'  # the rules are built fast instead
LIMIT_S: Final = 300  # a faulty loop may never end
NOTICED, UNNOTICED = 3, 0
REFUSED_SOMEHOW: Final = -1
SILLY: Final = "does not compile"
EVENTS: Final = 5_000  # of a seed
UPDATES: Final = 8_000
FIRST, WHOLE = (TIERS[tier].event_seeds for tier in ("first", "whole"))


class Step(NamedTuple):
    """One event: the account laid before it (None: as it is), its data, and what the right rules do."""

    account: bytes | None
    data: bytes
    answer: int
    digest: bytes


class RecordingBackend(LibraryBackend):
    """The right rules; it keeps what it is asked and what it answers."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.steps: list[Step] = []
        self._laid: bytes | None = None

    def load(self, account: bytes) -> None:
        super().load(account)
        self._laid = account

    def send(self, data: bytes) -> int:
        answer = super().send(data)
        self.steps.append(Step(self._laid, data, answer, blake3(self.read()).digest(16)))
        self._laid = None
        return answer


def record_traces(path: Path) -> list[Step]:
    backend = RecordingBackend(path)
    for file in sorted([*TRACES.glob("*.json"), *FOUND.glob("*.json")]):
        trace = read_trace(file)
        backend.load(trace.start)
        for event in trace.events:
            backend.send(encode_event(*read_event(event)))
        assert backend.read() == trace.end, f"{file.name}: the rules are at fault without any change"
    return backend.steps


def record_events(path: Path, seeds: range) -> list[Step]:
    steps: list[Step] = []
    for seed in seeds:
        backend = RecordingBackend(path)
        play_events(seed, EVENTS, backend)
        steps += backend.steps
    return steps


def record_updates(path: Path, seed: int) -> list[Step]:
    backend, draw, accounts = RecordingBackend(path), random.Random(seed), build_accounts()
    for _ in range(UPDATES):
        case = draw_case(draw, accounts)
        assert judge_by_backend(backend, case) == judge_by_core(case), case.body.hex()
    # how a bad update is refused is free: by its form, or by a rule
    return [step if step.answer == ACCEPTED else step._replace(answer=REFUSED_SOMEHOW) for step in backend.steps]


def is_noticed(path: Path, steps: list[Step]) -> bool:
    """Whether another answer or other bytes come out."""
    backend = LibraryBackend(path)
    for account, data, answer, digest in steps:
        if account is not None:
            backend.load(account)
        said = backend.send(data)
        is_right = said not in (ACCEPTED, PANICKED) if answer == REFUSED_SOMEHOW else said == answer
        if not is_right or blake3(backend.read()).digest(16) != digest:
            return True
    return False


def judge(library: Path, steps: list[Step]) -> bool:
    """Whether these notice the faulty library, or it crashes. It runs in a process of its own for that."""
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        signal.alarm(LIMIT_S)
        os._exit(NOTICED if is_noticed(library, steps) else UNNOTICED)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) != UNNOTICED


class Workshop:
    """A copy of the rules, where they are changed and built."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for crate in ("rules", "replay"):
            shutil.copytree(ROOT / "programs" / crate, folder / crate)
        members = re.compile(r"^members = .*$", re.MULTILINE)
        whole = (ROOT / "programs" / "Cargo.toml").read_text()
        (folder / "Cargo.toml").write_text(members.sub('members = ["rules", "replay"]', whole) + FAST_HASHES)
        self.sources = folder / "rules" / "src"

    def build(self) -> Path | None:
        """The library; None if the sources do not compile."""
        environment = os.environ | {
            "CARGO_PROFILE_HOST_OPT_LEVEL": "0",
            "CARGO_TARGET_DIR": str(self._folder / "target"),
        }
        command = ["cargo", "build", "--profile", "host", "-p", "psyche-replay", "-j", "1"]
        ran = subprocess.run(command, cwd=self._folder, env=environment, capture_output=True, text=True, check=False)
        self.said = ran.stderr
        return None if ran.returncode else self._folder / LIBRARY

    def put(self, fault: Fault) -> Path | None:
        """The library with this fault; None if it does not compile."""
        path = self.sources / fault.path
        right = path.read_text()
        lines = right.splitlines()
        assert lines[fault.line - 1].strip() == fault.before, f"{fault.name}: the line has changed"
        lines[fault.line - 1] = fault.after
        path.write_text("\n".join(lines) + "\n")
        try:
            return self.build()
        finally:
            path.write_text(right)


def is_asked_for(fault: Fault, files: list[str] | None) -> bool:
    """Whether it lies in one of these files, or lines of files; everything does if none are named."""
    places = (fault.path, f"{fault.path}:{fault.line}")
    return not files or any(place.endswith(name) for place in places for name in files)


def choose(faults: list[Fault], args: argparse.Namespace) -> list[Fault]:
    equivalents = read_equivalent(EQUIVALENT)
    chosen = [fault for fault in faults if is_asked_for(fault, args.files)]
    chosen = [f for f in chosen if ((f.path, f.before, f.after) in equivalents) == args.equivalents]
    random.Random(args.seed).shuffle(chosen)
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="how many faults that compile")
    parser.add_argument("--files", nargs="+", help="only faults of these files, or of lines of them")
    parser.add_argument("--equivalents", action="store_true", help="those of equivalent_faults.toml, and no others")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return search(Workshop(Path(folder) / "programs"), args)


def search(workshop: Workshop, args: argparse.Namespace) -> int:
    """Try each way to notice a fault, which takes longer than the one before, on those that are left."""
    library = workshop.build()
    if library is None:
        print(workshop.said)
        return 2
    right = library.with_name("right.so")
    shutil.copy(library, right)
    ways: dict[str, Callable[[], list[Step]]] = {
        "traces": lambda: record_traces(right),
        "random updates": lambda: record_updates(right, args.seed),
        "random events": lambda: record_events(right, range(FIRST)),
        "random events of the second tier": lambda: record_events(right, range(FIRST, WHOLE)),
    }
    left, tally = choose(list(find_faults(workshop.sources)), args), Counter[str]()
    for way, record in ways.items():
        steps = record() if left else []
        print(f"{len(steps):,} of {way}", flush=True)
        left = list(play(workshop, left, steps, way, tally, args.sample or len(left)))
    for fault in left:
        print(f"{'NOTHING':15} {fault.name}")
    print(dict(tally) | {"NOTHING": len(left)})
    return int((tally.total() - tally[SILLY] if args.equivalents else len(left)) > 0)


def play(
    workshop: Workshop, faults: list[Fault], steps: list[Step], way: str, tally: Counter[str], most: int
) -> Iterator[Fault]:
    """The faults, of so many that compile, that these steps do not notice."""
    for fault in faults:
        if not most:
            return
        faulty = workshop.put(fault)
        most -= faulty is not None
        if faulty is not None and not judge(faulty, steps):
            yield fault
            continue
        tally[way if faulty is not None else SILLY] += 1
        if faulty is not None:
            print(f"{way:15} {fault.name}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
