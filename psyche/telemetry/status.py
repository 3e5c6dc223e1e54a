"""The status of one node, folded from its events: for a client's status line and the testnet's table."""

import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

from psyche.core.state.enums import RunState
from psyche.telemetry import types
from psyche.telemetry.console import Console
from psyche.telemetry.events import Subscription
from psyche.telemetry.text import format_bytes, format_clock, format_count, format_number, format_seconds, lay_out

RATE_WINDOW_S: Final = 30.0
BUCKETS: Final = 20  # of a rate's window: enough for a smooth figure, and constant memory however many events come
PLAIN_INTERVAL_S: Final = 15.0  # without a terminal: at most one line per interval, and one per change of phase
IDLE_INTERVAL_S: Final = 600.0  # the same while nothing has changed: a sign of life
NOTE_S: Final = 60.0  # a notice is dropped after this time if no event ends its cause
MAX_WAITS: Final = 64  # at a time
LASTING: Final = frozenset({
    types.Behind, types.Diverged, types.BackendLost, types.LeftEpoch, types.ClientEnded, types.CannotTakePart,
    types.Dropped,
})  # fmt: skip  # notices of these types stay until their cause ends
PHASES: Final = {
    RunState.UNINITIALIZED: "not started", RunState.WAITING_FOR_MEMBERS: "waiting for members",
    RunState.WARMUP: "warmup", RunState.ROUND_TRAIN: "training", RunState.ROUND_WITNESS: "witness",
    RunState.COOLDOWN: "cooldown", RunState.FINISHED: "finished", RunState.PAUSED: "paused",
}  # fmt: skip
CONNECTING: Final = "connecting"
STARTING: Final = "starting"
LOADING: Final = "starting: loads PyTorch, which takes longest the first time"
LEFT: Final = "left the epoch"
ENDED: Final = "ended"
ROUND_PHASES: Final = frozenset({PHASES[RunState.ROUND_TRAIN], PHASES[RunState.ROUND_WITNESS]})


class Rate:
    """An amount per second over the last `RATE_WINDOW_S` seconds, computed from at most `BUCKETS` sums."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.total = 0.0
        self._now = now
        self._start = now()
        self._buckets: deque[tuple[int, float]] = deque(maxlen=BUCKETS)  # (bucket number, sum), rising

    def add(self, amount: float) -> None:
        self.total += amount
        number = self._get_bucket(self._now())
        if self._buckets and self._buckets[-1][0] >= number:  # if the clock goes back, use the newest bucket
            last, total = self._buckets[-1]
            self._buckets[-1] = (last, total + amount)
        else:
            self._buckets.append((number, amount))

    def per_second(self) -> float:
        """The rate over the window, or over the time since the start if that is shorter."""
        now = self._now()
        oldest = self._get_bucket(now) - BUCKETS + 1
        amount = sum(total for number, total in self._buckets if number >= oldest)
        elapsed = min(RATE_WINDOW_S, now - self._start)
        return amount / max(elapsed, RATE_WINDOW_S / BUCKETS)  # avoids wild figures at the start

    def _get_bucket(self, now: float) -> int:
        return int((now - self._start) * BUCKETS / RATE_WINDOW_S)


@dataclass(slots=True)
class NodeView:
    """The last known facts of a node. `update` folds in one event; kinds of other versions are ignored.

    `members` counts the healthy members of the running epoch, `index` is this node's number among them, from 0.
    """

    node: str
    phase: str = CONNECTING
    epoch: int = 0
    height: int = 0
    step: int = 0
    members: int = 0
    index: int | None = None
    loss: float | None = None
    digest: str = ""
    rounds_trained: int = 0
    batches_failed: int = 0
    rounds_applied: int = 0
    tokens: int = 0
    compute_seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    peers: int = 0
    gossip_received: int = 0
    gossip_refused: int = 0
    payloads_received: int = 0
    witnesses_sent: int = 0
    weights_fetched: float = 0.0  # share of the model that came from peers
    starts: int = 0
    epochs_failed: int = 0
    steps_lost: int = 0
    heals: int = 0
    finished: bool = False
    exported: str = ""
    note: str = ""
    note_type: type[types.Event] | None = None
    noted: float = 0.0
    updated: float = 0.0
    last_applied: tuple[int, int] = (-1, -1)
    waits: dict[str, types.WaitStarted] = field(default_factory=dict)
    _sent_before: int = 0
    _received_before: int = 0
    _rate: Rate | None = None

    def update(self, t: float, event: types.Event) -> None:
        """Fold in an event of this node; `t` in unix seconds."""
        self.updated = t
        kind = type(event)  # most events are of one of these tables: a `match` of all costs more than the rest
        if kind in _COURSE:
            self._take_course(event)
        if kind in _WORK:
            self._take_work(event)
        if kind in _TRAFFIC:
            self._take_traffic(event)
        if kind in _TROUBLE:
            self._take_trouble(event)

    def _take_course(self, event: types.Event) -> None:
        match event:
            case types.ClientStarted():  # a new process: counters go on, all else is that of the former one
                self.starts += 1
                self.phase, self.note, self.note_type = CONNECTING, "", None
                self.waits.clear()
                self._sent_before, self._received_before = self.bytes_sent, self.bytes_received
            case types.BackendConnected():
                self.phase = STARTING if self.phase == CONNECTING else self.phase
                self._drop_note(types.BackendLost)
            case types.TrainerStarted() if self.phase in (CONNECTING, STARTING):
                self.phase = "joining"
            case types.StateChanged():
                self.epoch, self.height, self.step, self.members = event.epoch, event.height, event.step, event.members
                self.phase = PHASES[event.run_state]
            case types.RoundStarted():
                self.epoch, self.height, self.step = event.epoch, event.height, event.step
            case types.Member():
                self._drop_note(types.LeftEpoch, types.Dropped)
                self.members, self.index = event.members, event.index
            case types.LeftEpoch():
                self._leave(LEFT, event, event.reason)
            case types.CannotTakePart():
                self._leave(ENDED, event, event.reason)
            case types.ClientEnded() if event.code or not self.finished:
                dropped = f"; {self.note}" if self.note_type is types.Dropped else ""
                self._leave(ENDED, event, event.reason + dropped)
            case types.Finished():
                self._finish(event)
            case _:
                pass

    def _leave(self, phase: str, event: types.Event, reason: str) -> None:
        self.phase = phase
        self._take_note(event, reason)
        self.waits.clear()

    def _finish(self, event: types.Finished) -> None:
        self.finished, self.phase, self.step = True, "finished", event.step
        self.waits.clear()
        if self.note_type is not types.Dropped:  # the last line of a client that is no member any more still says why
            self.note, self.note_type = "", None
        if event.held:  # otherwise the digest is the record's, not that of this node's weights
            self.digest = event.digest.hex()

    def _take_work(self, event: types.Event) -> None:
        match event:
            case types.Trained():
                self.rounds_trained += 1
                self.loss = event.loss
                self._rate = self._rate or Rate(lambda: self.updated)
                self._rate.add(event.tokens)
                self.tokens += event.tokens
                self.compute_seconds += event.compute_seconds
            case types.NotSent():
                self.batches_failed += event.failed
            case types.Applied():
                place = (event.epoch, event.height)
                if place > self.last_applied and event.count > 0:  # a replay is no new round
                    self.rounds_applied += 1
                    self.last_applied = place
                    self._drop_note(types.EpochFailed, types.Error, types.Behind)
                self.digest = event.digest.hex()
            case types.Digest():
                self.digest = event.digest.hex()
                if event.agreed:
                    self._drop_note(types.Diverged, types.Behind)
            case types.Exported():
                self.exported = event.path
            case types.WaitStarted():
                self.waits[event.what] = event
                if len(self.waits) > MAX_WAITS:
                    del self.waits[next(iter(self.waits))]
            case types.WaitEnded():
                self.waits.pop(event.what, None)
            case _:
                pass

    def _take_traffic(self, event: types.Event) -> None:
        match event:
            case types.PayloadReceived():
                self.payloads_received += 1
            case types.Network():
                self.bytes_sent = self._sent_before + event.bytes_sent
                self.bytes_received = self._received_before + event.bytes_received
                self.peers = event.peers
                self.gossip_received, self.gossip_refused = event.gossip_received, event.gossip_refused
            case types.WitnessSent():
                self.witnesses_sent += 1
            case types.ModelFetch():
                self.weights_fetched = event.bytes / max(1, event.total)
            case _:
                pass

    def _take_trouble(self, event: types.Event) -> None:
        match event:
            case types.EpochFailed():
                self.epochs_failed += 1
                self.steps_lost += event.steps_lost
                if self.phase not in (LEFT, ENDED):  # a node that left has a notice that says why
                    self._take_note(event, f"epoch given up: {event.reason}")
            case types.Behind() | types.Diverged() | types.BackendLost():
                self._take_note(event, TROUBLES[type(event)])
            case types.Healed():
                self.heals += 1
                self._drop_note(types.Behind, types.Diverged)
            case types.ModelLoaded():
                self._drop_note(types.Behind, types.Diverged, types.Error)
            case types.Error():
                self._take_note(event, event.message)
            case types.Dropped():
                self._take_note(event, format_drop(event))
            case _:
                pass

    def _take_note(self, event: types.Event, text: str) -> None:
        self.note, self.note_type, self.noted = text, type(event), self.updated

    def _drop_note(self, *causes: type[types.Event]) -> None:
        """Drop the notice if it is of one of these types: their cause is gone."""
        if self.note_type in causes:
            self.note, self.note_type = "", None

    def get_note(self, now: float) -> str:
        """The notice at `now` (unix seconds): until its cause is gone, or for a minute if no event tells that."""
        return self.note if self.note_type in LASTING or now - self.noted < NOTE_S else ""

    @property
    def tokens_per_s(self) -> float:
        """Tokens this node trained per second over the last 30 seconds of its events; 0 outside of rounds."""
        return self._rate.per_second() if self._rate is not None and self.phase in ROUND_PHASES else 0.0

    @property
    def waiting(self) -> types.WaitStarted | None:
        """The wait that ends first; of those without an end, that for the run's backend, which all others need."""
        return min(self.waits.values(), key=_get_urgency, default=None)


_COURSE: Final = frozenset({
    types.ClientStarted, types.BackendConnected, types.TrainerStarted, types.StateChanged, types.RoundStarted,
    types.Member, types.LeftEpoch, types.CannotTakePart, types.ClientEnded, types.Finished,
})  # fmt: skip
_WORK: Final = frozenset({
    types.Trained, types.NotSent, types.Applied, types.Digest, types.Exported, types.WaitStarted, types.WaitEnded,
})  # fmt: skip
_TRAFFIC: Final = frozenset({types.Network, types.PayloadReceived, types.WitnessSent, types.ModelFetch})
_TROUBLE: Final = frozenset({
    types.EpochFailed, types.Behind, types.Diverged, types.BackendLost, types.Healed, types.ModelLoaded, types.Error,
    types.Dropped,
})  # fmt: skip


def _get_urgency(wait: types.WaitStarted) -> tuple[float, bool]:
    return float("inf") if wait.until is None else wait.until, wait.wait is not types.Wait.BACKEND


def format_drop(event: types.Dropped) -> str:
    """`dropped from the epoch: not heard: ...`; why is not known of the logs of older versions."""
    return f"dropped from the epoch: {event.reason}" if event.reason else "dropped from the epoch"


TROUBLES: Final = {
    types.Behind: "behind, catches up",
    types.Diverged: "holds different weights than the others, heals",
    types.BackendLost: "cannot reach the run's record, tries again",
}


def format_waiting(waiting: types.WaitStarted, now: float, names: Mapping[int, str] | None = None) -> str:
    """`waiting for 2 payloads until 14:03:07 (4 s), then go on without them`; `names` of members by their index."""
    text = f"waiting for {types.describe_wait(waiting, names)}"
    if waiting.until is not None:
        text += f" until {format_clock(waiting.until)} ({format_seconds(max(0, round(waiting.until - now)))})"
    return text + (f", then {waiting.then}" if waiting.then else "")


def format_node_status(view: NodeView, now: float, columns: int = 0) -> str:
    """One line: the node's place in the run, its figures, and what it waits for; `columns` as in `lay_out`."""
    round_ = f"round {view.height} " if view.phase in ROUND_PHASES else ""
    phase = LOADING if view.phase == STARTING else view.phase
    parts = [f"epoch {view.epoch} {round_}step {view.step}", phase]
    if view.loss is not None:
        parts.append(f"loss {view.loss:.3f}")
    if view.members:
        parts.append(f"{format_number(view.members, 'healthy member')}")
    if view.tokens_per_s >= 1:
        parts.append(f"{format_count(view.tokens_per_s)} tok/s")
    if view.bytes_sent or view.bytes_received:
        parts.append(f"up {format_bytes(view.bytes_sent)} down {format_bytes(view.bytes_received)}")
    waiting = view.waiting
    waits = [] if waiting is None else [format_waiting(waiting, now)]
    is_said = view.note_type is types.BackendLost and waiting is not None and waiting.wait is types.Wait.BACKEND
    if (note := view.get_note(now)) and not is_said:
        waits.append(f"! {note}")
    return lay_out(parts, waits, columns)


class Pace:
    """Decides when to print a line without a terminal: at once if the stage is new, else every `interval_s` seconds if
    anything has changed, and every `idle_s` if nothing has."""

    def __init__(self, interval_s: float = PLAIN_INTERVAL_S, idle_s: float = IDLE_INTERVAL_S) -> None:
        self._interval_s, self._idle_s = interval_s, idle_s
        self._shown_at = float("-inf")
        self._shown: tuple[Hashable, Hashable] = (None, None)

    def is_due(self, now: float, stage: Hashable, facts: Hashable) -> bool:
        """Whether to print at `now` (seconds); the caller must print if true."""
        interval_s = self._idle_s if self._shown[1] == facts else self._interval_s
        if stage == self._shown[0] and now - self._shown_at < interval_s:
            return False
        self._shown_at, self._shown = now, (stage, facts)
        return True


def get_stage(phase: str) -> str:
    """The stage of a phase: training and witness are one stage, since they alternate quickly in small runs."""
    return PHASES[RunState.ROUND_TRAIN] if phase in ROUND_PHASES else phase


class StatusLine:
    """Shows a node's events as a live line on `console`; without a terminal, as a plain line now and then."""

    def __init__(
        self, subscription: Subscription, node: str, console: Console, *, now: Callable[[], float] = time.time
    ) -> None:
        self.view = NodeView(node)
        self._subscription = subscription
        self._console = console
        self._now = now
        self._pace = Pace()

    def refresh(self) -> None:
        for t, _, event in self._subscription.drain():
            self.view.update(t, event)
        now = self._now()
        if self._console.live:
            self._console.set_status(format_node_status(self.view, now, self._console.columns - 1))
        elif self._pace.is_due(now, get_stage(self.view.phase), self._get_facts()):
            self._console.print(format_node_status(self.view, now))

    def close(self) -> None:
        self.refresh()
        self._console.clear_status()

    def _get_facts(self) -> Hashable:
        """The facts whose change is worth a new line; not clocks and traffic, which always change."""
        view = self.view
        what = "" if view.waiting is None else view.waiting.what
        return (view.epoch, view.height, view.step, view.members, view.loss, view.get_note(self._now()), what)
