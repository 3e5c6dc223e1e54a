"""`psyche watch`: what a run does and has done, from its logs or its backend."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from psyche.cli.helpers.common import require_extra, run_async, say
from psyche.cli.helpers.options import option, share_fields
from psyche.cli.helpers.outputs import Trackers, check_page_name, check_target
from psyche.cli.helpers.target import ADDRESS, ON_CHAIN, OWNED, Access
from psyche.errors import ConfigError
from psyche.telemetry.loading import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Callable

    from psyche.backends.port import Administration
    from psyche.core.state.messages import Message
    from psyche.watch.alerts import Alerts
    from psyche.watch.app import OpenPage
    from psyche.watch.sources import Source
    from psyche.wire.backend import RunStatus

EXAMPLES: Final = (
    "psyche watch runs/demo  # a testnet's folder, or any folder of event logs",
    f"psyche watch {ADDRESS}",
    "psyche watch runs/demo --tui  # a screen; --play: from the beginning",
    f"psyche watch {OWNED} \\",
    "    --alert ./tell.sh",
    "psyche watch runs/demo --web 8080  # a page at http://127.0.0.1:8080/",
    "psyche watch runs/demo --once --save run.html",
    "psyche watch runs/demo --wandb-project psyche --csv run.csv",
    f"psyche watch {ON_CHAIN} --once",
)


@dataclass(frozen=True, slots=True)
class Display:
    """How runs are shown."""

    once: bool = False
    tui: bool = False
    play: bool = False
    web: int | None = None
    web_host: str = "127.0.0.1"
    save: Path | None = None

    @property
    def wants_screen(self) -> bool:
        return self.tui or self.play

    def check(self, sources: int, *, has_backend: bool) -> None:
        """Refuse what does not go together; `sources` is the number of places with event logs."""
        from psyche.telemetry.console import is_live

        if not sources and not has_backend:
            raise ConfigError(
                "name what to watch: a folder of event logs, --server-addr HOST:PORT, or --rpc URL with --run-id"
            )
        if self.play and (has_backend or sources != 1 or self.once):
            raise ConfigError("--play: needs the event logs of one run, and nothing else to watch")
        if self.once and self.web is not None:
            raise ConfigError("--once ends at once, so nobody could read --web: leave out one of them")
        check_page_name("--save", self.save)
        if self.wants_screen and (self.web is not None or self.save is not None):
            raise ConfigError("--web and --save: not with --tui or --play; start another psyche watch beside it")
        check_target("--save", self.save)
        if self.play and not is_live(sys.stdout):
            raise ConfigError("--play: needs a terminal")


DISPLAY: Final = share_fields(
    Display,
    once=option("Print the run as it is now, and end.", "--once"),
    tui=option(
        "A screen with the run, its members, their network and logs; with the key of its owner it pauses and resumes "
        "the run. Where no terminal is: lines, as without it.",
        "--tui",
    ),
    play=option("On the screen: replay the event logs of one run, from their beginning.", "--play"),
    web=option(
        "Serve a page for browsers here, and /metrics for Prometheus; 0: any free port.",
        min=0,
        max=65_535,
        metavar="PORT",
    ),
    web_host=option(
        "Address that the page is served at. It has no account: others than this machine's users can read it at any "
        "but the default.",
        metavar="NAME",
    ),
    save=option("Write the page with its data to this file at the end; with --once at once.", metavar="FILE"),
)


def watch(
    *,
    sources: Annotated[
        list[Path] | None,
        typer.Argument(help="Event logs of a run: a file, a folder of them, or a testnet's; live or finished."),
    ] = None,
    alert: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="A shell command that is run when the run stands still, a member is gone, too slow or reports an "
            "error, weights differ or a disk is full, and again when that is over. PSYCHE_ALERT is still, gone, slow, "
            "error, weights or disk; "
            "PSYCHE_ALERT_STATE is begun or over; _RUN, _WHO, _TEXT and _SINCE say more.",
        ),
    ] = None,
    display: Display,
    trackers: Trackers,
    access: Access,
) -> None:
    """Watch runs: how far they are, and who holds them up.

    Shows too how long they still take, and what they have learned.

    A run is named by its event logs, by its server or by its chain; several may be named. It only reads, in a process
    of its own: no client or server notices if it hangs or dies. Ends with exit code 0 when all runs are finished, and
    after Ctrl-C.
    """
    from psyche.cli.helpers.watching import until_signal
    from psyche.telemetry.console import Console
    from psyche.watch import app
    from psyche.watch.alerts import Alerts
    from psyche.watch.play import PlaySource
    from psyche.watch.sources import LogSource, Source

    has_backend = bool(access.options.server_addr or access.options.rpc)
    display.check(len(sources or ()), has_backend=has_backend)
    trackers.check()
    logs: list[Source] = [(PlaySource if display.play else LogSource)(path) for path in sources or ()]
    console, alerts = Console(sys.stdout), None if alert is None else Alerts(alert)
    if display.wants_screen and (words := trackers.make_words()):
        which = words[0].partition("=")[0]
        raise ConfigError(f"{which}: not with --tui or --play; start another psyche watch beside it")
    if display.wants_screen and console.live and not display.once:
        show_screen(access, logs, alerts, has_backend=has_backend)
        return

    async def show(found: list[Source]) -> None:
        where = None if display.web is None else _serve(display.web_host, display.web)
        followers = trackers.make_followers()
        await until_signal(
            lambda: app.watch(
                found, console, alerts, once=display.once, web=where, save=display.save, followers=followers
            )
        )

    if not has_backend:
        run_async(lambda: show(logs))
        return
    access.run(lambda one: show([*logs, open_source(access, one, say)]), as_anybody=True, sees_waits=True)


def open_source(access: Access, administration: "Administration", tell: "Callable[[str], None]") -> "Source":
    from psyche.watch.sources import RunSource

    target = access.target
    return RunSource(administration, target.run_id, shows_members=target.shows_members, say=tell)


def show_screen(access: Access, logs: "list[Source]", alerts: "Alerts | None", *, has_backend: bool) -> None:
    """Show runs on the whole terminal until the user leaves."""
    require_extra("ui", "--tui", "textual")
    from psyche.cli.helpers.refusals import call_in_words
    from psyche.watch.play import PlaySource
    from psyche.watch.screen.app import WatchScreen

    screen = WatchScreen(play=next((one for one in logs if isinstance(one, PlaySource)), None))

    async def show_run(administration: "Administration") -> None:
        async def command(message: "Message") -> "RunStatus":
            return await call_in_words(lambda one: one.command(message), administration, access.target.write_command)

        await screen.show_sources([*logs, open_source(access, administration, screen.tell)], alerts, command)

    if has_backend:
        access.run(show_run, as_anybody=True, sees_waits=True, run=screen.run_trio)
    else:
        screen.run_trio(lambda: screen.show_sources(logs, alerts))
    if screen.is_interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _serve(host: str, port: int) -> "OpenPage":
    from psyche.watch.metrics import write_metrics
    from psyche.watch.routes import serve_page  # needs hypercorn
    from psyche.wire.web import LOOPBACK

    if host not in LOOPBACK:
        say(f"warning: everybody who reaches {host} may read the page: there is no account")
    return lambda watcher: serve_page(watcher, host, port, write_metrics)
