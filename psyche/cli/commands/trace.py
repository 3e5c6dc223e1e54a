"""`psyche trace`: a run step by step; `psyche replay`: a simulated one, played again."""

import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from psyche.cli.helpers.common import ending_on_sigterm
from psyche.cli.helpers.options import option, share_fields
from psyche.cli.helpers.outputs import Output, Speaker, check_page_name, check_target, write_outputs
from psyche.errors import ConfigError

if TYPE_CHECKING:
    from psyche.analysis.accounts import Accounts
    from psyche.telemetry.events import Entry, Line

TRACE_EXAMPLES: Final = (
    "psyche trace run.jsonl                           # everybody, by time",
    "psyche trace server ada ben --kind 'state_*' --kind joined",
    "psyche trace run.jsonl --node client-3 --from 20 --all-kinds",
    "psyche trace run.jsonl --summary --picture time.html",
)
REPLAY_EXAMPLES: Final = (
    "psyche replay 4711 --kind decided        # a seed of the tests",
    "psyche replay plan.toml --node client-0  # a scenario of your own",
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Where a run's figures go: a picture, and JSON."""

    picture: Path | None = None
    json_file: Path | None = None

    def check(self, events: Path | None = None) -> None:
        check_page_name("--picture", self.picture)
        for name, path in (("--picture", self.picture), ("--json", self.json_file), ("--events", events)):
            check_target(name, path)

    def write(
        self, say: Speaker, accounts: "Accounts", title: str, figures: dict[str, Any], *others: Output,
        describe_node: Callable[[str], str] = str, entries: "Iterable[Entry]" = (),
    ) -> bool:  # fmt: skip
        """Write what is wanted; return whether all went well."""

        def write_json(path: Path) -> None:
            path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")

        def draw(path: Path) -> None:
            from psyche.analysis.run_view import RunView
            from psyche.watch.saved import write_page

            view = RunView(title)
            for entry in entries:
                view.take(entry)
            view.accounts = accounts  # of all rounds
            write_page(path, [view], describe_node)

        outputs = (Output("figures", self.json_file, write_json), *others, Output("picture", self.picture, draw))
        return write_outputs(outputs, say)


FIGURES: Final = share_fields(
    Figures,
    picture="Draw when each client trained, sent, waited or was away, in a page for browsers (.html).",
    json_file=option("Write all figures to this file.", "--json"),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """Which events are listed."""

    node: tuple[str, ...] = ()
    kind: tuple[str, ...] = ()
    from_s: float = 0.0
    to_s: float | None = None
    height: int | None = None
    all_kinds: bool = False

    def list(self, lines: "list[Line]") -> None:
        import click

        from psyche.analysis.viewer import Filter, format_trace

        wanted = Filter(
            nodes=self.node, kinds=self.kind, from_s=self.from_s, to_s=math.inf if self.to_s is None else self.to_s,
            height=self.height, all_kinds=self.all_kinds,
        )  # fmt: skip
        shown = format_trace(lines, wanted)
        first = next(shown, None)
        if first is None:
            sys.stderr.write(f"none of {len(lines)} events matches\n")
            return
        texts = (f"{text}\n" for text in itertools.chain((first,), shown))
        if sys.stdout.isatty():
            click.echo_via_pager(texts)
            return
        for text in texts:
            typer.echo(text, nl=False)


SHOWN: Final = share_fields(
    Shown,
    node="Only events of this node, for example client-*; may be repeated.",
    kind="Only this kind of event, for example state_*; may be repeated.",
    from_s=option("Only from this second on; the first event is at 0.", "--from", min=0),
    to_s=option("Only up to this second.", "--to", min=0),
    height=option("Only events that name the round of this height.", min=0),
    all_kinds=option("Also the kinds with very many events: waits, payloads, counters.", "--all-kinds"),
)


def trace(
    ctx: typer.Context,
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOG_OR_FOLDER...",
            help="Event logs, and folders with some: of a run's server and clients, or of a simulation.",
        ),
    ],
    *,
    shown: Shown,
    summary: Annotated[
        bool, typer.Option("--summary", help="Show where the time of the run's rounds went, instead of events.")
    ] = False,
    figures: Figures,
) -> None:
    """Look at what happened in a run, event by event.

    Each is a line: second, node, kind, fields. Opens the event logs of real runs and those that
    `psyche simulate --events` writes. On a terminal the lines come page by page. docs/events.md lists the kinds.
    """
    from psyche.analysis.accounts import read_accounts
    from psyche.analysis.summary import build_accounts_json, format_accounts
    from psyche.analysis.viewer import read_trace
    from psyche.telemetry.events import read_entry

    is_summed = summary or figures != Figures()
    if is_summed:
        _refuse_filters(ctx)
    figures.check()
    lines = read_trace(paths)
    if is_summed:
        accounts = read_accounts(map(read_entry, lines))
        say = Speaker()
        say(format_accounts(accounts))
        title = ", ".join(map(str, paths))
        entries = map(read_entry, lines)
        is_written = figures.write(say, accounts, title, build_accounts_json(accounts), entries=entries)
        say.check()
        raise typer.Exit(0 if is_written else 1)
    shown.list(lines)


def replay(
    text: Annotated[
        str, typer.Argument(metavar="SEED_OR_FILE", help="A seed, or a scenario: a TOML file.", show_default=False)
    ],
    *,
    shown: Shown,
) -> None:
    """Play a simulated run again, event by event.

    Plays the run that the project's tests draw from this seed, or the scenario of a TOML file, and shows its events as
    `psyche trace` does. Exit code 1: it breaks a promise.
    """
    from psyche.forecast.inputs import find_scenario
    from psyche.sim.world import simulate
    from psyche.telemetry.events import build_line

    with ending_on_sigterm():
        scenario = find_scenario(text)
        sys.stderr.write(f"playing {text}: {scenario.clients} clients, {len(scenario.faults)} faults\n")
        outcome = simulate(scenario)
        shown.list([build_line(entry) for entry in outcome.entries])
        typer.echo(outcome.describe().splitlines()[0])
        for violation in outcome.violations:
            typer.echo(f"violated {violation}")
    raise typer.Exit(1 if outcome.violations else 0)


def _refuse_filters(ctx: typer.Context) -> None:
    # By its source: a value that is the default, such as --from 0, was given too.
    def is_given(name: str) -> bool:
        source = ctx.get_parameter_source(name)
        return source is not None and source.name == "COMMANDLINE"

    if given := [one.opts[0] for one in ctx.command.params if one.name in SHOWN and is_given(one.name)]:
        raise ConfigError(f"{', '.join(given)}: no effect on figures of a whole run: --summary, --picture, --json")
