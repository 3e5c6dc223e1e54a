"""`collect` and `close_earned_points`: what becomes of a member's earnings (M11)."""

import pytest
from kits.runs import build_paused_run
from kits.svm import replace_accounts
from programs.chain_kit import ChainStage
from programs.refusals import Anchor, CoordinatorError
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.accounts import EarnedPointsData, InstanceData
from psyche.backends.solana.interface.addresses import COORDINATOR, get_earned_points_address
from psyche.backends.solana.interface.calls import reads, writes
from psyche.backends.solana.interface.coordinator import build_close_earned_points, build_collect
from psyche.core.encoding.account import encode_state
from psyche.core.rules.apply import apply
from psyche.core.state.errors import UnknownMember
from psyche.core.state.limits import U64_MAX
from psyche.core.state.messages import Collect
from psyche.core.state.state import Coordinator


class Wallets:
    """A paused run whose slots belong to wallets that can sign; slot n has earned 100 (n + 1)."""

    def __init__(self) -> None:
        self.keys = [Keypair() for _ in range(3)]
        self.stage = ChainStage(self.build_state())
        self.uid = self.stage.state.run_uid

    def build_state(self, run_uid: bytes | None = None) -> Coordinator:
        state = build_paused_run().state
        for number, (slot, key) in enumerate(zip(state.registry.slots, self.keys, strict=True)):
            slot.signer, slot.earned = bytes(key.pubkey()), 100 * (number + 1)
        state.run_uid = run_uid or state.run_uid
        return state

    def collect(self, number: int, payer: Keypair | None = None) -> None:
        payer = payer or self.stage.bank.payer
        collect = build_collect(self.stage.run, payer.pubkey(), self.uid, self.keys[number].pubkey())
        self.stage.bank.send(collect, signers=[] if payer is self.stage.bank.payer else [payer])

    def get_points(self, number: int) -> EarnedPointsData:
        address = get_earned_points_address(self.uid, self.keys[number].pubkey())
        return EarnedPointsData.read(self.stage.bank.get_data(address))

    def get_total(self) -> int:
        return InstanceData.read(self.stage.bank.get_data(self.stage.run.instance)).collected_points

    def free(self) -> None:
        for number in range(3):
            self.collect(number)
        self.stage.bank.send(self.stage.free(), signers=[self.stage.owner])

    def build_close(self, number: int, payer: Pubkey | None = None) -> Instruction:
        stage = self.stage
        payer = payer or stage.bank.payer.pubkey()
        return build_close_earned_points(stage.run.account, self.uid, self.keys[number].pubkey(), payer)


@pytest.fixture
def wallets() -> Wallets:
    return Wallets()


class TestCollect:
    def test_earnings_move_from_the_slot_to_the_signers_points(self, wallets: Wallets) -> None:
        wallets.collect(1)
        state, clock = wallets.build_state(), wallets.stage.bank.svm.get_clock()
        key = wallets.keys[1].pubkey()
        apply(state, clock.unix_timestamp, clock.slot, bytes(32), Collect(((bytes(key), None),)))
        assert wallets.stage.state == state
        payer = wallets.stage.bank.payer.pubkey()
        assert wallets.get_points(1)[1:] == (wallets.stage.run.account, wallets.uid, key, payer, 200)
        assert wallets.get_total() == 200

    def test_points_and_their_total_only_grow(self, wallets: Wallets) -> None:
        wallets.collect(1)
        wallets.collect(2)
        state = wallets.stage.state
        state.registry.slots[1].earned = 7
        wallets.stage.bank.put(wallets.stage.run.account, COORDINATOR, encode_state(state))
        wallets.collect(1)
        wallets.collect(1)  # nothing is left
        assert (wallets.get_points(1).points, wallets.get_points(2).points) == (207, 300)
        assert wallets.get_total() == 507

    def test_anybody_may_collect_and_pays_the_deposit_once(self, wallets: Wallets) -> None:
        stranger = wallets.stage.bank.fund(10**9)
        wallets.collect(0, stranger)
        assert wallets.stage.bank.get_lamports(stranger.pubkey()) == 10**9 - 1_900_080
        assert wallets.get_points(0).payer == stranger.pubkey()
        wallets.collect(0)
        assert wallets.get_points(0).payer == stranger.pubkey()

    def test_who_has_no_slot_has_no_earnings(self, wallets: Wallets) -> None:
        stage, nobody = wallets.stage, Keypair().pubkey()
        collect = build_collect(stage.run, stage.bank.payer.pubkey(), wallets.uid, nobody)
        assert stage.bank.refuse(collect) == 6_000 + UnknownMember("").number
        assert not stage.bank.get_data(get_earned_points_address(wallets.uid, nobody))

    def test_points_beyond_64_bits_do_not_keep_a_run_from_being_freed(self, wallets: Wallets) -> None:
        """One wrong earning rate of its owner would else leave earnings in slots for ever."""
        wallets.collect(1)
        address = get_earned_points_address(wallets.uid, wallets.keys[1].pubkey())
        raw = wallets.stage.bank.get_data(address)
        wallets.stage.bank.put(address, COORDINATOR, raw[:-8] + (U64_MAX - 10).to_bytes(8, "little"))
        state = wallets.build_state()
        state.registry.slots[2].earned = U64_MAX
        wallets.stage.bank.put(wallets.stage.run.account, COORDINATOR, encode_state(state))
        wallets.free()
        assert [wallets.get_points(number).points for number in range(3)] == [100, U64_MAX, U64_MAX]
        assert not wallets.stage.raw

    def test_the_total_of_a_run_ends_at_64_bits(self, wallets: Wallets) -> None:
        state = wallets.build_state()
        state.registry.slots[0].earned = U64_MAX
        wallets.stage.bank.put(wallets.stage.run.account, COORDINATOR, encode_state(state))
        wallets.collect(1)
        wallets.collect(0)
        assert wallets.get_total() == U64_MAX


class TestClose:
    def test_points_outlive_slot_and_run_and_the_deposit_goes_back_to_who_paid_it(self, wallets: Wallets) -> None:
        stranger = wallets.stage.bank.fund(10**9)
        wallets.collect(0, stranger)
        wallets.free()
        assert not wallets.stage.raw
        assert [wallets.get_points(number).points for number in range(3)] == [100, 200, 300]
        wallets.stage.bank.send(wallets.build_close(0, stranger.pubkey()), signers=[wallets.keys[0]])
        assert wallets.stage.bank.get_lamports(stranger.pubkey()) == 10**9

    def test_points_of_a_freed_run_are_closed_although_another_run_has_its_account(self, wallets: Wallets) -> None:
        wallets.collect(0)
        assert wallets.stage.bank.refuse(wallets.build_close(0), wallets.keys[0]) == CoordinatorError.NOT_FREED
        wallets.free()
        wallets.stage.put(wallets.build_state(run_uid=bytes(range(32))))
        wallets.stage.bank.send(wallets.build_close(0), signers=[wallets.keys[0]])

    def test_only_their_signer_closes_points_and_only_for_who_paid(self, wallets: Wallets) -> None:
        wallets.free()
        key, other = wallets.keys[:2]
        close, foreign = wallets.build_close(0), wallets.build_close(1)
        for instruction, place, account, code in (
            (close, 0, reads(key.pubkey()), Anchor.NOT_SIGNER),
            (foreign, 3, close.accounts[3], Anchor.BAD_SEEDS),
            (close, 1, writes(other.pubkey()), Anchor.BAD_ADDRESS),
            (close, 2, reads(other.pubkey()), Anchor.BAD_ADDRESS),
            (close, 3, reads(close.accounts[3].pubkey), Anchor.NOT_WRITABLE),
        ):
            changed = replace_accounts(instruction, {place: account})
            assert wallets.stage.bank.refuse(changed, key, other) == code
        wallets.stage.bank.send(close, signers=[key])
