"""Commands that only a chain has: the shared options fill their argument `chain`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer

from psyche.cli.helpers import chain as opt
from psyche.cli.helpers.common import format_examples

if TYPE_CHECKING:
    from psyche.backends.solana.session import ChainPlan, ChainSession

_Found = TypeVar("_Found")
LOCAL: Final = "--rpc localhost"  # in examples
READING: Final[dict[str, tuple[object, object]]] = {
    "rpc": (opt.Rpc, None),
    "ws_rpc": (opt.WsRpc, None),
    "rpc_2": (opt.Rpc2, None),
    "ws_rpc_2": (opt.WsRpc2, None),
    "rpc_3": (opt.Rpc3, None),
    "ws_rpc_3": (opt.WsRpc3, None),
    "program_ids": (opt.ProgramIds, None),
}
_PAYING: Final[dict[str, tuple[object, object]]] = {
    "wallet_private_key_path": (opt.WalletPath, None),
    "max_priority_fee": (opt.MaxPriorityFee, None),
}
CHANGING: Final = READING | _PAYING | {"yes": (opt.Yes, False)}


@dataclass(frozen=True, slots=True)
class ChainAccess:
    options: opt.ChainOptions
    yes: bool
    reads: bool  # needs no wallet

    def run(self, function: "Callable[[ChainSession], Awaitable[_Found]]") -> _Found:
        from psyche.cli.chain.session import call_at_chain

        return call_at_chain(function, self.options, yes=self.yes, reads=self.reads)


def chain_command(
    group: typer.Typer,
    name: str,
    *examples: str,
    reads: bool = False,
    aliases: tuple[tuple[typer.Typer, str], ...] = (),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    shared = READING if reads else CHANGING

    def register(function: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:  # typer reads the signature that is set below
            own = {name: given.pop(name) for name in shared}
            options = opt.take_options((dict.fromkeys(_PAYING) if reads else {}) | own)
            function(chain=ChainAccess(options, own.get("yes", False), reads), **given)

        opt.set_signature(run, function, shared, instead_of="chain")
        epilog = format_examples(*examples)
        group.command(name, epilog=epilog)(run)
        for other, alias in aliases:
            other.command(alias, hidden=True, epilog=epilog)(run)
        return function

    return register


async def tell_return(session: "ChainSession", before: int) -> None:
    from psyche.backends.solana.amounts import format_sol

    after = await session.rpc.get_balance(session.key)
    typer.echo(f"{format_sol(max(0, after - before))} came back to {session.key}")


async def carry_out(session: "ChainSession", plan: "ChainPlan", done: str, nothing: str) -> None:
    """Carry out a plan and say what happened and that it is done, or `nothing` if there was nothing to do."""
    from psyche.cli.helpers.refusals import put_in_words
    from psyche.core.state.errors import CoordinatorError
    from psyche.errors import BackendError

    try:
        landed = await session.carry_out(plan)
    except CoordinatorError as error:
        raise BackendError(put_in_words(error)) from error
    if landed is None:
        typer.echo(nothing)
    else:
        for event in landed.events:
            typer.echo(str(event))
        for line in plan.outcome:
            typer.echo(line)
        typer.echo(f"{done} (transaction {landed.signature})")
