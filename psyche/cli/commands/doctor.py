"""`psyche doctor`: is this machine ready to take part?"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from psyche.cli.helpers import checks
from psyche.cli.helpers.remote import Remote


def doctor(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per check, in a list.")] = False,
    is_server: Annotated[
        bool,
        typer.Option("--server", help="The machine of a server or an owner, which needs neither torch nor libp2p."),
    ] = False,
    data_dir: Annotated[
        Path,
        typer.Option(
            help="The folder for snapshots and checkpoints; its disk is checked, and what a client's log there says of "
            "machines whose arithmetic is off."
        ),
    ] = Path(),
    bind_p2p_port: Annotated[
        int, typer.Option(envvar="BIND_P2P_PORT", min=0, max=65535, help="The port you mean to use; 0: any free one.")
    ] = 0,
    state: Annotated[
        Path | None,
        typer.Option(help="Also ask the places that this run names for its model and data: run.toml, or its folder."),
    ] = None,
    remote: Remote,
) -> None:
    """Check whether this machine is ready to take part.

    Looks at Python, torch and device, libp2p, clock, disk and ports, and with --state at the Hub, the bucket or the web
    server of a run. Each line is ok, warn or fail, with what to do.
    Exit code 1 where something fails.
    """
    found: list[checks.Check] = []
    makes = checks.get_checks(data_dir, bind_p2p_port, is_server=is_server)
    if state is not None:
        from psyche.config.load import load_run

        makes += checks.get_run_checks(load_run(state, remote.data_manifest), remote.get_options())
    for make in makes:
        check = make()
        found.append(check)
        if not as_json:
            typer.echo(checks.format_check(check))
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in found], indent=2))
    if any(check.verdict is checks.CheckVerdict.FAIL for check in found):
        raise typer.Exit(1)
