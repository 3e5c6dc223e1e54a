"""Who may join (M12), over the handler and over real sockets: the owner's list, its life on disk, and refusals."""

from collections.abc import Sequence
from typing import Any

import pytest
from kits.log import Log
from kits.server import (
    CLIENTS,
    OWNER,
    Members,
    MemoryDisk,
    RunFile,
    build_file,
    build_handler,
    build_join_request,
    build_record,
    build_restarted,
    recover_run,
)

from psyche.core.encoding.account import encode_state
from psyche.core.state.messages import Pause
from psyche.core.state.state import ClientState, RunState, Slot, SlotState
from psyche.server.access import WAITING_SHOWN_S
from psyche.telemetry import types
from psyche.wire import backend as wire
from psyche.wire.access import MAX_KEYS, MAX_WAITING, OPEN, Access, Allow, Authorization, Disallow
from psyche.wire.crypto import Identity

ADA, BEN, CARL = CLIENTS[:3]
OP = bytes(range(16))


def allow(identity: Identity, *delegates: Identity, op_id: bytes = OP) -> wire.SubmitRequest:
    return wire.build_submit(Allow(identity.public, tuple(one.public for one in delegates)), op_id=op_id)


def disallow(identity: Identity, op_id: bytes = OP[::-1]) -> wire.SubmitRequest:
    return wire.build_submit(Disallow(identity.public), op_id=op_id)


def build_join(identity: Identity) -> wire.SubmitRequest:
    return build_join_request(build_record(identity))


def build(access: Access | None = None, disk: MemoryDisk | None = None, **config: Any) -> Members:
    file = build_file(**({"total_steps": 1_000} | config))
    return Members(build_handler(file.build_state(), disk, access=access or Access()))


def join(members: Members, identity: Identity) -> wire.Reply:
    members.handler.connected(identity.public)
    return members.ask(identity.public, build_join(identity))


def build_full() -> dict[bytes, tuple[bytes, ...]]:
    """As many keys as a list has room for."""
    return {number.to_bytes(32, "little"): () for number in range(1, MAX_KEYS + 1)}


def restart(disk: MemoryDisk, access: Access | None = None) -> Members:
    return Members(build_restarted(disk, access or Access()))


@pytest.mark.parametrize(
    ("access", "admitted"),
    [
        (Access(), ()),
        (OPEN, CLIENTS[:4]),
        (
            Access(
                authorizations=(
                    Authorization(ADA.public, (BEN.public,)), Authorization(CARL.public, (CLIENTS[3].public,), False),
                )
            ),
            (ADA, BEN),
        ),
    ],
    ids=["nobody where nothing is said", "everybody", "a grantee and its delegates while that is active"],
)  # fmt: skip
def test_the_run_s_file_says_who_may_join(access: Access, admitted: Sequence[Identity]) -> None:
    for identity in CLIENTS[:4]:
        members = build(access)
        before = encode_state(members.handler.state)
        reply = join(members, identity)
        assert reply.code == ("" if identity in admitted else "NotAllowed")
        if reply.code:
            assert f"psyche run allow {identity.public.hex()}" in reply.message
            assert encode_state(members.handler.state) == before


def test_the_owner_allows_a_key_on_a_running_server_once_whatever_the_resends() -> None:
    members = build()
    assert members.ask(OWNER.public, allow(ADA, BEN)).code == ""
    seq = members.handler.journal.last_seq
    assert members.ask(OWNER.public, allow(ADA, BEN)).code == ""
    assert members.handler.journal.last_seq == seq, "the op id was carried out before"
    assert join(members, BEN).code == ""
    status = members.handler.get_status()
    assert (status.is_open, status.allowed) == (False, 2)


def test_nobody_else_changes_or_reads_the_list_but_the_join_authority() -> None:
    members = build(Access(join_authority=CARL.public))
    for body in (allow(ADA), disallow(ADA), wire.AllowedRequest()):
        assert members.ask(BEN.public, body).code == "NotOwner"
    assert members.ask(CARL.public, allow(ADA)).code == ""
    assert members.ask(CARL.public, wire.build_submit(Pause(), op_id=OP)).code == "NotOwner"
    listed = members.ask(CARL.public, wire.AllowedRequest()).body
    assert listed == wire.AllowedKeys(False, CARL.public, ((ADA.public, ()),))


def test_the_owner_sees_who_was_refused_lately_and_is_not_allowed_the_last_one_first() -> None:
    members = build()
    for identity in (ADA, BEN, CARL, ADA):
        assert join(members, identity).code == "NotAllowed"
        members.now += 10

    def list_waiting() -> list[tuple[bytes, int]]:
        answer = members.ask(OWNER.public, wire.AllowedRequest()).body
        assert isinstance(answer, wire.AllowedKeys)
        return list(answer.waiting)

    assert list_waiting() == [(ADA.public, 10), (CARL.public, 20), (BEN.public, 30)]
    members.ask(OWNER.public, allow(CARL))
    assert list_waiting() == [(ADA.public, 10), (BEN.public, 30)]
    members.now += WAITING_SHOWN_S - 20
    assert list_waiting() == [(ADA.public, WAITING_SHOWN_S - 10)], "the other one has not asked for too long"
    for number in range(MAX_WAITING):
        members.handler.access.refuse(number.to_bytes(32, "little"), members.now)
    assert len(list_waiting()) == MAX_WAITING
    assert ADA.public not in dict(list_waiting()), "strangers do not fill the memory"


def test_a_disallowed_member_stays_until_its_epoch_ends_and_does_not_come_back() -> None:
    members = build(Access(authorizations=tuple(Authorization(one.public) for one in CLIENTS[:4])), rounds_per_epoch=3)
    members.identities = CLIENTS[:4]
    members.join_all()
    members.warm_up()
    assert members.ask(OWNER.public, disallow(ADA)).code == ""
    member = next(m for m, c in enumerate(members.handler.state.clients) if c.p2p == ADA.public)
    members.run_round()
    assert members.handler.state.clients[member].state is ClientState.HEALTHY
    assert members.handler.may_follow(ADA.public)
    while members.run_state is not RunState.WAITING_FOR_MEMBERS:
        members.step()
    assert join(members, ADA).code == "NotAllowed"
    assert not members.handler.may_follow(ADA.public)


def test_a_join_that_waits_is_taken_back_when_its_key_is_disallowed() -> None:
    members = build(Access(authorizations=(Authorization(ADA.public),)))
    assert join(members, ADA).code == ""
    members.ask(OWNER.public, disallow(ADA))
    members.wait(1)
    assert all(slot.state is SlotState.FREE for slot in members.handler.state.registry.slots)


def test_a_disallowed_member_that_joined_for_the_next_epoch_is_not_in_it_whichever_request_forms_it() -> None:
    allowed = Access(authorizations=tuple(Authorization(one.public) for one in CLIENTS[:4]))
    members = build(allowed, rounds_per_epoch=3, waiting_for_members_extra_time=1)
    members.identities = CLIENTS[:4]
    members.join_all()
    members.warm_up()
    members.join_all()  # for the next epoch
    assert members.ask(OWNER.public, disallow(ADA)).code == ""
    while members.run_state is not RunState.COOLDOWN:
        members.run_round()
    members.wait(members.handler.state.config.cooldown_time)
    members.now += 1
    assert join(members, BEN).code == "", "a request before the clock's next tick"
    assert members.run_state is RunState.WARMUP
    assert ADA.public not in {client.p2p for client in members.handler.state.clients}
    assert not members.handler.may_follow(ADA.public)


def test_with_a_grantee_go_its_delegates_and_a_delegate_alone_can_go() -> None:
    access = Access(authorizations=(Authorization(ADA.public, (BEN.public, CARL.public)),))
    members = build(access)
    members.ask(OWNER.public, disallow(BEN))
    assert members.handler.access.keys == {ADA.public, CARL.public}
    members.ask(OWNER.public, disallow(ADA, OP))
    assert members.handler.access.keys == set()
    members.ask(OWNER.public, allow(ADA, op_id=OP[1:] + b"!"))
    assert join(members, ADA).code == "", "and can be allowed again"


def test_the_list_survives_a_restart_and_the_snapshot_that_ends_its_segment() -> None:
    disk = MemoryDisk()
    members = build(disk=disk)
    members.ask(OWNER.public, allow(ADA, BEN))
    members.ask(OWNER.public, disallow(BEN))
    members.ask(OWNER.public, allow(CARL, op_id=OP[1:] + b"!"))
    assert restart(disk).handler.access.keys == {ADA.public, CARL.public}
    members.ask(OWNER.public, allow(BEN, op_id=OP[2:] + b"!!"))
    members.join_all()
    members.warm_up()  # a snapshot is written
    found = recover_run(disk)
    assert found.records < members.handler.journal.last_seq, "the commands are in the snapshot alone"
    again = restart(disk, Access(authorizations=(Authorization(CLIENTS[4].public),)))
    assert again.handler.access.keys == {ADA.public, BEN.public, CARL.public, CLIENTS[4].public}
    assert again.ask(OWNER.public, disallow(ADA)).code == "", "a command sent again over the restart"
    assert ADA.public in again.handler.access.keys


def test_a_list_that_is_full_refuses_another_key_and_journals_nothing() -> None:
    members = build()
    members.handler.access.changes.granted = build_full()
    seq = members.handler.journal.last_seq
    reply = members.ask(OWNER.public, allow(ADA))
    assert (reply.code, "disallow" in reply.message) == ("BadRequest", True)
    assert members.handler.journal.last_seq == seq


def test_whoever_is_on_a_full_list_can_be_allowed_again_and_disallowed() -> None:
    disk = MemoryDisk()
    named = build_full()
    members = build(Access(authorizations=tuple(map(Authorization, named))), disk)
    granted = members.handler.access.changes.granted = {key[::-1]: () for key in named}
    again = next(reversed(granted))
    assert members.command(Allow(again)).code == ""
    for number, key in enumerate((next(iter(named)), next(iter(granted)))):
        assert members.command(Disallow(key), bytes([number]) * 16).code == ""
        assert not members.handler.access.may_join(key)
    reply = members.ask(OWNER.public, wire.AllowedRequest())
    raw = wire.encode_message(reply)
    assert len(raw) < wire.MAX_SERVER_FRAME_BYTES
    assert wire.decode_server_message(raw) == reply, "a list of any length can be read"


def test_a_closed_run_forgets_a_ban_that_changes_nothing_where_it_needs_the_room() -> None:
    disk = MemoryDisk()
    named = Access(authorizations=(Authorization(ADA.public), Authorization(BEN.public)))
    members = build(named, disk)
    assert members.ask(OWNER.public, disallow(BEN)).code == ""
    for number, key in enumerate(list(build_full())[:-1]):
        assert members.command(Disallow(key), number.to_bytes(16, "big")).code == ""
    assert members.ask(OWNER.public, disallow(ADA, OP)).code == ""
    changes = members.handler.access.changes
    assert len(changes.denied) == MAX_KEYS
    assert {ADA.public, BEN.public} <= changes.denied
    assert restart(disk, named).handler.access.changes == changes


def test_an_open_run_keeps_every_ban_and_says_when_there_is_no_room_for_more() -> None:
    members = build(OPEN)
    assert members.ask(OWNER.public, disallow(BEN, OP[1:] + b"!")).code == ""
    assert "has disallowed this key" in join(members, BEN).message
    members.handler.access.changes.denied = set(build_full())
    seq = members.handler.journal.last_seq
    reply = members.ask(OWNER.public, disallow(ADA))
    assert (reply.code, "allow one of them again" in reply.message) == ("BadRequest", True)
    assert members.handler.journal.last_seq == seq
    assert members.ask(OWNER.public, wire.build_submit(Disallow(next(iter(build_full()))), op_id=OP)).code == ""


def test_the_key_of_nobody_cannot_be_allowed() -> None:
    members = build()
    for body in (
        wire.build_submit(Allow(bytes(32)), op_id=OP),
        wire.build_submit(Allow(ADA.public, (bytes(32),)), op_id=OP),
    ):
        reply = members.ask(OWNER.public, body)
        assert (reply.code, "open = true" in reply.message) == ("BadRequest", True)
    assert members.handler.access.keys == frozenset()


# --- slots without a living connection (H6) --------------------------------------------------------


def fill(members: Members, count: int = 256) -> list[Identity]:
    crowd = [Identity(number.to_bytes(32, "big")) for number in range(1_000, 1_000 + count)]
    for identity in crowd:
        assert join(members, identity).code == ""
    return crowd


@pytest.mark.whole
@pytest.mark.parametrize("meanwhile", ["nothing", "a restart", "an epoch of them"])
def test_fresh_keys_that_join_and_leave_the_line_give_their_slots_back(meanwhile: str) -> None:
    disk, forms_at_once = MemoryDisk(), meanwhile == "an epoch of them"
    members = build(OPEN, disk, waiting_for_members_extra_time=1 if forms_at_once else 60)
    crowd = fill(members)
    if meanwhile == "a restart":
        members = restart(disk, OPEN)
        members.handler.recover(members.now)
    else:
        for identity in crowd:
            members.handler.disconnected(identity.public, members.now)
        members.wait(1)
        assert (members.run_state is RunState.WARMUP) == forms_at_once
        members.wait(13)
    assert join(members, ADA).code == "ClientsFull"
    for _ in range(27 if forms_at_once else 15):
        members.wait(1)
    assert join(members, ADA).code == ""


def lose_with(members: Members, **fields: int) -> Slot:
    """What becomes of a slot whose fields are these when its line is lost while the run waits for members."""
    join(members, ADA)
    for name, value in fields.items():
        setattr(members.handler.state.registry.slots[0], name, value)
    members.handler.disconnected(ADA.public, members.now)
    members.wait(15)
    return members.handler.state.registry.slots[0]


@pytest.mark.parametrize("kept", ["earned", "proven", "slashed", "stake"])
def test_a_slot_with_a_credit_earnings_slashes_or_a_stake_is_kept(kept: str) -> None:
    members = build(OPEN)
    slot = lose_with(members, **{kept: 1})
    assert (slot.signer, slot.state) == (ADA.public, SlotState.JOINED)
    assert slot.active < members.handler.state.registry.next_active, "its join is taken back all the same"


@pytest.mark.parametrize(
    "waits", [{"strikes": 1, "until": 2}, {"strikes": 2, "until": 9}, {"fruitless": 3, "until": 9}]
)
def test_of_a_newcomer_that_has_to_wait_the_wait_alone_stays(waits: dict[str, int]) -> None:
    members = build(OPEN)
    slot = lose_with(members, **waits)
    assert slot == Slot(signer=ADA.public, state=SlotState.LEFT, **waits)
    assert ADA.public not in members.handler.get_first_keys()
    assert join(members, ADA).code == ""
    slot = members.handler.state.registry.slots[0]
    assert (slot.state, slot.active) == (SlotState.JOINED, waits["until"]), "H5: it waits as long as before"


def test_newcomers_that_wait_and_leave_the_line_in_an_epoch_cost_no_proven_member_its_slot() -> None:
    members = build(OPEN, rounds_per_epoch=1)
    members.identities = CLIENTS[:4]
    members.join_all()
    members.warm_up()
    known = [slot.signer for slot in members.handler.state.registry.slots]
    crowd = fill(members, 256 - len(known))
    for slot in members.handler.state.registry.slots[len(known) :]:
        slot.fruitless, slot.until = 3, members.handler.state.registry.next_active + 8
        slot.active = slot.until
    for identity in crowd:
        members.handler.disconnected(identity.public, members.now)
    members.wait(15)
    slots = members.handler.state.registry.slots
    assert {slot.state for slot in slots[len(known) :]} == {SlotState.LEFT}
    assert join(members, CLIENTS[5]).code == ""
    assert [slot.signer for slot in slots[: len(known)]] == known


def test_a_slot_is_given_up_in_every_phase_but_not_that_of_a_member_or_of_one_that_had_a_credit() -> None:
    sink = Log()
    members = Members(build_handler(RunFile().build_state(), sink=sink))
    members.join_all()
    members.warm_up()
    late = CLIENTS[5]
    join(members, late)
    members.handler.disconnected(late.public, members.now)
    members.handler.disconnected(members.key(0), members.now)
    key = members.key(0)
    members.wait(15)
    assert [event.key for event in sink.get(types.SlotGivenUp)] == [late.public]
    while members.run_state is not RunState.WAITING_FOR_MEMBERS:
        members.step()
    members.wait(15)
    slot = next(slot for slot in members.handler.state.registry.slots if slot.p2p == key)
    assert slot.proven, "M10: who had a credit keeps its slot"
    assert [event.key for event in sink.get(types.SlotGivenUp)] == [late.public]
