"""What one node is doing, folded from its events: the status line of a client and a row of the testnet's table."""

import re
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from psyche.telemetry.console import Console
from psyche.telemetry.events import Event, Subscription
from psyche.telemetry.metrics import Rate
from psyche.telemetry.text import format_bytes, format_clock, format_count, format_number, format_seconds

RATE_WINDOW_S: Final = 30.0
PLAIN_INTERVAL_S: Final = 15.0  # without a terminal: one line at most this often, and at every change of phase
IDLE_INTERVAL_S: Final = 600.0  # the same while nothing at all has changed: a sign of life
NOTE_S: Final = 60.0  # a notice whose cause cannot be seen to end fades after this time
LASTING: Final = frozenset({"behind", "diverged", "server_lost", "left"})  # notices that stay until their cause ends
MEMBERS: Final = re.compile(r"members? \[(\d+(?:, \d+)*)\]")
PHASES: Final = {
    "uninitialized": "not set up",
    "waiting_for_members": "waiting for members",
    "warmup": "warmup",
    "round_train": "training",
    "round_witness": "witness",
    "cooldown": "cooldown",
    "finished": "finished",
    "paused": "paused",
}
ROUND_PHASES: Final = frozenset({PHASES["round_train"], PHASES["round_witness"]})


@dataclass(slots=True)
class Waiting:
    """What a node waits for, until when (unix seconds; None: no deadline), and what it does then."""

    what: str
    until: float | None
    then: str


@dataclass(slots=True)
class NodeView:
    """The last known facts of a node. `update` folds one event in; unknown kinds and missing fields change nothing.

    `members` counts the healthy members of the running epoch, `index` is this node's number among them, from 0.
    """

    node: str
    phase: str = "starting"
    epoch: int = 0
    height: int = 0
    step: int = 0
    members: int = 0
    index: int | None = None
    loss: float | None = None
    digest: str = ""
    agreed: bool | None = None
    rounds_trained: int = 0
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
    note_kind: str = ""
    noted: float = 0.0
    updated: float = 0.0
    last_applied: tuple[int, int] = (-1, -1)
    waits: dict[str, Waiting] = field(default_factory=dict)
    _sent_before: int = 0
    _received_before: int = 0
    _rate: Rate | None = None

    def update(self, event: Event) -> None:
        """Fold in one event of this node."""
        self.updated = float(event["t"])
        handler = HANDLERS.get(event["kind"])
        if handler is not None:
            handler(self, event)

    @property
    def tokens_per_s(self) -> float:
        """Tokens this node trained per second over the last 30 seconds of its events; 0 outside of rounds."""
        return self._rate.per_second() if self._rate is not None and self.phase in ROUND_PHASES else 0.0

    @property
    def waiting(self) -> Waiting | None:
        """The wait that ends first, where there is one."""
        waits = sorted(self.waits.values(), key=lambda wait: wait.until if wait.until is not None else float("inf"))
        return waits[0] if waits else None

    def count_tokens(self, tokens: int) -> None:
        """Add trained tokens to total and rate."""
        if self._rate is None:
            self._rate = Rate(RATE_WINDOW_S, now=lambda: self.updated)
        self.tokens += tokens
        self._rate.add(tokens)

    def start(self) -> None:
        """A new process of this node: what belonged to the former one ends, counters go on."""
        self.starts += 1
        self.phase, self.note, self.note_kind = "starting", "", ""
        self.waits.clear()
        self._sent_before, self._received_before = self.bytes_sent, self.bytes_received

    def take_note(self, kind: str, text: str) -> None:
        """Show a notice until its cause is gone, or for a minute where that cannot be seen."""
        self.note, self.note_kind, self.noted = text, kind, self.updated

    def drop_note(self, *kinds: str) -> None:
        """The cause of these kinds is gone."""
        if self.note_kind in kinds:
            self.note = self.note_kind = ""

    def get_note(self, now: float) -> str:
        """The notice that still holds at `now` (unix seconds); empty where there is none."""
        return self.note if self.note_kind in LASTING or now - self.noted < NOTE_S else ""

    def count_network(self, sent: int, received: int) -> None:
        """Take the counters of the running process; those of former ones stay added."""
        self.bytes_sent = self._sent_before + sent
        self.bytes_received = self._received_before + received


def _on_started(view: NodeView, _event: Event) -> None:
    view.start()


def _on_connecting(view: NodeView, _event: Event) -> None:
    if view.phase == "starting":
        view.phase = "connecting"


def _on_position(view: NodeView, event: Event) -> None:
    view.epoch = _get_int(event, "epoch", view.epoch)
    view.height = _get_int(event, "height", view.height)
    view.step = _get_int(event, "step", view.step)
    members = event.get("members")
    if isinstance(members, int) and not isinstance(members, bool):
        view.members = members


def _on_member(view: NodeView, event: Event) -> None:
    _on_position(view, event)
    view.drop_note("left")  # it had left the epoch before
    view.index = _get_int(event, "index", -1)
    if view.index < 0:
        view.index = None


def _on_state(view: NodeView, event: Event) -> None:
    _on_position(view, event)
    name = str(event.get("run_state", "")).lower()
    view.phase = PHASES.get(name, name or view.phase)


def _on_trained(view: NodeView, event: Event) -> None:
    view.rounds_trained += 1
    loss = event.get("loss")
    if isinstance(loss, int | float):
        view.loss = float(loss)
    view.count_tokens(_get_int(event, "tokens", 0))
    view.seconds += _get_float(event, "seconds")
    view.compute_seconds += _get_float(event, "compute_seconds")


def _on_applied(view: NodeView, event: Event) -> None:
    position = (_get_int(event, "epoch", 0), _get_int(event, "height", 0))
    if position > view.last_applied and _get_int(event, "count", 1) > 0:  # a replay after a restart is no new round
        view.rounds_applied += 1
        view.last_applied = position
        view.drop_note("epoch_failed", "error", "behind")
    _take_digest(view, event)


def _on_digest(view: NodeView, event: Event) -> None:
    _take_digest(view, event)
    if isinstance(event.get("agreed"), bool):
        view.agreed = event["agreed"]
        if view.agreed:
            view.drop_note("diverged", "behind")


def _take_digest(view: NodeView, event: Event) -> None:
    digest = event.get("digest")
    if isinstance(digest, str) and digest:
        view.digest = digest


def _on_wait_started(view: NodeView, event: Event) -> None:
    what = str(event.get("what", "something"))
    until = event.get("until")
    until = float(until) if isinstance(until, int | float) else None
    view.waits[what] = Waiting(what, until, str(event.get("then", "")))


def _on_wait_ended(view: NodeView, event: Event) -> None:
    view.waits.pop(str(event.get("what", "something")), None)


def _on_network(view: NodeView, event: Event) -> None:
    view.count_network(_get_int(event, "bytes_sent", 0), _get_int(event, "bytes_received", 0))


def _on_epoch_failed(view: NodeView, event: Event) -> None:
    view.epochs_failed += 1
    view.steps_lost += _get_int(event, "steps_lost", 0)
    if view.phase != "left":  # whoever left knows why
        view.take_note("epoch_failed", f"epoch given up: {event.get('reason', 'no reason given')}")


def _on_trouble(view: NodeView, event: Event) -> None:
    kind = str(event["kind"])
    view.take_note(kind, TROUBLES[kind])


def _on_healed(view: NodeView, _event: Event) -> None:
    view.heals += 1
    view.drop_note("behind", "diverged")


def _on_weights(view: NodeView, _event: Event) -> None:
    view.drop_note("behind", "diverged", "error")


def _on_connected(view: NodeView, _event: Event) -> None:
    view.drop_note("server_lost")


def _on_error(view: NodeView, event: Event) -> None:
    view.take_note("error", str(event.get("message", "error")))


def _on_exported(view: NodeView, event: Event) -> None:
    view.exported = str(event.get("path", ""))


def _on_left(view: NodeView, event: Event) -> None:
    if view.finished and event.get("code", 0) == 0:
        return
    view.phase = "left"
    view.take_note("left", str(event.get("reason", "")))
    view.waits.clear()


def _on_finished(view: NodeView, event: Event) -> None:
    view.finished = True
    view.phase = "finished"
    view.step = _get_int(event, "step", view.step)
    view.waits.clear()
    view.note = view.note_kind = ""
    if event.get("held", True):  # else the digest is the record's, and this node holds other weights
        _take_digest(view, event)


TROUBLES: Final = {
    "behind": "behind, catches up",
    "diverged": "holds different weights than the others, heals",
    "server_lost": "cannot reach the server, tries again",
}
HANDLERS: Final[dict[str, Callable[[NodeView, Event], None]]] = {
    "client_started": _on_started,
    "trainer_started": _on_connecting,
    "state_changed": _on_state,
    "round_started": _on_position,
    "member": _on_member,
    "trained": _on_trained,
    "applied": _on_applied,
    "digest": _on_digest,
    "wait_started": _on_wait_started,
    "wait_ended": _on_wait_ended,
    "network": _on_network,
    "epoch_failed": _on_epoch_failed,
    "behind": _on_trouble,
    "diverged": _on_trouble,
    "server_lost": _on_trouble,
    "server_connected": _on_connected,
    "model_loaded": _on_weights,
    "healed": _on_healed,
    "error": _on_error,
    "exported": _on_exported,
    "left": _on_left,
    "finished": _on_finished,
}


def _get_int(event: Event, name: str, default: int) -> int:
    value: Any = event.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _get_float(event: Event, name: str) -> float:
    value: Any = event.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def name_members(text: str, names: Mapping[int, str] | None = None) -> str:
    """`text` with `members [0, 2]` as `client 1, client 3`, where `names` knows them, else as `members 0, 2`."""

    def name(found: re.Match[str]) -> str:
        numbers = [int(number) for number in found[1].split(", ")]
        if names and all(number in names for number in numbers):
            return ", ".join(names[number] for number in numbers)
        return f"member{'s' if len(numbers) > 1 else ''} {found[1]}"

    return MEMBERS.sub(name, text)


def format_waiting(waiting: Waiting, now: float, names: Mapping[int, str] | None = None) -> str:
    """`waiting for 2 payloads until 14:03:07 (4 s), then go on without them`; `names` of members by their index."""
    text = f"waiting for {name_members(waiting.what, names)}"
    if waiting.until is not None:
        text += f" until {format_clock(waiting.until)} ({format_seconds(max(0, round(waiting.until - now)))})"
    return text + (f", then {waiting.then}" if waiting.then else "")


def format_status(view: NodeView, now: float) -> str:
    """One line: where the node is, how it does, and what it waits for."""
    round_ = f"round {view.height} " if view.phase in ROUND_PHASES else ""
    parts = [f"epoch {view.epoch} {round_}step {view.step}", view.phase]
    if view.loss is not None:
        parts.append(f"loss {view.loss:.3f}")
    if view.members:
        parts.append(f"{format_number(view.members, 'healthy member')}")
    if view.tokens_per_s >= 1:
        parts.append(f"{format_count(view.tokens_per_s)} tok/s")
    if view.bytes_sent or view.bytes_received:
        parts.append(f"up {format_bytes(view.bytes_sent)} down {format_bytes(view.bytes_received)}")
    if view.waiting is not None:
        parts.append(format_waiting(view.waiting, now))
    if note := view.get_note(now):
        parts.append(f"! {note}")
    return " | ".join(parts)


class Pace:
    """When a line is due where there is no terminal: at once where the stage is new, else every 15 seconds where
    anything has changed, and every ten minutes where nothing has."""

    def __init__(self) -> None:
        self._shown_at = float("-inf")
        self._shown: tuple[Hashable, Hashable] = (None, None)

    def is_due(self, now: float, stage: Hashable, facts: Hashable) -> bool:
        """Whether to print at `now` (seconds); true counts as printed."""
        interval_s = IDLE_INTERVAL_S if self._shown[1] == facts else PLAIN_INTERVAL_S
        if stage == self._shown[0] and now - self._shown_at < interval_s:
            return False
        self._shown_at, self._shown = now, (stage, facts)
        return True


def get_stage(phase: str) -> str:
    """Training and witness alternate several times a second in a small run: they are one stage of a plain line."""
    return PHASES["round_train"] if phase in ROUND_PHASES else phase


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
        """Fold in what has come and draw; call it a few times a second."""
        for event in self._subscription.drain():
            self.view.update(event)
        now = self._now()
        if self._console.live:
            self._console.set_status(format_status(self.view, now))
        elif self._pace.is_due(now, get_stage(self.view.phase), self._get_facts()):
            self._console.print(format_status(self.view, now))

    def close(self) -> None:
        """Leave the last line standing."""
        self.refresh()
        self._console.clear_status()

    def _get_facts(self) -> Hashable:
        """What is worth a new line; neither clocks nor traffic, which never rest."""
        view = self.view
        what = "" if view.waiting is None else view.waiting.what
        return (view.epoch, view.height, view.step, view.members, view.loss, view.get_note(self._now()), what)
