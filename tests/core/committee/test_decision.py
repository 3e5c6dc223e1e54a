"""C1 to C6 and W6(b): every client computes the same set, or knows what it lacks."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest
from lying_witnesses import EPOCH, HEIGHT, SEED, build_record, commit

from psyche.core.committee.bloom import compute_bloom
from psyche.core.committee.decision import (
    Decided,
    Decision,
    DecisionView,
    Undecided,
    Void,
    compute_apply_order,
    decide,
    find_contradictors,
    find_table,
    get_deciding_height,
)
from psyche.core.committee.elections import compute_quorum
from psyche.core.rules.tally import process_agreement, process_slots
from psyche.core.state.bits import compute_bits
from psyche.core.state.state import Config, Round, RoundFlag, WitnessRecord
from psyche.testing.builders import build_hash


def close(records: list[WitnessRecord], n: int, members: int) -> Round:
    """What the program makes of the records: the deciding round, closed."""
    round_ = Round(seed=SEED, witnesses_expected=n, quorum=compute_quorum(n), members=members)
    for record in records:
        round_.witnesses.append(record)
        process_agreement(round_, record)
    process_slots(round_, Round(members=members))
    return round_


def make_view(
    round_: Round, owed: int, known: Mapping[int, set[bytes]], shown: Mapping[int, Mapping[int, bytes]] | None = None
) -> DecisionView:
    """What a client can show: the tables in `shown`, and those that known commitments make up."""
    tables = dict(shown or {})
    for record in round_.witnesses:
        table = find_table(record, owed, SEED, EPOCH, HEIGHT, known)
        if table is not None:
            tables.setdefault(record.member, table)
    return DecisionView(
        members=round_.members,
        owed=owed,
        seed=SEED,
        n=round_.witnesses_expected,
        q=round_.quorum,
        agreed_root=round_.agreed_root if round_.flags & RoundFlag.ROOT else None,
        agreed_held=round_.agreed_held,
        records=round_.witnesses,
        tables=tables,
    )


# --- C1


def test_c1_with_a_root_the_set_is_exactly_its_list() -> None:
    table = {m: commit(m) for m in range(4)}
    others = {m: c for m, c in table.items() if m != 3}
    round_ = close([build_record(w, others) for w in range(3)] + [build_record(3, table)], 4, 0b1111)
    known = {m: {c} for m, c in table.items()}
    assert decide(make_view(round_, 0b1111, known)) == Decided(0b0111, others)


def test_c1_who_lacks_an_entry_asks_the_witnesses_with_that_root() -> None:
    table = {m: commit(m) for m in range(4)}
    round_ = close([build_record(w, table) for w in range(3)] + [build_record(3, {})], 4, 0b1111)
    known = {m: {c} for m, c in table.items() if m}
    assert decide(make_view(round_, 0b1111, known)) == Undecided((0, 1, 2), is_one_enough=True)
    assert decide(make_view(round_, 0b1111, known, {1: table})) == Decided(0b1111, table)


def test_c1_a_lying_bloom_of_a_backer_does_not_hide_the_list() -> None:
    table = {m: commit(m) for m in range(4)}
    liar = replace(build_record(0, table), broadcast_bloom=compute_bloom(SEED, 0, [commit(2, 1)]))
    round_ = close([liar, build_record(1, table), build_record(2, table)], 4, 0b1111)
    known = {m: {commit(m), commit(m, 1)} for m in range(4)}
    assert decide(make_view(round_, 0b1111, known)) == Decided(0b1111, table)


def test_c1_members_that_owed_no_payload_are_held_but_not_in_the_list() -> None:
    table = {0: commit(0), 2: commit(2)}
    records = [build_record(w, table, held=0b111) for w in range(3)]
    round_ = close(records, 3, 0b111)
    assert decide(make_view(round_, 0b101, {m: {c} for m, c in table.items()})) == Decided(0b111, table)


# --- C2


def test_c2_without_a_root_each_slot_is_decided_by_q_bits_and_q_blooms() -> None:
    a, b, c = commit(0), commit(1), commit(2)
    tables = [{0: a, 1: b}, {0: a, 1: b, 2: c}, {0: a}, {0: a, 2: c}]
    round_ = close([build_record(w, t) for w, t in enumerate(tables)], 4, 0b111)
    known = {0: {a}, 1: {b}, 2: {c}}
    assert round_.agreed_held == 0b001
    assert decide(make_view(round_, 0b111, known)) == Decided(0b001, {0: a})


def test_c2_a_bloom_alone_includes_nothing_for_the_bit_is_exact() -> None:
    a, b = commit(0), commit(1)
    both = compute_bloom(SEED, 0, [a, b])
    records = [replace(build_record(w, {0: a, 2 + w: commit(2 + w)}), broadcast_bloom=both) for w in range(4)]
    records = [replace(r, broadcast_bloom=compute_bloom(SEED, r.member, [a, b])) for r in records]
    round_ = close(records, 4, 0b111111)
    known = {0: {a}, 1: {b}} | {2 + w: {commit(2 + w)} for w in range(4)}
    assert decide(make_view(round_, 0b111111, known)) == Decided(0b01, {0: a})


Votes = Sequence[tuple[Collection[bytes], bytes | None]]  # of each holder: its bloom, and what its table lists


def vote(bloom: Collection[bytes], listed: bytes | None, witness: int) -> tuple[WitnessRecord, dict[int, bytes] | None]:
    """A holder of member 0: what its bloom has, and what its table lists; None where nobody has the table."""
    record = build_record(witness, {0: commit(0)})
    bloom_ = compute_bloom(SEED, witness, bloom)
    record = replace(record, broadcast_bloom=bloom_, results_root=build_hash("root", witness))
    return record, None if listed is None else {0: listed}


def decide_votes(votes: Votes, n: int) -> Decision:
    """The decision about member 0, of which these holders report, each under another root."""
    made = [vote(bloom, listed, witness) for witness, (bloom, listed) in enumerate(votes)]
    shown = {record.member: table for record, table in made if table is not None}
    return decide(make_view(close([record for record, _ in made], n, 0b1), 0b1, {}, shown))


A, B = commit(0), commit(0, 1)


def test_c2_liars_that_vote_for_both_do_not_make_the_second_win() -> None:
    decision = decide_votes([([A], A), ([A], A), ([B], B), ([A, B], None)], 4)
    assert decision == Decided(0b1, {0: A})


def test_c2_votes_without_tables_include_nobody() -> None:
    """Seven of ten blooms have B, but only two witnesses held it: fewer than E, so the rest are liars or chance."""
    votes: Votes = [([A, B], A)] * 5 + [([B], B)] * 2 + [([A], A)] * 3
    assert decide_votes(votes, 10) == Decided(0b1, {0: A})


def test_c2_tables_without_votes_include_nobody() -> None:
    votes: Votes = [([A], A)] * 2 + [([], A)] * 2
    assert decide_votes(votes, 4) == Decided(0b1, {}), "three of four blooms are needed"
    assert decide_votes([([], A)] * 4, 4) == Decided(0b1, {}), "not one bloom has it"


def test_c2_a_table_counts_only_for_what_is_in_its_witnesss_bloom() -> None:
    """Four blooms of seven would be enough tables, but not every table is vouched for; quorum 5, E 3."""
    votes: Votes = [([A], A)] * 2 + [([], A)] * 2 + [([A], B)] * 3
    assert decide_votes(votes, 7) == Decided(0b1, {})
    assert decide_votes([*votes[:2], ([A], A), *votes[3:]], 7) == Decided(0b1, {0: A})


def test_c2_of_two_that_qualify_the_one_with_more_votes_is_in_then_the_smaller() -> None:
    """n 32, q 22, E 12: by false positives both can have q votes, and E tables each."""
    votes: Votes = [([A, B], A)] * 16 + [([A, B], B)] * 16
    assert decide_votes(votes, 32) == Decided(0b1, {0: min(A, B)})
    for fewer, more in ((A, B), (B, A)):
        last = [([more], more), *votes[1:16]] if more == A else [([more], more), *votes[17:]]
        rest = votes[16:] if more == A else votes[:16]
        assert decide_votes([*last, *rest], 32) == Decided(0b1, {0: more}), fewer


# --- C3


def split_tables() -> Round:
    """Four witnesses; q hold member 0, but under two commitments, two each."""
    a, b = commit(0), commit(0, 1)
    return close([build_record(w, {0: a if w < 2 else b}) for w in range(4)], 4, 0b1)


def test_c3_who_misses_a_commitment_asks_those_whose_tables_it_cannot_show() -> None:
    known = {0: {commit(0)}}
    assert decide(make_view(split_tables(), 0b1, known)) == Undecided((2, 3), is_one_enough=False)


def test_c3_fewer_than_e_tables_that_nobody_shows_count_for_nothing() -> None:
    """E is 2 of four: the table of 3 may be hidden."""
    shown = {0: {0: A}, 1: {0: A}, 2: {0: B}}
    assert decide(make_view(split_tables(), 0b1, {}, shown)) == Decided(0b1, {})
    assert decide_votes([([A], A), ([A], A), ([A], None)], 4) == Decided(0b1, {0: A})


def test_c3_a_hidden_table_that_would_tell_leaves_its_member_open() -> None:
    """B has three of four blooms; one table lists it, and the hidden one may: only that is asked for."""
    assert decide_votes([([A, B], A), ([B], B), ([A], A), ([B], None)], 4) == Undecided((3,), is_one_enough=False)
    decision = decide_votes([([A, B], A), ([B], B), ([A], A), ([B], B)], 4)
    assert decision == Decided(0b1, {0: B}), "shown, it decides"


def test_c3_what_is_open_but_cannot_win_is_not_waited_for() -> None:
    """A is in for certain with four votes; B has three at the most."""
    decision = decide_votes([([A, B], A), ([A, B], B), ([A], A), ([A, B], None)], 4)
    assert decision == Decided(0b1, {0: A})


def test_r7_a_slot_without_a_commitment_names_who_can_show_the_other_one() -> None:
    """Six members, one of which signed two results: of six tables fewer lack than would leave anybody open."""
    honest = {m: commit(m) for m in range(5)}
    records = [build_record(w, honest | {5: commit(5, int(w in {1, 3}))}) for w in range(6)]
    known = {m: {c} for m, c in honest.items()} | {5: {commit(5, 0)}}
    view = make_view(close(records, 6, 0b111111), 0b111111, known)
    decided = decide(view)
    assert isinstance(decided, Decided)
    assert decided.commitments == honest
    assert find_contradictors(view, decided, known) == (1, 3)
    assert find_contradictors(view, decided, known | {5: {commit(5), commit(5, 1)}}) == (), "both are known"
    even = [*records[::2], build_record(6, honest | {5: commit(5, 0)})]
    view = make_view(close(even, 4, 0b111111), 0b111111, known)
    whole = decide(view)
    assert isinstance(whole, Decided)
    assert find_contradictors(view, whole, known) == ()


def test_c3_who_knows_nothing_at_all_asks_every_holder() -> None:
    assert decide(make_view(split_tables(), 0b1, {})) == Undecided((0, 1, 2, 3), is_one_enough=False)


def test_c3_only_holders_of_what_is_open_are_asked() -> None:
    tables = [{1: commit(1)}, {1: commit(1), 2: commit(2)}, {1: commit(1), 2: commit(2, 1)}, {2: commit(2, 1)}]
    round_ = close([build_record(w, table) for w, table in enumerate(tables)], 4, 0b110)
    known = {1: {commit(1)}, 2: {commit(2)}}
    assert decide(make_view(round_, 0b110, known)) == Undecided((2, 3), is_one_enough=False)


# --- C4 to C6


def test_c4_no_root_and_no_slot_with_q_is_a_void_round() -> None:
    records = [build_record(w, {w: commit(w)}) for w in range(4)]
    round_ = close(records, 4, 0b1111)
    assert round_.flags & RoundFlag.VOID
    assert decide(make_view(round_, 0b1111, {m: {commit(m)} for m in range(4)})) == Void()
    assert decide(make_view(close([], 4, 0b1111), 0b1111, {})) == Void()


def test_c5_payloads_are_applied_in_ascending_batch_start() -> None:
    assert compute_apply_order({0: 40, 2: 20, 1: 0}) == [1, 2, 0]


def test_c6_what_is_missing_never_becomes_a_decision() -> None:
    table = {m: commit(m) for m in range(4)}
    round_ = close([build_record(w, table) for w in range(4)], 4, 0b1111)
    assert isinstance(decide(make_view(round_, 0b1111, {})), Undecided)


@pytest.mark.parametrize(("overlap", "height"), [(True, 8), (False, 7)])
def test_the_deciding_round_follows_with_overlap_and_is_the_same_without(overlap: bool, height: int) -> None:
    assert get_deciding_height(Config(overlap=overlap), 7) == height


# --- what is easily mistaken


def test_c1_a_witness_with_another_root_over_the_same_list_is_not_asked() -> None:
    table = {m: commit(m) for m in range(4)}
    other = replace(build_record(3, table), results_root=build_hash("another"))
    round_ = close([*(build_record(w, table) for w in range(3)), other], 4, 0b1111)
    assert decide(make_view(round_, 0b1111, {})) == Undecided((0, 1, 2), is_one_enough=True)


def test_c1_of_many_equivocators_what_most_backers_hold_is_tried_first() -> None:
    """512 lists are possible, the last by bytes is right: more than are tried."""
    members = range(9)
    table = {m: max(commit(m), commit(m, 1)) for m in members}
    round_ = close([build_record(w, table) for w in range(9)], 9, 0b111111111)
    known = {m: {commit(m), commit(m, 1)} for m in members}
    assert decide(make_view(round_, 0b111111111, known)) == Decided(0b111111111, table)


def test_c2_the_bloom_of_a_witness_without_the_bit_does_not_count() -> None:
    a = commit(0)
    records = [replace(build_record(w, {0: a}), results_root=build_hash(w)) for w in range(4)]
    records[2] = replace(records[2], broadcast_bloom=compute_bloom(SEED, 2, []))
    records[3] = replace(records[3], held=0)
    round_ = close(records, 4, 0b1)
    assert round_.agreed_held == 0b1, "three bits, but only two of these blooms"
    shown = {w: {0: a} for w in range(3)}
    assert decide(make_view(round_, 0b1, {}, shown)) == Decided(0b1, {})


def test_c3_a_member_whose_slot_has_no_q_is_not_open() -> None:
    tables = [{0: commit(0), 1: commit(1)}, {0: commit(0), 1: commit(1)}, {0: commit(0)}, {0: commit(0), 2: commit(2)}]
    round_ = close([build_record(w, t) for w, t in enumerate(tables)], 4, 0b111)
    assert round_.agreed_held == 0b001
    shown = dict(enumerate(tables))
    assert decide(make_view(round_, 0b111, {}, shown)) == Decided(0b001, {0: commit(0)})


def test_r7_who_does_not_hold_a_result_of_the_set_contradicts_nobody() -> None:
    """Of what is not in the set nothing is shown, and who lacks a result's bit has no other one to show."""
    one, two = {0: commit(0), 1: commit(1)}, {0: commit(0), 1: commit(1, 1)}
    late = one | {2: commit(2, 1)}
    records = [build_record(w, t) for w, t in enumerate([one] * 5 + [two] * 2 + [{0: commit(0)}, late])]
    known = {0: {commit(0)}, 1: {commit(1)}, 2: {commit(2)}}
    view = make_view(close(records, 9, 0b111), 0b111, known)
    decided = decide(view)
    assert isinstance(decided, Decided)
    assert decided.commitments == {0: commit(0)}
    assert find_contradictors(view, decided, known) == (5, 6)


def test_r7_of_a_member_of_the_set_nobody_is_asked_for_its_other_result() -> None:
    """A is in by three of four, known to be signed; that a hidden table lists B changes nothing that is applied."""
    made = [vote([A], A, witness) for witness in range(3)] + [vote([B], None, 3)]
    shown = {record.member: table for record, table in made if table is not None}
    view = make_view(close([record for record, _ in made], 4, 0b1), 0b1, {}, shown)
    decided = decide(view)
    assert decided == Decided(0b1, {0: A})
    assert find_contradictors(view, decided, {0: {A}}) == ()


def test_r7_who_knows_no_result_of_a_member_asks_nobody_to_contradict_it() -> None:
    view = make_view(split_tables(), 0b1, {}, {0: {0: A}, 2: {0: B}, 3: {0: B}})
    decided = decide(view)
    assert decided == Decided(0b1, {})
    assert find_contradictors(view, decided, {}) == ()
    assert find_contradictors(view, decided, {0: {B}}) == (1,), "with one of the two known, the hidden table shows more"


def test_r7_a_witness_that_did_not_hold_the_member_has_nothing_to_show_of_it() -> None:
    """Four of five hold it, two under each commitment; the hidden tables are one holder's and the fifth witness's."""
    records = [build_record(w, {0: A if w < 2 else B}) for w in range(4)]
    records.append(replace(build_record(4, {}), results_root=build_hash("a list that nobody shows")))
    view = make_view(close(records, 5, 0b1), 0b1, {}, {0: {0: A}, 1: {0: A}, 2: {0: B}})
    decided = decide(view)
    assert decided == Decided(0b1, {})
    assert find_contradictors(view, decided, {0: {A}}) == (3,)


def test_c3_hidden_tables_of_a_member_whose_slot_has_no_q_leave_nothing_open() -> None:
    """Of ten, E is 4: so many hidden witnesses hold member 1, but seven would have to; member 0 has seven."""
    tables = [{0: A}] * 6 + [{0: A, 1: commit(1)}] + [{1: commit(1)}] * 3
    round_ = close([build_record(w, table) for w, table in enumerate(tables)], 10, 0b11)
    round_.flags &= ~RoundFlag.ROOT
    shown = dict(enumerate(tables[:6]))
    assert decide(make_view(round_, 0b11, {}, shown)) == Decided(0b01, {0: A})


def test_c2_a_member_that_owed_nothing_is_held_and_has_no_commitment() -> None:
    records = [replace(build_record(w, {0: A}, held=0b11), results_root=build_hash("root", w)) for w in range(4)]
    round_ = close(records, 4, 0b11)
    assert decide(make_view(round_, 0b01, {}, {w: {0: A} for w in range(4)})) == Decided(0b11, {0: A})


@pytest.mark.parametrize(("versions", "found"), [((2, 2, 2), True), ((3, 3), False)])
def test_w7_eight_lists_are_tried_for_a_root(versions: tuple[int, ...], found: bool) -> None:
    """What several equivocators leave open is asked for instead: here the last of 8, and of 9, is right."""
    known = {m: {commit(m, v) for v in range(count)} for m, count in enumerate(versions)}
    table = {m: max(signed) for m, signed in known.items()}
    bloom = compute_bloom(SEED, 0, [c for signed in known.values() for c in signed])
    record = replace(build_record(0, table), broadcast_bloom=bloom)
    owed = compute_bits(table)
    assert find_table(record, owed, SEED, EPOCH, HEIGHT, known) == (table if found else None)
