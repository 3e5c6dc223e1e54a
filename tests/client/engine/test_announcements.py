"""Which messages a client believes, before it downloads a byte (R1 to R3, R7, S6, W1)."""

import dataclasses
from typing import Any

import pytest
from kits.bench import Bench, build_bench
from kits.results import get_commitment

from psyche.client.engine import actions as act
from psyche.client.engine.records import PayloadStatus
from psyche.core.committee.assignment import compute_assignments
from psyche.core.encoding.header import encode_header
from psyche.core.state.gossip import Finished, Leave, Ready, ReadyFlag, Result
from psyche.core.state.messages import ReportEquivocation
from psyche.core.state.state import ZERO32, RunState
from psyche.telemetry import types
from psyche.testing.builders import build_hash
from psyche.wire.crypto import compute_commitment
from psyche.wire.gossip import decode_gossip, encode_gossip

OTHER = build_hash("something else")
OTHER_HEADER = OTHER * 14
OTHER_COMMITMENT = compute_commitment(OTHER_HEADER)


@pytest.fixture
def bench() -> Bench:
    return build_bench(4).start()


def get_refusals(bench: Bench) -> list[str]:
    return [f.reason for f in bench.get_logs(types.Refused)]


def get_statuses(bench: Bench, member: int, height: int | None = None) -> list[PayloadStatus]:
    return [known.status for known in bench.get_known(member, height)]


# --- R3, field by field


def test_an_honest_result_is_believed_and_its_payload_fetched(bench: Bench) -> None:
    message = bench.build_result(1)
    bench.hear(message)
    assert get_refusals(bench) == []
    (fetch,) = bench.get_all(act.FetchPayload)
    header = bench.build_header(1)
    assert (fetch.member, fetch.height, fetch.commitment) == (1, 0, get_commitment(message))
    assert (fetch.blob_id, fetch.size_bytes) == (header.body_hash, header.body_len)
    assert fetch.sources[0] == bench.state.clients[1].p2p
    assert bench.state.clients[0].p2p not in fetch.sources
    assert fetch.deadline == bench.now + bench.state.config.max_round_train_time + bench.state.config.round_witness_time


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run_uid", OTHER),
        ("epoch", 1),
        ("height", 1),
        ("member", 2),
        ("step", 2),
        ("lr", {"lr_bits": 0}),
        ("batch", {"batch_start": 1_000}),
        ("batch", {"batch_end": 1_000}),
        ("plan_hash", OTHER),
        ("config_hash", OTHER),
        ("trainer_key", OTHER),
        ("body_len", 0),
        ("body_len", 1 << 40),
    ],
)
def test_a_header_with_one_field_that_the_round_does_not_ask_for_is_refused(
    bench: Bench, field: str, value: object
) -> None:
    """R3: before download."""
    changes: dict[str, Any] = value if isinstance(value, dict) else {field: value}
    raw = encode_header(dataclasses.replace(bench.build_header(1), **changes))
    bench.hear(bench.sign(1, Result(compute_commitment(raw), raw)))
    assert bench.get_all(act.FetchPayload) == []
    assert bench.get_known(1) == []
    (reason,) = get_refusals(bench)
    assert f"field {field} " in reason


def test_the_longest_payload_of_the_plan_is_allowed_and_one_byte_more_is_not(bench: Bench) -> None:
    """R3: `body_len` over what the plan allows."""
    limit = bench.engine._x.facts.max_body_bytes
    bench.hear(bench.build_result(1, body_len=limit))
    bench.hear(bench.build_result(2, body_len=limit + 1))
    assert [a.member for a in bench.get_all(act.FetchPayload)] == [1]


def test_a_member_without_a_batch_owes_nothing_and_sends_nothing() -> None:
    bench = build_bench(4, global_batch_size_start=2, global_batch_size_end=2).start()
    idle = next(m for m in range(1, 4) if m not in compute_assignments(bench.state.current, bench.state.config))
    bench.hear(bench.build_result(idle))
    (reason,) = get_refusals(bench)
    assert "owes no batch" in reason


def test_a_header_that_is_not_canonical_is_refused(bench: Bench) -> None:
    """R3: a reserved byte that is not zero."""
    raw = bytearray(encode_header(bench.build_header(1)))
    raw[-1] = 1
    bench.hear(bench.sign(1, Result(compute_commitment(bytes(raw)), bytes(raw))))
    (reason,) = get_refusals(bench)
    assert "not zero" in reason
    assert bench.get_all(act.FetchPayload) == []


# --- R2: who signed


def test_a_message_that_the_member_did_not_sign_counts_for_nothing(bench: Bench) -> None:
    """R2, I9."""
    bench.hear(bench.sign(1, Finished(0, ZERO32, 0), identity=bench.get_identity(2)))
    assert "did not sign" in get_refusals(bench)[0]
    assert bench.get_record().finished == {}
    assert not bench.get_record().heard >> 1 & 1


def test_noise_and_messages_of_other_runs_or_epochs_change_nothing(bench: Bench) -> None:
    before = bench.get_record().heard
    bench.hear(b"noise")
    bench.hear(bench.sign(1, Finished(0, ZERO32, 0), run_uid=OTHER))
    bench.hear(bench.sign(1, Finished(0, ZERO32, 0), epoch=7))
    assert bench.get_record().heard == before
    assert bench.get_record().finished == {}
    assert len(get_refusals(bench)) == 1, "only the noise; the others may be honest, of another run"


@pytest.mark.parametrize("body", [Finished(0, ZERO32, 0), Ready(OTHER, ReadyFlag(0)), Leave()])
def test_any_signed_message_says_that_its_member_is_there(bench: Bench, body: Finished | Ready | Leave) -> None:
    """W1: heard."""
    assert not bench.get_record().heard >> 1 & 1
    bench.hear(bench.sign(1, body))
    assert bench.get_record().heard >> 1 & 1


def test_even_a_refused_result_says_that_its_member_is_there(bench: Bench) -> None:
    """W1: any valid signed message; what it is worth is another question."""
    bench.hear(bench.build_result(1, step=9))
    assert bench.get_record().heard >> 1 & 1
    assert bench.get_record().compute_held() == 0


def test_a_second_finished_does_not_replace_the_first(bench: Bench) -> None:
    bench.hear(bench.build_finished(1, seen=1))
    bench.now += 3
    bench.hear(bench.build_finished(1, seen=15))
    record = bench.get_record()
    assert record.finished[1].seen == 1
    assert record.finished_at[1] == bench.now - 3


# --- messages that are early


def test_messages_of_the_next_round_wait_until_it_is_seen(bench: Bench) -> None:
    bench.play()
    early = bench.sign(1, Finished(0, ZERO32, 5), height=1)
    bench.hear(early)
    assert bench.get_record().finished[1].seen == 15
    bench.close()
    assert bench.get_record(1).finished[1].seen == 5


def test_the_first_message_of_the_next_round_asks_for_the_backend_once(bench: Bench) -> None:
    """H1: a client whose server was away hears from its peers that the run goes on without it."""
    bench.hear(bench.sign(2, Finished(0, ZERO32, 0), height=1, identity=bench.get_identity(3)))
    assert bench.get_all(act.ReconnectSoon) == []
    for member in (1, 2):
        bench.hear(bench.sign(member, Finished(0, ZERO32, 5), height=1))
    assert bench.get_all(act.ReconnectSoon) == [act.ReconnectSoon()]


def test_early_messages_that_nobody_signed_push_out_no_honest_ones(bench: Bench) -> None:
    """I6: the room for early messages is bounded, so only signed ones may take it."""
    bench.hear(bench.sign(1, Finished(0, ZERO32, 5), height=1))
    for number in range(200):
        bench.hear(bench.sign(2, Finished(number, ZERO32, 0), height=1, identity=bench.get_identity(3)))
    bench.play()
    bench.close()
    assert bench.get_record(1).finished[1].seen == 5
    assert 2 not in bench.get_record(1).finished


def test_messages_of_rounds_far_ahead_are_not_kept(bench: Bench) -> None:
    bench.hear(bench.sign(1, Finished(0, ZERO32, 5), height=2))
    bench.run_round()
    bench.run_round()
    assert bench.get_record(2).finished.get(1) is None


def test_messages_of_an_epoch_that_is_not_seen_yet_are_not_taken_for_those_of_the_last_one() -> None:
    """R7: else an honest member's first result of the next epoch would look like its second of this one."""
    bench = build_bench(4, rounds_per_epoch=1).start()
    first = bench.build_result(1)
    while bench.state.in_round:
        bench.run_round()
    bench.pass_time(10)
    assert bench.state.run_state is RunState.WAITING_FOR_MEMBERS
    assert isinstance(first.body, Result)
    bench.hear(bench.sign(1, Result(OTHER_COMMITMENT, OTHER_HEADER), height=0))
    assert bench.get_all(ReportEquivocation) == []
    assert bench.engine.get_announcements(1, 0, have=0) == ()


# --- deferral


def test_a_result_trained_on_other_weights_waits_unfetched_and_is_believed_once_the_record_says_so() -> None:
    """R3, S4: whoever is right shows when q witnesses agree on a digest."""
    bench = build_bench(4).start()
    right = build_hash("what the others hold")
    bench.hear(bench.build_result(1, base_digest=right))
    assert bench.get_all(act.FetchPayload) == []
    assert get_refusals(bench) == []
    bench.record(1, 2, 3, state_digest=right)
    bench.show()
    assert bench.engine.weights.is_diverged
    assert [a.member for a in bench.get_all(act.FetchPayload)] == [1]


def test_a_result_that_comes_before_the_own_digest_waits_for_it() -> None:
    """R3: who has not yet computed D(h) defers instead of refusing."""
    bench = build_bench(4, manual={act.Apply}).start()
    apply = bench.get_all(act.Apply)[-1]
    digest_giver = build_bench(4, own=1).start()
    message = digest_giver.build_result(2)
    bench.hear(message)
    assert bench.get_all(act.FetchPayload) == []
    assert list(bench.get_record().deferred) == [get_commitment(message)]
    bench.feed(bench.build_applied(apply))
    assert [a.commitment for a in bench.get_all(act.FetchPayload)] == [get_commitment(message)]
    assert bench.get_record().deferred == {}


def test_a_result_that_comes_before_the_model_is_loaded_waits_for_it() -> None:
    """R3: without a plan nothing can be judged, so nothing is refused either."""
    donor = build_bench(4, own=1).start()
    bench = build_bench(4, manual={act.Load})
    bench.start()
    message = donor.build_result(2)
    bench.hear(message)
    assert get_refusals(bench) == []
    bench.feed(bench.build_loaded(bench.get_all(act.Load)[-1]))
    bench.show()
    assert [a.commitment for a in bench.get_all(act.FetchPayload)] == [get_commitment(message)]


def test_a_deferred_result_is_no_second_one_when_it_is_heard_again() -> None:
    bench = build_bench(4, manual={act.Apply}).start()
    message = build_bench(4, own=1).start().build_result(2)
    for _ in range(3):
        bench.hear(message)
    assert len(bench.get_record().deferred) == 1
    assert bench.get_all(ReportEquivocation) == []


def test_a_member_cannot_fill_the_room_for_deferred_results() -> None:
    bench = build_bench(4, manual={act.Apply}).start()
    for number in range(20):
        bench.hear(bench.build_result(1, data_hash=build_hash(number)))
    assert len(bench.get_record().deferred) == 2


# --- R7


def test_two_signatures_of_one_member_are_shown_to_the_backend_and_its_bit_stays_zero(bench: Bench) -> None:
    first, second = bench.build_result(1), bench.build_result(1, data_hash=OTHER)
    bench.hear(first)
    bench.feed(act.PayloadArrived(get_commitment(first)))
    assert bench.get_record().compute_held() >> 1 & 1
    bench.hear(second)
    bench.feed(act.PayloadArrived(get_commitment(second)))
    (evidence,) = [a.evidence for a in bench.actions if isinstance(a, act.Submit) and a.evidence is not None]
    assert {evidence.first, evidence.second} == {encode_gossip(first), encode_gossip(second)}
    assert not bench.get_record().compute_held() >> 1 & 1
    bench.hear(bench.build_result(1, data_hash=build_hash("third")))
    assert len(bench.get_all(ReportEquivocation)) == 1
    assert len(bench.get_known(1)) == 2


@pytest.mark.parametrize("refused_first", [True, False])
def test_a_second_signature_is_evidence_even_if_one_header_is_refused(bench: Bench, refused_first: bool) -> None:
    """R7: what was signed counts, not what it says."""
    good, bad = bench.build_result(1), bench.build_result(1, step=99)
    for message in (bad, good) if refused_first else (good, bad):
        bench.hear(message)
    assert len(bench.get_all(ReportEquivocation)) == 1
    bench.feed(act.PayloadArrived(get_commitment(good)))
    assert not bench.get_record().compute_held() >> 1 & 1


def test_the_same_result_twice_is_no_evidence(bench: Bench) -> None:
    message = bench.build_result(1)
    bench.hear(message)
    bench.hear(message)
    assert bench.get_all(ReportEquivocation) == []
    assert len(bench.get_all(act.FetchPayload)) == 1


def test_somebody_who_signs_another_result_with_the_own_key_is_shown_to_the_backend(bench: Bench) -> None:
    """R7, M9: a second process with this key cannot stay unseen."""
    bench.train()
    bench.hear(bench.build_result(0, data_hash=OTHER))
    assert len(bench.get_all(ReportEquivocation)) == 1


# --- payloads


def test_a_payload_that_breaks_a_rule_is_not_fetched_again(bench: Bench) -> None:
    """R4."""
    message = bench.build_result(1)
    bench.hear(message)
    bench.feed(act.PayloadFailed(get_commitment(message), "index out of range", refused=True))
    bench.wait(60.0)
    assert get_statuses(bench, 1) == [PayloadStatus.REFUSED]
    assert len(bench.get_all(act.FetchPayload)) == 1


def test_a_payload_that_did_not_come_is_fetched_again_from_another_source(bench: Bench) -> None:
    """C6: later and later, beginning with the trainer and then going through all others."""
    message = bench.build_result(1)
    bench.hear(message)
    keys = [c.p2p for c in bench.state.clients]
    for seconds in (0.5, 1.0, 2.0, 4.0, 4.0):
        bench.feed(act.PayloadFailed(get_commitment(message), "no answer", refused=False))
        asked = len(bench.get_all(act.FetchPayload))
        bench.wait(seconds - 0.01)
        assert len(bench.get_all(act.FetchPayload)) == asked
        bench.wait(0.02)
        assert len(bench.get_all(act.FetchPayload)) == asked + 1
    firsts = [a.sources[:2] for a in bench.get_all(act.FetchPayload)]
    assert {first for first, _ in firsts} == {keys[1]}
    assert {second for _, second in firsts} == {keys[2], keys[3]}


def test_what_is_still_missing_is_tried_at_once_when_a_round_begins(bench: Bench) -> None:
    bench.play()
    late = bench.get_known(1)[0]
    late.status, late.attempts = PayloadStatus.FETCHING, 5
    bench.feed(act.PayloadFailed(late.commitment, "no answer", refused=False))
    asked = len(bench.get_all(act.FetchPayload))
    bench.close()
    assert [a.commitment for a in bench.get_all(act.FetchPayload)[asked:]] == [late.commitment]


def count_asked(bench: Bench) -> int:
    return len(bench.get_all(act.AskAnnouncements))


def test_peers_are_asked_for_what_is_missing_ever_more_rarely(bench: Bench) -> None:
    bench.hear(bench.build_finished(1))
    bench.deliver(1)
    bench.wait(1.9)
    assert bench.get_all(act.AskAnnouncements) == []
    bench.wait(0.1)
    assert [(a.epoch, a.height, a.have) for a in bench.get_all(act.AskAnnouncements)] == [(0, 0, 0b0010)]
    bench.wait(3.9)
    assert count_asked(bench) == 1
    bench.wait(0.1)
    assert count_asked(bench) == 2
    bench.wait(8.0)
    assert count_asked(bench) == 3
    bench.wait(8.0)
    assert count_asked(bench) == 4, "but never more rarely than every 8 s"


@pytest.mark.parametrize("is_news", [True, False])
def test_where_a_peer_knew_more_it_is_asked_again_soon(bench: Bench, is_news: bool) -> None:
    finished = encode_gossip(bench.build_finished(1))
    if not is_news:
        bench.hear(finished)
    bench.wait(2.0)
    bench.take_in(bench.engine.on_answer([finished], bench.now))
    bench.wait(2.0)
    assert count_asked(bench) == 1 + is_news


def test_who_has_done_its_own_work_asks_soon_again(bench: Bench) -> None:
    """From then on it waits for others."""
    bench.wait(2.0)
    bench.wait(4.0)
    bench.train()
    bench.wait(2.0)
    assert count_asked(bench) == 3


def test_what_peers_may_ask_for_is_what_members_signed(bench: Bench) -> None:
    bench.play()
    raws = bench.engine.get_announcements(0, 0, have=0b0001)
    messages = [decode_gossip(raw) for raw in raws]
    assert {m.member for m in messages} == {1, 2, 3}
    assert {type(m.body) for m in messages} == {Result, Finished}
    assert bench.engine.get_announcements(0, 5, have=0) == ()
    assert bench.engine.get_announcements(1, 0, have=0) == ()
