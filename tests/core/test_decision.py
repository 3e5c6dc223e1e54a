"""C1 to C6 and W6(b): every client computes the same set, or knows what it lacks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche.core.bits import compute_bits, get_members
from psyche.core.bloom import compute_bloom
from psyche.core.committee import compute_quorum
from psyche.core.decision import (
    Decided,
    Decision,
    DecisionView,
    Undecided,
    Void,
    compute_apply_order,
    compute_followed,
    decide,
    find_contradictors,
    get_deciding_height,
)
from psyche.core.results import compute_results_root
from psyche.core.state import ZERO32, Config, Round, RoundFlag, WitnessRecord
from psyche.core.tally import process_agreement, process_slots
from psyche.testing.builders import build_hash

SEED = build_hash("seed of the deciding round")
EPOCH, HEIGHT = 3, 7


def commit(member: int, version: int = 0) -> bytes:
    return build_hash("commitment", member, version)


def make_record(witness: int, table: Mapping[int, bytes], held: int | None = None) -> WitnessRecord:
    """The record of a witness that holds exactly this table."""
    bits = compute_bits(table) if held is None else held
    return WitnessRecord(
        member=witness,
        held=bits,
        broadcast_bloom=compute_bloom(SEED, witness, table.values()),
        results_root=compute_results_root(EPOCH, HEIGHT, bits, table),
    )


def close(records: list[WitnessRecord], n: int, members: int) -> Round:
    """What the program makes of the records: the deciding round, closed."""
    round_ = Round(seed=SEED, witnesses_expected=n, quorum=compute_quorum(n), members=members)
    for record in records:
        round_.witnesses.append(record)
        process_agreement(round_, record)
    process_slots(round_, Round(members=members))
    return round_


def make_view(
    round_: Round, owed: int, known: Mapping[int, set[bytes]], answered: frozenset[int] = frozenset()
) -> DecisionView:
    return DecisionView(
        epoch=EPOCH,
        attested_height=HEIGHT,
        members=round_.members,
        owed=owed,
        seed=SEED,
        n=round_.witnesses_expected,
        q=round_.quorum,
        agreed_root=round_.agreed_root if round_.flags & RoundFlag.ROOT else None,
        agreed_held=round_.agreed_held,
        records=round_.witnesses,
        known=known,
        answered=answered,
    )


# --- C1


def test_c1_with_a_root_the_set_is_exactly_its_list() -> None:
    table = {m: commit(m) for m in range(4)}
    others = {m: c for m, c in table.items() if m != 3}
    round_ = close([make_record(w, others) for w in range(3)] + [make_record(3, table)], 4, 0b1111)
    known = {m: {c} for m, c in table.items()}
    assert decide(make_view(round_, 0b1111, known)) == Decided(0b0111, others, by_root=True)


def test_c1_who_lacks_an_entry_asks_the_witnesses_with_that_root() -> None:
    table = {m: commit(m) for m in range(4)}
    round_ = close([make_record(w, table) for w in range(3)] + [make_record(3, {})], 4, 0b1111)
    known = {m: {c} for m, c in table.items() if m}
    assert decide(make_view(round_, 0b1111, known)) == Undecided((0, 1, 2), 0b1111, for_root=True)
    assert decide(make_view(round_, 0b1111, known, frozenset({1}))) == Undecided((0, 2), 0b1111, for_root=True)


def test_c1_who_knows_only_the_other_commitment_of_an_equivocator_asks() -> None:
    table = {m: commit(m) for m in range(3)}
    round_ = close([make_record(w, table) for w in range(3)], 3, 0b111)
    known = {0: {commit(0, 1)}, 1: {commit(1)}, 2: {commit(2)}}
    assert isinstance(decide(make_view(round_, 0b111, known)), Undecided)
    known[0].add(commit(0))
    assert decide(make_view(round_, 0b111, known)) == Decided(0b111, table, by_root=True)


def test_c1_a_lying_bloom_of_a_backer_does_not_hide_the_list() -> None:
    table = {m: commit(m) for m in range(4)}
    liar = replace(make_record(0, table), broadcast_bloom=compute_bloom(SEED, 0, [commit(2, 1)]))
    round_ = close([liar, make_record(1, table), make_record(2, table)], 4, 0b1111)
    known = {m: {commit(m), commit(m, 1)} for m in range(4)}
    assert decide(make_view(round_, 0b1111, known)) == Decided(0b1111, table, by_root=True)


def test_c1_members_that_owed_no_payload_are_held_but_not_in_the_list() -> None:
    table = {0: commit(0), 2: commit(2)}
    records = [make_record(w, table, held=0b111) for w in range(3)]
    round_ = close(records, 3, 0b111)
    assert decide(make_view(round_, 0b101, {m: {c} for m, c in table.items()})) == Decided(0b111, table, by_root=True)


# --- C2


def test_c2_without_a_root_each_slot_is_decided_by_q_bits_and_q_blooms() -> None:
    a, b, c = commit(0), commit(1), commit(2)
    tables = [{0: a, 1: b}, {0: a, 1: b, 2: c}, {0: a}, {0: a, 2: c}]
    round_ = close([make_record(w, t) for w, t in enumerate(tables)], 4, 0b111)
    known = {0: {a}, 1: {b}, 2: {c}}
    assert round_.agreed_held == 0b001
    assert decide(make_view(round_, 0b111, known)) == Decided(0b001, {0: a}, by_root=False)


def test_c2_a_bloom_alone_includes_nothing_for_the_bit_is_exact() -> None:
    a, b = commit(0), commit(1)
    records = [replace(make_record(w, {0: a, 1: b}), held=0b01, results_root=build_hash(w)) for w in range(4)]
    round_ = close(records, 4, 0b11)
    assert decide(make_view(round_, 0b11, {0: {a}, 1: {b}})) == Decided(0b01, {0: a}, by_root=False)


def test_c2_liars_that_vote_for_both_do_not_make_the_second_win() -> None:
    a, b = commit(0), commit(0, 1)
    both = replace(make_record(3, {0: a}), broadcast_bloom=compute_bloom(SEED, 3, [a, b]), results_root=build_hash(3))
    records = [replace(make_record(w, {0: a}), results_root=build_hash(w)) for w in range(2)]
    round_ = close([*records, make_record(2, {0: b}), both], 4, 0b1)
    assert decide(make_view(round_, 0b1, {0: {a, b}})) == Decided(0b1, {0: a}, by_root=False)


def test_c2_a_second_commitment_lifted_by_false_positives_loses_against_the_better_backed() -> None:
    a, b = commit(0), commit(0, 1)
    full = [replace(make_record(w, {0: a}), results_root=build_hash(w)) for w in range(4)]
    lifted = [replace(r, broadcast_bloom=compute_bloom(SEED, r.member, [a, b])) for r in full[:3]]
    round_ = close([*lifted, full[3]], 4, 0b1)
    assert decide(make_view(round_, 0b1, {0: {a, b}})) == Decided(0b1, {0: a}, by_root=False)
    assert decide(make_view(round_, 0b1, {0: {b, a}})) == Decided(0b1, {0: a}, by_root=False)


# --- C3


def split_tables() -> Round:
    """Four witnesses; q hold member 0, but under two commitments, two each."""
    a, b = commit(0), commit(0, 1)
    return close([make_record(w, {0: a if w < 2 else b}) for w in range(4)], 4, 0b1)


def test_c3_who_misses_a_commitment_asks_those_that_hold_another() -> None:
    known = {0: {commit(0)}}
    assert decide(make_view(split_tables(), 0b1, known)) == Undecided((2, 3), 0b1, for_root=False)


def test_c3_fewer_than_q_less_f_silent_ones_count_for_nothing() -> None:
    known = {0: {commit(0)}}
    assert decide(make_view(split_tables(), 0b1, known, frozenset({2}))) == Decided(0b1, {}, by_root=False)


def test_c3_an_answer_makes_the_other_commitment_known_and_neither_wins() -> None:
    known = {0: {commit(0), commit(0, 1)}}
    assert decide(make_view(split_tables(), 0b1, known)) == Decided(0b1, {}, by_root=False)


def test_r7_a_slot_without_a_commitment_names_who_can_show_the_other_one() -> None:
    """Six members, one of which signed two results, three holders for each: fewer strangers than C3 asks for."""
    honest = {m: commit(m) for m in range(5)}
    records = [make_record(w, honest | {5: commit(5, w % 2)}) for w in range(6)]
    view = make_view(close(records, 6, 0b111111), 0b111111, {m: {c} for m, c in honest.items()} | {5: {commit(5, 0)}})
    decided = decide(view)
    assert isinstance(decided, Decided)
    assert 5 not in decided.commitments
    assert find_contradictors(view, decided) == (1, 3, 5)
    whole = decide(make_view(close(records[::2], 3, 0b111111), 0b111111, view.known))
    assert isinstance(whole, Decided)
    assert find_contradictors(make_view(close(records[::2], 3, 0b111111), 0b111111, view.known), whole) == ()


def test_c3_who_knows_nothing_at_all_asks_every_holder() -> None:
    assert decide(make_view(split_tables(), 0b1, {})) == Undecided((0, 1, 2, 3), 0b1, for_root=False)


def test_c3_what_is_open_is_named_by_member() -> None:
    tables = [{1: commit(1), 2: commit(2, w // 2)} for w in range(4)]
    round_ = close([make_record(w, table) for w, table in enumerate(tables)], 4, 0b110)
    known = {1: {commit(1)}, 2: {commit(2)}}
    assert decide(make_view(round_, 0b110, known)) == Undecided((2, 3), 0b100, for_root=False)


# --- C4 to C6


def test_c4_no_root_and_no_slot_with_q_is_a_void_round() -> None:
    records = [make_record(w, {w: commit(w)}) for w in range(4)]
    round_ = close(records, 4, 0b1111)
    assert round_.flags & RoundFlag.VOID
    assert decide(make_view(round_, 0b1111, {m: {commit(m)} for m in range(4)})) == Void()
    assert decide(make_view(close([], 4, 0b1111), 0b1111, {})) == Void()


def test_c5_payloads_are_applied_in_ascending_batch_start() -> None:
    assignments = {0: (40, 49), 1: (0, 9), 2: (20, 39), 3: (10, 19)}
    assert compute_apply_order({0: b"", 2: b"", 1: b""}, assignments) == [1, 2, 0]


def test_c6_what_is_missing_never_becomes_a_decision() -> None:
    table = {m: commit(m) for m in range(4)}
    round_ = close([make_record(w, table) for w in range(4)], 4, 0b1111)
    assert isinstance(decide(make_view(round_, 0b1111, {})), Undecided)


@pytest.mark.parametrize(("overlap", "height"), [(True, 8), (False, 7)])
def test_the_deciding_round_follows_with_overlap_and_is_the_same_without(overlap: bool, height: int) -> None:
    assert get_deciding_height(Config(overlap=overlap), 7) == height


# --- following a list on record (W6)

TABLE = {m: commit(m) for m in range(4)}


def follow(records: list[WitnessRecord], held: int, recent: int) -> int | None:
    return compute_followed(records, EPOCH, HEIGHT, held, TABLE, recent)


def test_w6_a_witness_reports_its_own_list_when_that_is_on_record() -> None:
    smaller = {m: c for m, c in TABLE.items() if m < 3}
    records = [make_record(0, smaller), make_record(1, smaller), make_record(2, TABLE)]
    assert follow(records, 0b1111, recent=0b1111) == 0b1111


def test_w6_it_follows_a_list_that_leaves_out_only_what_came_just_now() -> None:
    records = [make_record(0, {m: c for m, c in TABLE.items() if m < 3})]
    assert follow(records, 0b1111, recent=0b1000) == 0b0111
    assert follow(records, 0b1111, recent=0b0100) is None


def test_w6_it_never_follows_what_it_cannot_verify() -> None:
    assert follow([make_record(0, TABLE)], 0b0111, recent=0b1111) is None
    forged = replace(make_record(0, {0: commit(0)}), results_root=build_hash("forged"))
    assert follow([forged], 0b1111, recent=0b1111) is None
    assert follow([], 0b1111, recent=0b1111) is None


def test_w6_the_best_backed_list_is_followed() -> None:
    few, many = {0: commit(0)}, {0: commit(0), 1: commit(1)}
    records = [make_record(0, few), make_record(1, many), make_record(2, many)]
    assert follow(records, 0b1111, recent=0b1111) == 0b0011


# --- the property: whatever liars do, all who can decide compute the same set


@dataclass
class Case:
    """A round to decide: n witnesses, some of them liars, trainers of which some sign two results."""

    n: int
    trainers: int
    liars: set[int]
    tables: dict[int, dict[int, bytes]]  # of every witness: what its signed table shows
    records: list[WitnessRecord] = field(default_factory=list)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n = draw(st.integers(1, 10))
    trainers = draw(st.integers(1, 5))
    liars = set(draw(st.lists(st.integers(0, n - 1), max_size=(n - 1) // 3, unique=True)))
    equivocators = draw(st.sets(st.integers(0, trainers - 1), max_size=2))
    case = Case(n, trainers, liars, {})
    for witness in draw(st.permutations(range(n))):
        if draw(st.integers(0, 9)) == 0:
            continue  # silent
        make = draw_lie if witness in liars else draw_honest
        case.records.append(make(draw, case, witness, equivocators))
    return case


def draw_honest(draw: st.DrawFn, case: Case, witness: int, equivocators: set[int]) -> WitnessRecord:
    table = {}
    for member in range(case.trainers):
        # 0, 1: one of two versions; 2: nothing, or both, which is the same to an honest witness (W1)
        version = draw(st.sampled_from([0, 0, 1, 1, 2] if member in equivocators else [0, 0, 0, 0, 2]))
        if version < 2:
            table[member] = commit(member, version)
    case.tables[witness] = table
    return make_record(witness, table)


def draw_lie(draw: st.DrawFn, case: Case, witness: int, equivocators: set[int]) -> WitnessRecord:
    everything = [commit(m, v) for m in range(case.trainers) for v in ((0, 1) if m in equivocators else (0,))]
    table = {m: commit(m, draw(st.integers(0, 1)) if m in equivocators else 0) for m in range(case.trainers)}
    case.tables[witness] = table
    if case.records and draw(st.booleans()):  # copies another's root and bits
        other = draw(st.sampled_from(case.records))
        bloom = compute_bloom(SEED, witness, draw(st.lists(st.sampled_from(everything), max_size=4)))
        return replace(other, member=witness, broadcast_bloom=bloom)
    return WitnessRecord(
        member=witness,
        held=draw(st.integers(0, (1 << case.trainers) - 1)),
        broadcast_bloom=compute_bloom(SEED, witness, draw(st.lists(st.sampled_from(everything), max_size=8))),
        results_root=build_hash("invented", witness),
    )


def decide_by_asking(
    case: Case, round_: Round, known: dict[int, set[bytes]], answers: Callable[[int], bool]
) -> Decision:
    """What a client comes to that asks as it is told to; `answers` says whether a witness replies."""
    answered: frozenset[int] = frozenset()
    refused: set[int] = set()
    while True:
        decision = decide(make_view(round_, (1 << case.trainers) - 1, known, answered))
        if not isinstance(decision, Undecided):
            return decision
        open_ = [w for w in decision.ask if w not in refused]
        if not open_:
            return decision
        witness = open_[0]
        if not answers(witness):
            refused.add(witness)
            continue
        answered |= {witness}
        for member, commitment in case.tables[witness].items():
            known.setdefault(member, set()).add(commitment)


@settings(max_examples=150, deadline=None)
@given(case=cases(), data=st.data())
def test_c1_to_c4_all_clients_that_can_decide_compute_the_same_set(case: Case, data: st.DataObject) -> None:
    members = (1 << case.trainers) - 1
    round_ = close(case.records, case.n, members)
    decisions = []
    for _ in range(4):
        known = {
            m: {c for v in (0, 1) for c in [commit(m, v)] if any(c in t.values() for t in case.tables.values())}
            for m in range(case.trainers)
        }
        known = {m: {c for c in sorted(cs) if data.draw(st.booleans())} for m, cs in known.items()}
        reachable = {w for w in case.tables if data.draw(st.integers(0, 3))}
        decisions.append(decide_by_asking(case, round_, known, reachable.__contains__))
    sets = {None if isinstance(d, Void) else tuple(sorted(d.commitments.items()))
            for d in decisions if not isinstance(d, Undecided)}  # fmt: skip
    assert len(sets) <= 1
    void = bool(round_.flags & RoundFlag.VOID)
    assert all(isinstance(d, Void) == void for d in decisions if not isinstance(d, Undecided))


@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_c3_whoever_reaches_the_honest_witnesses_decides(case: Case) -> None:
    round_ = close(case.records, case.n, (1 << case.trainers) - 1)
    decision = decide_by_asking(case, round_, {}, lambda witness: witness not in case.liars)
    assert not isinstance(decision, Undecided)
    if isinstance(decision, Decided):
        assert all(decision.held >> m & 1 for m in decision.commitments)
        assert decision.held == round_.agreed_held
        assert get_members(decision.held) or decision.held == 0


def test_at_most_one_list_can_win_whatever_the_order() -> None:
    one, two = {0: commit(0)}, {1: commit(1)}
    for n in range(1, 33):
        quorum = compute_quorum(n)
        records = [make_record(w, one if w < quorum else two) for w in range(n)]
        round_ = close(records[::-1], n, 0b11)
        assert round_.agreed_held == 0b01
        assert round_.agreed_root not in (ZERO32, records[-1].results_root) or quorum == n


# --- what is easily mistaken


def test_c1_a_witness_with_another_root_over_the_same_list_is_not_asked() -> None:
    table = {m: commit(m) for m in range(4)}
    other = replace(make_record(3, table), results_root=build_hash("another"))
    round_ = close([*(make_record(w, table) for w in range(3)), other], 4, 0b1111)
    assert decide(make_view(round_, 0b1111, {})) == Undecided((0, 1, 2), 0b1111, for_root=True)


def test_c1_only_members_that_owed_a_payload_are_open() -> None:
    table = {0: commit(0), 2: commit(2)}
    round_ = close([make_record(w, table, held=0b111) for w in range(3)], 3, 0b111)
    assert decide(make_view(round_, 0b101, {})) == Undecided((0, 1, 2), 0b101, for_root=True)


def test_c1_of_many_equivocators_what_most_backers_hold_is_tried_first() -> None:
    """512 lists are possible, the last by bytes is right: more than are tried."""
    members = range(9)
    table = {m: max(commit(m), commit(m, 1)) for m in members}
    round_ = close([make_record(w, table) for w in range(9)], 9, 0b111111111)
    known = {m: {commit(m), commit(m, 1)} for m in members}
    assert decide(make_view(round_, 0b111111111, known)) == Decided(0b111111111, table, by_root=True)


def test_c2_the_bloom_of_a_witness_without_the_bit_does_not_count() -> None:
    a = commit(0)
    records = [replace(make_record(w, {0: a}), results_root=build_hash(w)) for w in range(4)]
    records[2] = replace(records[2], broadcast_bloom=compute_bloom(SEED, 2, []))
    records[3] = replace(records[3], held=0)
    round_ = close(records, 4, 0b1)
    assert round_.agreed_held == 0b1, "three bits, but only two of these blooms"
    assert decide(make_view(round_, 0b1, {0: {a}})) == Decided(0b1, {}, by_root=False)


def test_c3_a_member_whose_slot_has_no_q_is_not_open() -> None:
    tables = [{0: commit(0), 1: commit(1)}, {0: commit(0), 1: commit(1)}, {0: commit(0)}, {0: commit(0), 2: commit(2)}]
    round_ = close([make_record(w, t) for w, t in enumerate(tables)], 4, 0b111)
    assert round_.agreed_held == 0b001
    assert decide(make_view(round_, 0b111, {0: {commit(0)}})) == Decided(0b001, {0: commit(0)}, by_root=False)


def test_r7_who_does_not_hold_a_result_of_the_set_contradicts_nobody() -> None:
    """Of what is not in the set nothing is shown, and who lacks a result's bit has no other one to show."""
    one, two = {0: commit(0), 1: commit(1)}, {0: commit(0), 1: commit(1, 1)}
    records = [make_record(w, t) for w, t in enumerate([one, one, two, two, {0: commit(0)}, one])]
    late = {0: commit(0), 1: commit(1), 2: commit(2, 1)}
    records[5] = make_record(5, late)
    known = {0: {commit(0)}, 1: {commit(1)}, 2: {commit(2)}}
    view = make_view(close(records, 6, 0b111), 0b111, known)
    decided = decide(view)
    assert decided == Decided(0b011, {0: commit(0)}, by_root=False)
    assert find_contradictors(view, decided) == (2, 3)
