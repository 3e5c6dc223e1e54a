"""The server's life between start and signal."""

import dataclasses
import os
import signal
import time
from functools import partial

import trio

from psyche.core.state import ClientState, Coordinator
from psyche.server.server import BoundServer, ServerSettings, run_server
from psyche.telemetry.console import Console
from psyche.telemetry.status import PHASES
from psyche.telemetry.text import format_seconds


async def serve_until_signal(settings: ServerSettings, console: Console | None) -> None:
    """Serve until SIGINT or SIGTERM; the journal is on disk when this returns.

    Raises:
        PsycheError: the server cannot start, or its disk failed.
    """
    if console is not None:
        settings = dataclasses.replace(settings, on_state=partial(show_state, console))
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            bound: BoundServer = await nursery.start(run_server, settings)  # pyright: ignore[reportArgumentType]
            if console is not None:
                console.print(describe(settings, bound))
            async for _ in signals:
                nursery.cancel_scope.cancel()
                return


def describe(settings: ServerSettings, bound: BoundServer) -> str:
    """What the owner tells those who want to take part."""
    run_id, key = settings.run.run_id, bound.key.hex()
    return (
        f"run {run_id!r} is served on {bound.host}:{bound.port} by process {os.getpid()}, server key {key}\n"
        f"to take part: psyche client train --run-id {run_id} --server-addr HOST:{bound.port} --server-key {key}"
    )


def show_state(console: Console, state: Coordinator) -> None:
    """One status line on a terminal."""
    if console.live:
        console.set_status(format_state(state, time.time()))


def format_state(state: Coordinator, now: float) -> str:
    """Where the run is and who takes part."""
    name = state.run_state.name.lower()
    healthy = sum(client.state is ClientState.HEALTHY for client in state.clients)
    since = format_seconds(max(0.0, now - state.state_start_unix))
    parts = [f"epoch {state.progress.epoch}", PHASES.get(name, name), f"for {since}"]
    if state.in_round:
        parts.insert(1, f"round {state.current.height}")
    parts.append(f"step {state.progress.step} of {state.config.total_steps}")
    return " | ".join([*parts, f"{healthy} of {len(state.clients)} members healthy"])
