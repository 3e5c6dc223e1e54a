"""`psyche run explain` and `preview-lr`: what was decided of a member, and the learning rates that a file asks for."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from psyche.cli.commands.run.group import group
from psyche.cli.helpers.target import ON_CHAIN, OWNED, Access, command
from psyche.errors import ConfigError

if TYPE_CHECKING:
    from psyche.backends.port import Administration

_command = partial(command, group)
COLUMNS = 60
ROWS = 12


@_command(
    "explain",
    f"psyche run explain 0 {OWNED}",
    f"psyche run explain 0 {ON_CHAIN}",
    "psyche run explain client-1 --logs runs/demo",
)
def explain(
    *,
    member: Annotated[
        str, typer.Argument(help="Its index in the epoch, or the start of its key; with --logs also its name there.")
    ],
    logs: Annotated[
        Path | None, typer.Option(help="Ask no backend: read every round from the event logs in this folder.")
    ] = None,
    access: Access,
) -> None:
    """Say why a member's results counted or not.

    The record has the last four rounds of the epoch, with each witness's word; reading it needs the key of an owner,
    or of a client of the run. Event logs, such as a testnet's folder, tell of all rounds; with --logs no key is needed.
    """
    from psyche.analysis.explanation import explain_member, explain_node, find_member
    from psyche.watch.page import wrap
    from psyche.watch.sources import LogSource

    async def ask(backend: "Administration") -> list[str]:
        state = await backend.get_record()
        keys = [backend.name_key(one.signer) for one in state.clients]
        return list(explain_member(state, find_member(state, member, keys)))

    def read(path: Path) -> list[str]:
        source = LogSource(path, keep=0)
        while source.read():
            pass
        try:
            return list(explain_node(source.view.accounts, member))
        except ConfigError as error:
            raise ConfigError(f"--logs {path}: {error}") from None

    lines = map(wrap, access.run(ask, as_anybody=True)) if logs is None else read(logs)  # a line for each round
    typer.echo("\n".join(lines))


@_command("preview-lr", "psyche run preview-lr my-run", shared={})
def preview_lr(
    *,
    state: Annotated[Path, typer.Argument(help="run.toml, or its folder.")],
) -> None:
    """Draw the learning rates of a run's settings.

    One line for each part of the run, with the rate at its first step; cold starts of epochs are left out.
    """
    from psyche.config.load import load_run
    from psyche.core.committee.schedule import compute_learning_rate
    from psyche.telemetry.text import draw_curve, format_table

    loaded = load_run(state)
    schedule, last = loaded.model.lr_schedule, loaded.config.total_steps
    steps = sorted({1 + (last - 1) * n // (ROWS - 1) for n in range(ROWS)})
    rates = [compute_learning_rate(schedule, 1 + (last - 1) * n // (COLUMNS - 1)) for n in range(COLUMNS)]
    typer.echo(f"{schedule.kind.name.lower()}, steps 1 to {last}\n{draw_curve(rates, COLUMNS)}")
    rows = [(str(step), f"{compute_learning_rate(schedule, step):.3e}") for step in steps]
    typer.echo(format_table(("step", "learning rate"), rows))
