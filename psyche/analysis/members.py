"""One client of a run, as all views show it."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from psyche.analysis.series import Series
from psyche.core.state.enums import ClientState
from psyche.telemetry.status import ENDED, LEFT
from psyche.wire.backend import MemberInfo
from psyche.wire.report import clean_text

MAX_TEXT_BYTES: Final = 480
MAX_NAME_BYTES: Final = 48
_OUT: Final = frozenset({ClientState.DROPPED, ClientState.EJECTED})


class WaitView(NamedTuple):
    """What is waited for, in words; `until` in unix seconds, None: without an end."""

    what: str
    until: float | None = None
    then: str = ""


class LossPoint(NamedTuple):
    step: int
    loss: float
    seconds: float = 0.0  # that it trained; 0: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """One client; None where the source does not say."""

    key: str  # as the backend's commands take it; in logs the node's name
    name: str
    index: int | None = None  # among the epoch's members
    absence: str = ""  # why it does not take part, if that is not of its own will
    state: str = ""  # healthy, dropped, withdrawn, ejected, waits, away; empty: not known
    phase: str = ""
    epoch: int = 0
    height: int = 0
    step: int = 0
    loss: float | None = None
    tokens_per_s: float = 0.0
    bytes_sent: int | None = None
    bytes_received: int | None = None
    rounds_done: int | None = None  # results that counted: since its log begins, or of the epoch
    rounds_missed: int | None = None
    credits: int | None = None  # of the running epoch, by which it is paid
    silent: int = 0  # rounds in a row, up to now, in which it was not heard
    late: int = 0  # rounds in a row, up to now, whose result came too late
    lag: int = 0  # steps that it was behind the run when it was heard last
    waited: int | None = None  # in how many of the last 50 rounds it was waited for last
    wait: WaitView | None = None
    error: str = ""
    error_since: float = 0.0
    heard: float | None = None  # unix seconds
    digest: str = ""
    curve: Series[LossPoint] | None = None


def clean_name(text: str) -> str:
    """What a stranger calls itself, or its run, in one short harmless line."""
    return clean_text(text, MAX_NAME_BYTES)


def describe_state(one: MemberInfo) -> str:
    """`healthy`, `dropped, away`, `waits`."""
    if one.state is None:
        return "away" if one.is_connected is False else "waits"
    return f"{name_state(one.state)}, away" if one.is_connected is False else name_state(one.state)


def describe_absence(one: MemberInfo) -> str:
    """Why a member of the epoch does not take part against its will; empty: it does, or its user ended it."""
    if one.index is None or (one.report is not None and one.report.phase in (LEFT, ENDED)):
        return ""
    if one.state is not None and one.state in _OUT:
        return f"{name_state(one.state)} from the epoch"
    return "the server has lost its connection" if one.is_connected is False else ""


def name_state(state: int) -> str:
    return ClientState(state).name.lower() if state in {*ClientState} else str(state)
