"""`psyche run update-config` and `extend`: changes to a run on record (P9)."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from psyche.cli.commands.run.group import group, show_status
from psyche.cli.helpers.common import confirm, say
from psyche.cli.helpers.remote import MANIFEST, SOURCES, Remote
from psyche.cli.helpers.target import ON_CHAIN, OWNED, OWNING, Access, command
from psyche.errors import ConfigError

if TYPE_CHECKING:
    from psyche.backends.port import Administration
    from psyche.core.state.messages import Update
    from psyche.core.state.state import Coordinator
    from psyche.telemetry.run_line import WriteCommand
    from psyche.wire.backend import RunStatus

Build = Callable[["Coordinator"], "Update"]  # from the record to the update of it that is wanted
_command = partial(command, group)
ASKED: Final = "Change the run?"
CHANGE: Final = "change the run"
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show and check the changes, and send nothing.")]


@_command(
    "update-config",
    "psyche run update-config --state my-run --dry-run \\",
    f"    {OWNED}",
    "psyche run update-config --state my-run --yes \\",
    f"    {OWNED}",
    "psyche run update-config --state my-run --rpc localhost --yes",
    f"psyche run update-config --name Speech {ON_CHAIN} --yes",
    shared=OWNING | SOURCES | MANIFEST,
)
def update_config(
    *,
    state: Annotated[
        Path | None,
        typer.Option("--state", "--config-path", help="run.toml or state.toml with the new settings, or its folder."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The run's name for people, instead of the file's.")] = None,
    description: Annotated[str | None, typer.Option(help="What the run is for, instead of the file's.")] = None,
    num_parameters: Annotated[int | None, typer.Option(min=0, help="Parameters of the model, for people.")] = None,
    vocab_size: Annotated[int | None, typer.Option(min=0, help="Size of its vocabulary, for people.")] = None,
    client_version: Annotated[str | None, typer.Option(help="The version that clients must have.")] = None,
    restart_from_step: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Train on from this step, with the weights of the source on record instead of the certified ones.",
        ),
    ] = None,
    switch_to_hub: Annotated[
        bool, typer.Option("--switch-to-hub", hidden=True, help="Load weights from the Hub; not needed here.")
    ] = False,
    dry_run: DryRun = False,
    access: Access,
    remote: Remote,
) -> None:
    """Give a run other settings or texts.

    Shows every key that changes, with its old and new value, and asks before it sends them; where there is no terminal
    it needs --yes. The run must be paused,
    unless only [metadata] and bootstrap change. The run keeps its weights, its step and its members, unless you name
    --restart-from-step. [progress] and [access] of the file have no effect here.
    """
    from psyche.cli.helpers.updates import load_changes, load_settings
    from psyche.core.state.messages import UpdateClientVersion

    if switch_to_hub:
        raise ConfigError(
            "--switch-to-hub: clients get weights from each other and from all places on record already. `psyche run "
            "checkpoint --repo` puts a repository on record; to begin from a model of the Hub, name it as the "
            "checkpoint Hub in run.toml"
        )
    given = {"name": name, "description": description, "num_parameters": num_parameters, "vocab_size": vocab_size}
    texts = {key: value for key, value in given.items() if value is not None}
    is_agreed = False
    if state is not None or texts or restart_from_step is not None:
        file = None
        if state is not None:
            fitted = load_settings(state, access.target, remote.data_manifest)
            access, file = replace(access, options=fitted.target.options), fitted.file
        changes = load_changes(file, texts, restart_from_step, remote.get_options())
        is_agreed = change_run(access, changes, dry_run=dry_run)
    elif client_version is None:
        raise ConfigError("name what changes: --state FILE, --name, --description or --client-version, for example")
    if client_version is not None and not dry_run:
        say(f"clients must have version {client_version} then")
        confirm(ASKED, CHANGE, yes=access.yes or is_agreed)
        show_status(access, access.command(UpdateClientVersion(client_version)))


@_command(
    "extend",
    "psyche run extend --total-steps 6000 --yes \\",
    f"    {OWNED}",
    "psyche run extend --total-steps 8000 --stretch-schedule --yes \\",
    f"    {OWNED}",
)
def extend(
    *,
    total_steps: Annotated[int, typer.Option(min=1, help="The step at which the run is to end.")],
    stretch_schedule: Annotated[
        bool,
        typer.Option(
            "--stretch-schedule",
            help="Move the end of the learning-rate schedule by as many steps. Otherwise the rate stays at its last "
            "value once the schedule has ended.",
        ),
    ] = False,
    dry_run: DryRun = False,
    access: Access,
) -> None:
    """Let a run train longer.

    The run must be paused. A finished run cannot be extended; docs/owner.md says how to train its weights further.
    """
    from psyche.config.update import build_extension

    def build(record: "Coordinator") -> "Update":
        return build_extension(record, total_steps, stretch=stretch_schedule)

    if change_run(access, build, dry_run=dry_run):
        say(f"write total_steps = {total_steps} in your run.toml too, or a later `update-config` takes it back")


def change_run(access: Access, build: Build, *, dry_run: bool) -> bool:
    """Show what an update changes, check it, ask, and send it; return whether it was sent."""
    from psyche.config.update import lay_out_changes
    from psyche.core.state.messages import Update

    record, update = access.run(lambda backend: prepare_update(backend, build, access.target.write_command))
    if update == Update():
        say("nothing changes: the run has these settings already")
        return False
    typer.echo(lay_out_changes(record, update))
    if dry_run:
        say("nothing was sent (--dry-run)")
        return False
    confirm(ASKED, CHANGE, yes=access.yes)
    show_status(access, access.run(lambda backend: send_update(backend, update, build)))
    return True


async def prepare_update(
    backend: "Administration", build: Build, write: "WriteCommand"
) -> tuple["Coordinator", "Update"]:
    """Return the record of a run, and the update of it that is wanted, which its rules allow now."""
    from psyche.backends.port import build_in_thread
    from psyche.config.update import check_update
    from psyche.core.state.messages import Update

    record = await backend.get_record()
    update = await build_in_thread(build, record)
    if update != Update():
        check_update(record, update, write)
    return record, update


async def send_update(backend: "Administration", update: "Update", build: Build) -> "RunStatus":
    """Send an update if it still is what the owner was shown; return the status after it."""

    # An update repeats the sources of the weights that are on record. With older ones the run would begin again from
    # them (P9), so it is built from the newest record, and one of the model, the progress or the first weights names
    # the nonce that it was read with.
    def build_again(record: "Coordinator") -> "Update":
        if build(record) != update:
            raise ConfigError("the run has changed meanwhile, and nothing was sent: run the command again")
        is_bound = update.model or update.progress or update.first_weights
        return replace(update, nonce=record.nonce) if is_bound else update

    return await backend.command(build_again)
