"""A command's session at a chain: opened from its options, with a question before money is spent."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import typer

from psyche.backends.solana.cluster import name_foreign
from psyche.backends.solana.interface.addresses import use_program_ids
from psyche.backends.solana.owner.administration import SolanaAdministration
from psyche.backends.solana.programs.vouching import choose_programs
from psyche.backends.solana.rpc.client import open_rpc
from psyche.backends.solana.rpc.transaction import FeePolicy
from psyche.backends.solana.session import Approve, ChainSession, Quote
from psyche.cli.helpers.chain import ChainOptions
from psyche.cli.helpers.common import confirm, run_async
from psyche.errors import ConfigError

_Found = TypeVar("_Found")


def call_at_chain(
    function: Callable[[ChainSession], Awaitable[_Found]], options: ChainOptions, *, yes: bool, reads: bool
) -> _Found:
    endpoints, most = options.find_endpoints(), options.max_priority_lamports
    options.check_program_ids()
    wallet = None if reads else options.load_wallet()

    async def call() -> _Found:
        async with open_rpc(endpoints) as rpc:
            genesis = await rpc.get_genesis_hash()
            vouching = choose_programs(genesis, options.program_ids)
            use_program_ids(vouching.ids)
            approve = make_approval("" if reads else name_foreign(genesis, endpoints), yes=yes)
            session = ChainSession(rpc, wallet, approve, _say, options.spelling, vouching, FeePolicy(max_lamports=most))
            return await function(session)

    return run_async(call)


def make_approval(foreign: str, *, yes: bool) -> Approve:
    """Make what asks a person before a change: on a chain that others share, unless --yes answers already."""

    def approve(quote: Quote) -> None:
        where = f"on {foreign}: " if foreign else ""
        _say(where + quote.describe())
        if foreign:
            confirm("Do it?", f"spend on {foreign}", yes=yes)

    return approve


async def get_administration(
    session: ChainSession, run_id: str, treasurer_index: int | None = None
) -> SolanaAdministration:
    if not run_id:
        raise ConfigError("a chain has many runs: name this one with --run-id (or RUN_ID in the environment)")
    backend = SolanaAdministration(session, run_id)
    if treasurer_index is not None:
        treasurer = (await backend.find()).treasurer
        if treasurer is None or treasurer.index != treasurer_index:
            found = "has no treasurer" if treasurer is None else f"has the index {treasurer.index}"
            raise ConfigError(f"--treasurer-index {treasurer_index}: run {run_id!r} {found}; leave the option out")
    return backend


def _say(text: str) -> None:
    typer.echo(text, err=True)
