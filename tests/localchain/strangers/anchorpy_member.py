"""Joins a run with anchorpy 0.21 and the interface in its legacy form, in an environment of its own."""

import asyncio
import json
import sys
from pathlib import Path

from anchorpy import Context, Idl, Program, Provider, Wallet
from anchorpy.error import ProgramError
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed
from solana.rpc.core import RPCException
from solana.rpc.types import TxOpts
from solders.keypair import Keypair
from solders.pubkey import Pubkey

told = json.load(sys.stdin)


async def main() -> None:
    connection = AsyncClient(told["http"], commitment=Confirmed)
    user, p2p = Keypair(), Keypair()
    airdrop = await connection.request_airdrop(user.pubkey(), 2 * 10**9)
    await connection.confirm_transaction(airdrop.value, commitment=Confirmed, sleep_seconds=0.1)
    provider = Provider(connection, Wallet(user), TxOpts(preflight_commitment=Confirmed))
    idl = Idl.from_json(Path(told["idl"]).read_text())
    program = Program(idl, Pubkey.from_string(told["program"]), provider)
    instance = Pubkey.find_program_address([b"coordinator", told["run_id"].encode()], program.program_id)[0]
    grant = [b"Authorization", bytes(Pubkey.from_string(told["grantor"])), bytes(32), b"CoordinatorJoinRun"]
    accounts = {
        "user": user.pubkey(),
        "p2p": p2p.pubkey(),
        "authorization": Pubkey.find_program_address(grant, Pubkey.from_string(told["authorizer"]))[0],
        "coordinator_instance": instance,
        "coordinator_account": Pubkey.from_string(told["account"]),
    }
    signature = await program.rpc["join_run"](0, ctx=Context(accounts=accounts, signers=[p2p]))
    await connection.confirm_transaction(signature, commitment=Confirmed, sleep_seconds=0.1)
    state = await program.account["CoordinatorAccount"].fetch(accounts["coordinator_account"], Confirmed)
    named = await program.account["CoordinatorInstance"].fetch(instance, Confirmed)
    slots = state.registry.slots[: state.registry.slots_len]
    refused = None
    try:
        await program.rpc["reclaim_slot"](ctx=Context(accounts=accounts))
    except (ProgramError, RPCException) as error:
        refused = {"code": getattr(error, "code", None), "text": str(error)[:300]}
    said = {
        "user": str(user.pubkey()),
        "p2p": str(p2p.pubkey()),
        "run_id": named.run_id,
        "signers": [str(Pubkey(bytes(slot.signer))) for slot in slots],
        "refused": refused,
    }
    print(json.dumps(said))
    await connection.close()


asyncio.run(main())
