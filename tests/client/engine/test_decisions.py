"""The set of a round as a client finds it: own table, lists of witnesses, bodies (C1 to C6, W7, M8, R8)."""

import pytest
from kits.bench import Bench, build_bench
from kits.results import get_commitment

from psyche.client.engine import actions as act
from psyche.core.committee.results import compute_results_root
from psyche.core.state.bits import compute_bits
from psyche.core.state.gossip import Gossip
from psyche.core.state.messages import ReportEquivocation, Withdraw, WitnessMessage
from psyche.core.state.state import ZERO32, ClientFlag
from psyche.telemetry import types
from psyche.testing.builders import build_hash
from psyche.wire.gossip import decode_gossip, encode_gossip

ALL = 0b1111


def play_round(bench: Bench, results: dict[int, Gossip]) -> None:
    """A round in which this client trains, and has what the others trained."""
    bench.train()
    for member in (1, 2, 3):
        bench.hear(results[member])
        bench.feed(act.PayloadArrived(get_commitment(results[member])))
    close_round(bench, results)


def close_round(bench: Bench, results: dict[int, Gossip], *, held: int = ALL) -> None:
    """The other witnesses agree on these results of the round before; the engine sees what follows."""
    known = {m: get_commitment(g) for m, g in results.items() if held >> m & 1}
    bench.close(1, 2, 3, held=held, commitments=known)


def build_bench_without_news() -> tuple[Bench, dict[int, Gossip]]:
    """Round 1 runs; of round 0 this client knows its own result alone. Results of everybody, by member."""
    bench = build_bench(4).start()
    bench.train()
    own = bench.get_announced()[-1]
    results = {m: bench.build_result(m) for m in (1, 2, 3)} | {0: own}
    bench.close()
    assert bench.state.current.height == 1
    return bench, results


OpenRound = tuple[Bench, dict[int, Gossip]]


@pytest.fixture
def open_round() -> OpenRound:
    """The others agree on the results of round 0, of which this client has only its own; and all results."""
    bench, results = build_bench_without_news()
    close_round(bench, results)
    return bench, results


def show_table(bench: Bench, asked: act.AskTable, items: tuple[bytes, ...] | None) -> None:
    bench.feed(act.TableArrived(asked.epoch, asked.height, asked.member, asked.root, items))


def encode_all(results: dict[int, Gossip]) -> tuple[bytes, ...]:
    return tuple(encode_gossip(g) for g in results.values())


# --- C1


def test_a_list_that_a_witness_shows_decides_and_its_payloads_are_fetched_and_applied_in_order(
    open_round: OpenRound,
) -> None:
    """C1, C5."""
    bench, results = open_round
    assert bench.get_decided() == {}
    asked = bench.get_all(act.AskTable)
    assert {a.member for a in asked} == {1, 2}, "any one of the three is enough"
    assert {a.key for a in asked} == {bench.state.clients[m].p2p for m in (1, 2)}
    show_table(bench, asked[0], encode_all(results))
    assert bench.get_decided() == {0: [0, 1, 2, 3]}
    fetches = bench.get_all(act.FetchPayload)
    assert {a.member for a in fetches} == {1, 2, 3}
    applied = len(bench.get_all(act.Apply))
    for fetch in fetches:
        assert len(bench.get_all(act.Apply)) == applied, "C6: nothing is applied while one is missing"
        bench.feed(act.PayloadArrived(fetch.commitment))
    batches = bench.get_record(0).assignments
    in_order = sorted(range(4), key=lambda m: batches[m][0])
    assert list(bench.get_logs(types.Applied)[-1].members) == in_order


def test_witnesses_that_did_not_answer_are_asked_again_although_nothing_else_happens(open_round: OpenRound) -> None:
    """C1: never a decision by deadline, and never a rest either."""
    bench, _ = open_round
    for asked in bench.get_all(act.AskTable):
        show_table(bench, asked, None)
    assert len(bench.get_all(act.AskTable)) == 3, "the third once one of the first two has none"
    bench.wait(2.1)
    assert len(bench.get_all(act.AskTable)) == 6
    assert bench.get_decided() == {}


def test_results_that_come_by_gossip_after_the_close_decide_too(open_round: OpenRound) -> None:
    bench, results = open_round
    for member in (1, 2, 3):
        assert bench.get_decided() == {}
        bench.hear(results[member])
    assert bench.get_decided() == {0: [0, 1, 2, 3]}


def test_a_list_that_does_not_give_the_root_is_refused(open_round: OpenRound) -> None:
    bench, results = open_round
    asked = bench.get_all(act.AskTable)[0]
    other = bench.build_result(1, 0, data_hash=build_hash("other"))
    foreign = bench.sign(1, results[1].body, height=1)  # C1: a root alone does not say which round a result is of
    lists = [{m: results[m] for m in (0, 2, 3)}, results | {1: other}, results | {1: foreign}]
    for items in ((), (b"noise",), *map(encode_all, lists)):
        show_table(bench, asked, items)
    assert bench.get_decided() == {}
    assert [f.what for f in bench.get_logs(types.Refused)] == [types.Refusable.TABLE] * 5
    assert bench.get_all(act.FetchPayload) == []


def test_what_a_list_holds_beyond_its_root_is_not_believed() -> None:
    """C3: a lying witness cannot make others fetch what it likes."""
    bench, results = build_bench_without_news()
    close_round(bench, results, held=0b1011)
    asked = bench.get_all(act.AskTable)[0]
    show_table(bench, asked, encode_all(results))
    assert bench.get_decided() == {0: [0, 1, 3]}
    assert bench.get_known(2, 0) == []


def test_a_listed_result_that_is_larger_than_the_plan_allows_is_not_fetched() -> None:
    """R3 holds for lists too: who lists it may lie."""
    bench, results = build_bench_without_news()
    results[1] = bench.build_result(1, 0, body_len=1 << 32)
    close_round(bench, results)
    show_table(bench, bench.get_all(act.AskTable)[0], encode_all(results))
    assert 1 not in {a.member for a in bench.get_all(act.FetchPayload)}


def test_a_list_that_shows_a_second_signature_is_evidence() -> None:
    """R7: whoever sees both reports them, however they came."""
    bench, results = build_bench_without_news()
    bench.hear(bench.build_result(1, 0, data_hash=build_hash("what it told me")))
    close_round(bench, results)
    show_table(bench, bench.get_all(act.AskTable)[0], encode_all(results))
    assert len(bench.get_all(ReportEquivocation)) == 1
    assert bench.get_decided() == {0: [0, 1, 2, 3]}, "R7: it changes no decided set"


def test_a_result_that_was_put_off_is_fetched_once_the_record_decides_for_it() -> None:
    """C6: the record decides, not what this client thinks of the weights it was trained on."""
    bench, results = build_bench_without_news()
    results[1] = bench.build_result(1, 0, base_digest=build_hash("other weights"))
    for member in (1, 2, 3):
        bench.hear(results[member])
    assert {a.member for a in bench.get_all(act.FetchPayload)} == {2, 3}
    close_round(bench, results)
    assert bench.get_decided() == {0: [0, 1, 2, 3]}
    assert bench.get_all(act.AskTable) == [], "it knows all it needs"
    assert {a.member for a in bench.get_all(act.FetchPayload)} == {1, 2, 3}


def test_an_answer_for_another_epoch_or_round_changes_nothing(open_round: OpenRound) -> None:
    bench, results = open_round
    asked = bench.get_all(act.AskTable)[0]
    bench.feed(act.TableArrived(9, asked.height, asked.member, asked.root, encode_all(results)))
    bench.feed(act.TableArrived(0, 77, asked.member, asked.root, encode_all(results)))
    assert bench.get_decided() == {}


# --- C2, C3, C4


def test_without_a_root_a_member_is_in_when_a_quorum_of_blooms_holds_its_commitment() -> None:
    """C2."""
    bench, results = build_bench_without_news()
    for member in (1, 2, 3):
        bench.hear(results[member])
    known = {m: get_commitment(g) for m, g in results.items()}
    for witness, held in ((1, 0b0111), (2, 0b1111), (3, 0b1110)):
        bench.record(witness, held=held, commitments={m: c for m, c in known.items() if held >> m & 1})
    bench.now += bench.state.config.max_round_train_time
    bench.settle()
    bench.pass_time(bench.state.config.round_witness_time)
    assert bench.get_decided() == {0: [1, 2]}, "three of four hold members 1 and 2 alone"


def test_a_commitment_that_only_witnesses_know_is_asked_for() -> None:
    """C3."""
    bench, results = build_bench_without_news()
    known = {m: get_commitment(g) for m, g in results.items()}
    for witness, held in ((1, 0b0110), (2, 0b1110), (3, 0b0010)):
        bench.record(witness, held=held, commitments={m: c for m, c in known.items() if held >> m & 1})
    bench.now += 100
    bench.settle()
    bench.pass_time(100)
    asked = {a.member: a for a in bench.get_all(act.AskTable)}
    assert set(asked) == {1, 2, 3}
    show_table(bench, asked[3], encode_all({1: results[1]}))
    assert bench.get_decided() == {}, "the other two may have meant another one"
    show_table(bench, asked[1], encode_all({m: results[m] for m in (1, 2)}))
    assert bench.get_decided() == {0: [1]}


def test_a_void_round_is_applied_with_the_empty_set() -> None:
    """C4: weight decay and digest go on."""
    bench, _ = build_bench_without_news()
    bench.close(1, 2, 3, held=0, commitments={})
    assert [f.void for f in bench.get_logs(types.Decided)] == [True]
    last = bench.get_all(act.Apply)[-1]
    assert (last.height, last.blobs, last.run_update) == (2, (), True)


# --- W7


def test_a_witness_shows_the_list_it_reported_whatever_it_learns_later() -> None:
    """W7: who equivocates after the reports are in cannot take the list away from those who need it."""
    bench = build_bench(4).start()
    bench.play()
    bench.close()
    bench.play()
    root = bench.get_all(WitnessMessage)[-1].results_root
    listed = bench.engine.tables.show(root)
    assert listed is not None
    assert len(listed) == 4
    for member in (1, 2, 3):
        bench.hear(bench.build_result(member, 0, data_hash=build_hash("second")))
    assert bench.get_record(0).compute_held() == 0b0001
    assert bench.engine.tables.show(root) == listed


def test_whoever_decided_by_a_root_shows_the_list_behind_it(open_round: OpenRound) -> None:
    """W7: any member, not only those who reported it."""
    bench, results = open_round
    show_table(bench, bench.get_all(act.AskTable)[0], encode_all(results))
    root = bench.state.rounds[1].agreed_root
    listed = bench.engine.tables.show(root)
    assert listed is not None
    assert sorted(listed) == sorted(encode_all(results))
    bench.hear(bench.build_result(2, 0, data_hash=build_hash("second")))
    assert bench.engine.tables.show(root) == listed


def test_a_list_on_record_is_shown_if_the_own_table_gives_its_root() -> None:
    """W7: restricted to what that witness held."""
    bench = build_bench(4).start()
    bench.play()
    bench.close()
    held = 0b0101
    bench.record(2, held=held, commitments=bench.get_record(0).get_commitments(held))
    bench.show()
    listed = bench.engine.tables.show(bench.state.current.witnesses[0].results_root)
    assert listed is not None
    assert {decode_gossip(raw).member for raw in listed} == {0, 2}


def test_a_root_that_nobody_reported_is_not_searched_for() -> None:
    bench = build_bench(4).start()
    bench.run_round()
    assert bench.engine.tables.show(build_hash("unknown")) is None
    assert bench.engine.tables.show(ZERO32) is None


# --- C6


def test_who_is_behind_does_not_train_and_catches_up_in_order() -> None:
    """C6."""
    bench, results = build_bench_without_news()
    for member in (1, 2, 3):
        bench.hear(results[member])
    bench.feed(act.PayloadArrived(get_commitment(results[1])))
    bench.feed(act.PayloadArrived(get_commitment(results[2])))
    known = {m: get_commitment(g) for m, g in results.items()}
    bench.train()
    bench.close(1, 2, 3, held=ALL, commitments=known)
    assert bench.state.current.height == 2
    trained = len(bench.get_all(act.Train))
    own = bench.get_record(1).get_commitments(1)
    for witness in (1, 2, 3):
        bench.record(witness, held=1, commitments=own, state_digest=build_hash("none agrees", witness))
    bench.close(0, held=1, commitments=own, state_digest=build_hash("none agrees", 0))
    assert bench.state.current.height == 3
    assert [f.rounds for f in bench.get_logs(types.Behind)] == [1]
    assert len(bench.get_all(act.Train)) == trained
    assert bench.engine.member == 0
    bench.feed(act.PayloadArrived(get_commitment(results[3])))
    assert [f.height for f in bench.get_logs(types.Applied)] == [0, 1, 2, 3]
    assert [a.height for a in bench.get_all(act.Train)[trained:]] == [3]


def test_who_is_behind_for_a_third_round_leaves_the_epoch_with_a_reason() -> None:
    """C6: BEHIND_LIMIT is two rounds."""
    bench, results = build_bench_without_news()
    for member in (1, 2, 3):
        bench.hear(results[member])
    known = {m: get_commitment(g) for m, g in results.items()}
    close_round(bench, {m: results[m] for m in known})
    for height in (2, 3, 4):
        assert bench.get_all(Withdraw) == []
        assert bench.state.current.height == height
        others = compute_bits([0, 1, 2, 3])
        fake = {m: build_hash("later", height, m) for m in range(4)}
        bench.close(1, 2, 3, held=others, commitments=fake, state_digest=build_hash("d", height))
    (reason,) = bench.get_reasons(Withdraw)
    assert "could not be fetched" in reason
    assert bench.engine.member is None
    bench.feed(act.PayloadArrived(get_commitment(results[1])))
    bench.wait(10.0)
    assert len(bench.get_all(Withdraw)) == 1


# --- M8, R8


def test_a_newcomers_results_are_left_out_and_its_own_values_given_back() -> None:
    """M8: counted from joined_height; R8: what was not applied is not taken for applied."""
    bench, results = build_bench_without_news()
    for member in (1, 2, 3):
        bench.hear(results[member])
        bench.feed(act.PayloadArrived(get_commitment(results[member])))
    bench.state.model.cold_start_warmup_steps = 3
    for member in (0, 2):
        bench.state.clients[member].flags |= ClientFlag.NEWCOMER
    bench.train()
    close_round(bench, results)
    assert bench.get_decided() == {0: [1, 3]}
    assert sorted(bench.get_logs(types.Applied)[-1].members) == [1, 3]
    told = bench.get_all(act.Train)[-1].decided
    assert [(sent.height, sent.applied) for sent in told] == [(0, False)]


def test_who_joined_long_enough_ago_is_no_newcomer_whatever_its_flag() -> None:
    """M8."""
    bench = build_bench(4).start()
    state = bench.engine.state
    state.model.cold_start_warmup_steps = 3
    state.clients[1].joined_height = 2
    state.clients[1].flags |= ClientFlag.NEWCOMER
    chain = bench.engine.chain
    assert [chain.is_newcomer(1, height) for height in (2, 3, 4, 5, 6)] == [True, True, True, False, False]
    assert not chain.is_newcomer(2, 0), "a founder"


def test_a_trainer_hears_what_became_of_its_results() -> None:
    """R8: applied, and decided against."""
    bench, results = build_bench_without_news()
    play_round(bench, results)
    assert [(s.height, s.applied) for s in bench.get_all(act.Train)[-1].decided] == [(0, True)]
    bench.train()
    others = {m: build_hash("round 1", m) for m in (1, 2, 3)}
    results = {m: bench.build_result(m, 1, data_hash=h) for m, h in others.items()}
    for member, message in results.items():
        bench.hear(message)
        bench.feed(act.PayloadArrived(get_commitment(bench.build_result(member, 1, data_hash=others[member]))))
    close_round(bench, results, held=0b1110)
    assert [(s.height, s.applied) for s in bench.get_all(act.Train)[-1].decided] == [(1, False)]


def test_a_refused_batch_leaves_the_fates_to_be_told_again() -> None:
    """R8: a training that changed nothing has not used what it was told."""
    bench, results = build_bench_without_news()
    play_round(bench, results)
    bench.train(payload=b"", refused="non-finite gradient")
    assert bench.get_logs(types.NotSent)[-1].reason == "non-finite gradient"
    bench.deliver(1, 2, 3)
    bench.close(1, 2, 3)
    told = [(s.height, s.applied) for s in bench.get_all(act.Train)[-1].decided]
    assert told == [(0, True), (1, True)]


def test_a_reported_root_covers_exactly_what_is_held() -> None:
    """W2."""
    bench = build_bench(4).start()
    bench.play()
    bench.close()
    bench.play()
    message = bench.get_all(WitnessMessage)[-1]
    known = {m: bench.get_known(m, 0)[0].commitment for m in range(4)}
    assert message.held == ALL
    assert message.results_root == compute_results_root(0, 0, ALL, known)


def test_a_lost_trainer_has_lost_its_momentum_too_and_is_told_nothing_again() -> None:
    """R8."""
    bench, results = build_bench_without_news()
    play_round(bench, results)
    train = bench.get_all(act.Train)[-1]
    assert train.decided
    bench.feed(act.TrainFailed(train.epoch, train.height, "gone", trainer_lost=True))
    assert bench.engine.training.work.is_done
    assert bench.engine.chain.own.take() == ()
