"""Transactions: instructions with their compute budget, signed, within what one packet holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from solders.compute_budget import (
    set_compute_unit_limit,
    set_compute_unit_price,
    set_loaded_accounts_data_size_limit,
)
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import Transaction

from psyche.backends.solana.amounts import MAX_PRIORITY_LAMPORTS
from psyche.backends.solana.interface.coordinator import ED25519
from psyche.backends.solana.interface.failures import TransactionFailed

TRANSACTION_BYTES: Final = 1_232  # a packet of the network
MAX_UNITS: Final = 1_400_000  # the chain's limit
LEAST_UNITS: Final = 60_000  # what any message may cost, if the record changes between the trial and the block
UNITS_PERCENT: Final = 120  # of what the trial took
UNTRIED_UNITS: Final = 100_000  # the least where an earlier message of the kind was tried: a tick takes 80,000 at most
UNTRIED_PERCENT: Final = 200
LOADED_BYTES: Final = 4 << 20  # programs, the record and what a treasurer adds: about 1 MiB
MICRO: Final = 1_000_000  # micro-lamports of a lamport


@dataclass(frozen=True, slots=True)
class Budget:
    """What a transaction may use, and pays for being early."""

    units: int = MAX_UNITS
    price: int = 0  # micro-lamports per unit
    loaded_bytes: int = LOADED_BYTES

    @property
    def priority_lamports(self) -> int:
        return -(-self.units * self.price // MICRO)


@dataclass(frozen=True, slots=True)
class TransactionDraft:
    payer: Keypair
    instructions: tuple[Instruction, ...]
    signers: tuple[Keypair, ...]

    def sign(self, budget: Budget, recent: Hash) -> Transaction:
        instructions = [*_build_budget(budget), *self.instructions]
        message = Message(instructions, self.payer.pubkey())
        others = {bytes(one.pubkey()): one for one in self.signers if one.pubkey() != self.payer.pubkey()}
        transaction = Transaction([self.payer, *others.values()], message, recent)
        size_bytes = len(bytes(transaction))
        if size_bytes > TRANSACTION_BYTES:
            raise TransactionFailed(
                f"the transaction has {size_bytes} bytes, and the network takes {TRANSACTION_BYTES}: "
                "shorten the texts in it, or make the change in several steps",
                "TooLarge",
            )
        return transaction

    def list_programs(self, budget: Budget) -> list[Pubkey]:
        """The program of each instruction, so that the numbers in errors can be understood."""
        return [one.program_id for one in (*_build_budget(budget), *self.instructions)]

    def list_writable(self) -> list[str]:
        """The accounts that it may change, without the payer, who is nobody else's."""
        keys = (account.pubkey for one in self.instructions for account in one.accounts if account.is_writable)
        return [str(key) for key in dict.fromkeys(keys) if key != self.payer.pubkey()]

    def count_signatures(self) -> int:
        """The signatures that are paid for; those that the chain's ed25519 program checks are among them."""
        checked = sum(bytes(one.data)[0] for one in self.instructions if one.program_id == ED25519)
        return len({bytes(one.pubkey()) for one in (self.payer, *self.signers)}) + checked


def choose_units(used: int, *, is_tried: bool = True) -> int:
    """The limit for a transaction whose trial, or that of an earlier one of its kind, took `used` units."""
    least, percent = (LEAST_UNITS, UNITS_PERCENT) if is_tried else (UNTRIED_UNITS, UNTRIED_PERCENT)
    return min(MAX_UNITS, max(least, used * percent // 100))


def choose_loaded(loaded_bytes: int) -> int:
    """The limit for a transaction whose trial loaded this much; 0 if nobody has counted."""
    return max(loaded_bytes * 2, LOADED_BYTES // 4) if loaded_bytes else LOADED_BYTES


def _build_budget(budget: Budget) -> list[Instruction]:
    found = [set_compute_unit_limit(budget.units), set_loaded_accounts_data_size_limit(budget.loaded_bytes)]
    return found if budget.price == 0 else [*found, set_compute_unit_price(budget.price)]


FEE_PERCENTILE: Final = 75  # of what others lately paid for the same accounts


@dataclass(frozen=True, slots=True)
class FeePolicy:
    """How much a wallet pays to be early when blocks are full: at most so much for one transaction."""

    max_lamports: int = MAX_PRIORITY_LAMPORTS

    def choose_price(self, recent: Sequence[int], units: int, expired: int) -> int:
        """The price in micro-lamports per unit, after so many attempts that expired."""
        ordered = sorted(recent)
        price = ordered[min(len(ordered) - 1, len(ordered) * FEE_PERCENTILE // 100)] if ordered else 0
        if expired:
            price = max(price, FIRST_RAISE) << min(expired, 32)
        return min(price, self.max_lamports * MICRO // units)


FIRST_RAISE: Final = 5_000  # micro-lamports per unit: doubled at each expiry
