"""`psyche run info`: how a run goes."""

from typing import TYPE_CHECKING, Annotated

import typer

from psyche.cli.commands.run.group import ADDRESS, OWNED, owner_command
from psyche.cli.helpers.common import run_async
from psyche.cli.helpers.owners import Owner

if TYPE_CHECKING:
    from psyche.wire.backend import RunStatus


@owner_command(
    "info",
    f"psyche run info {ADDRESS}",
    f"psyche run info {OWNED} --watch",
    f"psyche run info {ADDRESS} --json",
    former="status",
)
def info(
    *,
    owner: Owner,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Show it again every two seconds, until the run is finished. Ctrl-C ends it, with exit code 0.",
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="A JSON object; with --watch one on each line. docs/owner.md lists its keys."),
    ] = False,
) -> None:
    """Show how a run goes. Anybody may ask.

    With an owner's key also its members: what each says that it does, waits for and achieves, and its last error.
    Clients of the run may see that too, without the errors. Exit code 1 if the server does not answer.
    """
    from psyche.cli.helpers.watching import ask_once, watch_until_signal

    home = owner.open(as_anybody=True)
    if watch:
        run_async(watch_until_signal, home, owner.has_key, as_json)
    else:
        typer.echo(run_async(ask_once, home, owner.has_key, as_json))


def show_status(status: "RunStatus") -> None:
    """Print a run's status after a command."""
    from psyche.cli.helpers.watching import format_run

    typer.echo(format_run(status))
