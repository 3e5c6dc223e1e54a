"""The status of one node, folded from its events: for a client's status line and the testnet's table."""

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from psyche.core.state.enums import RunState
from psyche.telemetry import types
from psyche.telemetry.console import Console
from psyche.telemetry.events import Subscription, read_event
from psyche.telemetry.metrics import Rate
from psyche.telemetry.text import format_bytes, format_clock, format_count, format_number, format_seconds, lay_out

RATE_WINDOW_S: Final = 30.0
PLAIN_INTERVAL_S: Final = 15.0  # without a terminal: at most one line per interval, and one per change of phase
IDLE_INTERVAL_S: Final = 600.0  # the same while nothing has changed: a sign of life
NOTE_S: Final = 60.0  # a notice is dropped after this time if no event ends its cause
# Notices of these kinds stay until their cause ends.
LASTING: Final = frozenset(
    {
        types.Behind,
        types.Diverged,
        types.BackendLost,
        types.LeftEpoch,
        types.ClientEnded,
        types.CannotTakePart,
        types.Dropped,
    }
)
PHASES: Final = {
    RunState.UNINITIALIZED: "not started",
    RunState.WAITING_FOR_MEMBERS: "waiting for members",
    RunState.WARMUP: "warmup",
    RunState.ROUND_TRAIN: "training",
    RunState.ROUND_WITNESS: "witness",
    RunState.COOLDOWN: "cooldown",
    RunState.FINISHED: "finished",
    RunState.PAUSED: "paused",
}
CONNECTING: Final = "connecting"
STARTING: Final = "starting"
LOADING: Final = "starting: loads PyTorch, which takes longest the first time"
LEFT: Final = "left the epoch"
ENDED: Final = "ended"
ROUND_PHASES: Final = frozenset({PHASES[RunState.ROUND_TRAIN], PHASES[RunState.ROUND_WITNESS]})


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
    agreed: bool | None = None
    rounds_trained: int = 0
    batches_failed: int = 0
    rounds_applied: int = 0
    tokens: int = 0
    seconds: float = 0.0
    compute_seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    starts: int = 0
    epochs_failed: int = 0
    steps_lost: int = 0
    heals: int = 0
    finished: bool = False
    exported: str = ""
    note: str = ""
    note_kind: type[types.Event] | None = None
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
        handler = HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)

    @property
    def tokens_per_s(self) -> float:
        """Tokens this node trained per second over the last 30 seconds of its events; 0 outside of rounds."""
        return self._rate.per_second() if self._rate is not None and self.phase in ROUND_PHASES else 0.0

    @property
    def waiting(self) -> types.WaitStarted | None:
        """The wait that ends first; of those without an end, first that for the backend, which all others need."""
        return min(self.waits.values(), key=_get_urgency, default=None)

    def count_tokens(self, tokens: int) -> None:
        """Add trained tokens to total and rate."""
        if self._rate is None:
            self._rate = Rate(RATE_WINDOW_S, now=lambda: self.updated)
        self.tokens += tokens
        self._rate.add(tokens)

    def start(self) -> None:
        """A new process of this node: reset the state of the previous one; counters go on."""
        self.starts += 1
        self.phase, self.note, self.note_kind = CONNECTING, "", None
        self.waits.clear()
        self._sent_before, self._received_before = self.bytes_sent, self.bytes_received

    def take_note(self, kind: type[types.Event], text: str) -> None:
        """Show a notice until its cause is gone, or for a minute if no event tells that."""
        self.note, self.note_kind, self.noted = text, kind, self.updated

    def drop_note(self, *causes: type[types.Event]) -> None:
        """Drop the notice if it is of one of these kinds: their cause is gone."""
        if self.note_kind in causes:
            self.note, self.note_kind = "", None

    def get_note(self, now: float) -> str:
        """The notice to show at `now` (unix seconds); empty if there is none."""
        return self.note if self.note_kind in LASTING or now - self.noted < NOTE_S else ""

    def count_network(self, sent: int, received: int) -> None:
        """Add the counters of the running process to those of earlier ones."""
        self.bytes_sent = self._sent_before + sent
        self.bytes_received = self._received_before + received


def _on_started(view: NodeView, _event: types.ClientStarted) -> None:
    view.start()


def _on_trainer_started(view: NodeView, _event: types.TrainerStarted) -> None:
    if view.phase in (CONNECTING, STARTING):
        view.phase = "joining"


def _on_round(view: NodeView, event: types.RoundStarted) -> None:
    view.epoch, view.height, view.step = event.epoch, event.height, event.step


def _on_member(view: NodeView, event: types.Member) -> None:
    view.drop_note(types.LeftEpoch, types.Dropped)
    view.members, view.index = event.members, event.index


def _on_state(view: NodeView, event: types.StateChanged) -> None:
    view.epoch, view.height, view.step, view.members = event.epoch, event.height, event.step, event.members
    view.phase = PHASES[event.run_state]


def _on_trained(view: NodeView, event: types.Trained) -> None:
    view.rounds_trained += 1
    view.loss = event.loss
    view.count_tokens(event.tokens)
    view.seconds += event.seconds
    view.compute_seconds += event.compute_seconds


def _on_not_sent(view: NodeView, event: types.NotSent) -> None:
    view.batches_failed += event.failed


def _on_applied(view: NodeView, event: types.Applied) -> None:
    position = (event.epoch, event.height)
    if position > view.last_applied and event.count > 0:  # a replay is no new round
        view.rounds_applied += 1
        view.last_applied = position
        view.drop_note(types.EpochFailed, types.Error, types.Behind)
    view.digest = event.digest.hex()


def _on_digest(view: NodeView, event: types.Digest) -> None:
    view.digest, view.agreed = event.digest.hex(), event.agreed
    if view.agreed:
        view.drop_note(types.Diverged, types.Behind)


def _on_wait_started(view: NodeView, event: types.WaitStarted) -> None:
    view.waits[event.what] = event


def _on_wait_ended(view: NodeView, event: types.WaitEnded) -> None:
    view.waits.pop(event.what, None)


def _on_network(view: NodeView, event: types.Network) -> None:
    view.count_network(event.bytes_sent, event.bytes_received)


def _on_epoch_failed(view: NodeView, event: types.EpochFailed) -> None:
    view.epochs_failed += 1
    view.steps_lost += event.steps_lost
    if view.phase not in (LEFT, ENDED):  # a node that left has a notice that says why
        view.take_note(types.EpochFailed, f"epoch given up: {event.reason}")


def _on_trouble(view: NodeView, event: types.Behind | types.Diverged | types.BackendLost) -> None:
    view.take_note(type(event), TROUBLES[type(event)])


def _on_healed(view: NodeView, _event: types.Healed) -> None:
    view.heals += 1
    view.drop_note(types.Behind, types.Diverged)


def _on_weights(view: NodeView, _event: types.ModelLoaded) -> None:
    view.drop_note(types.Behind, types.Diverged, types.Error)


def _on_connected(view: NodeView, _event: types.BackendConnected) -> None:
    view.phase = STARTING if view.phase == CONNECTING else view.phase
    view.drop_note(types.BackendLost)


def _on_error(view: NodeView, event: types.Error) -> None:
    view.take_note(types.Error, event.message)


def _on_exported(view: NodeView, event: types.Exported) -> None:
    view.exported = event.path


def _on_dropped(view: NodeView, event: types.Dropped) -> None:
    view.take_note(types.Dropped, format_drop(event))


def _on_left_epoch(view: NodeView, event: types.LeftEpoch) -> None:
    view.phase = LEFT
    view.take_note(types.LeftEpoch, event.reason)
    view.waits.clear()


def _on_ended(view: NodeView, event: types.ClientEnded) -> None:
    if view.finished and not event.code:
        return
    view.phase = ENDED
    dropped = f"; {view.note}" if view.note_kind is types.Dropped else ""
    view.take_note(types.ClientEnded, event.reason + dropped)
    view.waits.clear()


def _on_cannot_take_part(view: NodeView, event: types.CannotTakePart) -> None:
    view.phase = ENDED
    view.take_note(types.CannotTakePart, event.reason)
    view.waits.clear()


def _on_finished(view: NodeView, event: types.Finished) -> None:
    view.finished = True
    view.phase = "finished"
    view.step = event.step
    view.waits.clear()
    if view.note_kind is not types.Dropped:  # the last line of a client that is no member any more still says why
        view.note, view.note_kind = "", None
    if event.held:  # otherwise the digest is the record's, not that of this node's weights
        view.digest = event.digest.hex()


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
HANDLERS: Final[dict[type[types.Event], Callable[[NodeView, Any], None]]] = {
    types.ClientStarted: _on_started,
    types.TrainerStarted: _on_trainer_started,
    types.StateChanged: _on_state,
    types.RoundStarted: _on_round,
    types.Member: _on_member,
    types.Trained: _on_trained,
    types.NotSent: _on_not_sent,
    types.Applied: _on_applied,
    types.Digest: _on_digest,
    types.WaitStarted: _on_wait_started,
    types.WaitEnded: _on_wait_ended,
    types.Network: _on_network,
    types.EpochFailed: _on_epoch_failed,
    types.Behind: _on_trouble,
    types.Diverged: _on_trouble,
    types.BackendLost: _on_trouble,
    types.BackendConnected: _on_connected,
    types.ModelLoaded: _on_weights,
    types.Healed: _on_healed,
    types.Error: _on_error,
    types.Exported: _on_exported,
    types.Dropped: _on_dropped,
    types.LeftEpoch: _on_left_epoch,
    types.ClientEnded: _on_ended,
    types.CannotTakePart: _on_cannot_take_part,
    types.Finished: _on_finished,
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
    is_said = view.note_kind is types.BackendLost and waiting is not None and waiting.wait is types.Wait.BACKEND
    if (note := view.get_note(now)) and not is_said:
        waits.append(f"! {note}")
    return lay_out(parts, waits, columns)


class Pace:
    """Decides when to print a line without a terminal: at once if the stage is new, else every 15 seconds if
    anything has changed, and every ten minutes if nothing has."""

    def __init__(self) -> None:
        self._shown_at = float("-inf")
        self._shown: tuple[Hashable, Hashable] = (None, None)

    def is_due(self, now: float, stage: Hashable, facts: Hashable) -> bool:
        """Whether to print at `now` (seconds); the caller must print if true."""
        interval_s = IDLE_INTERVAL_S if self._shown[1] == facts else PLAIN_INTERVAL_S
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
        """Fold in new events and draw; to be called a few times a second."""
        for line in self._subscription.drain():
            self.view.update(line["t"], read_event(line))
        now = self._now()
        if self._console.live:
            self._console.set_status(format_node_status(self.view, now, self._console.columns - 1))
        elif self._pace.is_due(now, get_stage(self.view.phase), self._get_facts()):
            self._console.print(format_node_status(self.view, now))

    def close(self) -> None:
        """Draw for the last time, and remove the live line."""
        self.refresh()
        self._console.clear_status()

    def _get_facts(self) -> Hashable:
        """The facts whose change is worth a new line; not clocks and traffic, which always change."""
        view = self.view
        what = "" if view.waiting is None else view.waiting.what
        return (view.epoch, view.height, view.step, view.members, view.loss, view.get_note(self._now()), what)
