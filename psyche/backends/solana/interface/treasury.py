"""What the treasurer's accounts say, and what a run owes."""

from dataclasses import dataclass
from typing import NamedTuple, Self

from solders.pubkey import Pubkey

from psyche.backends.solana.interface.accounts import PARTICIPANT, TREASURER_RUN, InstanceData
from psyche.core.state.roster import is_in_epoch
from psyche.core.state.state import Coordinator


@dataclass(frozen=True, slots=True)
class TreasurerRun:
    address: Pubkey
    index: int
    main_authority: Pubkey  # its owner
    join_authority: Pubkey
    coordinator_account: Pubkey
    coordinator_instance: Pubkey
    collateral_mint: Pubkey
    total_claimed_earned_points: int
    run_collateral: Pubkey  # the token account that pays
    run_uid: bytes

    @classmethod
    def read(cls, address: Pubkey, raw: bytes) -> Self:
        values = TREASURER_RUN.decode(raw)
        del values["bump"]
        return cls(address, **values)


class ParticipantData(NamedTuple):
    run: Pubkey
    run_uid: bytes
    user: Pubkey
    payer: Pubkey  # gets the deposit back
    claimed_earned_points: int

    @classmethod
    def read(cls, raw: bytes) -> Self:
        values = PARTICIPANT.decode(raw)
        del values["bump"]
        return cls(**values)


def compute_owed(run: TreasurerRun, instance: InstanceData, state: Coordinator) -> int:
    """The points for which members have not been paid, with those that the running epoch pays at its end."""
    registry = state.registry
    pool = registry.current_earning_rate + registry.carry if is_in_epoch(state) else 0
    gross = instance.collected_points + pool + sum(slot.earned for slot in registry.slots)
    return max(0, gross - run.total_claimed_earned_points)
