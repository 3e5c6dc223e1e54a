"""What the treasurer's accounts say, and what a run owes."""

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from solders.pubkey import Pubkey

from psyche.chain.accounts import InstanceData
from psyche.chain.discriminators import get_discriminator
from psyche.core.state.roster import is_in_epoch
from psyche.core.state.state import Coordinator
from psyche.errors import WireError


@dataclass(frozen=True, slots=True)
class TreasurerRun:
    """A run that the treasurer owns."""

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
        """Read the account of a run.

        Raises:
            WireError: it is none.
        """
        _check(raw, "Run", _RUN.size)
        _, _, index, main, join, account, instance, mint, claimed, collateral, run_uid = _RUN.unpack(raw)
        return cls(
            address, index, Pubkey(main), Pubkey(join), Pubkey(account), Pubkey(instance), Pubkey(mint), claimed,
            Pubkey(collateral), run_uid,
        )  # fmt: skip


class ParticipantData(NamedTuple):
    """What a member was paid."""

    run: Pubkey
    run_uid: bytes
    user: Pubkey
    payer: Pubkey  # gets the deposit back
    claimed_earned_points: int

    @classmethod
    def read(cls, raw: bytes) -> Self:
        """Read the account of a member.

        Raises:
            WireError: it is none.
        """
        _check(raw, "Participant", _PARTICIPANT.size)
        _, _, run, run_uid, user, payer, claimed = _PARTICIPANT.unpack(raw)
        return cls(Pubkey(run), run_uid, Pubkey(user), Pubkey(payer), claimed)


_RUN: Final = struct.Struct("<8sBQ32s32s32s32s32sQ32s32s")
_PARTICIPANT: Final = struct.Struct("<8sB32s32s32s32sQ")


def _check(raw: bytes, kind: str, size: int) -> None:
    if len(raw) != size or not raw.startswith(get_discriminator("account", kind)):
        raise WireError(f"{kind}: {len(raw)} bytes that are no account of this kind")


def compute_owed(run: TreasurerRun, instance: InstanceData, state: Coordinator) -> int:
    """The points for which members have not been paid, with those that the running epoch pays at its end."""
    registry = state.registry
    pool = registry.current_earning_rate + registry.carry if is_in_epoch(state) else 0
    gross = instance.collected_points + pool + sum(slot.earned for slot in registry.slots)
    return max(0, gross - run.total_claimed_earned_points)
