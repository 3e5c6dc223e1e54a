"""Lamports from a faucet, which local chains and test clusters have."""

from typing import Final

import trio
from solders.pubkey import Pubkey

from psyche.backends.solana.amounts import format_sol
from psyche.backends.solana.programs.vouching import name_cluster
from psyche.backends.solana.rpc.client import Rpc
from psyche.errors import BackendError

POLL_S: Final = 0.1
FUND_S: Final = 60.0


async def request_lamports(rpc: Rpc, key: Pubkey, lamports: int) -> int:
    """Ask the faucet for lamports; return what the wallet has once they are there."""
    where = name_cluster(await rpc.get_genesis_hash())
    if where == "mainnet-beta":
        raise BackendError("mainnet-beta has no faucet: somebody who has SOL must send it")
    before = await rpc.get_balance(key)
    try:
        await rpc.call("requestAirdrop", str(key), lamports)
    except BackendError as error:
        elsewhere = "; https://faucet.solana.com gives some in a browser" if where else ""
        raise BackendError(
            f"the faucet gives no {format_sol(lamports)} now ({error}): ask for less{elsewhere}"
        ) from error
    with trio.move_on_after(FUND_S):
        while (after := await rpc.get_balance(key)) < before + lamports:  # noqa: ASYNC110  # the chain alone knows
            await trio.sleep(POLL_S)
        return after
    raise BackendError(f"the faucet has promised {key} lamports that are not there after {FUND_S:.0f} s; ask again")
