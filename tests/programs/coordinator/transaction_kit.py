"""The largest form of every transaction of the coordinator program, and what transactions cost."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from kits.runs import Run
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message as TransactionMessage
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.coordinator import (
    Authorities,
    ChainRun,
    SignedResult,
    build_close_earned_points,
    build_collect,
    build_equivocation_report,
    build_free,
    build_init,
    build_join_run,
    build_owner_message,
    build_user_message,
)
from psyche.core.rules.apply import BY_TYPE
from psyche.core.state import messages as msg
from psyche.core.state.limits import METADATA_BYTES
from psyche.core.state.state import ZERO32, Checkpoint, CheckpointKind, Metadata, Progress, WitnessFlag
from psyche.testing.builders import build_config, build_model

SIGNATURE_BYTES: Final = 64
SIGNATURE_LAMPORTS: Final = 5_000
SIGNERS: Final = {"join": 2}  # wallet and p2p key; everything else is signed once


def make_key() -> Pubkey:
    return Keypair().pubkey()


WALLET, P2P, ACCOUNT, UID = make_key(), make_key(), make_key(), bytes(range(32))
RUN: Final = ChainRun.find("r" * 32, ACCOUNT)
TICK: Final = build_user_message(RUN, WALLET, msg.Tick(None))
# Every client asks for its compute units and offers a price, so that a busy chain takes its transactions.
BUDGET: Final = (set_compute_unit_limit(200_000), set_compute_unit_price(1_000))


def build_witness(metadata: int) -> msg.WitnessMessage:
    return msg.WitnessMessage(0, 0, 0, WitnessFlag(0), 0, 0, 0, 0, bytes(320), ZERO32, ZERO32, metadata=bytes(metadata))


def build_user(message: msg.Message) -> tuple[Instruction, ...]:
    return (build_user_message(RUN, WALLET, message),)  # type: ignore[arg-type]


def build_owner(message: msg.Message) -> tuple[Instruction, ...]:
    return (build_owner_message(RUN, WALLET, message),)  # type: ignore[arg-type]


SIGNED: Final = SignedResult(bytes(87), bytes(64))
SOURCE: Final = Checkpoint(CheckpointKind.LOCAL, "/" * 128)
UPDATE: Final = msg.Update(build_config(), build_model(), Progress(), first_weights=ZERO32, nonce=0)
METADATA: Final = msg.Update(metadata=Metadata("n" * 64, "d" * 280))
ADDRESSES: Final = msg.Update(bootstrap=("a" * 128,) * 4)
# The transactions that a tick makes sense in; the owner's and those about accounts stand alone.
WITH_TICK: Final[dict[str, tuple[Instruction, ...]]] = {
    "witness": build_user(build_witness(0)),
    "witness, 256 bytes of metadata": build_user(build_witness(METADATA_BYTES)),
    "warmup_witness": build_user(msg.WarmupWitness(0, 0, ZERO32)),
    "health_check": build_user(msg.HealthCheck(0, 0, 0)),
    "checkpoint": build_user(msg.NameCheckpoint(0, ZERO32, SOURCE)),
    "withdraw": build_user(msg.Withdraw(0, 0)),
    "leave_run": build_user(msg.LeaveRun()),
    "reclaim_slot and join_run": (
        *build_user(msg.ReclaimSlot()),
        build_join_run(RUN, WALLET, P2P, make_key(), 0),
    ),
    "join_run": (build_join_run(RUN, WALLET, P2P, make_key(), 0),),
    "report_equivocation": build_equivocation_report(RUN, WALLET, msg.ReportEquivocation(0, 0, 0), P2P, (SIGNED,) * 2),
    "set_paused": build_owner(msg.Resume()),
}
ALONE: Final[dict[str, tuple[Instruction, ...]]] = {
    "tick": (TICK,),
    "init_coordinator": build_init(WALLET, "r" * 32, ACCOUNT, Authorities(WALLET, P2P), "v" * 96, 1),
    "free_coordinator": (build_free(RUN, WALLET, make_key()),),
    "update: settings, first weights, nonce": build_owner(UPDATE),
    "update: metadata": build_owner(METADATA),
    "update: four addresses": build_owner(ADDRESSES),
    "update: metadata, and client version": (
        *build_owner(METADATA),
        *build_owner(msg.UpdateClientVersion("v" * 96)),
    ),
    "update_client_version": build_owner(msg.UpdateClientVersion("v" * 96)),
    "set_future_epoch_rates": build_owner(msg.SetRates(1, 1)),
    "collect": (build_collect(RUN, WALLET, UID, P2P),),
    "close_earned_points": (build_close_earned_points(RUN.account, UID, WALLET, P2P),),
}


def compute_size(instructions: Sequence[Instruction], payer: Pubkey = WALLET) -> int:
    """Bytes of a transaction with these instructions, with its signatures and their number."""
    message = TransactionMessage.new_with_blockhash([*BUDGET, *instructions], payer, Hash.default())
    return 1 + SIGNATURE_BYTES * message.header.num_required_signatures + len(bytes(message))


@dataclass
class CountedRun(Run):
    """A run that counts the messages and ticks that have an effect."""

    counts: Counter[str] = field(default_factory=Counter[str])

    def apply(self, message: msg.Message, sender: bytes = ZERO32) -> bool:
        changed = super().apply(message, sender)
        self.counts[BY_TYPE[type(message)].name] += changed
        return changed

    @property
    def lamports(self) -> int:
        """The fees of all transactions so far, if each message has its own."""
        return SIGNATURE_LAMPORTS * sum(SIGNERS.get(name, 1) * count for name, count in self.counts.items())
