"""Commands that only a chain has: the shared options fill their argument `chain`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer

from psyche.cli.helpers import chain as opt
from psyche.cli.helpers.common import format_examples, run_async
from psyche.cli.helpers.owners import make_person

if TYPE_CHECKING:
    from psyche.backends.port import TargetOptions
    from psyche.backends.solana.session import ChainPlan, ChainSession
    from psyche.backends.solana.target import SolanaTarget

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


@dataclass(frozen=True)
class ChainAccess:
    """A command's access to a chain."""

    options: "TargetOptions"
    yes: bool
    reads: bool  # needs no wallet

    @cached_property
    def target(self) -> "SolanaTarget":
        from psyche.backends.target import parse_chain

        return parse_chain(self.options)

    def run(self, function: "Callable[[ChainSession], Awaitable[_Found]]") -> _Found:
        """Call an async function with a session; return its result."""
        opening = self.target.open_session(make_person(yes=self.yes), reads=self.reads)

        async def call() -> _Found:
            async with opening as session:
                return await function(session)

        return run_async(call)


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
            function(chain=ChainAccess(opt.take_options(own), own.get("yes", False), reads), **given)

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
