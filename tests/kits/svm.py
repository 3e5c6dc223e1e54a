"""The compiled programs in a Solana virtual machine inside this process: transactions that succeed or are refused."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from solders.account import Account
from solders.clock import Clock
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata, TransactionMetadata
from solders.transaction_status import InstructionErrorCustom, TransactionErrorInstructionError

from psyche.backends.solana.interface import calls as parts
from psyche.backends.solana.interface.addresses import AUTHORIZER, COORDINATOR, TREASURER

SYSTEM: Final = Pubkey.default()
NAMES: Final = {COORDINATOR: "coordinator", AUTHORIZER: "authorizer", TREASURER: "treasurer"}

TRANSACTION_BYTES: Final = 1_232  # the machine in this process does not hold them to it
SOL: Final = 10**9
NOW: Final = 1_800_000_000
BUILT: Final = Path(__file__).parents[2] / "programs" / "built"
# A folder with other builds of the programs, for whoever is changing them.
BUILT_VARIABLE: Final = "PSYCHE_PROGRAMS"


class Refused(Exception):
    """A transaction was refused. `code` is the number of a program's error; None for the machine's own errors."""

    def __init__(self, failed: FailedTransactionMetadata) -> None:
        self.code: int | None = None
        self.logs = failed.meta().logs()
        error = failed.err()
        if isinstance(error, TransactionErrorInstructionError) and isinstance(error.err, InstructionErrorCustom):
            self.code = error.err.code
        super().__init__(f"{error}: {self.logs}")


def signs(key: Keypair | Pubkey, *, writable: bool = False) -> AccountMeta:
    return parts.signs(key if isinstance(key, Pubkey) else key.pubkey(), writable=writable)


def replace_accounts(instruction: Instruction, changes: Mapping[int, AccountMeta]) -> Instruction:
    """The instruction with other accounts at these places, to see them refused."""
    accounts = [changes.get(place, account) for place, account in enumerate(instruction.accounts)]
    return Instruction(instruction.program_id, bytes(instruction.data), accounts)


def get_program_path(program: Pubkey) -> Path:
    """The compiled program: as checked in, or from the folder that PSYCHE_PROGRAMS names."""
    path = Path(os.environ.get(BUILT_VARIABLE, BUILT)) / f"psyche_{NAMES[program]}.so"
    assert path.is_file(), f"{path} is missing: build it with scripts/build-programs"
    return path


class Bank:
    """One virtual machine with the given programs and a payer of all fees."""

    def __init__(self, *programs: Pubkey) -> None:
        self.svm = LiteSVM()
        for program in programs:
            self.svm.add_program(program, get_program_path(program).read_bytes())
        self.payer = self.fund()
        self.set_time(NOW)

    def fund(self, lamports: int = 100 * SOL) -> Keypair:
        key = Keypair()
        self.svm.airdrop(key.pubkey(), lamports)
        return key

    def set_time(self, now: int, slot: int = 1_000) -> None:
        clock = self.svm.get_clock()
        self.svm.set_clock(Clock(slot, now, clock.epoch, clock.leader_schedule_epoch, now))

    def send(self, *instructions: Instruction, signers: Sequence[Keypair] = ()) -> TransactionMetadata:
        """Run a transaction; the payer pays.

        Raises:
            Refused: it failed, and changed nothing but the payer's lamports.
        """
        message = Message(list(instructions), self.payer.pubkey())
        transaction = Transaction([self.payer, *signers], message, self.svm.latest_blockhash())
        size = len(bytes(transaction))
        assert size <= TRANSACTION_BYTES, f"{size} bytes are more than a transaction has"
        result = self.svm.send_transaction(transaction)
        self.svm.expire_blockhash()
        if isinstance(result, FailedTransactionMetadata):
            raise Refused(result)
        return result

    def refuse(self, instruction: Instruction, *signers: Keypair, before: Sequence[Instruction] = ()) -> int | None:
        """The number of the program's error that the instruction must end with; None for the machine's own errors.

        Those of the signers sign that the transaction asks for. The instructions `before` it must succeed.
        """
        asked = {account.pubkey for one in (*before, instruction) for account in one.accounts if account.is_signer}
        try:
            self.send(*before, instruction, signers=[key for key in signers if key.pubkey() in asked])
        except Refused as refused:
            return refused.code
        raise AssertionError("the instruction was carried out")

    def get_data(self, key: Pubkey) -> bytes:
        account = self.svm.get_account(key)
        return b"" if account is None else bytes(account.data)

    def get_lamports(self, key: Pubkey) -> int:
        return self.svm.get_balance(key) or 0

    def put(self, key: Pubkey, owner: Pubkey, data: bytes) -> None:
        lamports = self.svm.minimum_balance_for_rent_exemption(len(data))
        self.svm.set_account(key, Account(lamports, data, owner))
