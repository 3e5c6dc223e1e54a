"""Reading accounts of authorizer and treasurer: what was written comes back, and other bytes are refused."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.chain.anchor import encode_bytes, get_discriminator
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.accounts import AuthorizationData, EarnedPointsData, InstanceData
from psyche.backends.solana.interface.treasurer import ParticipantData, TreasurerRun, compute_owed, compute_run_index
from psyche.core.state.state import RunState, Slot
from psyche.errors import WireError
from psyche.testing.builders import build_state

KEY = Pubkey.default()


KINDS = ("Authorization", "CoordinatorInstance", "EarnedPoints", "Participant", "Run")


@given(st.sampled_from(KINDS), st.binary(max_size=300))
def test_bytes_are_an_account_or_refused(kind: str, rest: bytes) -> None:
    raw = get_discriminator("account", kind) + rest
    readers = (AuthorizationData.read, InstanceData.read, EarnedPointsData.read, ParticipantData.read)
    for place, read in enumerate((*readers, lambda raw: TreasurerRun.read(KEY, raw))):
        with suppress(WireError):
            read(raw)
            assert place == KINDS.index(kind)


def test_a_run_id_that_is_no_text_is_refused() -> None:
    raw = get_discriminator("account", "CoordinatorInstance") + bytes(97) + encode_bytes(b"\xff")
    with pytest.raises(WireError, match=r"run_id: is no UTF-8"):
        InstanceData.read(raw + bytes(8))


def test_a_run_owes_what_is_earned_collected_and_running_but_not_paid() -> None:
    run = TreasurerRun(KEY, 0, KEY, KEY, KEY, KEY, KEY, 30, KEY, bytes(32))
    instance = InstanceData(0, KEY, KEY, KEY, "run", 100)
    state = build_state()
    state.registry.slots = [Slot(earned=5), Slot(earned=6)]
    state.registry.current_earning_rate, state.registry.carry = 40, 2
    assert compute_owed(run, instance, state) == 81
    state.run_state = RunState.WARMUP
    assert compute_owed(run, instance, state) == 123


def test_the_index_of_a_run_without_one_follows_from_its_name() -> None:
    # sha256("example") begins with 50d858e0985ecc7f
    assert compute_run_index("example") == 0x7FCC5E98E058D850
