"""A local chain in a thread, for commands that run their own event loop, and what tests put on it."""

import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import trio
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token import ID as TOKEN
from solders.token.associated import get_associated_token_address
from typer.testing import CliRunner

from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.backends.solana.wallet import write_wallet
from psyche.cli.app import app
from psyche.core.encoding.account import encode_state
from psyche.core.state.state import Coordinator
from psyche.localchain.bank import Bank
from psyche.localchain.chain import LocalChain, open_local_chain

T = TypeVar("T")
SLOT_MS = 20
DAY_S = 86_400
SOL = 10**9


@dataclass
class ChainBox:
    """A chain that runs, and a folder for wallets."""

    chain: LocalChain
    token: trio.lowlevel.TrioToken
    folder: Path

    def fund(self, name: str, lamports: int = 10 * SOL) -> Keypair:
        """A new wallet in a file of this name, with lamports."""
        wallet = Keypair()
        write_wallet(self.get_path(name), wallet)
        if lamports:
            self._do(lambda bank: bank.airdrop(wallet.pubkey(), lamports))
        return wallet

    def get_path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _do(self, function: Callable[[Bank], T]) -> T:
        """Call a function in the chain's own thread, which alone may touch it."""
        return trio.from_thread.run_sync(function, self.chain.bank, trio_token=self.token)

    def get_lamports(self, key: Pubkey) -> int:
        return self._do(lambda bank: bank.get_lamports(key))

    def get_data(self, key: Pubkey) -> bytes:
        account = self._do(lambda bank: bank.get_account(key))
        return b"" if account is None else bytes(account.data)

    def get_owner(self, key: Pubkey) -> Pubkey:
        account = self._do(lambda bank: bank.get_account(key))
        assert account is not None
        return account.owner

    def put(self, key: Pubkey, owner: Pubkey, data: bytes) -> None:
        def write(bank: Bank) -> None:
            old = bank.get_account(key)
            bank.put_account(key, Account(old.lamports if old else bank.machine.get_deposit(len(data)), data, owner))

        self._do(write)

    def write_state(self, key: Pubkey, state: Coordinator) -> None:
        """Let a run's account say this: what members earn in hours of training is not played here."""
        self.put(key, COORDINATOR, encode_state(state))

    def put_mint(self, decimals: int = 6) -> Pubkey:
        """A new kind of token."""
        key = Keypair().pubkey()
        self.put(key, TOKEN, struct.pack("<I32sQBBI32s", 1, bytes(key), 0, decimals, 1, 0, b""))
        return key

    def put_tokens(self, mint: Pubkey, owner: Pubkey, amount: int) -> Pubkey:
        """The owner's associated token account with this amount."""
        key = get_associated_token_address(owner, mint)
        data = bytes(mint) + bytes(owner) + struct.pack("<QI32sBI8sQI32s", amount, 0, b"", 1, 0, b"", 0, 0, b"")
        self.put(key, TOKEN, data)
        return key

    def get_tokens(self, mint: Pubkey, owner: Pubkey) -> int:
        data = self.get_data(get_associated_token_address(owner, mint))
        return struct.unpack_from("<Q", data, 64)[0] if data else 0

    def call(self, *words: str, wallet: str = "") -> str:
        """Run a command on the chain that succeeds; return what it printed."""
        done = self.try_call(*words, wallet=wallet)
        assert done.exit_code == 0, f"{words}\n{done.output}{done.exception!r}"
        return done.output

    def refuse(self, *words: str, wallet: str = "") -> str:
        """Run a command that is refused; return the message."""
        done = self.try_call(*words, wallet=wallet)
        assert done.exit_code == 1, f"{words}\n{done.output}{done.exception!r}"
        assert "Traceback" not in done.output
        return done.output

    def try_call(self, *words: str, wallet: str = "") -> Any:
        signed = ["--wallet-private-key-path", str(self.get_path(wallet))] if wallet else []
        return CliRunner().invoke(app, [*map(str, words), "--rpc", self.chain.http, *signed])


@contextmanager
def open_chain_box(folder: Path, programs: Mapping[Pubkey, bytes] | None = None) -> Iterator[ChainBox]:
    """Run a local chain in a thread while the block runs."""
    ready, boxes = threading.Event(), []
    stop: list[trio.CancelScope] = []

    async def main() -> None:
        with trio.move_on_after(DAY_S) as scope:
            async with open_local_chain(slot_ms=SLOT_MS, programs=programs) as chain:
                stop.append(scope)
                boxes.append(ChainBox(chain, trio.lowlevel.current_trio_token(), folder))
                ready.set()
                await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(main,), name="chain")
    thread.start()
    try:
        assert ready.wait(30), "the local chain did not start"
        yield boxes[0]
    finally:
        boxes[0].token.run_sync_soon(stop[0].cancel)
        thread.join(30)
