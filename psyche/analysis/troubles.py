"""What keeps a run from going on as it should, or a member from doing its part, for as long as it lasts."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from psyche.analysis.accounts import SERVER
from psyche.analysis.members import MAX_TEXT_BYTES, MemberView, clean_name
from psyche.telemetry import types
from psyche.telemetry.status import ENDED, LEFT, NodeView
from psyche.wire.report import clean_text

CAUSES: Final = {
    "still": "stands still", "error": "reports an error", "weights": "holds other weights", "disk": "has a full disk",
    "gone": "is gone", "slow": "is too slow",
}  # fmt: skip
MAX_REPORTED: Final = 512  # keys of strangers that are remembered: all that a server lists
SLOW_ROUNDS: Final = 2  # in a row: one may be a moment's
SLOW_STEPS: Final = 3
_DISK: Final = re.compile(r"no space left|disk is full|quota exceeded|free some space", re.IGNORECASE)
_OWN_WILL: Final = frozenset({types.LeaveCause.STOPPED, types.LeaveCause.FINISHED})
_ERRORS: Final = frozenset({types.Error, types.LeftEpoch, types.ClientEnded, types.CannotTakePart, types.Dropped})


class Trouble(NamedTuple):
    """`cause` is one of `CAUSES`; `who` is empty where it is the run."""

    cause: str
    who: str
    text: str
    since: float


class Troubles:
    """What events say of errors, full disks and members that are gone; `find` adds what the members' figures show."""

    def __init__(self) -> None:
        self._reported: dict[bytes, tuple[float, str, str]] = {}  # since, name and error, by key
        self._gone: dict[bytes, tuple[float, str]] = {}  # since and why, by key: members that the server lost
        self._slow: dict[str, float] = {}  # since, by key of a member
        self._failed_disk = ("", 0.0)
        self._left: set[str] = set()  # nodes that left because they were to
        self.handlers: dict[type[types.Event], Callable[[float, str, Any], None]] = {
            types.ErrorReported: self._on_reported, types.ErrorOver: self._on_over,
            types.JournalFailed: self._on_journal, types.ServerListening: self._on_server,
            types.ClientDisconnected: self._on_disconnected, types.ClientConnected: self._on_connected,
            types.LeftEpoch: self._on_left, types.ClientEnded: self._on_left,
        }  # fmt: skip

    def begin(self, node: str) -> None:
        """A node's process begins."""
        self._left.discard(node)

    def end_epoch(self) -> None:
        """The next one goes on without those that are gone."""
        self._gone.clear()

    def _on_reported(self, t: float, _node: str, event: types.ErrorReported) -> None:
        _keep(self._reported, event.key, (t, event.name or event.key.hex()[:8], event.error))

    def _on_over(self, _t: float, _node: str, event: types.ErrorOver) -> None:
        self._reported.pop(event.key, None)

    def _on_journal(self, t: float, _node: str, event: types.JournalFailed) -> None:
        self._failed_disk = (event.error, t)

    def _on_server(self, _t: float, _node: str, _event: types.ServerListening) -> None:
        self._failed_disk = ("", 0.0)

    def _on_disconnected(self, t: float, _node: str, event: types.ClientDisconnected) -> None:
        if event.is_member:
            _keep(self._gone, event.key, (t, f"the server has lost its connection: {event.reason}"))

    def _on_connected(self, _t: float, _node: str, event: types.ClientConnected) -> None:
        self._gone.pop(event.key, None)

    def _on_left(self, _t: float, node: str, event: types.LeftEpoch | types.ClientEnded) -> None:
        if event.cause in _OWN_WILL:
            self._left.add(node)

    def find_absent(self, find_node: Callable[[bytes], str]) -> set[str]:
        """The nodes that the server has lost."""
        return {find_node(key) for key in self._gone}

    # --- all of them ---------------------------------------------------------------------------------

    def find(
        self, members: Sequence[MemberView], nodes: Mapping[str, NodeView], find_node: Callable[[bytes], str],
        now: float,
    ) -> Iterator[Trouble]:  # fmt: skip
        """What is wrong with whom; `nodes` are those whose own logs are known, by the key of their `MemberView`."""
        problem, since = self._failed_disk
        if problem:
            yield Trouble("disk", SERVER, clean_text(problem, MAX_TEXT_BYTES), since)
        for key, (since, name, error) in self._reported.items():
            if find_node(key) not in nodes:
                yield _make_error(clean_name(name), clean_text(error, MAX_TEXT_BYTES), since)
        gone = {find_node(key) or key.hex()[:8]: told for key, told in self._gone.items()}
        slow: dict[str, float] = {}
        for member in members:
            node = nodes.get(member.key)
            yield from self._find_errors(member, node)
            absence = gone.pop(member.key, (member.heard or 0.0, member.absence))
            if absence[1] and member.key not in self._left:
                yield _make_absence(member.name, absence)
            elif why := _describe_slowness(member, node):
                slow[member.key] = self._slow.get(member.key, now)
                yield Trouble("slow", member.name, why, slow[member.key])
        self._slow = slow
        yield from (_make_absence(who, absence) for who, absence in gone.items())

    def _find_errors(self, member: MemberView, node: NodeView | None) -> Iterator[Trouble]:
        if node is not None and node.note_type is types.Diverged:
            yield Trouble("weights", member.name, member.error, member.error_since)
        elif member.error and (node is None or (node.note_type in _ERRORS and node.node not in self._left)):
            yield _make_error(member.name, member.error, member.error_since)


def _keep(told: dict[bytes, Any], key: bytes, value: Any) -> None:
    """Remember in place of what was told first, where there is too much."""
    told[key] = value
    if len(told) > MAX_REPORTED:
        del told[next(iter(told))]


def _make_error(who: str, text: str, since: float) -> Trouble:
    cause = "disk" if _DISK.search(text) else "weights" if "different weights" in text else "error"
    return Trouble(cause, who, text, since)


def _make_absence(who: str, absence: tuple[float, str]) -> Trouble:
    since, why = absence
    return Trouble("gone", who, clean_text(why, MAX_TEXT_BYTES), since)


def _describe_slowness(member: MemberView, node: NodeView | None) -> str:
    if member.phase in (LEFT, ENDED):
        return ""
    if member.late >= SLOW_ROUNDS:
        return f"its results of the last {member.late} rounds came too late"
    if member.silent >= SLOW_ROUNDS:
        return f"it was not heard in the last {member.silent} rounds"
    if member.lag >= SLOW_STEPS:
        return f"it is {member.lag} steps behind"
    return member.error if node is not None and node.note_type is types.Behind else ""
