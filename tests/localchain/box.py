"""A chain in a box for tests: its bank, a token on it, and calls over real sockets."""

import base64
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import trio
from kits.chain.chain_run import SOL, sign
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, TransferParams, create_account, transfer
from solders.transaction import VersionedTransaction
from spl.token.instructions import (
    create_associated_token_account,
    get_associated_token_address,
    initialize_mint2,
    mint_to_checked,
)
from spl.token.models import InitializeMint2Params, MintToCheckedParams

from psyche.localchain.bank import Bank, begin_chain
from psyche.localchain.chain import LocalChain, open_local_chain
from psyche.localchain.machine import VirtualMachine, load_programs
from psyche.localchain.tokens import MINT_BYTES, TOKEN

NOW = 1_800_000_000


def make_bank(genesis: bytes = bytes(32)) -> Bank:
    bank = Bank(VirtualMachine(load_programs()), begin_chain(genesis, NOW))
    bank.advance(NOW)
    return bank


def pay(bank: Bank, payer: Keypair, to: Pubkey, lamports: int = SOL) -> VersionedTransaction:
    giving = transfer(TransferParams(from_pubkey=payer.pubkey(), to_pubkey=to, lamports=lamports))
    return sign(bank.newest_hash, payer, [giving])


def encode(transaction: VersionedTransaction) -> str:
    return base64.b64encode(bytes(transaction)).decode()


def make_mint(bank: Bank, owner: Keypair) -> tuple[Pubkey, Pubkey]:
    """A mint of six decimals, and the owner's account with five tokens."""
    mint, key = Keypair(), owner.pubkey()
    held = get_associated_token_address(key, mint.pubkey())
    steps = [
        create_account(
            CreateAccountParams(
                from_pubkey=key, to_pubkey=mint.pubkey(), lamports=bank.machine.get_deposit(MINT_BYTES),
                space=MINT_BYTES, owner=TOKEN,
            )
        ),
        initialize_mint2(
            InitializeMint2Params(decimals=6, program_id=TOKEN, mint=mint.pubkey(), mint_authority=key)
        ),
        create_associated_token_account(key, key, mint.pubkey()),
        mint_to_checked(
            MintToCheckedParams(
                program_id=TOKEN, mint=mint.pubkey(), dest=held, mint_authority=key, amount=5_000_000, decimals=6
            )
        ),
    ]  # fmt: skip
    assert bank.execute(sign(bank.newest_hash, owner, steps, mint)) is None
    return mint.pubkey(), held


class Caller:
    """Calls to one chain."""

    def __init__(self, http: httpx2.AsyncClient, chain: LocalChain) -> None:
        self.http = http
        self.chain = chain

    async def ask(self, method: str, *params: Any) -> dict[str, Any]:
        """The whole reply."""
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        reply = await self.http.post(self.chain.http, json=request)
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def call(self, method: str, *params: Any) -> Any:
        """The result."""
        reply = await self.ask(method, *params)
        assert "error" not in reply, reply
        return reply["result"]

    async def refuse(self, method: str, *params: Any) -> dict[str, Any]:
        """The error."""
        return (await self.ask(method, *params))["error"]

    async def send(self, transaction: VersionedTransaction, **options: Any) -> str:
        return await self.call("sendTransaction", encode(transaction), {"encoding": "base64", **options})

    @asynccontextmanager
    async def listen(self) -> AsyncGenerator["Socket"]:
        async with self.http.websocket(self.chain.ws, max_message_size_bytes=64 << 20) as ws:
            yield Socket(ws)


class Socket:
    """A connection for subscriptions."""

    def __init__(self, ws: Any) -> None:
        self.ws = ws

    async def call(self, method: str, *params: Any) -> dict[str, Any]:
        await self.ws.send_json({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        return await self.receive()

    async def receive(self) -> dict[str, Any]:
        with trio.fail_after(120):
            return json.loads(await self.ws.receive_text())


@asynccontextmanager
async def open_box(**options: Any) -> AsyncGenerator[tuple[LocalChain, Caller]]:
    """A chain whose slots pass as the test says, and calls to it."""
    options = {"slot_ms": 0, "unix_time": lambda: NOW, **options}
    async with open_local_chain(**options) as chain, httpx2.AsyncClient(trust_env=False) as http:
        yield chain, Caller(http, chain)
