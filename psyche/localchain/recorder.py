"""What a chain has done to runs, in a file: each instruction of the coordinator, and the run's account after it.

A file begins with a line that names its form. Frames follow: a length as u32, little-endian, and that many bytes of
zstd around msgpack. Frames are written when their slot is complete, so a chain that is killed loses its last slot.
"""

import struct
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import base58
import msgspec
import zstandard
from solders.account import Account
from solders.compute_budget import ID as COMPUTE_BUDGET
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.core.state.limits import STATE_BYTES
from psyche.durable import naming
from psyche.errors import ConfigError
from psyche.localchain.bank import Bank, CompleteSlot
from psyche.localchain.history import LandedTransaction
from psyche.localchain.replay import ChainCall, RunReplay
from psyche.localchain.transactions import take_message

_MAGIC: Final = b"psyche chain record 1\n"
_LENGTH: Final = struct.Struct("<I")
_MAX_FRAME_BYTES: Final = 64 << 20
_HINT: Final = "record a chain from its start with `psyche dev validator --record FILE`"


class RecordStart(msgspec.Struct, frozen=True, array_like=True):
    """Where the record begins: the hashes that programs can read, oldest first, and the runs that are there."""

    slot_hashes: list[tuple[int, bytes]]
    runs: list[tuple[bytes, bytes]]


class RecordedCall(msgspec.Struct, frozen=True, array_like=True):
    """An instruction with its accounts, and the run's account after it as in `ChainCall`."""

    data: bytes
    keys: list[bytes]
    after: bytes | None


class RecordedSlot(msgspec.Struct, frozen=True, array_like=True):
    """A complete slot and its hash; of each transaction in it its signature, unix time, and instructions."""

    slot: int
    hash: bytes
    transactions: list[tuple[str, int, list[RecordedCall]]]


Frame = RecordStart | RecordedSlot
After = dict[Pubkey, bytes]  # the accounts of runs that are there


class ChainRecorder:
    """Writes what a bank does to runs, from now on."""

    def __init__(self, bank: Bank, file: BinaryIO) -> None:
        self._bank, self._file = bank, file
        self._packer = zstandard.ZstdCompressor(level=1)
        self._stages: dict[int, After] = {}  # of the transaction at hand, by instruction; the last one's is not here
        self._landed: list[tuple[str, int, list[RecordedCall]]] = []
        file.write(_MAGIC)
        hashes = list(reversed(bank.get_clocks().slot_hashes))
        runs = [(bytes(key), data) for key, data in self._read(bank.accounts).items()]
        self._write(RecordStart(hashes, runs))
        bank.before_each.append(self._look_ahead)
        bank.after_each.append(self._note)
        bank.on_block.append(self._complete)

    def _look_ahead(self, transaction: VersionedTransaction) -> None:
        """Find what a transaction's instructions do one by one: try it without those that follow."""
        self._stages, message = {}, take_message(transaction)
        for index in _find_working(message)[:-1]:
            trial = self._bank.simulate(_cut(transaction, message, index + 1), is_verified=False)
            if trial.error is None:
                found = {key: bytes(one.data) for key, one in trial.accounts.items() if _is_run(one)}
                self._stages[index] = found

    def _note(self, record: LandedTransaction) -> None:
        if record.status.error is None and (calls := list(self._list_calls(record))):
            self._landed.append((str(record.signature), record.unix, calls))

    def _list_calls(self, record: LandedTransaction) -> Iterator[RecordedCall]:
        """The coordinator's instructions in the order in which they ran, those of other programs included."""
        inner = {one["index"]: one["instructions"] for one in record.done.inner or ()}
        message = take_message(VersionedTransaction.from_bytes(record.raw))
        working = _find_working(message)
        for index in working:
            outer = message.instructions[index]
            found = [(outer.program_id_index, bytes(outer.accounts), bytes(outer.data))]
            found += [
                (one["programIdIndex"], bytes(one["accounts"]), base58.b58decode(one["data"]))
                for one in inner.get(index, [])
            ]
            calls = [
                ChainCall(data, tuple(record.keys[at] for at in accounts))
                for program, accounts, data in found
                if record.keys[program] == COORDINATOR
            ]
            after = self._read(record.keys) if index == working[-1] else self._stages.get(index)
            yield from _seal([call for call in calls if call.name], after)

    def _read(self, keys: Iterable[Pubkey]) -> After:
        accounts = ((key, self._bank.get_account(key)) for key in keys)
        return {key: bytes(one.data) for key, one in accounts if one is not None and _is_run(one)}

    def _complete(self, block: CompleteSlot) -> None:
        landed, self._landed = self._landed, []
        self._write(RecordedSlot(block.slot, bytes(self._bank.get_slot_hash()), landed))
        with naming(Path(self._file.name)):
            self._file.flush()

    def _write(self, frame: Frame) -> None:
        packed = self._packer.compress(msgspec.msgpack.encode(frame))
        with naming(Path(self._file.name)):
            self._file.write(_LENGTH.pack(len(packed)) + packed)


def _find_working(message: Message | MessageV0) -> list[int]:
    """The indexes of the instructions that may work on runs: all but those about the transaction itself."""
    keys = message.account_keys
    return [at for at, one in enumerate(message.instructions) if keys[one.program_id_index] != COMPUTE_BUDGET]


def _cut(transaction: VersionedTransaction, message: Message | MessageV0, count: int) -> VersionedTransaction:
    header, keys, kept = message.header, message.account_keys, message.instructions[:count]
    if isinstance(message, MessageV0):
        short = MessageV0(header, keys, message.recent_blockhash, kept, message.address_table_lookups)
    else:
        short = Message.new_with_compiled_instructions(
            header.num_required_signatures, header.num_readonly_signed_accounts,
            header.num_readonly_unsigned_accounts, keys, message.recent_blockhash, kept,
        )  # fmt: skip
    return VersionedTransaction.populate(short, transaction.signatures)


def _is_run(account: Account) -> bool:
    return account.owner == COORDINATOR and len(account.data) == STATE_BYTES


def _seal(calls: Sequence[ChainCall], after: After | None) -> Iterator[RecordedCall]:
    """Calls of one instruction with what is seen: the accounts after the last of them."""
    for number, call in enumerate(calls, 1):
        seen = None if after is None or number < len(calls) else after.get(call.account, b"")
        yield RecordedCall(call.data, [bytes(key) for key in call.keys], seen)


@contextmanager
def open_recorder(bank: Bank, path: Path | None) -> Generator[None]:
    """Record a bank in a file while the block runs; nothing without a path.

    Raises:
        ConfigError: the file is there already.
    """
    if path is None:
        yield
        return
    try:
        file = path.open("xb")
    except FileExistsError as error:
        raise ConfigError(f"--record {path}: is there already; name another file") from error
    try:
        with naming(path):
            ChainRecorder(bank, file)
        yield
    finally:
        with naming(path):
            file.close()


def replay_record(path: Path) -> RunReplay:
    """Let core carry out all that a record holds.

    Raises:
        ConfigError: the file is no record, or damaged.
        ReplayDifference: an account is not what core makes of it.
    """
    with path.open("rb") as file:
        frames = read_frames(file, path)
        first = next(frames, None)
        if not isinstance(first, RecordStart):
            raise ConfigError(f"{path}: is empty; {_HINT}")
        replay = RunReplay(first.slot_hashes)
        for key, raw in first.runs:
            replay.add_run(Pubkey(key), raw)
        for frame in frames:
            assert isinstance(frame, RecordedSlot), "a record starts once"
            for signature, unix, calls in frame.transactions:
                for one in calls:
                    keys = tuple(map(Pubkey, one.keys))
                    replay.carry_out(ChainCall(one.data, keys, frame.slot, unix, one.after, signature))
            replay.add_slot(frame.slot, frame.hash)
    return replay


def read_frames(file: BinaryIO, path: Path) -> Iterator[Frame]:
    """Read a record's frames; one that was not written to its end is left out.

    Raises:
        ConfigError: the file is no record, or damaged.
    """
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ConfigError(f"{path}: is no record of a chain; {_HINT}")
    unpacker, kind = zstandard.ZstdDecompressor(), RecordStart
    while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
        (size,) = _LENGTH.unpack(head)
        if size > _MAX_FRAME_BYTES:
            raise ConfigError(f"{path}: is damaged at byte {file.tell()}: a frame of {size:,} bytes")
        packed = file.read(size)
        if len(packed) < size:
            return
        try:
            raw = unpacker.decompress(packed, max_output_size=_MAX_FRAME_BYTES)
            frame = msgspec.msgpack.decode(raw, type=kind)
        except (msgspec.MsgspecError, zstandard.ZstdError) as error:
            raise ConfigError(f"{path}: is damaged before byte {file.tell()}: {error}") from error
        yield frame
        kind = RecordedSlot
