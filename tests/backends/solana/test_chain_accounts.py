"""Reading accounts of authorizer and treasurer: what was written comes back, and other bytes are refused."""

import struct
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

keys = st.binary(min_size=32, max_size=32)
u64 = st.integers(0, 2**64 - 1)
KEY = Pubkey.default()


texts = st.binary(min_size=1, max_size=32)
i64 = st.integers(-(2**63), 2**63 - 1)


@given(keys, keys, texts, st.booleans(), st.lists(keys, max_size=9), i64)
def test_an_authorization_reads_back(
    grantor: bytes, grantee: bytes, scope: bytes, active: bool, delegates: list[bytes], updated: int
) -> None:  # fmt: skip
    raw = get_discriminator("account", "Authorization") + b"\7" + grantor + grantee + encode_bytes(scope)
    raw += struct.pack("<?I", active, len(delegates)) + b"".join(delegates) + struct.pack("<q", updated)
    found = AuthorizationData.read(raw)
    assert found == (7, Pubkey(grantor), Pubkey(grantee), scope, active, tuple(map(Pubkey, delegates)), updated)
    for wrong in (raw[:-1], raw + b"\0", b"\0" + raw[1:]):
        with pytest.raises(WireError):
            AuthorizationData.read(wrong)


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


@given(st.lists(keys, min_size=6, max_size=6), u64, u64, keys)
def test_a_run_reads_back(parts: list[bytes], index: int, claimed: int, run_uid: bytes) -> None:
    raw = get_discriminator("account", "Run") + struct.pack("<BQ", 1, index) + b"".join(parts[:5])
    run = TreasurerRun.read(KEY, raw + struct.pack("<Q", claimed) + parts[5] + run_uid)
    named = (run.main_authority, run.join_authority, run.coordinator_account, run.coordinator_instance)
    assert [bytes(key) for key in (*named, run.collateral_mint, run.run_collateral)] == parts
    assert (run.address, run.index, run.total_claimed_earned_points, run.run_uid) == (KEY, index, claimed, run_uid)


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
