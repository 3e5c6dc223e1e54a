"""`psyche run pause`, `resume` and `set-future-epoch-rates`."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from psyche.cli.commands.run.group import ON_CHAIN, OWNED, owner_command
from psyche.cli.commands.run.info import show_status
from psyche.cli.helpers.owners import Owner

if TYPE_CHECKING:
    from psyche.backends.port import Administration
    from psyche.wire.backend import RunStatus

MAX_RATE: Final = (1 << 63) - 1


class Wish(StrEnum):
    pause = "pause"
    resume = "resume"


@owner_command("pause", f"psyche run pause {OWNED}", f"psyche run pause {ON_CHAIN}")
def pause(*, owner: Owner) -> None:
    """Pause the run.

    If an epoch is training, it ends early, everybody saves, and then the run is paused: `psyche run info --watch`
    shows when. Otherwise it is paused at once. The clients keep running and wait.
    """
    from psyche.core.state.messages import Pause

    show_status(owner, owner.command(Pause()))


@owner_command("resume", f"psyche run resume {OWNED}", f"psyche run resume {ON_CHAIN}")
def resume(*, owner: Owner) -> None:
    """Resume a paused run.

    It goes on with the weights that it was paused with. The clients that are still running join again by themselves.
    """
    from psyche.core.state.messages import Resume

    show_status(owner, owner.command(Resume()))


@owner_command("set-paused", f"psyche run pause {ON_CHAIN}", f"psyche run resume {ON_CHAIN}", hidden=True)
def set_paused(
    *,
    wish: Annotated[Wish, typer.Argument(help="What to do.")] = Wish.pause,
    owner: Owner,
    resume_it: Annotated[bool, typer.Option("--resume", help="Resume it instead.")] = False,
) -> None:
    """Pause a run, or resume it; `psyche run pause` and `psyche run resume` do the same."""
    from psyche.core.state.messages import Pause, Resume

    show_status(owner, owner.command(Resume() if resume_it or wish is Wish.resume else Pause()))


@owner_command(
    "set-future-epoch-rates",
    "psyche run set-future-epoch-rates --earning-rate-total-shared 1000 \\",
    f"    {OWNED}",
    "psyche run set-future-epoch-rates --earning-rate-total-shared 12.5 \\",
    f"    {ON_CHAIN}",
)
def set_future_epoch_rates(
    *,
    owner: Owner,
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
) -> None:
    """Set what later epochs pay and slash.

    The running epoch keeps its rates. A rate that you do not name stays as it is. Rates are whole numbers; a run on
    Solana that pays its members in a token takes them as amounts of that token, such as 12.5.
    """
    from psyche.errors import ConfigError

    rates = {
        "--earning-rate-total-shared": earning_rate_total_shared,
        "--slashing-rate-per-client": slashing_rate_per_client,
    }
    if not any(rates.values()):
        raise ConfigError("name a rate: --earning-rate-total-shared, --slashing-rate-per-client, or both")
    show_status(owner, owner.run(lambda backend: set_rates(backend, rates)))


async def set_rates(backend: "Administration", rates: dict[str, str | None]) -> "RunStatus":
    """Set the rates that are named, in units of the token in which the backend's run pays.

    Raises:
        ConfigError: a rate is no such amount.
    """
    from psyche.backends.solana.amounts import format_amount, parse_amount
    from psyche.core.state.messages import SetRates
    from psyche.errors import ConfigError

    decimals = (await backend.get_status()).decimals
    amounts = [None if text is None else parse_amount(text, decimals, option) for option, text in rates.items()]
    for option, amount in zip(rates, amounts, strict=True):
        if amount is not None and amount > MAX_RATE:
            raise ConfigError(f"{option}: must be at most {format_amount(MAX_RATE, decimals)}")
    return await backend.command(SetRates(*amounts))
