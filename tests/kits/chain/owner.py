"""The owner of a run on a chain that real clients train: its token, its commands, and what it has paid."""

import struct
from dataclasses import dataclass, field
from pathlib import Path

import trio
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, create_account
from solders.token import ID as TOKEN
from solders.token.associated import get_associated_token_address
from typer.testing import CliRunner

from psyche.backends.solana.interface.calls import signs, writes
from psyche.backends.solana.interface.tokens import MINT_BYTES, build_token_account, read_token_account
from psyche.backends.solana.lookup import find_run
from psyche.backends.solana.rpc.client import Rpc
from psyche.backends.solana.rpc.sender import TransactionSender
from psyche.backends.solana.session import ChainSession
from psyche.backends.solana.wallet import read_wallet
from psyche.cli.app import app
from psyche.core.state.state import Coordinator

DECIMALS = 6
MINT_TO, INITIALIZE_MINT2 = 7, 20  # of the SPL Token program


async def run_command(*words: str) -> str:
    """Run a command of psyche in a thread, which needs no new process; return what it printed."""
    done = await trio.to_thread.run_sync(CliRunner().invoke, app, words)
    assert done.exit_code == 0, f"{words}\n{done.output}{done.exception!r}"
    return done.output


@dataclass
class RunOwner:
    """The owner of run `run_id`, whose wallet is in a file, and the chain at `rpc`."""

    rpc: Rpc
    wallet: Path
    run_id: str
    mint: Keypair = field(default_factory=Keypair)

    @property
    def key(self) -> Pubkey:
        return read_wallet(self.wallet).pubkey()

    async def call(self, *words: object, wallet: Path | None = None) -> str:
        """Run a command on the chain, as the owner or with another wallet, in a thread; return what it printed."""
        signed = ["--wallet-private-key-path", str(wallet or self.wallet)]
        return await run_command(*map(str, words), "--rpc", self.rpc.endpoints[0].http, *signed)

    async def fund(self, key: Pubkey, lamports: int) -> None:
        await self.rpc.call("requestAirdrop", str(key), lamports)
        with trio.fail_after(60):
            while not await self.rpc.get_balance(key):
                await trio.sleep(0.05)

    async def make_token(self, amount: int) -> None:
        """A new kind of token, and this amount of it for the owner."""
        owner, mint = self.key, self.mint.pubkey()
        deposit = await self.rpc.get_deposit(MINT_BYTES)
        made = create_account(
            CreateAccountParams(from_pubkey=owner, to_pubkey=mint, lamports=deposit, space=MINT_BYTES, owner=TOKEN)
        )
        begin = Instruction(TOKEN, struct.pack("<BB32sB", INITIALIZE_MINT2, DECIMALS, bytes(owner), 0), [writes(mint)])
        holding = get_associated_token_address(owner, mint)
        accounts = [writes(mint), writes(holding), signs(owner)]
        give = Instruction(TOKEN, struct.pack("<BQ", MINT_TO, amount), accounts)
        sender = TransactionSender(self.rpc, read_wallet(self.wallet))
        await sender.send([made, begin, build_token_account(owner, owner, mint), give], [self.mint])

    async def get_tokens(self, key: Pubkey) -> int:
        """What a wallet holds of the token."""
        account = await self.rpc.get_account(get_associated_token_address(key, self.mint.pubkey()))
        return 0 if account is None else read_token_account(account.owner, account.data).amount

    async def read(self) -> Coordinator:
        """The run's record."""
        return (await find_run(ChainSession(self.rpc, None, lambda _quote: None), self.run_id)).state

    async def list_signatures(self) -> set[str]:
        """The transactions that name the owner."""
        found = await self.rpc.call("getSignaturesForAddress", str(self.key), {"commitment": "confirmed"})
        return {one["signature"] for one in found}

    async def compute_fees(self, signatures: set[str]) -> int:
        """What the owner paid for those of these transactions that it paid for, in lamports."""
        total = 0
        for signature in signatures:
            options = {"encoding": "json", "maxSupportedTransactionVersion": 0, "commitment": "confirmed"}
            found = await self.rpc.call("getTransaction", signature, options)
            if found["transaction"]["message"]["accountKeys"][0] == str(self.key):
                total += found["meta"]["fee"]
        return total
