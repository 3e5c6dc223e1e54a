"""A listing of a run's events, one line each: of a simulation or of a real run's logs.

lines = read_trace([Path("runs/demo-20261121/events")])
for line in format_trace(lines, Filter(nodes=("client-1",), kinds=("trained", "applied"))):
    print(line)
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from psyche.errors import ConfigError
from psyche.telemetry import types
from psyche.telemetry.events import Line, find_logs, read_lines

MAX_FIELD: Final = 60  # characters of one field in `describe_line`
QUIET_KINDS: Final = (types.Network, types.WaitStarted, types.WaitEnded, types.PayloadReceived, types.ModelFetch)
QUIET: Final = frozenset(map(types.get_type_name, QUIET_KINDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    nodes: tuple[str, ...] = ()  # patterns such as client-* or state_*; empty: all, except the frequent kinds
    kinds: tuple[str, ...] = ()
    from_s: float = 0.0  # seconds since the first event
    to_s: float = float("inf")
    height: int | None = None  # only events that name a round of this height
    all_kinds: bool = False  # show the frequent kinds as well

    def shows(self, line: Line, since_s: float) -> bool:
        if not self.from_s <= since_s <= self.to_s:
            return False
        if self.nodes and not any(fnmatchcase(line["node"], pattern) for pattern in self.nodes):
            return False
        if self.height is not None and line.get("height") != self.height:
            return False
        if self.kinds:
            return any(fnmatchcase(line["kind"], pattern) for pattern in self.kinds)
        return self.all_kinds or line["kind"] not in QUIET


def read_trace(paths: Iterable[Path]) -> list[Line]:
    """The events of logs, and of all logs below folders, sorted by time; a log that is named twice counts once."""
    files: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: there is no such file or folder")
        found = find_logs(path)
        if not any(next(read_lines(file), None) for file in found):
            raise ConfigError(
                f"{path}: there are no events; a run's are in its folder events, a client's in its data folder"
            )
        files |= dict.fromkeys(file.resolve() for file in found)
    return sorted((line for file in files for line in read_lines(file)), key=lambda line: line["t"])


def format_trace(lines: Sequence[Line], wanted: Filter) -> Iterator[str]:
    first = float(lines[0]["t"]) if lines else 0.0
    for line in lines:
        since_s = float(line["t"]) - first
        if wanted.shows(line, since_s):
            yield describe_line(line | {"t": since_s})


def describe_line(line: Line) -> str:
    fields = [f"{name}={_shorten(value)}" for name, value in line.items() if name not in ("t", "node", "kind")]
    return f"{line['t']:>12.3f}  {line['node']:<10}  {line['kind']:<20}  {' '.join(fields)}"


def _shorten(value: object) -> str:
    text = str(value)
    if len(text) == 64 and all(c in "0123456789abcdef" for c in text):
        return text[:12]
    return text if len(text) <= MAX_FIELD else text[: MAX_FIELD - 1] + "…"
