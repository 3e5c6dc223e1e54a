"""What carries out a chain's transactions: a virtual machine with compiled programs, or anything else of this form."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from solders.account import Account
from solders.clock import Clock
from solders.hash import Hash
from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata, SimulatedTransactionInfo, TransactionMetadata
from solders.transaction_status import TransactionStatus

from psyche.backends.solana.interface.idl import NAMES, find_file
from psyche.localchain.transactions import describe_inner, describe_returned


class Execution(NamedTuple):
    """What a transaction did, or would do.

    Args:
        error: as in JSON-RPC, as `{"InstructionError": [0, {"Custom": 6001}]}`; None if none.
        inner: the instructions that programs ran; None if it was not tried.
        returned: what the last program returned.
        accounts: those that a trial would write.
    """

    error: Any = None
    logs: Sequence[str] = ()
    units: int = 0
    inner: Sequence[dict[str, Any]] | None = None
    returned: dict[str, Any] | None = None
    accounts: Mapping[Pubkey, Account] = {}


class Machine(Protocol):
    """Accounts, and what transactions make of them. Block hashes and repeats are the bank's business."""

    def get_account(self, key: Pubkey) -> Account | None: ...

    def get_lamports(self, key: Pubkey) -> int: ...

    def put_account(self, key: Pubkey, account: Account) -> None: ...

    def get_program_accounts(self, program: Pubkey) -> list[tuple[Pubkey, Account]]: ...

    def get_deposit(self, size_bytes: int) -> int:
        """The lamports that an account of this size must hold."""
        ...

    def begin_slot(self, slot: int, unix: int, slot_hashes: Sequence[tuple[int, Hash]]) -> None:
        """Let programs see this clock, and the hashes of complete slots, newest first."""
        ...

    def execute(self, transaction: VersionedTransaction) -> Execution: ...

    def simulate(self, transaction: VersionedTransaction, *, is_verified: bool) -> Execution:
        """Try a transaction without effect; unless `is_verified`, its signatures do not count."""
        ...


class VirtualMachine:
    """LiteSVM with the code of programs by address."""

    def __init__(self, programs: Mapping[Pubkey, bytes]) -> None:
        # It knows one block hash at a time, and few transactions: the bank makes both checks.
        self._svm = LiteSVM().with_blockhash_check(False).with_transaction_history(0)
        for address, code in programs.items():
            self._svm.add_program(address, code)

    def get_account(self, key: Pubkey) -> Account | None:
        account = self._svm.get_account(key)
        return account if account is not None and account.lamports else None

    def get_lamports(self, key: Pubkey) -> int:
        return self._svm.get_balance(key) or 0

    def put_account(self, key: Pubkey, account: Account) -> None:
        self._svm.set_account(key, account)

    def get_program_accounts(self, program: Pubkey) -> list[tuple[Pubkey, Account]]:
        return [(key, account) for key, account in self._svm.get_program_accounts(program) if account.lamports]

    def get_deposit(self, size_bytes: int) -> int:
        return self._svm.minimum_balance_for_rent_exemption(size_bytes)

    def begin_slot(self, slot: int, unix: int, slot_hashes: Sequence[tuple[int, Hash]]) -> None:
        self._svm.expire_blockhash()
        self._svm.set_clock(Clock(slot, unix, 0, 1, unix))
        self._svm.set_slot_hashes(list(slot_hashes))

    def execute(self, transaction: VersionedTransaction) -> Execution:
        done = self._svm.send_transaction(transaction)
        _clear_x87()
        return _describe(done)

    def simulate(self, transaction: VersionedTransaction, *, is_verified: bool) -> Execution:
        self._svm = self._svm.with_sigverify(is_verified)
        try:
            done = self._svm.simulate_transaction(transaction)
        finally:
            self._svm = self._svm.with_sigverify(True)
            _clear_x87()
        return _describe(done)


def _describe(done: TransactionMetadata | FailedTransactionMetadata | SimulatedTransactionInfo) -> Execution:
    result, error, accounts = done, None, dict[Pubkey, Account]()
    if isinstance(done, FailedTransactionMetadata):
        error = json.loads(TransactionStatus(slot=0, err=done.err()).to_json())["err"]
    if isinstance(done, SimulatedTransactionInfo):
        accounts = dict(done.post_accounts())
    if not isinstance(result, TransactionMetadata):
        result = result.meta()
    units, returned = result.compute_units_consumed(), describe_returned(result)
    return Execution(error, result.logs(), units, describe_inner(result), returned, accounts)


def _clear_x87() -> None:
    """Take away what LiteSVM leaves in the x87 unit where a program fails: the next operation there would give NaN.

    Both numpy's floor division and its long doubles compute there; this addition is the operation that is spoiled.
    """
    with np.errstate(invalid="ignore"):
        np.add(np.longdouble(1), np.longdouble(1))


def load_programs() -> Mapping[Pubkey, bytes]:
    """The code of the three programs by address.

    Raises:
        ConfigError: one is missing.
    """
    return {address: find_file(f"psyche_{name}.so").read_bytes() for name, address in NAMES.items()}
