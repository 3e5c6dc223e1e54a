"""Where the Rust rules run: compiled for Solana in its virtual machine, or for this machine as a library."""

import ctypes
import os
import struct
from pathlib import Path
from typing import Final, Protocol

from kits.svm import BUILT, BUILT_VARIABLE
from solders.account import Account
from solders.compute_budget import set_compute_unit_limit
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.message import Message as SolanaMessage
from solders.pubkey import Pubkey
from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata
from solders.transaction_status import InstructionErrorCustom, TransactionErrorInstructionError

from psyche.core.encoding.bodies import encode_body
from psyche.core.rules.apply import BY_TYPE
from psyche.core.rules.timing import clamp_time
from psyche.core.state.limits import STATE_BYTES
from psyche.core.state.messages import Message

REPLAY: Final = Pubkey.from_string("PsycheRepLay1111111111111111111111111111111")
ACCOUNT: Final = Pubkey.from_string("PsycheRepLayAccount111111111111111111111111")
COMPUTE_UNITS: Final = 1_400_000

ACCEPTED: Final = 0
PANICKED: Final = 101
MALFORMED: Final = 102
REFUSED: Final = 6_000  # and the number of the refusal
_CHANGED: Final = 1  # the library also says that a byte has changed
_HEAD: Final = struct.Struct("<QQ32sB")


def encode_head(now: int, slot: int, sender: bytes, number: int) -> bytes:
    """What stands before the body: when, from whom, and the number of the message's kind."""
    return _HEAD.pack(clamp_time(now), slot, sender, number)


def encode_event(now: int, slot: int, sender: bytes, message: Message) -> bytes:
    """The data of one instruction to the test program."""
    return encode_head(now, slot, sender, BY_TYPE[type(message)].number) + encode_body(message)


class Backend(Protocol):
    """One account with the Rust rules."""

    def load(self, account: bytes) -> None:
        """Lay the account's bytes as they are."""
        ...

    def send(self, data: bytes) -> int:
        """Apply an event; return ACCEPTED, MALFORMED, PANICKED, or REFUSED plus the refusal's number."""
        ...

    def read(self) -> bytes:
        """The account's bytes."""
        ...


class NoBackend:
    """Nothing: what events do to core alone."""

    def load(self, account: bytes) -> None:
        """Do nothing."""

    def send(self, data: bytes) -> int:
        """Do nothing."""
        return ACCEPTED

    def read(self) -> bytes:
        """No bytes."""
        return b""


class LibraryBackend:
    """The rules as a library of this machine: for long searches and for faults put into them."""

    def __init__(self, path: Path) -> None:
        self._apply = ctypes.CDLL(str(path)).psyche_apply
        self._apply.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
        self._apply.restype = ctypes.c_uint32
        self._account = (ctypes.c_uint64 * (STATE_BYTES // 8))()  # numbers of 64 bits lie at multiples of 8

    def load(self, account: bytes) -> None:
        assert len(account) == STATE_BYTES
        ctypes.memmove(self._account, account, STATE_BYTES)

    def send(self, data: bytes) -> int:
        answer = self._apply(self._account, data, len(data))
        return ACCEPTED if answer == _CHANGED else answer

    def read(self) -> bytes:
        return ctypes.string_at(self._account, STATE_BYTES)


class ProgramBackend:
    """The rules as Solana runs them."""

    def __init__(self, path: Path | None = None) -> None:
        self._svm = LiteSVM().with_sigverify(False).with_blockhash_check(False).with_transaction_history(0)
        self._svm.add_program(REPLAY, (path or get_replay_path()).read_bytes())
        self._payer = Keypair()
        self._svm.airdrop(self._payer.pubkey(), 10**13)
        self._blockhash = self._svm.latest_blockhash()
        self._limit = set_compute_unit_limit(COMPUTE_UNITS)
        self._metas = [AccountMeta(ACCOUNT, is_signer=False, is_writable=True)]
        self.compute_units = 0  # of the last event

    def load(self, account: bytes) -> None:
        self._svm.set_account(ACCOUNT, Account(10**10, account, REPLAY))

    def send(self, data: bytes) -> int:
        instruction = Instruction(REPLAY, data, self._metas)
        message = SolanaMessage([self._limit, instruction], self._payer.pubkey())
        result = self._svm.send_transaction(Transaction([self._payer], message, self._blockhash))
        if isinstance(result, FailedTransactionMetadata):
            self.compute_units = result.meta().compute_units_consumed()
            error = result.err()
            if isinstance(error, TransactionErrorInstructionError) and isinstance(error.err, InstructionErrorCustom):
                return error.err.code
            print(f"{error}: {result.meta().logs()}")
            return PANICKED
        self.compute_units = result.compute_units_consumed()
        return ACCEPTED

    def read(self) -> bytes:
        account = self._svm.get_account(ACCOUNT)
        assert account is not None, "load an account first"
        return bytes(account.data)


def get_replay_path() -> Path:
    """The compiled test program: as checked in, or from the folder that PSYCHE_PROGRAMS names."""
    path = Path(os.environ.get(BUILT_VARIABLE, BUILT)) / "psyche_replay.so"
    assert path.is_file(), f"{path} is missing: build it with scripts/build-programs"
    return path
