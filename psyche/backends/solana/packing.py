"""How many transactions some instructions need: as few as have room for them, in their order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from solders.hash import Hash
from solders.instruction import Instruction
from solders.message import Message
from solders.pubkey import Pubkey

TRANSACTION_BYTES: Final = 1_232
SIGNATURE_BYTES: Final = 64
BUDGET_BYTES: Final = 32 + 8 + 8 + 12  # the compute-budget program, and the three limits that a sender adds


@dataclass(frozen=True, slots=True)
class Step:
    """Instructions of one transaction, and what it does in a few words."""

    title: str
    instructions: tuple[Instruction, ...]


def count_signatures(instructions: Sequence[Instruction], payer: Pubkey) -> int:
    signers = {account.pubkey for one in instructions for account in one.accounts if account.is_signer}
    return len(signers | {payer})


def fits(instructions: Sequence[Instruction], payer: Pubkey) -> bool:
    message = bytes(Message.new_with_blockhash(list(instructions), payer, Hash.default()))
    signatures = 1 + SIGNATURE_BYTES * count_signatures(instructions, payer)
    return signatures + len(message) + BUDGET_BYTES <= TRANSACTION_BYTES


def pack_steps(steps: Sequence[Step], payer: Pubkey) -> list[Step]:
    """Join steps that fit into one transaction; each step stays whole, and all stay in their order."""
    packed: list[Step] = []
    for step in steps:
        joined = (*packed[-1].instructions, *step.instructions) if packed else step.instructions
        if packed and fits(joined, payer):
            packed[-1] = Step(f"{packed[-1].title}, {step.title}", joined)
        else:
            packed.append(step)
    return packed
