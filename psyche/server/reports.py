"""What clients say of themselves (K8), in memory only, and what people are shown of it."""

import math
import statistics
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from msgspec.structs import replace

from psyche.backends.summary import add_counts
from psyche.core.state.roster import is_in_epoch
from psyche.core.state.state import Client, ClientState, Coordinator, SlotState
from psyche.telemetry import types
from psyche.telemetry.sink import EventSink
from psyche.wire.backend import MemberInfo
from psyche.wire.report import SelfReport, clean_report

MAX_REPORTS: Final = 512  # all slots of the run and as many allowed keys that wait for one
MAX_SHOWN: Final = 512  # clients in one answer: 512 of 1,400 bytes fit into a frame
TOLD_AGAIN_S: Final = 30  # between two events about one client's errors
GONE_SHOWN_S: Final = 3_600  # how long the report of a client that went away is shown


class ReportSummary(NamedTuple):
    """What the reports come to for the whole run; see `RunStatus`."""

    loss: float | None = None
    tokens_per_s: float = 0.0
    reporting: int = 0
    failing: int = 0


@dataclass(slots=True)
class _Kept:
    report: SelfReport
    at: int  # Unix seconds
    error_at: int = 0  # when its error was first heard
    told: str = ""  # the error that the last event told
    told_at: int = 0


class ReportBoard:
    def __init__(self, sink: EventSink) -> None:
        self.revision = 0  # grows with every report
        self._sink = sink
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()  # the client that reported last is at the end

    def put(self, key: bytes, said: SelfReport, now: int) -> None:
        """Keep a client's report in place of its former one; tell of a new error, and of its end."""
        report = clean_report(said)
        kept = self._kept.setdefault(key, _Kept(report, now))
        self._kept.move_to_end(key)
        if report.error and (report.error != kept.report.error or not kept.error_at):
            kept.error_at = now
        kept.report, kept.at = report, now
        self.revision += 1
        self._tell(key, kept, now)
        while len(self._kept) > MAX_REPORTS:
            self._kept.popitem(last=False)

    def _tell(self, key: bytes, kept: _Kept, now: int) -> None:
        report = kept.report
        if report.error == kept.told:
            return
        if not report.error:
            self._sink.emit(types.ErrorOver(key=key, name=report.name))
            kept.told = ""
        elif not kept.told_at or now - kept.told_at >= TOLD_AGAIN_S:  # otherwise one of its next reports tells
            self._sink.emit(types.ErrorReported(key=key, name=report.name, phase=report.phase, error=report.error))
            kept.told, kept.told_at = report.error, now

    def summarise(self, state: Coordinator, now: int, connected: frozenset[bytes]) -> ReportSummary:
        """Sum up what the connected healthy members say, and count the clients that report an error."""
        healthy = {c.p2p for c in state.clients if is_in_epoch(state) and c.state is ClientState.HEALTHY}
        shown = dict(self._iter_shown(now, connected))
        said = [shown[key].report for key in sorted(healthy & connected & shown.keys())]
        losses = [one.loss for one in said if one.loss is not None and math.isfinite(one.loss)]
        return ReportSummary(
            loss=statistics.median(losses) if losses else None,  # one false report does not move it far
            tokens_per_s=math.fsum(one.tokens_per_s for one in said),
            reporting=len(connected & shown.keys()),
            failing=sum(bool(kept.report.error) for kept in shown.values()),
        )

    def list_clients(
        self, state: Coordinator, now: int, connected: frozenset[bytes], *, with_errors: bool
    ) -> tuple[MemberInfo, ...]:
        """List the members of the running epoch by index, then the others that are here or were a while ago."""
        shown = dict(self._iter_shown(now, connected))
        members = state.clients if is_in_epoch(state) else []
        rows = [_make_row(state, c.p2p, index, c, shown, now, connected) for index, c in enumerate(members)]
        listed = {c.p2p for c in members}
        holders = {slot.p2p for slot in state.registry.slots if slot.state is SlotState.JOINED} & connected
        others = (holders | shown.keys()) - listed
        rows += [
            _make_row(state, key, None, None, shown, now, connected)
            for key in sorted(others, key=lambda k: (k not in connected, k))
        ]
        kept = rows[:MAX_SHOWN]
        return tuple(kept if with_errors else map(_hide_error, kept))

    def _iter_shown(self, now: int, connected: frozenset[bytes]) -> Iterator[tuple[bytes, _Kept]]:
        for key, kept in self._kept.items():
            if key in connected or now - kept.at <= GONE_SHOWN_S:
                yield key, kept


def _make_row(
    run: Coordinator, key: bytes, index: int | None, client: Client | None, shown: dict[bytes, _Kept], now: int,
    connected: frozenset[bytes],
) -> MemberInfo:  # fmt: skip
    kept = shown.get(key)
    state, is_connected = None if client is None else client.state, key in connected
    row = MemberInfo(key, index, state, is_connected)
    row = row if client is None else add_counts(row, run, client)
    if kept is None:
        return row
    has_error = bool(kept.report.error)
    report = kept.report if is_connected else replace(kept.report, tokens_per_s=0.0)  # who is away trains nothing
    return replace(
        row, report=report, report_age_s=max(0, now - kept.at), has_error=has_error,
        error_age_s=max(0, now - kept.error_at) if has_error else 0,
    )  # fmt: skip


def _hide_error(row: MemberInfo) -> MemberInfo:
    """Errors name files, hosts and users of somebody's machine: they are for the owner."""
    return row if row.report is None else replace(row, report=replace(row.report, error=""))
