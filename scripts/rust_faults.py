"""Faults for programs/rules: one small change of a line of Rust each, as a slip of its writer would make it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

SKIPPED: Final = ("lib.rs", "errors.rs", "enums.rs", "state.rs", "genesis.rs", "testing.rs", "tests.rs", "hash.rs")
# not reached by `apply`: the coordinator program's own tests hold them
_ELSEWHERE: Final = re.compile(r"pub fn (complete_model|pad_text)\b")
_TESTS: Final = "#[cfg(test)]"
_IGNORED: Final = re.compile(
    r"^\s*(//|#|const _|use |pub use |mod |pub mod |assert|debug_assert|unreachable|impl|pub fn|fn|\}(?! else if))"
)
_STATEMENT: Final = re.compile(r"^\s*(?!let |return|if |for |while |pub |const |else|break|continue)[\w(*].*;( //.*)?$")
_SWAPS: Final[tuple[tuple[str, str], ...]] = (
    (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "), (r" == ", " != "), (r" != ", " == "),
    (r" && ", " || "), (r" \|\| ", " && "), (r" \+ ", " - "), (r" - ", " + "), (r" \* ", " + "),
    (r"\.max\(", ".min("), (r"\.min\(", ".max("), (r"\bif !", "if "), (r"\btrue\b", "false"), (r"\bfalse\b", "true"),
    (r" & ", " | "), (r" \| ", " & "), (r"\.any\(", ".all("), (r"\.all\(", ".any("),
    (r"\.count\(\)", ".count().saturating_sub(1)"), (r"\.is_some\(\)", ".is_none()"), (r"\.is_none\(\)", ".is_some()"),
)  # fmt: skip
_NUMBER: Final = re.compile(r"(?<![\w.\[])(\d+)(?![\w.\]])")
_REFUSAL: Final = re.compile(r"Refusal::(\w+)")


class Fault(NamedTuple):
    """A line of a file, and what stands there instead."""

    path: str
    line: int
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  ->  {self.after or '(nothing)'}"


def find_faults(folder: Path) -> Iterator[Fault]:
    """All faults of a crate's sources."""
    for path in sorted(folder.rglob("*.rs")):
        if path.name not in SKIPPED:
            yield from _find_in(path, path.relative_to(folder).as_posix())


def _find_in(path: Path, name: str) -> Iterator[Fault]:
    depth_of_statement, is_elsewhere = 0, False
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if line.startswith(_TESTS):
            return
        is_elsewhere = line != "}" and (is_elsewhere or _ELSEWHERE.match(line) is not None)
        is_whole = depth_of_statement == 0
        depth_of_statement = max(0, depth_of_statement + line.count("(") - line.count(")"))
        if is_elsewhere or (_IGNORED.match(line) and not line.lstrip().startswith("assert")):
            continue
        for after in _change(line, is_whole=is_whole and depth_of_statement == 0):
            yield Fault(name, number, line.strip(), after.strip())


def _change(line: str, *, is_whole: bool) -> Iterator[str]:
    code, _, _ = line.partition(" //")
    for pattern, other in _SWAPS:
        for match in re.finditer(pattern, code):
            yield code[: match.start()] + other + code[match.end() :]
    for match in _NUMBER.finditer(code):
        if not code[: match.start()].endswith((": u8 = ", "[0; ")):
            yield f"{code[: match.start()]}{int(match[1]) + 1}{code[match.end() :]}"
    for match in _REFUSAL.finditer(code):
        other = "Halted" if match[1] != "Halted" else "WrongRound"
        yield f"{code[: match.start()]}Refusal::{other}{code[match.end() :]}"
    if is_whole and _STATEMENT.match(line):
        yield ""
