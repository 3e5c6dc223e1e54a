"""Tables behind the roots on record: who was kept from a commitment decides as everybody does (C2, C3, W7)."""

import pytest
from kits.bench import Bench, build_bench
from kits.results import get_commitment

from psyche.client.engine import actions as act
from psyche.client.engine.records import RoundRecord
from psyche.client.engine.tables import ASK_AGAIN_S, FEW_AT_ONCE, MOST_AT_ONCE
from psyche.core.committee.bloom import compute_bloom
from psyche.core.state.gossip import Gossip
from psyche.telemetry import types
from psyche.testing.builders import build_hash, build_identity
from psyche.wire.gossip import decode_gossip, encode_gossip, sign_gossip

LIAR = 3


def build_versions(bench: Bench) -> list[Gossip]:
    """Results that the liar signed for round 0: c, which the witnesses hold, c' and c''."""
    return [bench.build_result(LIAR, 0, data_hash=build_hash("version", number)) for number in range(3)]


def close_with_planted(bench: Bench) -> None:
    """Round 1 closes without a root: witnesses 1 and 2 hold c and, by false positives, seem to hold c' and c''.

    The liar backs c in its bloom, under a root that stands for no list.
    """
    held, second, third = (get_commitment(m) for m in build_versions(bench))
    known = {m: get_commitment(bench.build_result(m, 0)) for m in (1, 2)} | {LIAR: held}
    seed = bench.state.current.seed
    for witness, planted in ((1, second), (2, third)):
        listed = {m: known[m] for m in (witness, LIAR)}
        bloom = compute_bloom(seed, witness, [held, planted])  # in the bits of what else it lists: W4 counts them
        bench.record(witness, held=sum(1 << m for m in listed), commitments=listed, broadcast_bloom=bloom)
    bloom = compute_bloom(seed, LIAR, [held])
    bench.record(
        LIAR, held=1 << LIAR, commitments={LIAR: held}, broadcast_bloom=bloom, results_root=build_hash("garbage")
    )
    bench.pass_times()
    bench.show()


def build_client(*heard: int) -> Bench:
    """A client of round 1 that has heard these of the liar's versions, and what members 1 and 2 did."""
    bench = build_bench(4).start()
    versions = build_versions(bench)
    others = [bench.build_result(m, 0) for m in (1, 2)]
    bench.close()
    for message in (*others, *(versions[number] for number in heard)):
        bench.hear(message)
    close_with_planted(bench)
    return bench


def test_who_was_kept_from_a_commitment_decides_as_those_who_know_it() -> None:
    """Gossip drops a third valid result: what is dropped is not what decides."""
    informed, kept_from_it = build_client(0), build_client(1, 2, 0)
    assert informed.get_decided() == {0: [LIAR]}
    assert kept_from_it.get_decided() == {}, "it cannot know yet, and does not guess"
    asked = kept_from_it.get_all(act.AskTable)
    assert {1, 2} <= {a.member for a in asked}
    for question in asked:
        items = informed.engine.tables.show(question.root)
        kept_from_it.feed(act.TableArrived(question.epoch, question.height, question.member, question.root, items))
    assert kept_from_it.get_decided() == {0: [LIAR]}
    fetched = kept_from_it.get_all(act.FetchPayload)[-1]
    assert fetched.commitment == get_commitment(build_versions(kept_from_it)[0])
    assert decode_gossip(kept_from_it.get_record(0).find_signed(LIAR, fetched.commitment) or b"").member == LIAR


def test_the_table_of_a_witness_that_is_gone_is_asked_of_others_until_one_has_it() -> None:
    """W7: any member that can show a root serves it."""
    informed, kept_from_it = build_client(0), build_client(1, 2, 0)
    nobody = {kept_from_it.state.clients[m].p2p for m in (1, 2)}
    asked: set[tuple[int, bytes]] = set()
    for _ in range(4):
        for question in kept_from_it.get_all(act.AskTable):
            asked.add((question.member, question.key))
            gone = question.key in nobody
            items = None if gone else informed.engine.tables.show(question.root)
            kept_from_it.feed(act.TableArrived(question.epoch, question.height, question.member, question.root, items))
        kept_from_it.forget()
        kept_from_it.wait(ASK_AGAIN_S + 0.1)
        if kept_from_it.engine.chain.is_open is False:
            break
    assert not kept_from_it.engine.chain.is_open
    others = {key for member, key in asked if member == 1}
    assert others == {kept_from_it.state.clients[m].p2p for m in (1, 2, LIAR)}, "itself first, then who else there is"


def test_a_table_whose_entries_are_not_all_signed_is_refused() -> None:
    """The root is right and the signature is not: nobody is said to have signed what it did not."""
    informed, kept_from_it = build_client(0), build_client(1, 2, 0)
    question = next(a for a in kept_from_it.get_all(act.AskTable) if a.member == 1)
    items = informed.engine.tables.show(question.root)
    assert items is not None
    stranger = build_identity(77)
    for place, raw in enumerate(items):
        message = decode_gossip(raw)
        forged = sign_gossip(stranger, message.run_uid, message.epoch, message.height, message.member, message.body)
        changed = (*items[:place], encode_gossip(forged), *items[place + 1 :])
        kept_from_it.feed(act.TableArrived(question.epoch, question.height, question.member, question.root, changed))
    assert [f.what for f in kept_from_it.get_logs(types.Refused)] == [types.Refusable.TABLE] * len(items)
    assert kept_from_it.engine.tables.show(question.root) is None


def build_large(witnesses: int, *, versions: int = 1) -> tuple[Bench, list[dict[int, Gossip]]]:
    """Round 1 of many members, each of which signed so many results of round 0; no two witnesses held the same.

    The client has heard nothing of round 0 but its own result.
    """
    bench = build_bench(witnesses, global_batch_size_start=witnesses, global_batch_size_end=witnesses).start()
    bench.train()
    own = bench.get_announced()[-1]
    signed = [
        {m: bench.build_result(m, 0, data_hash=build_hash(m, number)) for m in range(1, witnesses)} | {0: own}
        for number in range(versions)
    ]
    bench.close()
    return bench, signed


def close_all_different(bench: Bench, signed: list[dict[int, Gossip]]) -> dict[int, tuple[bytes, ...]]:
    """Each witness holds a version of each member, all but one member; their tables, by witness."""
    shown: dict[int, tuple[bytes, ...]] = {}
    count = len(bench.identities)
    for witness in range(1, count):
        listed = {m: signed[(witness + m) % len(signed)][m] for m in range(count) if m != (witness + 1) % count}
        bench.record(
            witness, held=sum(1 << m for m in listed), commitments={m: get_commitment(g) for m, g in listed.items()}
        )
        shown[witness] = tuple(encode_gossip(listed[m]) for m in sorted(listed))
    bench.pass_times()
    bench.show()
    return shown


def test_not_all_tables_are_asked_for_at_once_and_each_answer_asks_for_the_next() -> None:
    bench, signed = build_large(16, versions=2)
    shown = close_all_different(bench, signed)
    bench_asked = bench.get_all(act.AskTable)
    assert len(bench_asked) == MOST_AT_ONCE
    answered = 0
    while bench.engine.chain.is_open:
        question = bench.get_all(act.AskTable)[answered]
        bench.feed(act.TableArrived(question.epoch, question.height, question.member, question.root, None))
        answered += 1
        assert len(bench.get_all(act.AskTable)) <= answered + MOST_AT_ONCE
        if answered == len(shown):
            break
    assert {a.member for a in bench.get_all(act.AskTable)} == set(shown), "who answers nothing holds up nobody else"
    bench.forget()
    bench.wait(ASK_AGAIN_S + 0.1)
    assert len({a.member for a in bench.get_all(act.AskTable)}) == MOST_AT_ONCE


def close_all_alike(bench: Bench, signed: list[dict[int, Gossip]]) -> tuple[bytes, ...]:
    """Every witness but this client holds the same of all members; the list that they all report."""
    listed = {m: get_commitment(g) for m, g in signed[0].items()}
    for witness in range(1, len(bench.identities)):
        bench.record(witness, held=sum(1 << m for m in listed), commitments=listed)
    bench.pass_times()
    bench.show()
    return tuple(encode_gossip(g) for _, g in sorted(signed[0].items()))


def test_where_any_one_table_is_enough_few_are_asked_for_until_nobody_answers() -> None:
    """C1: each may be 150 kB, and one liar that is silent must not cost more than `ASK_AGAIN_S`."""
    bench, signed = build_large(16)
    items = close_all_alike(bench, signed)
    assert len(bench.get_all(act.AskTable)) == FEW_AT_ONCE
    bench.forget()
    bench.wait(ASK_AGAIN_S + 0.1)
    asked = bench.get_all(act.AskTable)
    assert len(asked) == MOST_AT_ONCE
    bench.feed(act.TableArrived(asked[-1].epoch, asked[-1].height, asked[-1].member, asked[-1].root, items))
    assert bench.get_decided() == {0: list(range(16))}


def test_a_root_that_cannot_be_shown_is_not_looked_for_again_until_more_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any peer may ask for it, as often as it likes."""
    looked: list[int] = []
    get_signed = RoundRecord.get_signed
    bench, signed = build_large(16)
    items = close_all_alike(bench, signed)
    root = bench.get_all(act.AskTable)[0].root
    monkeypatch.setattr(RoundRecord, "get_signed", lambda record: looked.append(record.height) or get_signed(record))
    for _ in range(3):
        assert bench.engine.tables.show(root) is None
    assert looked == []
    for message in signed[0].values():
        bench.hear(message)
    assert bench.engine.tables.show(root) == items
    assert looked


def test_a_list_of_many_that_signed_two_results_is_found_in_its_table() -> None:
    """C1: more lists are possible than are tried, and gossip has brought both results of each."""
    bench, signed = build_large(16, versions=2)
    listed = {m: signed[m % 2][m] for m in range(16)}
    both = [version[m] for version in signed for m in range(1, 8)]
    for message in (*both, *(listed[m] for m in range(8, 16))):
        bench.hear(message)
    seed = bench.state.current.seed
    known = {m: get_commitment(g) for m, g in listed.items()}
    for witness in range(1, 16):
        bloom = compute_bloom(seed, witness, [get_commitment(g) for g in both])
        bench.record(witness, held=0xFFFF, commitments=known, broadcast_bloom=bloom)
    bench.pass_times()
    bench.show()
    assert bench.get_decided() == {}
    question = bench.get_all(act.AskTable)[0]
    items = tuple(encode_gossip(g) for _, g in sorted(listed.items()))
    bench.feed(act.TableArrived(question.epoch, question.height, question.member, question.root, items))
    assert bench.get_decided() == {0: list(range(16))}
