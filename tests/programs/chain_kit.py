"""A run on the coordinator program in the machine of this process, and the accounts around it."""

import struct
from collections.abc import Sequence
from typing import Final

from kits.chain.anchor import get_discriminator
from kits.chain.chain_run import build_message
from kits.svm import Bank, Refused
from solders.clock import Clock
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message as TransactionMessage
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata, TransactionMetadata

from psyche.backends.solana.interface.addresses import AUTHORIZER, COORDINATOR, EVERYBODY, get_authorization_address
from psyche.backends.solana.interface.coordinator import Authorities, ChainRun, build_free, build_init
from psyche.core.committee.seeds import EXPIRED, Entropy
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state import messages as msg
from psyche.core.state.limits import STATE_BYTES
from psyche.core.state.state import Coordinator

RUN_ID: Final = "run"
RECORDED_SLOTS: Final = 512


def encode_instance(authorities: Authorities, account: Pubkey, run_id: str = RUN_ID, collected: int = 0) -> bytes:
    """The bytes of a run's instance, as the program writes them."""
    name = run_id.encode()
    bump = Pubkey.find_program_address([b"coordinator", name], COORDINATOR)[1]
    keys = bytes(authorities.main) + bytes(authorities.join) + bytes(account)
    raw = get_discriminator("account", "CoordinatorInstance") + bytes([bump]) + keys
    return (raw + struct.pack("<I", len(name)) + name + struct.pack("<Q", collected)).ljust(181, b"\0")


def encode_authorization(
    grantor: Pubkey,
    grantee: Pubkey = EVERYBODY,
    *,
    scope: bytes = b"CoordinatorJoinRun",
    active: bool = True,
    delegates: Sequence[Pubkey] = (),
) -> bytes:
    """The bytes of an authorization, as the authorizer writes them."""
    raw = get_discriminator("account", "Authorization") + b"\xff" + bytes(grantor) + bytes(grantee)
    raw += struct.pack("<I", len(scope)) + scope + bytes([active])
    return raw + struct.pack("<I", len(delegates)) + b"".join(map(bytes, delegates)) + struct.pack("<q", 0)


def build_slot_hashes(armed: int, entropy: Entropy) -> list[tuple[int, Hash]]:
    """A record of slots that gives this entropy for the armed slot."""
    if entropy is EXPIRED:
        return [(armed + n, Hash(bytes(32))) for n in range(RECORDED_SLOTS, 0, -1)]
    if entropy is None:
        return [(armed - 1, Hash(bytes(32)))]
    return [(armed, Hash(entropy))]


class ChainStage:
    """A run in a bank: `state` is what its account says, read by core.

    With `unsigned` nobody's signature is checked, so that keys need not be points of the curve.
    """

    def __init__(self, state: Coordinator | None = None, *, unsigned: bool = False) -> None:
        self.bank = Bank(COORDINATOR, AUTHORIZER)
        if unsigned:
            self.bank.svm = self.bank.svm.with_sigverify(False).with_transaction_history(0)
        self.owner, self.join_authority, self.account = Keypair(), Keypair(), Keypair()
        self.authorities = Authorities(self.owner.pubkey(), self.join_authority.pubkey())
        self.run = ChainRun.find(RUN_ID, self.account.pubkey())
        self.authorization = get_authorization_address(self.authorities.join, EVERYBODY)
        self.bank.put(self.authorization, AUTHORIZER, encode_authorization(self.authorities.join))
        if state is not None:
            self.put(state)

    @property
    def deposit(self) -> int:
        """What a coordinator account needs to be kept."""
        return self.bank.svm.minimum_balance_for_rent_exemption(STATE_BYTES)

    def build_init(self, run_id: str = RUN_ID, version: str = "") -> tuple[Instruction, Instruction]:
        payer = self.bank.payer.pubkey()
        return build_init(payer, run_id, self.account.pubkey(), self.authorities, version, self.deposit)

    def create(self, run_id: str = RUN_ID, version: str = "") -> TransactionMetadata:
        return self.bank.send(*self.build_init(run_id, version), signers=[self.account])

    def put(self, state: Coordinator) -> None:
        """Lay a state into the account, and the instance beside it."""
        self.put_raw(encode_state(state))
        self.bank.put(self.run.instance, COORDINATOR, encode_instance(self.authorities, self.run.account))

    def put_raw(self, raw: bytes) -> None:
        self.bank.put(self.run.account, COORDINATOR, raw)

    @property
    def raw(self) -> bytes:
        return self.bank.get_data(self.run.account)

    @property
    def state(self) -> Coordinator:
        return decode_state(self.raw)

    def build(self, sender: bytes, message: msg.Message) -> Instruction:
        """The instruction that says a message; the payer sends what has no sender."""
        payer, owner = self.bank.payer.pubkey(), self.authorities.main
        return build_message(self.run, payer, owner, self.authorization, message, sender, self.state.run_uid)

    def set_clock(self, now: int, slot: int) -> None:
        clock = self.bank.svm.get_clock()
        self.bank.svm.set_clock(Clock(slot, 0, clock.epoch, clock.leader_schedule_epoch, now))

    def free(self, spill: Pubkey | None = None) -> Instruction:
        return build_free(self.run, self.authorities.main, spill or Keypair().pubkey())

    def refuse_unsigned(self, *instructions: Instruction) -> int | None:
        """Run a transaction whose signatures are not checked; return the number of a program's error.

        Raises:
            Refused: the machine itself refused it.
        """
        payer, block = self.bank.payer.pubkey(), self.bank.svm.latest_blockhash()
        message = TransactionMessage.new_with_blockhash(list(instructions), payer, block)
        signatures = [Signature.default()] * message.header.num_required_signatures
        result = self.bank.svm.send_transaction(Transaction.populate(message, signatures))
        if not isinstance(result, FailedTransactionMetadata):
            return None
        refused = Refused(result)
        if refused.code is None:
            raise refused
        return refused.code
