"""`psyche run info`: how a run goes."""

from typing import TYPE_CHECKING, Annotated

import typer

from psyche.cli.commands.run.group import ADDRESS, OWNED, owner_command
from psyche.cli.helpers.common import run_async
from psyche.cli.helpers.owners import Owner, say

if TYPE_CHECKING:
    from psyche.wire.backend import Members, RunStatus
    from psyche.wire.home import Home


@owner_command(
    "info",
    f"psyche run info {ADDRESS}",
    f"psyche run info {OWNED}   # and its members",
    f"psyche run info {ADDRESS} --json",
    former="status",
)
def info(
    *,
    owner: Owner,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show the state of a run. Anybody may ask.

    With an owner's key also its members: what each says that it does, waits for and achieves, and its last error.
    Clients of the run may see that too, without the errors. Exit code 1 if the server does not answer.
    """
    home = owner.open(as_anybody=True)
    status = run_async(home.get_status)
    members = run_async(find_members, home) if owner.has_key else None
    show_status(status, members, as_json=as_json)


async def find_members(home: "Home") -> "Members | None":
    """Return the members of a run; None, with a warning, if the key may not see them."""
    from psyche.wire.backend import NotOwner

    try:
        return await home.get_members()
    except NotOwner as error:
        say(f"warning: {error}")
        return None


def show_status(status: "RunStatus", members: "Members | None" = None, *, as_json: bool = False) -> None:
    """Print a run's status, and its members if they are given, for people or as JSON."""
    import json

    from psyche.cli.helpers.members import format_members_table, get_plain_members
    from psyche.cli.helpers.serving import describe_progress, format_members, get_phase
    from psyche.core.state.state import RunState
    from psyche.telemetry.plain import get_plain
    from psyche.telemetry.text import format_number, format_seconds

    if as_json:
        fields = {field: get_plain(getattr(status, field)) for field in status.__struct_fields__}
        fields |= {"run_state": RunState(status.run_state).name.lower()}
        fields |= {} if members is None else {"clients": get_plain_members(members)}
        typer.echo(json.dumps(fields, indent=2))
        return
    since = format_seconds(max(0, status.now_unix - status.state_start_unix))
    pausing = ", pauses at the end of this epoch" if status.pending_pause else ""
    round_ = f", round {status.height}" if status.members else ""
    typer.echo(f"run {status.run_id!r}: {get_phase(status)} for {since}{pausing}")
    typer.echo(f"epoch {status.epoch}{round_}, step {status.step} of {status.total_steps}")
    needed = f"; {format_number(status.min_clients, 'is', 'are')} needed to go on" if status.members else ""
    typer.echo(f"{format_members(status)}{needed}; {format_number(status.connections, 'connection')}")
    failing = [format_number(status.failing, "client reports an error", "clients report errors")]
    if said := [*describe_progress(status), *(failing if status.failing else [])]:
        typer.echo(", ".join(said))
    if status.checkpoint_sources:
        typer.echo(f"checkpoint of step {status.checkpoint_step}: {', '.join(status.checkpoint_sources)}")
    if status.earning_rate or status.slashing_rate:
        typer.echo(
            f"each epoch from now on pays {status.earning_rate:,} for all its credits; an ejected member loses "
            f"{status.slashing_rate:,}"
        )
    if members is not None:
        typer.echo(f"\n{format_members_table(members)}")
    elif status.failing:
        typer.echo("to read the errors, name the owner's key: --state-dir or --identity-secret-key-path")
