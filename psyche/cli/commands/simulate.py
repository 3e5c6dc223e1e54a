"""`psyche simulate`: what a run will do, before anybody rents a machine; `psyche trace`: a run step by step."""

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from psyche.cli.helpers.common import ending_on_sigterm
from psyche.cli.helpers.outputs import Output, Speaker, check_target, write_outputs
from psyche.testnet.settings import HomeKind

if TYPE_CHECKING:
    from psyche.analysis.accounts import Accounts
    from psyche.analysis.viewer import Filter
    from psyche.forecast.play import Forecast
    from psyche.forecast.question import Question
    from psyche.forecast.recorder import Played
    from psyche.forecast.suggestions import Suggestion
    from psyche.telemetry.events import Line

EXAMPLES = (
    "psyche simulate --state my-run --clients 4 --profile home.toml",
    "psyche simulate --state my-run --clients 4 --profile home.toml --rounds 3 \\",
    "    --parameters 1e9 --no-suggestions --picture run.png",
    "psyche simulate --state my-run --clients 4 --profile home.toml --rounds 3 \\",
    "    --faults plan.toml --no-suggestions --json f.json --events run.jsonl",
    "psyche simulate --state config/demo-solana --clients 4 --profile home.toml \\",
    "    --backend solana --rounds 3 --no-suggestions",
    "psyche simulate --replay 4711 --kind decided   # a seed of the tests",
)
TRACE_EXAMPLES = (
    "psyche trace run.jsonl                           # everybody, by time",
    "psyche trace server ada ben --kind 'state_*' --kind joined",
    "psyche trace run.jsonl --node client-3 --from 20 --all-kinds",
    "psyche trace run.jsonl --summary --picture time.png",
)

Nodes = Annotated[
    list[str] | None, typer.Option("--node", help="Only events of this node, for example client-*; may be repeated.")
]
Kinds = Annotated[
    list[str] | None, typer.Option("--kind", help="Only this kind of event, for example state_*; may be repeated.")
]
From = Annotated[float, typer.Option("--from", min=0, help="Only from this second on; the first event is at 0.")]
To = Annotated[float | None, typer.Option("--to", min=0, help="Only up to this second.")]
Height = Annotated[int | None, typer.Option(min=0, help="Only events that name the round of this height.")]
AllKinds = Annotated[
    bool, typer.Option("--all-kinds", help="Also the kinds with very many events: waits, payloads, counters.")
]
Picture = Annotated[
    Path | None,
    typer.Option(help="Draw when each client trained, sent, waited or was away, as a PNG; needs matplotlib."),
]
Backend = Annotated[
    HomeKind,
    typer.Option(
        help="What keeps the run's record: a server (tcp), or a chain as the profile's [chain] describes it (solana)."
    ),
]
Json = Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")]
FILTERS: Final = ("node", "kind", "from_s", "to_s", "height", "all_kinds")
QUESTION: Final = (
    "state", "clients", "profile", "backend", "faults", "rounds", "seed", "parameters", "model", "no_suggestions",
    "picture", "json_file", "events",
)  # fmt: skip


def simulate(
    ctx: typer.Context,
    *,
    state: Annotated[Path | None, typer.Option(help="The run: its folder, or its run.toml.")] = None,
    clients: Annotated[int, typer.Option(min=1, max=256, help="How many clients take part.")] = 16,
    profile: Annotated[
        Path | None, typer.Option(help="The machines: a TOML file of classes, as in config/profiles/home.toml.")
    ] = None,
    backend: Backend = HomeKind.tcp,
    faults: Annotated[Path | None, typer.Option(help="What goes wrong, and when: a TOML file of [[fault]].")] = None,
    rounds: Annotated[
        int,
        typer.Option(
            help="Rounds to play, at most 100000. One of 16 clients takes about a second, one of 64 about 25."
        ),
    ] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random choices; the same seed gives the same run.")] = 0,
    parameters: Annotated[
        str, typer.Option(help="Parameters of the model, for example 1e9, if the run has no config.json.")
    ] = "",
    model: Annotated[Path | None, typer.Option(help="The model's config.json, if it is elsewhere.")] = None,
    no_suggestions: Annotated[
        bool, typer.Option("--no-suggestions", help="Do not try other settings. That takes a fifth of the time.")
    ] = False,
    picture: Picture = None,
    json_file: Json = None,
    events: Annotated[Path | None, typer.Option(help="Write the event log, for `psyche trace`.")] = None,
    replay: Annotated[
        str | None,
        typer.Option(
            help="Instead of a forecast: play the run that the project's tests draw from this seed, or the scenario of "
            "a TOML file, and show its events. Only the options below go with it."
        ),
    ] = None,
    node: Nodes = None,
    kind: Kinds = None,
    from_s: From = 0.0,
    to_s: To = None,
    height: Height = None,
    all_kinds: AllKinds = False,
) -> None:
    """Forecast a run before it begins.

    Some rounds are played in simulated time. Clients and server are the real programs. Training, lines, disks and
    a chain are simulated: they are as fast as the profile says, and payloads are as large as your model's.

    The answer says how long rounds take and what they wait for, what work is lost, who is dropped, how long the
    whole run takes, what each member sends and receives, and what a chain costs. Then the command tries other
    settings, and proposes those that did better.

    Exit code 1: the run would stand still or learn nothing, a replayed scenario breaks a promise, or an error, which
    is a line on stderr. 2: no such option. 130: Ctrl-C. 143: SIGTERM.
    """
    from psyche.errors import ConfigError

    if replay is not None:
        _refuse_unused(ctx, QUESTION, "with --replay")
        with ending_on_sigterm():
            _replay(replay, _build_filter(node, kind, from_s, to_s, height, all_kinds=all_kinds))
        return
    _refuse_unused(ctx, FILTERS, "without --replay; write --events and look at them with psyche trace")
    if state is None or profile is None:
        raise ConfigError("psyche simulate: needs --state and --profile, or --replay")
    question = _read_question(state, clients, profile, backend, faults, rounds, seed, parameters, model)
    _check_outputs(picture, json_file, events)
    with ending_on_sigterm():
        is_well = _foretell(question, parameters, model, picture, json_file, events, suggest=not no_suggestions)
    raise typer.Exit(0 if is_well else 1)


def _foretell(
    question: "Question", parameters: str, model: Path | None, picture: Path | None, json_file: Path | None,
    events: Path | None, *, suggest: bool,
) -> bool:  # fmt: skip
    """Simulate, print and write the results; return whether the run makes progress and all output was written."""
    say = Speaker()
    forecast, with_server, suggestions = _answer(
        say, question, parameters, model, keep=events is not None, suggest=suggest
    )
    is_written = _write(say, forecast, with_server, suggestions, picture, json_file, events)
    say.check()
    return is_written and not forecast.stood_still and not forecast.came_to_nothing


def _refuse_unused(ctx: typer.Context, names: tuple[str, ...], where: str) -> None:
    """Refuse options that would have no effect."""
    from psyche.errors import ConfigError

    def is_given(name: str) -> bool:
        source = ctx.get_parameter_source(name)
        return source is not None and source.name == "COMMANDLINE"

    given = [one.opts[0] for one in ctx.command.params if one.name in names and is_given(one.name)]
    if given:
        raise ConfigError(f"{', '.join(given)}: no effect {where}")


def _read_question(
    state: Path, clients: int, profile: Path, backend: HomeKind, faults: Path | None, rounds: int, seed: int,
    parameters: str, model: Path | None,
) -> "Question":  # fmt: skip
    from psyche.config.load import load_run
    from psyche.config.profile import get_counts, load_profile
    from psyche.forecast.inputs import load_faults
    from psyche.forecast.question import Question, check_question
    from psyche.forecast.workload import compute_workload

    run, machines = load_run(state), load_profile(profile)
    classes, chain = machines.classes, machines.chain if backend is HomeKind.solana else None
    question = Question(
        run=run,
        workload=compute_workload(run, parameters=parse_parameters(parameters), model_config=model),
        classes=tuple(classes),
        counts=tuple(get_counts(classes, clients, profile)),
        rounds=rounds,
        seed=seed,
        faults=load_faults(faults, clients, chain) if faults is not None else (),
        chain=chain,
    )
    check_question(question)
    return question


def parse_parameters(text: str) -> int:
    """Parse a number of parameters: `1e9`, `8000000000`, or 0 if the text is empty.

    Raises:
        ConfigError: the text is not such a number.
    """
    from psyche.errors import ConfigError

    try:
        value = float(text) if text else 0.0
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e13 or (text and value < 1):
        raise ConfigError(f"--parameters {text!r}: must be a number of parameters from 1 to 1e13, as in 1e9")
    return int(value)


def _check_outputs(picture: Path | None, json_file: Path | None, events: Path | None) -> None:
    from psyche.analysis.timeline import check_picture

    if picture is not None:
        check_picture(picture)
    for name, path in (("--picture", picture), ("--json", json_file), ("--events", events)):
        check_target(name, path)


def _answer(
    say: Speaker, question: "Question", parameters: str, model: Path | None, *, keep: bool, suggest: bool
) -> "tuple[Forecast, Forecast | None, list[Suggestion]]":
    from psyche.forecast.chain_costs import find_cautions
    from psyche.forecast.report import format_defects, format_forecast, format_question

    cautions = [f"warning: {text}" for text in find_cautions(question)]
    say("\n".join([format_question(question), *describe_length(question), *cautions]) + "\n")
    say.check()
    forecast = _play(question, "playing", keep=keep)
    say(format_forecast(forecast))
    with_server = _compare_homes(say, forecast)
    for told in find_remarks(forecast):
        say(f"\n{told}")
    if defects := format_defects(forecast):
        say(f"\n{defects}")
    if not suggest or forecast.stood_still:
        return forecast, with_server, []
    return forecast, with_server, _suggest(say, forecast, parameters, model)


def _compare_homes(say: Speaker, forecast: "Forecast") -> "Forecast | None":
    """Play a run on a chain with a server too, and say what the chain costs; None with a server."""
    from psyche.forecast.chain_costs import build_server_question, compute_costs, format_costs

    if forecast.question.chain is None or forecast.stood_still:
        return None
    with_server = _play(build_server_question(forecast.question), "playing it with a server")
    if (costs := compute_costs(forecast, with_server)) is not None:
        say(f"\n{format_costs(costs, forecast.question)}")
    return with_server


def describe_length(question: "Question") -> list[str]:
    """Describe that the run would end before the simulated rounds; empty if it would not."""
    total = question.config.total_steps
    if total > question.rounds:
        return []
    return [f"the real run ends sooner: its total_steps is {total}, but {question.rounds} rounds are simulated"]


def find_remarks(forecast: "Forecast") -> list[str]:
    """Return remarks on the figures."""
    from psyche.forecast.settled import describe_transient
    from psyche.telemetry.text import format_seconds

    found: list[str] = []
    if transient := describe_transient(forecast):
        found.append(f"not settled; {transient}")
    end = format_seconds(forecast.outcome.simulated_s)
    for number, fault in enumerate(forecast.question.faults):
        if any(fault is one for one in forecast.missed):
            found.append(
                f"fault[{number}], {fault.kind} at {fault.at_s:g} s, never happened: the simulation ended after {end}"
            )
    return found


def _play(question: "Question", title: str, *, keep: bool = False) -> "Forecast":
    from psyche.cli.helpers.progress import ProgressBar
    from psyche.forecast.play import play

    with ProgressBar(f"{title}, round", show=str) as bar:
        bar.set(0, question.rounds, "starting")
        return play(
            question,
            on_progress=lambda at: bar.set(min(at.rounds, question.rounds), question.rounds, format_played(at)),
            keep_lines=keep,
        )


def format_played(at: "Played") -> str:
    """Format the progress of a simulation, also while no round closes."""
    from psyche.telemetry.text import format_number, format_seconds

    lost = f", {format_number(at.given_up, 'round')} given up" if at.given_up else ""
    return f"{format_seconds(at.simulated_s)} simulated{lost}"


def _suggest(say: Speaker, forecast: "Forecast", parameters: str, model: Path | None) -> "list[Suggestion]":
    from dataclasses import replace

    from psyche.forecast.settled import describe_transient
    from psyche.forecast.suggestions import check_ideas, find_ideas, format_suggestions
    from psyche.forecast.workload import Workload, compute_workload

    def rebuild(topk: int) -> Workload:
        run = forecast.question.run
        optimizer = replace(run.model.optimizer, compression_topk=topk)
        changed = replace(run, model=replace(run.model, optimizer=optimizer))
        return compute_workload(changed, parameters=parse_parameters(parameters), model_config=model)

    ideas = find_ideas(forecast, rebuild)
    titles = {id(idea.question): f"trying {number} of {len(ideas)}" for number, idea in enumerate(ideas, 1)}
    found = check_ideas(forecast, ideas, answer=lambda question: _play(question, titles[id(question)]))
    transient = describe_transient(forecast)
    say("\n" + format_suggestions(len(ideas), found, transient))
    return found


def _write(
    say: Speaker, forecast: "Forecast", with_server: "Forecast | None", suggestions: "list[Suggestion]",
    picture: Path | None, json_file: Path | None, events: Path | None,
) -> bool:  # fmt: skip
    from psyche.forecast.play import build_log
    from psyche.forecast.report import build_json, get_class_name

    question = forecast.question
    found = build_json(forecast, with_server)
    found["remarks"], found["obstacle"] = find_remarks(forecast), forecast.obstacle
    found["suggestions"] = [
        {
            "change": one.idea.text,
            "caution": one.idea.caution,
            "verdict": one.verdict.value,
            "after": build_json(one.after),
        }
        for one in suggestions
    ]
    title = f"{question.run.run_id}: {question.clients} clients, seed {question.seed}"

    def describe_node(name: str) -> str:
        return f"{name}  {get_class_name(question, name)}"

    log = Output(
        "events", events, lambda path: path.write_bytes(build_log(forecast)),
        f"; look at them with: psyche trace {events}",
    )  # fmt: skip
    return _write_figures(say, forecast.accounts, title, picture, found, json_file, log, describe_node=describe_node)


def _write_figures(
    say: Speaker, accounts: "Accounts", title: str, picture: Path | None, figures: dict[str, Any],
    json_file: Path | None, *others: Output, describe_node: Callable[[str], str] = str,
) -> bool:  # fmt: skip
    def write_json(path: Path) -> None:
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")

    def draw(path: Path) -> None:
        from psyche.analysis.timeline import write_picture

        try:
            write_picture(accounts, title, path, describe_node)
        finally:
            path.with_suffix(".part.png").unlink(missing_ok=True)

    return write_outputs((Output("figures", json_file, write_json), *others, Output("picture", picture, draw)), say)


def _build_filter(
    node: list[str] | None, kind: list[str] | None, from_s: float, to_s: float | None, height: int | None, *,
    all_kinds: bool,
) -> "Filter":  # fmt: skip
    from psyche.analysis.viewer import Filter

    return Filter(
        nodes=tuple(node or ()), kinds=tuple(kind or ()), from_s=from_s, to_s=float("inf") if to_s is None else to_s,
        height=height, all_kinds=all_kinds,
    )  # fmt: skip


def _replay(text: str, wanted: "Filter") -> None:
    from psyche.analysis.viewer import decode_lines
    from psyche.forecast.inputs import find_scenario
    from psyche.sim.world import simulate as run

    scenario = find_scenario(text)
    sys.stderr.write(f"playing {text}: {scenario.clients} clients, {len(scenario.faults)} faults\n")
    outcome = run(scenario)
    _show(decode_lines(outcome.lines), wanted)
    typer.echo(outcome.describe().splitlines()[0])
    for violation in outcome.violations:
        typer.echo(f"violated {violation}")
    raise typer.Exit(1 if outcome.violations else 0)


def _show(lines: "list[Line]", wanted: "Filter") -> None:
    """Show the lines in a pager on a terminal; otherwise print them."""
    import click

    from psyche.analysis.viewer import format_trace

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
    node: Nodes = None,
    kind: Kinds = None,
    from_s: From = 0.0,
    to_s: To = None,
    height: Height = None,
    all_kinds: AllKinds = False,
    summary: Annotated[
        bool, typer.Option("--summary", help="Show where the time of the run's rounds went, instead of events.")
    ] = False,
    picture: Picture = None,
    json_file: Json = None,
) -> None:
    """Look at what happened in a run, event by event.

    Each is a line: second, node, kind, fields. Opens the event logs of real runs and those that
    `psyche simulate --events` writes. On a terminal the lines come page by page. docs/events.md lists the kinds.
    """
    from psyche.analysis.accounts import read_accounts
    from psyche.analysis.summary import build_accounts_json, format_accounts
    from psyche.analysis.viewer import read_trace

    is_summed = summary or picture is not None or json_file is not None
    if is_summed:
        _refuse_unused(ctx, FILTERS, "on figures of a whole run: --summary, --picture, --json")
    _check_outputs(picture, json_file, None)
    lines = read_trace(paths)
    if is_summed:
        accounts = read_accounts(lines)
        say = Speaker()
        say(format_accounts(accounts))
        is_written = _write_figures(
            say, accounts, ", ".join(map(str, paths)), picture, build_accounts_json(accounts), json_file
        )
        say.check()
        raise typer.Exit(0 if is_written else 1)
    wanted = _build_filter(node, kind, from_s, to_s, height, all_kinds=all_kinds)
    _show(lines, wanted)
