"""`psyche run pause`, `resume` and `set-future-epoch-rates`."""

from typing import Annotated

import typer

from psyche.cli.commands.run.group import OWNED, owner_command
from psyche.cli.commands.run.info import show_status
from psyche.cli.helpers.owners import Owner

MAX_RATE = (1 << 63) - 1


@owner_command("pause", f"psyche run pause {OWNED}", former="pause")
def pause(*, owner: Owner) -> None:
    """Pause the run.

    If an epoch is training, it ends early, everybody saves, and then the run is paused: `psyche run info --watch`
    shows when. Otherwise it is paused at once. The clients keep running and wait.
    """
    from psyche.core.state.messages import Pause

    show_status(owner.command(Pause()))


@owner_command("resume", f"psyche run resume {OWNED}", former="resume")
def resume(*, owner: Owner) -> None:
    """Resume a paused run.

    It goes on with the weights that it was paused with. The clients that are still running join again by themselves.
    """
    from psyche.core.state.messages import Resume

    show_status(owner.command(Resume()))


@owner_command(
    "set-future-epoch-rates",
    "psyche run set-future-epoch-rates --earning-rate-total-shared 1000 \\",
    f"    {OWNED}",
    former="set-future-epoch-rates",
)
def set_future_epoch_rates(
    *,
    owner: Owner,
    earning_rate_total_shared: Annotated[
        int | None, typer.Option(min=0, max=MAX_RATE, help="What an epoch pays, shared among its members by work.")
    ] = None,
    slashing_rate_per_client: Annotated[
        int | None, typer.Option(min=0, max=MAX_RATE, help="What each ejected member loses.")
    ] = None,
) -> None:
    """Set what later epochs pay and slash.

    The running epoch keeps its rates. A rate that you do not name stays as it is.
    """
    from psyche.core.state.messages import SetRates
    from psyche.errors import ConfigError

    if earning_rate_total_shared is None and slashing_rate_per_client is None:
        raise ConfigError("name a rate: --earning-rate-total-shared, --slashing-rate-per-client, or both")
    show_status(owner.command(SetRates(earning_rate_total_shared, slashing_rate_per_client)))
