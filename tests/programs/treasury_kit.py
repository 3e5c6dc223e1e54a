"""A run that the treasurer owns, in a bank: its owner, its members, their tokens."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from kits.svm import Bank
from solders.account import Account
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.token import ID as TOKEN
from solders.token.associated import get_associated_token_address
from solders.transaction import Transaction

from psyche.backends.solana.interface.accounts import EarnedPointsData, InstanceData
from psyche.backends.solana.interface.addresses import (
    AUTHORIZER,
    COORDINATOR,
    TREASURER,
    get_earned_points_address,
    get_participant_address,
    get_run_address,
)
from psyche.backends.solana.interface.coordinator import ChainRun, build_collect
from psyche.backends.solana.interface.treasurer import (
    NewRun,
    ParticipantData,
    RunChange,
    TreasurerRun,
    build_participant_claim,
    build_participant_close,
    build_participant_create,
    build_run_close,
    build_run_create,
    build_run_update,
    build_run_withdraw,
    build_top_up,
    compute_owed,
    compute_run_index,
)
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state.limits import STATE_BYTES
from psyche.core.state.messages import Update
from psyche.core.state.state import Coordinator, Slot, SlotState
from psyche.testing.builders import build_config, build_model

# The coordinator's, which pass through, and the system program's.
CANNOT_UPDATE, CONFIG_REFUSED, ACCOUNT_IN_USE = 6_021, 6_023, 0

TOKEN_2022 = Pubkey.from_string("TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb")

SETTINGS = Update(config=build_config(entropy_delay=4), model=build_model())
RUN_ID = "example"


def put_mint(bank: Bank) -> Pubkey:
    """A new kind of token with 6 decimals."""
    key = Keypair().pubkey()
    bank.put(key, TOKEN, struct.pack("<I32sQBBI32s", 1, bytes(bank.payer.pubkey()), 0, 6, 1, 0, b""))
    return key


def put_tokens(
    bank: Bank,
    mint: Pubkey,
    owner: Pubkey,
    amount: int = 0,
    *,
    at: Pubkey | None = None,
    delegate: Pubkey | None = None,
) -> Pubkey:
    """A token account with this amount: the owner's associated one, or another at the key `at`."""
    key = at or get_associated_token_address(owner, mint)
    data = bytes(mint) + bytes(owner) + struct.pack("<Q", amount)
    data += struct.pack("<I32s", delegate is not None, bytes(delegate or b""))
    bank.put(key, TOKEN, data + struct.pack("<BI8sQI32s", 1, 0, b"", amount if delegate else 0, 0, b""))
    return key


def count_bytes(bank: Bank, instructions: Sequence[Instruction], *signers: Keypair) -> int:
    """The size of a transaction with compute-budget instructions and a separate payer of the fee."""
    payer = Keypair()
    budget = [set_compute_unit_limit(200_000), set_compute_unit_price(1_000)]
    message = Message([*budget, *instructions], payer.pubkey())
    keys = [payer, bank.payer, *signers]
    known = {key.pubkey(): key for key in keys}
    needed = [known[key] for key in message.account_keys[: message.header.num_required_signatures]]
    return len(bytes(Transaction(needed, message, bank.svm.latest_blockhash())))


@dataclass
class Treasury:
    """One run, its owner, and what they do. Reads are of the bytes in the bank."""

    bank: Bank
    owner: Keypair
    mint: Pubkey
    account: Keypair
    run_id: str = RUN_ID

    @classmethod
    def build(cls, bank: Bank | None = None) -> "Treasury":
        """A bank with a run."""
        bank = bank or Bank(COORDINATOR, AUTHORIZER, TREASURER)
        treasury = cls(bank, bank.fund(), put_mint(bank), Keypair())
        treasury.create()
        return treasury

    @property
    def address(self) -> Pubkey:
        return get_run_address(self.owner.pubkey(), compute_run_index(self.run_id))

    @property
    def run(self) -> TreasurerRun:
        return TreasurerRun.read(self.address, self.bank.get_data(self.address))

    @property
    def instance(self) -> InstanceData:
        return InstanceData.read(self.bank.get_data(self.run.coordinator_instance))

    @property
    def state(self) -> Coordinator:
        return decode_state(self.bank.get_data(self.account.pubkey()))

    @property
    def owed(self) -> int:
        return compute_owed(self.run, self.instance, self.state)

    @property
    def held(self) -> int:
        return self.get_tokens(self.run.run_collateral)

    def get_tokens(self, account: Pubkey) -> int:
        return struct.unpack_from("<Q", self.bank.get_data(account), 64)[0]

    def build_create(self, *, index: int | None = None, client_version: str = "1.0") -> tuple[Instruction, Instruction]:
        index = compute_run_index(self.run_id) if index is None else index
        new = NewRun(index, self.run_id, client_version, self.owner.pubkey(), self.mint)
        deposit = self.bank.svm.minimum_balance_for_rent_exemption(STATE_BYTES)
        payer = self.bank.payer.pubkey()
        return build_run_create(payer, self.owner.pubkey(), self.account.pubkey(), new, deposit)

    def create(self) -> None:
        self.bank.send(*self.build_create(), signers=[self.owner, self.account])

    def write_state(self, state: Coordinator) -> None:
        """Let the run's account say this: what members earn in hours of training is not played here."""
        key = self.account.pubkey()
        old = self.bank.svm.get_account(key)
        assert old is not None
        self.bank.svm.set_account(key, Account(old.lamports, encode_state(state), COORDINATOR))

    def earn(self, points: int, member: Keypair | None = None) -> Keypair:
        """A member with points in its slot."""
        member = member or self.bank.fund()
        state = self.state
        signer = bytes(member.pubkey())
        state.registry.slots.append(Slot(signer, signer, earned=points, state=SlotState.JOINED))
        self.write_state(state)
        return member

    def collect(self, member: Keypair) -> None:
        run = self.run
        held = ChainRun(run.coordinator_instance, run.coordinator_account)
        self.bank.send(build_collect(held, self.bank.payer.pubkey(), run.run_uid, member.pubkey()))

    def enrol(self, points: int, collateral: int = 0) -> Keypair:
        """A member with collected points, a record of payments and a token account."""
        member = self.earn(points)
        self.collect(member)
        self.bank.send(self.build_participant_create(member))
        put_tokens(self.bank, self.mint, member.pubkey(), collateral)
        return member

    def top_up(self, amount: int) -> None:
        source = put_tokens(self.bank, self.mint, self.owner.pubkey(), amount, at=Keypair().pubkey())
        self.bank.send(build_top_up(self.run, self.owner.pubkey(), source, amount), signers=[self.owner])

    def get_user_collateral(self, member: Keypair) -> Pubkey:
        return get_associated_token_address(member.pubkey(), self.mint)

    def get_points(self, member: Keypair) -> EarnedPointsData:
        return EarnedPointsData.read(self.bank.get_data(get_earned_points_address(self.run.run_uid, member.pubkey())))

    def get_participant(self, member: Keypair) -> ParticipantData:
        return ParticipantData.read(self.bank.get_data(get_participant_address(self.address, member.pubkey())))

    def build_update(self, change: RunChange) -> Instruction:
        return build_run_update(self.run, change)

    def update(self, change: RunChange) -> None:
        self.bank.send(self.build_update(change), signers=[self.owner])

    def build_participant_create(self, member: Keypair) -> Instruction:
        return build_participant_create(self.run, self.bank.payer.pubkey(), member.pubkey())

    def build_claim(self, member: Keypair, points: int, authority: Keypair | None = None) -> Instruction:
        signer = (authority or member).pubkey()
        return build_participant_claim(self.run, signer, member.pubkey(), self.get_user_collateral(member), points)

    def claim(self, member: Keypair, points: int, authority: Keypair | None = None) -> None:
        self.bank.send(self.build_claim(member, points, authority), signers=[authority or member])

    def build_withdraw(self, amount: int, spill: Pubkey | None = None) -> Instruction:
        spill = spill or put_tokens(self.bank, self.mint, self.owner.pubkey())
        return build_run_withdraw(self.run, spill, amount)

    def build_close(self, spill: Pubkey, spill_collateral: Pubkey | None = None) -> Instruction:
        return build_run_close(
            self.run, spill, spill_collateral or put_tokens(self.bank, self.mint, self.owner.pubkey())
        )

    def build_participant_close(self, member: Keypair) -> Instruction:
        return build_participant_close(self.address, member.pubkey(), self.get_participant(member).payer)

    def refuse(self, instruction: Instruction, *signers: Keypair, before: Sequence[Instruction] = ()) -> int | None:
        """The number of the error of an instruction; the owner signs too where it is asked to."""
        return self.bank.refuse(instruction, self.owner, *signers, before=before)


def build_sibling(treasury: Treasury, run_id: str = "sibling") -> Treasury:
    """Another run of another owner with another token, in the same bank."""
    bank = treasury.bank
    sibling = Treasury(bank, bank.fund(), put_mint(bank), Keypair(), run_id)
    sibling.create()
    return sibling
