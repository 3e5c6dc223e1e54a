"""The message handling without I/O: replies, repeats, owners, lost connections, defects."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from kits.log import Log
from kits.results import build_header, build_result, sign
from kits.server import (
    CLIENTS,
    OWNER,
    Members,
    build_file,
    build_handler,
    build_join_request,
    build_record,
)

from psyche.core.encoding.account import encode_state
from psyche.core.rules.apply import BY_TYPE
from psyche.core.state.gossip import Evidence, Ready, ReadyFlag
from psyche.core.state.limits import MAX_CLIENTS
from psyche.core.state.messages import (
    Collect,
    Context,
    HealthCheck,
    LeaveRun,
    NameCheckpoint,
    Pause,
    ReportEquivocation,
    Resume,
    SetRates,
    Tick,
    WarmupWitness,
    Withdraw,
    WitnessMessage,
)
from psyche.core.state.state import (
    Checkpoint,
    CheckpointKind,
    ClientState,
    Coordinator,
    RunState,
    SlotState,
    WitnessFlag,
)
from psyche.errors import BackendError
from psyche.server.handler import MAX_CACHED_CLIENTS, MAX_TICKS, REPLIES_PER_CLIENT, Answer, ReplyCache
from psyche.server.server import ServerSettings
from psyche.telemetry import types
from psyche.testing.builders import build_hash
from psyche.wire import backend as wire
from psyche.wire.address_record import AddressRecord
from psyche.wire.crypto import Identity
from psyche.wire.gossip import encode_gossip, sign_gossip

OP = bytes(range(16))


def build_members(stage: str = "joined", sink: Log | None = None, **config: Any) -> Members:
    """Three members: joined, in warmup, training, or in cooldown."""
    file = build_file(**({"total_steps": 50} | config))
    members = Members(build_handler(file.build_state(), sink=sink))
    members.join_all()
    if stage == "warmup":
        members.wait(2)
    elif stage in ("training", "cooldown"):
        members.warm_up()
        while stage == "cooldown" and members.run_state is not RunState.COOLDOWN:
            members.run_round()
    return members


def sign_result(identity: Identity, members: Members, member: int, step: int, run_uid: bytes | None = None) -> bytes:
    state = members.state
    named = {"run_uid": run_uid or state.run_uid}
    header = build_header(state, member, identity.public, step=step, **named)
    return encode_gossip(sign(state, identity, member, build_result(header), **named))


def get_identity(members: Members, member: int) -> Identity:
    return next(i for i in CLIENTS if i.public == members.key(member))


def build_evidence(members: Members, member: int = 1) -> wire.SubmitRequest:
    identity = get_identity(members, member)
    first, second = (sign_result(identity, members, member, step) for step in (1, 2))
    return build_report(members, first, second, member)


def build_report(members: Members, first: bytes, second: bytes, member: int = 1) -> wire.SubmitRequest:
    progress = members.handler.state.progress
    report = ReportEquivocation(progress.epoch, members.handler.state.current.height, member)
    return wire.build_submit(report, Evidence(first, second))


# every kind of request that changes the run, sent twice


@dataclass
class Repeat:
    """A request in the situation in which it is accepted; `code` is how a repeat is answered."""

    stage: str
    make: Callable[[Members], wire.RequestBody]
    code: str


def accuse(members: Members) -> wire.RequestBody:
    """A silent witness of a round that closed by time-out."""
    members.wait(1)
    for member in (0, 1):
        members.ask(
            members.key(member), members.get_witness(member, flags=WitnessFlag(0), state_digest=build_hash(member))
        )
    members.wait(20)
    members.wait(4)
    return wire.build_submit(HealthCheck(0, members.handler.state.current.height, 2))


REPEATS = {
    "join": Repeat("joined", lambda m: build_join_request(build_record(m.identities[0])), ""),
    "withdraw a join": Repeat("joined", lambda _: wire.build_submit(Withdraw(0, 0)), "InvalidWithdraw"),
    "withdraw": Repeat("training", lambda _: wire.build_submit(Withdraw(0, 0)), "InvalidWithdraw"),
    "leave": Repeat("joined", lambda _: wire.build_submit(LeaveRun()), "UnknownMember"),
    "warmup witness": Repeat("warmup", lambda m: m.get_warmup(0), "DuplicateWitness"),
    "witness": Repeat("training", lambda m: m.get_witness(0), "DuplicateWitness"),
    "checkpoint": Repeat(
        "cooldown",
        lambda m: wire.build_submit(
            NameCheckpoint(0, m.handler.state.certified.digest, Checkpoint(CheckpointKind.LOCAL, "/models/0"))
        ),
        "InvalidCheckpoint",
    ),
    "health check": Repeat("training", accuse, "InvalidHealthCheck"),
    "equivocation": Repeat("training", build_evidence, "InvalidEvidence"),
}


def get_first_key(members: Members) -> bytes:
    return members.handler.state.clients[0].p2p if members.handler.state.clients else members.identities[0].public


@pytest.mark.parametrize("case", REPEATS.values(), ids=REPEATS)
def test_a_request_sent_again_changes_nothing(case: Repeat) -> None:
    """Under its own id it gets the same answer from memory (K4), under a new one it counts as on record (K3)."""
    members = build_members(case.stage)
    body, key = case.make(members), get_first_key(members)
    first = members.handler.handle(members.now, key, wire.Request(5, body))
    assert first.reply.code == "", first.reply.message
    before, seq = encode_state(members.handler.state), members.handler.journal.last_seq
    assert members.handler.handle(members.now, key, wire.Request(5, body)) is first
    again = members.ask(key, body)
    assert again.code == case.code
    assert again.on_record or case.code in ("", "UnknownMember")
    assert encode_state(members.handler.state) == before
    assert members.handler.journal.last_seq == seq, "a repeat leaves no record"


def test_a_repeat_of_a_witness_that_closed_the_round_is_on_record_in_the_next_one() -> None:
    members = build_members("training", rounds_per_epoch=8)
    members.ask(members.key(0), members.get_witness(0))
    closing = members.get_witness(1)
    assert members.ask(members.key(1), closing).code == ""
    assert members.handler.state.current.height == 1, "no clock tick was needed to close the round (T3)"
    again = members.ask(members.key(1), closing)
    assert (again.code, again.on_record) == ("WrongRound", True)


def test_a_request_refused_leaves_no_record_and_no_change() -> None:
    members = build_members("training")
    handler = members.handler
    before, seq = encode_state(handler.state), handler.journal.last_seq
    for body, code in (
        (wire.build_submit(Withdraw(0, 1)), "UnknownMember"),
        (wire.build_submit(Withdraw(9, 0)), "WrongRound"),
        (wire.build_submit(WarmupWitness(3, 0, build_hash("weights"))), "WrongRound"),
        (wire.build_submit(HealthCheck(0, 7, 1)), "WrongRound"),
        (
            wire.build_submit(NameCheckpoint(0, build_hash("x"), Checkpoint(CheckpointKind.P2P, "peer"))),
            "InvalidRunState",
        ),
        (wire.build_submit(ReportEquivocation(0, 0, 1), Evidence(b"", b"")), "InvalidEvidence"),
        (wire.build_submit(ReportEquivocation(0, 0, 1)), "InvalidEvidence"),
    ):
        reply = members.ask(members.key(0), body)
        assert (reply.code, reply.on_record) == (code, False)
        assert reply.message
    assert encode_state(handler.state) == before
    assert handler.journal.last_seq == seq


# owners


def test_an_owner_pauses_and_resumes_and_a_command_sent_twice_takes_effect_once() -> None:
    members = build_members()
    assert members.command(Pause()).code == ""
    assert members.run_state is RunState.PAUSED
    assert members.command(Resume(), OP[::-1]).code == ""
    assert members.run_state is RunState.WAITING_FOR_MEMBERS
    assert members.command(Pause()).code == "", "the same wish again"
    assert members.run_state is RunState.WAITING_FOR_MEMBERS
    assert members.command(Pause(), bytes(16)).code == "", "a new wish"
    assert members.run_state is RunState.PAUSED
    again = members.command(Pause(), OP[1:] + b"!")
    assert (again.code, "PAUSED already" in again.message) == ("Halted", True)


def test_nobody_but_an_owner_pauses_resumes_sets_rates_or_sees_and_takes_earnings() -> None:
    members = build_members()
    for body in (
        wire.build_submit(Pause(), op_id=OP),
        wire.build_submit(Resume(), op_id=OP),
        wire.build_submit(SetRates(1, 1), op_id=OP),
        wire.build_submit(Collect(((bytes(32), 1),)), op_id=OP),
        wire.EarningsRequest(),
    ):
        assert members.ask(members.identities[0].public, body).code == "NotOwner"
    assert members.handler.state.registry.future_earning_rate == 0
    assert members.run_state is RunState.WAITING_FOR_MEMBERS


def test_a_checkpoint_is_on_record_and_seen_in_the_status() -> None:
    """S10."""
    members = build_members("cooldown")
    state = members.handler.state
    key, certified = state.clients[0].p2p, state.certified
    assert members.handler.get_status().checkpoint_sources == ()
    for name in ("drive/one", "drive/two"):
        body = wire.build_submit(
            NameCheckpoint(certified.epoch, certified.digest, Checkpoint(CheckpointKind.LOCAL, name))
        )
        assert members.ask(key, body).code == ""
        again = members.ask(key, body)
        assert (again.code, again.on_record) == ("InvalidCheckpoint", True), "a repeat is a success (K3)"
    status = members.handler.get_status()
    assert status.checkpoint_sources == ("LOCAL drive/one", "LOCAL drive/two")
    assert status.checkpoint_step == certified.step


def test_a_server_draws_its_entropy_from_the_operating_system() -> None:
    """E5."""
    (draw,) = [field.default for field in dataclasses.fields(ServerSettings) if field.name == "entropy"]
    assert callable(draw)
    first, second = draw(), draw()
    assert len(first) == len(second) == 32
    assert first != second


def test_anyone_may_ask_how_the_run_is() -> None:
    members = build_members("training")
    status = members.ask(b"s" * 32, wire.StatusRequest()).body
    assert isinstance(status, wire.RunStatus)
    assert (status.run_state, status.healthy, status.members, status.waiting) == (RunState.ROUND_TRAIN, 3, 3, 0)
    assert (status.connections, status.min_clients, status.init_min_clients) == (3, 2, 3)
    waiting = build_members()
    status = waiting.ask(b"s" * 32, wire.StatusRequest()).body
    assert isinstance(status, wire.RunStatus)
    assert (status.healthy, status.members, status.waiting) == (0, 0, 3)


# lost connections (H6)


def get_states(members: Members) -> list[ClientState]:
    return [client.state for client in members.handler.state.clients]


@pytest.mark.parametrize("stays", ["comes back", "the owner lets it", "withdrawn"])
def test_who_stays_away_for_fifteen_seconds_is_withdrawn_unless_the_owner_lets_it(stays: str) -> None:
    sink = Log()
    members = build_members("training", sink, max_round_train_time=60)
    members.handler._withdraw_on_disconnect = stays != "the owner lets it"
    members.handler.disconnected(members.key(1), members.now)
    members.wait(14)
    assert get_states(members) == [ClientState.HEALTHY] * 3
    if stays == "comes back":
        members.handler.connected(members.key(1))
    members.wait(1)
    states = [ClientState.HEALTHY, ClientState.WITHDRAWN, ClientState.HEALTHY]
    assert get_states(members) == (states if stays == "withdrawn" else [ClientState.HEALTHY] * 3)
    assert [event.after_s for event in sink.get(types.ClientWithdrawn)] == ([15] if stays == "withdrawn" else [])


def test_a_lost_connection_takes_a_join_back() -> None:
    members = build_members(waiting_for_members_extra_time=60)
    key = members.identities[1].public
    members.handler.disconnected(key, members.now)
    members.wait(15)
    assert key not in [s.p2p for s in members.handler.state.registry.slots], "and the slot is given up (H6)"
    members.wait(60)
    assert members.run_state is RunState.WAITING_FOR_MEMBERS, "formation does not take the dead"


def test_a_join_for_the_next_epoch_is_taken_back_when_that_epoch_waits_for_members() -> None:
    members = build_members("training", rounds_per_epoch=1, max_round_train_time=200, cooldown_time=1)
    late = CLIENTS[5]
    members.handler.connected(late.public)
    members.ask(late.public, build_join_request(build_record(late)))
    members.handler.state.registry.slots[-1].earned = 1  # else the slot would be given up (H6)
    members.handler.disconnected(late.public, members.now)
    members.wait(15)
    slot = members.handler.state.registry.slots[-1]
    assert slot.active == members.handler.state.registry.next_active, "nothing to withdraw from yet"
    while members.run_state is not RunState.WAITING_FOR_MEMBERS:
        members.step()
    members.wait(1)
    assert slot.signer == late.public
    assert members.handler.state.registry.slots[-1].active < members.handler.state.registry.next_active


def test_a_stranger_that_disconnects_is_not_remembered() -> None:
    members = build_members()
    for number in range(3_000):
        key = build_hash("stranger", number)
        members.handler.connected(key)
        members.handler.disconnected(key, members.now)
    before = encode_state(members.handler.state)
    members.wait(1)
    assert encode_state(members.handler.state) == before
    assert members.handler.get_status().connections == 3


@pytest.mark.parametrize(
    "forge",
    [
        lambda m: (sign_result(get_identity(m, 1), m, 1, 1),) * 2,
        lambda m: (sign_result(get_identity(m, 1), m, 1, 1), sign_result(get_identity(m, 0), m, 1, 2)),
        lambda m: (sign_result(get_identity(m, 1), m, 1, 1), sign_result(get_identity(m, 2), m, 2, 2)),
        lambda m: (sign_result(get_identity(m, 1), m, 1, 1), b"no gossip"),
        lambda m: (sign_result(OWNER, m, 99, 1), sign_result(OWNER, m, 99, 2)),
        lambda m: tuple(
            encode_gossip(
                sign_gossip(get_identity(m, 1), m.handler.state.run_uid, 0, 0, 1, Ready(bytes([n] * 32), flag))
            )
            for n, flag in ((1, ReadyFlag(0)), (2, ReadyFlag(0)))
        ),
        lambda m: tuple(sign_result(get_identity(m, 1), m, 1, n, run_uid=build_hash("other run")) for n in (1, 2)),
    ],
    ids=["the same twice", "forged", "of two members", "no gossip", "no member", "no results", "other runs"],
)
def test_what_is_no_evidence_ejects_nobody(forge: Callable[[Members], tuple[bytes, bytes]]) -> None:
    members = build_members("training", rounds_per_epoch=8)
    reply = members.ask(members.key(0), build_report(members, *forge(members)))
    assert (reply.code, reply.on_record) == ("InvalidEvidence", False)
    assert get_states(members) == [ClientState.HEALTHY] * 3


# joining and the address book


def test_the_address_book_has_the_newest_own_record_of_each_slot_s_holder_alone_and_is_no_part_of_the_state() -> None:
    members = build_members()
    book, (first, second, third) = members.handler.book, members.identities
    moved, other = build_record(first, port=9_999), build_record(second, port=6)
    forged = AddressRecord(first.public, other.addresses, other.expires_unix, other.signature)
    for key, record, code in (
        (first, moved, ""),
        (first, other, "BadRequest"),
        (first, forged, "BadRequest"),
        (CLIENTS[6], build_record(CLIENTS[6]), ""),
    ):
        assert members.ask(key.public, wire.AnnounceRequest(record)).code == code
    assert set(book.records()) == {moved, build_record(second), build_record(third)}
    members.submit(first.public, LeaveRun())
    members.wait(1)
    assert set(book.records()) == {build_record(second), build_record(third)}
    assert b"/ip4/" not in encode_state(members.handler.state)


def test_a_full_registry_takes_an_idle_slot_back_for_a_newcomer() -> None:
    members = build_members()
    state = members.handler.state
    template = state.registry.slots[0]
    for number in range(MAX_CLIENTS - len(state.registry.slots)):
        slot = type(template)(
            signer=build_hash("s", number), p2p=build_hash("p", number), state=SlotState.JOINED, last_epoch=0, active=0
        )
        state.registry.slots.append(slot)
    late = CLIENTS[5]
    request = build_join_request(build_record(late))
    refused = members.ask(late.public, request)
    assert refused.code == "ClientsFull", "no slot has been idle for a whole epoch"
    state.progress.epoch = 2
    assert members.ask(late.public, request).code == ""
    assert any(slot.signer == late.public for slot in state.registry.slots)


def test_every_change_of_phase_and_every_rollback_is_an_event() -> None:
    sink = Log()
    members = build_members("training", sink, rounds_per_epoch=50, max_round_train_time=5, round_witness_time=2)
    for _ in range(3):
        members.run_round()
    assert [event.run_state for event in sink.get(types.StateChanged)][:2] == [
        RunState.WARMUP,
        RunState.ROUND_TRAIN,
    ]
    before = members.handler.state.progress.step
    for _ in range(40):  # all fall silent: the epoch ends without agreement, its work is given up (P3)
        members.wait(6)
        if members.run_state is RunState.WAITING_FOR_MEMBERS:
            break
    rollback = sink.get(types.Rollback)[0]
    assert rollback.step == members.handler.state.certified.step == members.handler.state.progress.step
    assert rollback.was is not None
    assert rollback.was >= before


# defects of ours


def test_a_defect_while_a_message_is_handled_leaves_the_last_recorded_state(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Log()
    members = build_members("training", sink)
    before = encode_state(members.handler.state)

    def fail(state: Coordinator, _context: Context, _message: WitnessMessage) -> bool:
        state.current.started_unix = 1
        state.nonce += 1
        raise KeyError("a defect")

    monkeypatch.setitem(BY_TYPE, WitnessMessage, BY_TYPE[WitnessMessage]._replace(process=fail))
    reply = members.ask(members.key(0), members.get_witness(0))
    assert reply.code == "BackendError"
    assert "internal error" in reply.message
    assert encode_state(members.handler.state) == before
    assert "a defect" in sink.get(types.ServerDefect)[0].error
    monkeypatch.undo()
    assert members.ask(members.key(0), members.get_witness(0)).code == "", "others are served as before"


def test_a_state_machine_that_never_rests_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    members = build_members()

    def spin(*_: object) -> bool:
        return True

    monkeypatch.setitem(BY_TYPE, Tick, BY_TYPE[Tick]._replace(process=spin))
    with pytest.raises(BackendError, match=f"within {MAX_TICKS} ticks"):
        members.wait(1)


def test_time_never_runs_backwards_inside() -> None:
    members = build_members()
    members.wait(1)
    assert members.run_state is RunState.WAITING_FOR_MEMBERS
    members.handler.tick(members.now - 500)
    assert members.handler.now == members.now


# K4


def test_the_last_64_replies_of_a_client_are_kept_and_those_of_the_longest_silent_go_first() -> None:
    cache = ReplyCache()
    for number in range(100):
        cache.put(b"a", Answer(wire.Reply(number), number))
    kept = [number for number in range(100) if cache.get(b"a", number) == Answer(wire.Reply(number), number)]
    assert kept == [*range(100 - REPLIES_PER_CLIENT, 100)]
    assert cache.get(b"b", 99) is None, "ids are each client's own"
    for number in range(MAX_CACHED_CLIENTS):
        cache.put(number.to_bytes(4, "little"), Answer(wire.Reply(1), 0))
    assert cache.get(b"a", 99) is None
    assert cache.get((0).to_bytes(4, "little"), 1) is not None
