"""How instructions are put into transactions: as few as have room for them."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import Transaction

from psyche.backends.solana.session import BUDGET_BYTES, TRANSACTION_BYTES, Step, count_signatures, fits, pack_steps

PAYER, OTHER = (Keypair.from_seed(bytes([number] * 32)) for number in (1, 2))
PROGRAM = Pubkey(bytes([9] * 32))


def build(size_bytes: int, *signers: Keypair) -> Instruction:
    return Instruction(PROGRAM, bytes(size_bytes), [AccountMeta(one.pubkey(), True, True) for one in signers])


def measure(instructions: list[Instruction], *signers: Keypair) -> int:
    """The size of a signed transaction, as the chain receives it."""
    message = Message.new_with_blockhash(instructions, PAYER.pubkey(), Hash.default())
    return len(bytes(Transaction([PAYER, *signers], message, Hash.default())))


@given(st.lists(st.integers(0, 700), min_size=1, max_size=4), st.booleans())
def test_a_transaction_fits_if_the_signed_bytes_and_the_budget_do(sizes: list[int], is_signed_by_two: bool) -> None:
    signers = [OTHER] if is_signed_by_two else []
    instructions = [build(size, *signers) for size in sizes]
    has_room = measure(instructions, *signers) + BUDGET_BYTES <= TRANSACTION_BYTES
    assert fits(instructions, PAYER.pubkey()) == has_room


def test_each_signer_is_paid_for_once_and_the_payer_always() -> None:
    assert count_signatures([], PAYER.pubkey()) == 1
    assert count_signatures([build(0, PAYER), build(0, OTHER), build(0, OTHER, PAYER)], PAYER.pubkey()) == 2


@given(st.lists(st.integers(0, 900), max_size=8))
def test_steps_keep_their_order_and_no_transaction_is_too_large_or_could_take_the_next_step(sizes: list[int]) -> None:
    steps = [Step(f"step {number}", (build(size),)) for number, size in enumerate(sizes)]
    packed = pack_steps(steps, PAYER.pubkey())
    assert [one for step in packed for one in step.instructions] == [one for step in steps for one in step.instructions]
    assert ", ".join(step.title for step in packed) == ", ".join(step.title for step in steps)
    assert all(fits(step.instructions, PAYER.pubkey()) for step in packed)
    for former, later in itertools.pairwise(packed):
        first = later.instructions[0]
        assert not fits([*former.instructions, first], PAYER.pubkey())


def test_a_step_stays_whole() -> None:
    two = Step("two", (build(400), build(400)))
    assert pack_steps([Step("one", (build(400),)), two], PAYER.pubkey())[1:] == [two]
