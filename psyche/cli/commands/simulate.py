"""`psyche simulate`: what a run will do, before anybody rents a machine."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from psyche.backends.kinds import USUAL_KIND, BackendKind
from psyche.cli.commands.trace import Figures
from psyche.cli.helpers.common import ending_on_sigterm
from psyche.cli.helpers.outputs import Output, Speaker
from psyche.errors import ConfigError

if TYPE_CHECKING:
    from psyche.config.load import LoadedRun
    from psyche.core.state.state import Optimizer
    from psyche.forecast.play import Forecast
    from psyche.forecast.question import Question
    from psyche.forecast.recorder import Played
    from psyche.forecast.suggestions import Suggestion
    from psyche.forecast.workload import Workload

EXAMPLES = (
    "psyche simulate --state my-run --clients 4 --profile home.toml",
    "psyche simulate --state my-run --clients 4 --profile home.toml --rounds 3 \\",
    "    --parameters 1e9 --no-suggestions --picture run.html",
    "psyche simulate --state my-run --clients 4 --profile home.toml --rounds 3 \\",
    "    --faults plan.toml --no-suggestions --json f.json --events run.jsonl",
    "psyche simulate --state config/demo-solana --clients 4 --profile home.toml \\",
    "    --backend solana --rounds 3 --no-suggestions",
)
Backend = Annotated[
    BackendKind,
    typer.Option(
        help="What keeps the run's record: a server (tcp), or a chain as the profile's [chain] describes it (solana)."
    ),
]
Compute = Callable[["LoadedRun"], "Workload"]  # of a run whose optimizer may be another than in its file


def simulate(
    *,
    state: Annotated[Path, typer.Option(help="The run: its folder, or its run.toml.")],
    clients: Annotated[int, typer.Option(min=1, max=256, help="How many clients take part.")] = 16,
    profile: Annotated[
        Path, typer.Option(help="The machines: a TOML file of classes, as in config/profiles/home.toml.")
    ],
    backend: Backend = USUAL_KIND,
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
    figures: Figures,
    events: Annotated[Path | None, typer.Option(help="Write the event log, for `psyche trace`.")] = None,
) -> None:
    """Forecast a run before it begins.

    Some rounds are played in simulated time. Clients and server are the real programs. Training, lines, disks and
    a chain are simulated: they are as fast as the profile says, and payloads are as large as your model's.

    The answer says how long rounds take and what they wait for, what work is lost, who is dropped, how long the
    whole run takes, what each member sends and receives, and what a chain costs. Then the command tries other
    settings, and proposes those that did better.

    Exit code 1: the run would stand still or learn nothing, or an error, which is a line on stderr. 2: no such option.
    130: Ctrl-C. 143: SIGTERM.
    """
    from psyche.config.load import load_run
    from psyche.config.profile import get_counts, load_profile
    from psyche.forecast.backends import BACKENDS
    from psyche.forecast.inputs import load_faults
    from psyche.forecast.question import Question, check_question
    from psyche.forecast.workload import compute_workload, describe_memory

    compute = partial(compute_workload, parameters=parse_parameters(parameters), model_config=model)
    run, machines = load_run(state), load_profile(profile)
    played = BACKENDS[backend](machines)
    planned = load_faults(faults, clients, played) if faults is not None else ()
    figures.check(events)  # before transformers is asked of the model, which takes seconds
    question = Question(
        run=run,
        workload=compute(run),
        classes=tuple(machines.classes),
        counts=tuple(get_counts(machines.classes, clients, profile)),
        rounds=rounds,
        seed=seed,
        faults=planned,
        backend=played,
    )
    check_question(question)
    memory = "" if parameters and model is None else describe_memory(run, model)
    with ending_on_sigterm():
        is_well = _foretell(question, compute, memory, figures, events, suggest=not no_suggestions)
    raise typer.Exit(0 if is_well else 1)


def _foretell(
    question: "Question", compute: Compute, memory: str, figures: Figures, events: Path | None, *, suggest: bool
) -> bool:
    from psyche.forecast.report import format_defects, format_forecast, format_question

    say = Speaker()
    cautions = [f"warning: {text}" for text in question.cautions]
    about = filter(None, (format_question(question), memory, *describe_length(question), *cautions))
    say("\n".join(about) + "\n")
    say.check()  # before the minutes of the play
    forecast = _play(question, "playing", keep=events is not None)
    say(format_forecast(forecast))
    with_server = _compare_with_server(say, forecast)
    for told in (*find_remarks(forecast), format_defects(forecast)):
        if told:
            say(f"\n{told}")
    suggestions = _suggest(say, forecast, compute) if suggest and not forecast.stood_still else []
    is_written = _write(say, forecast, with_server, suggestions, figures, events)
    say.check()
    return is_written and not forecast.stood_still and not forecast.came_to_nothing


def parse_parameters(text: str) -> int:
    try:
        value = float(text) if text else 0.0
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e13 or (text and value < 1):
        raise ConfigError(f"--parameters {text!r}: must be a number of parameters from 1 to 1e13, as in 1e9")
    return int(value)


def _compare_with_server(say: Speaker, forecast: "Forecast") -> "Forecast | None":
    from psyche.forecast.chain_costs import build_server_question, compute_costs, format_costs

    if forecast.question.backend.costs is None or forecast.stood_still:
        return None
    with_server = _play(build_server_question(forecast.question), "playing it with a server")
    if (costs := compute_costs(forecast, with_server)) is not None:
        say(f"\n{format_costs(costs, forecast.question)}")
    return with_server


def describe_length(question: "Question") -> list[str]:
    total = question.config.total_steps
    if total > question.rounds:
        return []
    return [f"the real run ends sooner: its total_steps is {total}, but {question.rounds} rounds are simulated"]


def find_remarks(forecast: "Forecast") -> list[str]:
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
    from psyche.telemetry.text import format_number, format_seconds

    lost = f", {format_number(at.given_up, 'round')} given up" if at.given_up else ""
    return f"{format_seconds(at.simulated_s)} simulated{lost}"


def _suggest(say: Speaker, forecast: "Forecast", compute: Compute) -> "list[Suggestion]":
    from dataclasses import replace

    from psyche.forecast.settled import describe_transient
    from psyche.forecast.suggestions import check_ideas, find_ideas, format_suggestions

    def rebuild(optimizer: "Optimizer") -> "Workload":
        run = forecast.question.run
        return compute(replace(run, model=replace(run.model, optimizer=optimizer)))

    ideas = find_ideas(forecast, rebuild)
    titles = {id(idea.question): f"trying {number} of {len(ideas)}" for number, idea in enumerate(ideas, 1)}
    found = check_ideas(forecast, ideas, answer=lambda question: _play(question, titles[id(question)]))
    transient = describe_transient(forecast)
    say("\n" + format_suggestions(len(ideas), found, transient))
    return found


def _write(
    say: Speaker, forecast: "Forecast", with_server: "Forecast | None", suggestions: "list[Suggestion]",
    figures: Figures, events: Path | None,
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
    return figures.write(say, forecast.accounts, title, found, log, describe_node=describe_node)
