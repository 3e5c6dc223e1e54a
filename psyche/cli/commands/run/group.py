"""The group `psyche run`, and `info`, `pause`, `resume` and `set-future-epoch-rates`: how a run goes."""

import json
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from psyche.cli.helpers.common import make_group
from psyche.cli.helpers.target import ADDRESS, ON_CHAIN, OWNED, WALLET, Access, command
from psyche.errors import ConfigError

if TYPE_CHECKING:
    from psyche.backends.port import Administration
    from psyche.wire.backend import RunStatus

MAX_RATE: Final = (1 << 63) - 1
group = make_group(
    "Own a run: watch, pause, change and extend it.\n\n"
    "A run is on a server (--server-addr) or on Solana (--rpc and --run-id). Anybody may ask for `info`. On a server, "
    "the other commands need an owner's key: that of the server, in its state folder (--state-dir), or one that "
    "`psyche server run --owner` names (--identity-secret-key-path). On Solana they need the owner's wallet "
    "(--wallet-private-key-path), and say what they cost.",
    f"psyche run info {ADDRESS}",
    f"psyche run pause {OWNED}",
    f"psyche run resume {OWNED}",
    "psyche run create --state my-run --rpc localhost",
    f"psyche run info {ON_CHAIN}",
    f"psyche run pause {ON_CHAIN}",
)


_command = partial(command, group)


@_command(
    "info",
    f"psyche run info {ADDRESS}",
    f"psyche run info {OWNED} --watch",
    f"psyche run info {ADDRESS} --json",
    f"psyche run info {ON_CHAIN}",
)
def info(
    *,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Show it again every two seconds, until the run is finished. Ctrl-C ends it, with exit code 0.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON object; with --watch one on each line. docs/owner.md lists its keys.")
    ] = False,
    address: Annotated[
        str | None, typer.Option(help="Only what a run on Solana knows of this wallet, as JSON.")
    ] = None,
    access: Access,
) -> None:
    """Show how a run goes. Anybody may ask.

    With an owner's key also its members: what each says that it does, waits for and achieves, and its last error.
    Clients of the run may see that too, without the errors. Exit code 1 if the server does not answer.
    """
    from psyche.cli.helpers.watching import ask_once, watch_until_signal

    with_members, write = access.target.shows_members, access.target.write_command
    if address:
        typer.echo(json.dumps(access.describe_wallet(address), indent=2))
    elif watch:
        access.run(lambda one: watch_until_signal(one, with_members, as_json, write), as_anybody=True, sees_waits=True)
    else:
        typer.echo(access.run(lambda one: ask_once(one, with_members, as_json, write), as_anybody=True))


@_command("json-info-dump", f"psyche run info {ON_CHAIN} --json", hidden=True)
@_command("json-dump-run", f"psyche run info {ON_CHAIN} --json", hidden=True)
def dump_run(*, access: Access) -> None:
    """Print the state of a run as JSON; `psyche run info --json` does the same."""
    info(access=access, as_json=True)


@_command("json-dump-user", f"psyche run info {ON_CHAIN} \\", f"    --address {WALLET}", hidden=True)
def dump_wallet(
    *,
    address: Annotated[str, typer.Option("--address", "--wallet", "--user", help="The wallet to look up.")],
    access: Access,
) -> None:
    """Print what a run knows of a wallet as JSON; `psyche run info --address` does the same."""
    typer.echo(json.dumps(access.describe_wallet(address), indent=2))


def show_status(access: Access, status: "RunStatus") -> None:
    from psyche.cli.helpers.watching import format_run

    typer.echo(format_run(status, write=access.target.write_command))


class Wish(StrEnum):
    pause = "pause"
    resume = "resume"


@_command("pause", f"psyche run pause {OWNED}", f"psyche run pause {ON_CHAIN}")
def pause(*, access: Access) -> None:
    """Pause the run.

    If an epoch is training, it ends early, everybody saves, and then the run is paused: `psyche run info --watch`
    shows when. Otherwise it is paused at once. The clients keep running and wait.
    """
    from psyche.core.state.messages import Pause

    show_status(access, access.command(Pause()))


@_command("resume", f"psyche run resume {OWNED}", f"psyche run resume {ON_CHAIN}")
def resume(*, access: Access) -> None:
    """Resume a paused run.

    It goes on with the weights that it was paused with. The clients that are still running join again by themselves.
    """
    from psyche.core.state.messages import Resume

    show_status(access, access.command(Resume()))


@_command("set-paused", f"psyche run pause {ON_CHAIN}", f"psyche run resume {ON_CHAIN}", hidden=True)
def set_paused(
    *,
    wish: Annotated[Wish, typer.Argument(help="What to do.")] = Wish.pause,
    resume_it: Annotated[bool, typer.Option("--resume", help="Resume it instead.")] = False,
    access: Access,
) -> None:
    """Pause a run, or resume it; `psyche run pause` and `psyche run resume` do the same."""
    from psyche.core.state.messages import Pause, Resume

    show_status(access, access.command(Resume() if resume_it or wish is Wish.resume else Pause()))


@_command(
    "set-future-epoch-rates",
    "psyche run set-future-epoch-rates --earning-rate-total-shared 1000 \\",
    f"    {OWNED}",
    "psyche run set-future-epoch-rates --earning-rate-total-shared 12.5 \\",
    f"    {ON_CHAIN}",
)
def set_future_epoch_rates(
    *,
    earning_rate_total_shared: Annotated[
        str | None,
        typer.Option(
            "--earning-rate-total-shared",
            "--earning-rate",
            help="What an epoch pays, shared among its members by work.",
        ),
    ] = None,
    slashing_rate_per_client: Annotated[
        str | None,
        typer.Option("--slashing-rate-per-client", "--slashing-rate", help="What each ejected member loses."),
    ] = None,
    access: Access,
) -> None:
    """Set what later epochs pay and slash.

    The running epoch keeps its rates. A rate that you do not name stays as it is. Rates are whole numbers; a run on
    Solana that pays its members in a token takes them as amounts of that token, such as 12.5.
    """
    rates = {
        "--earning-rate-total-shared": earning_rate_total_shared,
        "--slashing-rate-per-client": slashing_rate_per_client,
    }
    if not any(rates.values()):
        raise ConfigError("name a rate: --earning-rate-total-shared, --slashing-rate-per-client, or both")
    show_status(access, access.run(lambda backend: set_rates(backend, rates)))


async def set_rates(backend: "Administration", rates: dict[str, str | None]) -> "RunStatus":
    """Set the rates that are named, in units of the token in which the backend's run pays."""
    from psyche.backends.solana.amounts import format_amount, parse_amount
    from psyche.core.state.messages import SetRates

    decimals = (await backend.get_status()).decimals
    amounts = [None if text is None else parse_amount(text, decimals, option) for option, text in rates.items()]
    for option, amount in zip(rates, amounts, strict=True):
        if amount is not None and amount > MAX_RATE:
            raise ConfigError(f"{option}: must be at most {format_amount(MAX_RATE, decimals)}")
    return await backend.command(SetRates(*amounts))
