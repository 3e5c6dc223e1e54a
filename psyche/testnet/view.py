"""The combined live view: a table of all clients on a terminal, plain lines elsewhere."""

import textwrap
import time
from collections.abc import Callable
from typing import Any, Final

import trio

from psyche.telemetry import types
from psyche.telemetry.console import Console
from psyche.telemetry.events import EventTail, read_entry
from psyche.telemetry.status import NodeView, Pace, format_drop, format_waiting
from psyche.telemetry.text import format_bytes, format_clock, format_count, format_number, format_seconds, format_table
from psyche.testnet.settings import Layout, get_node_name

PLAIN_EVERY_S: Final = 10.0
PLAIN_SAME_EVERY_S: Final = 60.0
TELL_AGAIN_S: Final = 30.0
HEAD: Final = ("client", "epoch", "round", "phase", "loss", "members", "tok/s", "up", "down")
SPARE: Final = ("down", "up", "tok/s", "members")  # left out in this order where the terminal is too narrow

# What deserves a line of its own when it happens, and what to say of it.
NOTABLE: Final[dict[type[types.Event], Callable[[Any], str]]] = {
    types.EpochFailed: lambda event: f"epoch given up: {event.reason}, steps lost: {event.steps_lost}",
    types.Diverged: lambda _: "holds different weights than the others, heals",
    types.Behind: lambda _: "is behind, catches up",
    types.Healed: lambda _: "holds the agreed weights again",
    types.TrainerLost: lambda event: f"lost its trainer: {event.reason}",
    types.Dropped: lambda event: f"was {format_drop(event)}",
    types.SourceRefused: lambda event: f"refuses peer {event.peer.hex()}, which {event.reason}",
    types.ModelFilesDiffer: lambda event: f"{event.path} is not the run's model: {event.files}; {event.hint}",
    types.Rollback: lambda event: f"the run went back to step {event.step}",
    types.ServerRecovered: lambda event: f"continues from its journal after {format_seconds(event.gap_s)}",
    types.Error: lambda event: f"error: {event.message}",
}


class LiveView:
    """Follows the event logs of all nodes; `refresh` reads what is new and draws."""

    def __init__(
        self, layout: Layout, num_clients: int, total_steps: int, console: Console,
        *, now: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.clients = {number: NodeView(get_node_name(number)) for number in range(1, num_clients + 1)}
        self.note = ""
        self.is_stopping = False  # processes that end on request are not reported
        self.training = trio.Event()  # set when the first round has begun
        self._views = {view.node: view for view in self.clients.values()}
        # On a local chain no server writes a log: its tail stays empty.
        self._tails = {name: EventTail(layout.events_of(name)) for name in (*self._views, "server")}
        self._total_steps = total_steps
        self._console = console
        self._now = now
        self._started = now()
        self._pace = Pace(PLAIN_EVERY_S, PLAIN_SAME_EVERY_S)
        self._pace.is_due(self._started, "", "")  # the first line comes after an interval
        self._epoch_shown = -1
        self._told: dict[str, float] = {}  # when each line was last printed

    @property
    def step(self) -> int:
        return max((view.step for view in self.clients.values()), default=0)

    def say(self, text: str) -> None:
        self._console.print(f"{format_clock(self._now())}  {text}")

    def refresh(self) -> None:
        for name, tail in self._tails.items():
            for t, _, event in map(read_entry, tail.read()):
                self._take(name, t, event)
        self._tell_epoch()
        if self._console.live:
            self._console.set_status(self.draw())
        elif self._pace.is_due(self._now(), "", line := self.draw_line()):
            self.say(line)

    def _take(self, name: str, t: float, event: types.Event) -> None:
        view = self._views.get(name)
        if view is not None:
            view.update(t, event)
        describe = NOTABLE.get(type(event))
        if describe is not None and not self.is_stopping:
            self._tell(f"{name} {describe(event)}")

    def _tell(self, text: str) -> None:
        now = self._now()
        if now - self._told.get(text, float("-inf")) < TELL_AGAIN_S:
            return
        self._told = {known: at for known, at in self._told.items() if now - at < TELL_AGAIN_S} | {text: now}
        self.say(text)

    def _tell_epoch(self) -> None:
        newest = max(self.clients.values(), key=lambda view: (view.epoch, view.height))
        if newest.phase == "training" and newest.epoch != self._epoch_shown:
            self._epoch_shown = newest.epoch
            self.training.set()
            members = format_number(newest.members, "member")
            self.say(f"epoch {newest.epoch} trains from step {newest.step}, {members}")

    def draw(self) -> str:
        now = self._now()
        rows = [self._get_row(view) for view in self.clients.values()]
        table = format_table(HEAD, rows, columns=self._console.columns - 1, spare=SPARE)
        return "\n".join([self._get_head(now), table, *self._get_waits(now)])

    def _get_waits(self, now: float) -> list[str]:
        told: dict[str, list[int]] = {}
        for number, view in self.clients.items():
            text = view.get_note(now)
            if not text and view.waiting is not None:
                text = format_waiting(view.waiting, now, self._get_names(view.epoch))
            if text:
                told.setdefault(text, []).append(number)
        lines: list[str] = []
        for text, numbers in told.items():
            who = f"client{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
            lines += textwrap.wrap(f"{who}: {text}", self._console.columns - 1, subsequent_indent=" " * 10)
        return lines

    def _get_names(self, epoch: int) -> dict[int, str]:
        return {
            view.index: f"client {number}"
            for number, view in self.clients.items()
            if view.index is not None and view.epoch == epoch
        }

    def _get_head(self, now: float) -> str:
        parts = [f"step {self.step} of {self._total_steps}", format_seconds(now - self._started)]
        return "\n".join(textwrap.wrap("  ".join([*parts, self.note]), self._console.columns - 1))

    def _get_row(self, view: NodeView) -> list[str]:
        loss = "" if view.loss is None else f"{view.loss:.3f}"
        return [
            view.node.removeprefix("client-"), str(view.epoch), str(view.height), view.phase, loss,
            str(view.members or ""), format_count(view.tokens_per_s) if view.tokens_per_s >= 1 else "",
            format_bytes(view.bytes_sent), format_bytes(view.bytes_received),
        ]  # fmt: skip

    def draw_line(self) -> str:
        views = list(self.clients.values())
        newest = max(views, key=lambda view: (view.epoch, view.height))
        losses = " ".join("-" if view.loss is None else f"{view.loss:.2f}" for view in views)
        sent, received = sum(view.bytes_sent for view in views), sum(view.bytes_received for view in views)
        tokens_per_s = sum(view.tokens_per_s for view in views)
        where = f"epoch {newest.epoch} round {newest.height} step {self.step} of {self._total_steps}, {newest.phase}"
        speed = [f"{format_count(tokens_per_s)} tok/s"] if tokens_per_s >= 1 else []
        traffic = f"up {format_bytes(sent)} down {format_bytes(received)}"
        parts = [where, f"loss {losses}", *speed, traffic]
        return " | ".join([*parts, self.note] if self.note else parts)
