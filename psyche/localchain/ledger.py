"""A chain on disk: one file that is replaced as a whole, so that after a crash there is an older or a newer one."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import trio
import zstandard
from blake3 import blake3
from solders.account import Account
from solders.pubkey import Pubkey
from solders.signature import Signature

from psyche.durable import make_folder, open_lock, replace_file
from psyche.errors import ConfigError
from psyche.localchain.bank import Bank, Clocks
from psyche.localchain.history import Landing
from psyche.localchain.machine import VirtualMachine

SAVE_EVERY_S: Final = 5.0  # what a crash loses at most
FILE: Final = "chain.bin"
LOCK: Final = "lock"
_MAGIC: Final = b"psyche chain 1\n"
_DIGEST_BYTES: Final = 32
_MAX_BYTES: Final = 4 << 30


class StoredAccount(msgspec.Struct, array_like=True, frozen=True):
    key: bytes
    lamports: int
    data: bytes
    owner: bytes
    executable: bool


class StoredChain(Clocks, frozen=True):
    """Everything that a chain goes on from."""

    accounts: list[StoredAccount]
    statuses: list[tuple[bytes, int, Any]]


class ChainFile:
    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._saved_count = 0

    def load(self, programs: Mapping[Pubkey, bytes], unix: float, slot_ms: float) -> Bank | None:
        """The chain in the folder, brought up to now; None if there is none.

        Slots pass while nobody runs the chain, as on a real one. So what was lost in a crash never comes twice under
        one slot, and transactions from before expire.

        Raises:
            ConfigError: the file is damaged.
        """
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return None
        stored = unpack_chain(raw, self.path)
        missed = max(1, int((unix - stored.unix) * 1000 / slot_ms) + 1) if slot_ms else 1
        clocks = msgspec.structs.replace(stored, height=stored.height + missed - 1)
        bank = Bank(VirtualMachine(programs), clocks)
        # A program's account refers to the one with its code, which therefore comes first.
        for one in sorted(stored.accounts, key=lambda account: account.executable):
            account = Account(one.lamports, one.data, Pubkey(one.owner), one.executable)
            bank.put_account(Pubkey(one.key), account)
        for signature, slot, error in stored.statuses:
            bank.history.statuses[Signature(signature)] = Landing(slot, error)
        bank.advance(int(unix), missed - 1)
        return bank

    def save(self, bank: Bank) -> None:
        """Save a chain; it is on disk when this returns."""
        self._write(take_chain(bank))

    async def save_changes(self, bank: Bank) -> None:
        """Save a chain if something has landed since the last time; packed and written in a thread."""
        if bank.history.count != self._saved_count:
            self._saved_count = bank.history.count
            await trio.to_thread.run_sync(self._write, take_chain(bank))

    def _write(self, stored: StoredChain) -> None:
        replace_file(self.path, pack_chain(stored), self.path.with_suffix(".tmp"))


def take_chain(bank: Bank) -> StoredChain:
    found = [(key, account) for key in bank.accounts if (account := bank.get_account(key)) is not None]
    return StoredChain(
        **msgspec.structs.asdict(bank.get_clocks()),
        accounts=[
            StoredAccount(bytes(key), one.lamports, bytes(one.data), bytes(one.owner), one.executable)
            for key, one in found
        ],
        statuses=[(bytes(one), status.slot, status.error) for one, status in bank.history.statuses.items()],
    )


def pack_chain(stored: StoredChain) -> bytes:
    body = zstandard.ZstdCompressor(level=3).compress(msgspec.msgpack.encode(stored))
    return _MAGIC + blake3(body).digest() + body


def unpack_chain(raw: bytes, path: Path) -> StoredChain:
    """Read a file.

    Raises:
        ConfigError: it is damaged, or no chain.
    """
    start = len(_MAGIC) + _DIGEST_BYTES
    digest, body = raw[len(_MAGIC) : start], raw[start:]
    if not raw.startswith(_MAGIC) or blake3(body).digest() != digest:
        raise ConfigError(f"{path} is damaged, or is no saved chain: start with --reset for a new one")
    try:
        return msgspec.msgpack.decode(
            zstandard.ZstdDecompressor().decompress(body, max_output_size=_MAX_BYTES), type=StoredChain
        )
    except (msgspec.MsgspecError, zstandard.ZstdError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): start with --reset for a new chain") from error


@contextmanager
def open_ledger(folder: Path | None) -> Iterator[ChainFile | None]:
    """Take a chain's folder, made if it is missing, for this process alone; None without one.

    Raises:
        ConfigError: another process has it.
        OSError: it cannot be made or written.
    """
    if folder is None:
        yield None
        return
    make_folder(folder)
    try:
        lock = open_lock(folder / LOCK)
    except BlockingIOError as error:
        raise ConfigError(f"{folder} is in use by another chain: stop that one, or name another folder") from error
    try:
        yield ChainFile(folder)
    finally:
        os.close(lock)
