"""Alerts: a command of the user's for each cause of trouble, once when it begins and once when it is over."""

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from subprocess import DEVNULL
from typing import Final

import trio

from psyche.analysis.run_view import RunView
from psyche.analysis.troubles import Trouble

OVER_S: Final = 5.0  # a cause that comes back earlier has not been over
COMMAND_S: Final = 30.0  # for one call of the command
MAX_QUEUED: Final = 64
Key = tuple[str, str, str]  # run, cause, who


@dataclass(slots=True)
class AlertState:
    """Which troubles are told; pure. `look` gives what to tell now."""

    _told: dict[Key, tuple[Trouble, float]] = field(default_factory=dict[Key, tuple[Trouble, float]])  # when last seen

    def look(self, views: Sequence[RunView], now: float) -> list[dict[str, str]]:
        found: list[dict[str, str]] = []
        for view in views:
            for trouble in view.get_troubles(now):
                key = (view.run_id or view.name, trouble.cause, trouble.who)
                if key not in self._told:
                    found.append(describe(key, trouble, "begun"))
                self._told[key] = (trouble, now)
        for key, (trouble, seen) in list(self._told.items()):
            if now - seen >= OVER_S:
                del self._told[key]
                found.append(describe(key, trouble, "over"))
        return found


def describe(key: Key, trouble: Trouble, state: str) -> dict[str, str]:
    """The environment of the command."""
    run, cause, who = key
    return {
        "PSYCHE_ALERT": cause, "PSYCHE_ALERT_STATE": state, "PSYCHE_ALERT_RUN": run, "PSYCHE_ALERT_WHO": who,
        "PSYCHE_ALERT_TEXT": trouble.text, "PSYCHE_ALERT_SINCE": str(int(trouble.since)),
    }  # fmt: skip


async def _kill(process: trio.Process) -> None:
    """Kill the command with what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class Alerts:
    """Runs the command, one call after the other; a call that hangs is killed and holds up nothing but calls."""

    def __init__(self, command: str) -> None:
        self.failed = ""  # why the last call failed
        self._command = command
        self._state = AlertState()
        self._send, self._receive = trio.open_memory_channel[Mapping[str, str]](MAX_QUEUED)

    def look(self, views: Sequence[RunView], now: float) -> None:
        for one in self._state.look(views, now):
            try:
                self._send.send_nowait(one)
            except trio.WouldBlock:
                self.failed = f"{MAX_QUEUED} alerts wait for the command: more are dropped"

    async def run(self) -> None:
        async for variables in self._receive:
            await self._call(variables)

    async def _call(self, variables: Mapping[str, str]) -> None:
        with trio.move_on_after(COMMAND_S) as scope:
            # What is told comes in variables and never in the command itself: a shell would carry it out.
            done = await trio.run_process(
                ["/bin/sh", "-c", self._command], env={**os.environ, **variables}, check=False, stdin=DEVNULL,
                start_new_session=True, deliver_cancel=_kill,
            )  # fmt: skip
            self.failed = f"--alert: the command ended with exit code {done.returncode}" if done.returncode else ""
        if scope.cancelled_caught:
            self.failed = f"--alert: the command took more than {COMMAND_S:g} s and was killed"
