"""`psyche watch`: what a run does and has done, from its logs or its backend."""

import signal
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from psyche.cli.helpers.common import run_async, say
from psyche.cli.helpers.target import ADDRESS, ON_CHAIN, OWNED, Access
from psyche.errors import ConfigError

EXAMPLES: Final = (
    "psyche watch runs/demo  # a testnet's folder, or any folder of event logs",
    f"psyche watch {ADDRESS}",
    f"psyche watch {OWNED} \\",
    "    --alert ./tell.sh",
    f"psyche watch {ON_CHAIN} --once",
)


def watch(
    *,
    sources: Annotated[
        list[Path] | None,
        typer.Argument(help="Event logs of a run: a file, a folder of them, or a testnet's; live or finished."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the run as it is now, and end.")] = False,
    alert: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="A shell command that is run when the run stands still, a member reports an error, weights differ or "
            "a disk is full, and again when that is over. PSYCHE_ALERT is still, error, weights or disk; "
            "PSYCHE_ALERT_STATE is begun or over; _RUN, _WHO, _TEXT and _SINCE say more.",
        ),
    ] = None,
    access: Access,
) -> None:
    """Watch runs: how far they are, and who holds them up.

    Shows too how long they still take, and what they have learned.

    A run is named by its event logs, by its server or by its chain; several may be named. It only reads, in a process
    of its own: no client or server notices if it hangs or dies. Ends with exit code 0 when all runs are finished, and
    after Ctrl-C.
    """
    import trio

    from psyche.telemetry.console import Console
    from psyche.watch import app
    from psyche.watch.alerts import Alerts
    from psyche.watch.sources import LogSource, RunSource, Source

    has_backend = bool(access.options.server_addr or access.options.rpc)
    if not sources and not has_backend:
        raise ConfigError(
            "name what to watch: a folder of event logs, --server-addr HOST:PORT, or --rpc URL with --run-id"
        )
    logs: list[Source] = [LogSource(path) for path in sources or ()]
    console, alerts = Console(sys.stdout), None if alert is None else Alerts(alert)

    async def show(found: list[Source]) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:

                async def end() -> None:
                    async for _ in signals:
                        nursery.cancel_scope.cancel()

                nursery.start_soon(end)
                await app.watch(found, console, alerts, once=once)
                nursery.cancel_scope.cancel()

    if not has_backend:
        run_async(lambda: show(logs))
        return
    shows_members = access.target.shows_members
    access.run(
        lambda one: show([*logs, RunSource(one, access.target.run_id, shows_members=shows_members, say=say)]),
        as_anybody=True,
        sees_waits=True,
    )
