"""The command line as a whole."""

from typing import Annotated

import typer

from psyche import __version__
from psyche.cli.commands import (
    auth,
    client,
    data,
    dev,
    distro,
    doctor,
    evals,
    init,
    model,
    rewards,
    server,
    simulate,
    testnet,
    trace,
    train,
    watch,
)

from psyche.cli.commands.run import changes, access, chain, looking  # noqa: F401  # isort: skip  # in the order of the help
from psyche.cli.commands.run import group as run
from psyche.cli.helpers.common import make_group
from psyche.cli.helpers.errors import Debug
from psyche.cli.helpers.outputs import TRACKERS
from psyche.cli.helpers.remote import CACHED_SOURCES, MANIFEST, SOURCES
from psyche.cli.helpers.target import OWNING, command

app = make_group(
    "Train one language model together over the open internet.\n\n"
    "Several clients, each with a copy of the model, train on different data; they exchange tiny compressed "
    "updates and hold bit-identical weights after every round. A coordinator server keeps the record of who did what.",
    "psyche doctor                                   # is this machine ready?",
    "psyche local-testnet start --num-clients 3 --config-path config/demo",
    "psyche init own-run --yes                       # the files of your own run",
    "psyche simulate --state my-run --clients 4 --profile home.toml",
    "psyche server run --state my-run --server-port 19400 --state-dir server",
    "psyche client train --run-id my-run --server-addr 127.0.0.1:19400",
    has_completion=True,
)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"psyche {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
    version: Annotated[  # noqa: ARG001 - the callback answers
        bool,
        typer.Option(
            "--version", "-V", help="Print the version.", callback=lambda v: _print_version(wanted=v), is_eager=True
        ),
    ] = False,
) -> None:
    Debug.on = Debug.on or debug


command(
    app,
    "doctor",
    "psyche doctor                       # everything, with what to do",
    "psyche doctor --bind-p2p-port 4001  # also whether that port is free",
    "psyche doctor --server              # without torch and libp2p",
    "psyche doctor --state my-run        # whether its model and data can be read",
    "psyche doctor --json                # for programs",
    shared=SOURCES | MANIFEST,
)(doctor.doctor)
command(app, "init", *init.EXAMPLES, shared=SOURCES)(init.init)
command(app, "train", *train.EXAMPLES, shared=train.SETTINGS | train.RATES | CACHED_SOURCES)(train.train)
command(app, "eval", *evals.EXAMPLES, shared=CACHED_SOURCES)(evals.evaluate)
command(app, "simulate", *simulate.EXAMPLES, shared=trace.FIGURES)(simulate.simulate)
command(app, "watch", *watch.EXAMPLES, shared=watch.DISPLAY | TRACKERS | OWNING)(watch.watch)
command(app, "verify", "psyche verify 1.evidence --weights ada/resume/epoch-*1-* --replay ada/replay")(distro.verify)
command(app, "trace", *trace.TRACE_EXAMPLES, shared=trace.SHOWN | trace.FIGURES)(trace.trace)
command(app, "replay", *trace.REPLAY_EXAMPLES, shared=trace.SHOWN)(trace.replay)
app.add_typer(data.group, name="data")
app.add_typer(model.group, name="model")
app.add_typer(server.group, name="server")
app.add_typer(run.group, name="run")
app.add_typer(auth.group, name="auth")
app.add_typer(rewards.group, name="rewards")
app.add_typer(client.group, name="client")
app.add_typer(testnet.group, name="local-testnet")
app.add_typer(distro.group, name="distro")
app.add_typer(dev.group, name="dev")
