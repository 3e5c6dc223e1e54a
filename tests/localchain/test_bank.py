"""The chain itself: what lands, what is refused, and how slots and hashes follow each other."""

import warnings

import numpy as np
import pytest
from box import NOW, make_bank, pay
from kits.chain.chain_run import SOL, fund, sign
from solders.account import Account
from solders.address_lookup_table_account import ID as LOOKUP_TABLES
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction

from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.core.rules.rounds import RECORDED_SLOTS
from psyche.localchain.bank import BLOCK_HASHES, Bank, CompleteSlot

SLOT_HASHES_ACCOUNT = Pubkey.from_string("SysvarS1otHashes111111111111111111111111111")


@pytest.fixture
def bank() -> Bank:
    return make_bank()


def read_slots(bank: Bank) -> list[int]:
    """The slots that programs read, newest first."""
    account = bank.get_account(SLOT_HASHES_ACCOUNT)
    assert account is not None
    raw = bytes(account.data)
    count = int.from_bytes(raw[:8], "little")
    return [int.from_bytes(raw[at : at + 8], "little") for at in range(8, 8 + 40 * count, 40)]


class TestSlots:
    def test_programs_read_the_hashes_of_the_512_newest_slots(self, bank: Bank) -> None:
        for _ in range(RECORDED_SLOTS + 10):
            bank.advance(NOW)
        assert read_slots(bank) == list(range(bank.slot - 1, bank.slot - 1 - RECORDED_SLOTS, -1))

    def test_a_skipped_slot_has_no_hash_and_no_block(self, bank: Bank) -> None:
        bank.advance(NOW, skipped=2)
        bank.advance(NOW)
        assert read_slots(bank) == [4, 1]
        assert (bank.slot, bank.height, bank.parent) == (5, 3, 4)

    def test_a_slots_hash_follows_from_what_landed_in_it(self) -> None:
        empty, paid = make_bank(), make_bank()
        assert empty.newest_hash == paid.newest_hash
        payer = fund(paid)
        paid.execute(pay(paid, payer, Pubkey.new_unique()))
        for bank in (empty, paid):
            bank.advance(NOW)
        assert empty.get_slot_hash() != paid.get_slot_hash()
        assert empty.newest_hash != paid.newest_hash

    def test_the_clock_never_goes_back(self, bank: Bank) -> None:
        bank.advance(NOW - 5)
        assert bank.unix == NOW


class TestTransactions:
    def test_it_lands_once_however_many_came_between(self, bank: Bank) -> None:
        payer, to = fund(bank), Keypair().pubkey()
        paying = pay(bank, payer, to)
        bank.execute(paying)
        for number in range(1_000):
            assert bank.execute(pay(bank, payer, Keypair().pubkey(), 10**6 + number)) is None
        assert bank.execute(paying) == "AlreadyProcessed"

    def test_a_hash_counts_for_150_blocks(self, bank: Bank) -> None:
        payer, to = fund(bank), Keypair().pubkey()
        first, second = (pay(bank, payer, to, SOL + number) for number in range(2))
        last = bank.get_last_height(bank.newest_hash)
        for _ in range(BLOCK_HASHES):
            bank.advance(NOW)
        assert bank.height == last
        assert bank.execute(first) is None
        bank.advance(NOW)
        assert bank.execute(second) == "BlockhashNotFound"

    def test_one_that_fails_pays_its_fee_and_is_remembered(self, bank: Bank) -> None:
        payer = fund(bank, SOL)
        paying = pay(bank, payer, Keypair().pubkey(), 2 * SOL)
        assert bank.execute(paying) == {"InstructionError": [0, {"Custom": 1}]}
        assert bank.get_lamports(payer.pubkey()) == SOL - 5_000
        record = bank.history.get(paying.signatures[0])
        assert record is not None
        assert record.fee_lamports == 5_000

    def test_one_that_nobody_can_pay_for_is_in_no_block(self, bank: Bank) -> None:
        paying = pay(bank, Keypair(), Keypair().pubkey())
        assert bank.execute(paying) == "AccountNotFound"
        assert bank.history.get(paying.signatures[0]) is None

    def test_a_wrong_signature_is_refused(self, bank: Bank) -> None:
        paying = pay(bank, fund(bank), Keypair().pubkey())
        forged = VersionedTransaction.populate(paying.message, [Keypair().sign_message(b"else")])
        assert bank.execute(forged) == "SignatureFailure"

    def test_a_simulation_changes_nothing(self, bank: Bank) -> None:
        payer, to = fund(bank), Keypair().pubkey()
        assert bank.simulate(pay(bank, payer, to), is_verified=True).error is None
        assert (bank.get_lamports(to), bank.history.count) == (0, 1)

    def test_a_simulation_does_without_signatures_if_told_to(self, bank: Bank) -> None:
        paying = pay(bank, fund(bank), Keypair().pubkey())
        unsigned = VersionedTransaction.populate(paying.message, [Keypair().sign_message(b"else")])
        assert bank.simulate(unsigned, is_verified=False).error is None
        assert bank.simulate(unsigned, is_verified=True).error == "SignatureFailure"
        assert bank.execute(unsigned) == "SignatureFailure"

    def test_equal_airdrops_in_one_slot_all_count(self, bank: Bank) -> None:
        key = Keypair().pubkey()
        signatures = {bank.airdrop(key, SOL) for _ in range(3)}
        assert len(signatures) == 3
        assert bank.get_lamports(key) == 3 * SOL


class TestLookupTables:
    def test_accounts_come_from_a_table_and_are_noted_as_written(self, bank: Bank) -> None:
        payer, to, table = fund(bank), Keypair().pubkey(), Keypair().pubkey()
        head = (1).to_bytes(4, "little") + b"\xff" * 8 + bytes(8) + b"\0\0" + bytes(34)  # never closed, complete
        bank.put_account(table, Account(SOL, head + bytes(to), LOOKUP_TABLES))
        bank.advance(NOW)
        giving = transfer(TransferParams(from_pubkey=payer.pubkey(), to_pubkey=to, lamports=SOL))
        known = [AddressLookupTableAccount(table, [to])]
        message = MessageV0.try_compile(payer.pubkey(), [giving], known, bank.newest_hash)
        assert list(message.account_keys).count(to) == 0
        paying = VersionedTransaction(message, [payer])
        assert bank.execute(paying) is None
        record = bank.history.get(paying.signatures[0])
        assert record is not None
        assert record.loaded == {"writable": [str(to)], "readonly": []}
        assert record.balances[1][-1] == SOL
        blocks: list[CompleteSlot] = []
        bank.on_block.append(blocks.append)
        bank.advance(NOW)
        assert to in blocks[0].written


@pytest.mark.parametrize("is_tried", [False, True], ids=["carried out", "tried"])
def test_a_program_that_fails_leaves_the_arithmetic_of_its_process_alone(bank: Bank, *, is_tried: bool) -> None:
    payer = fund(bank)
    failing = sign(bank.newest_hash, payer, [Instruction(COORDINATOR, bytes(8), [])])
    done = bank.simulate(failing, is_verified=True).error if is_tried else bank.execute(failing)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert 0.0 // np.float64(0.2) == 0.0
    assert done is not None
