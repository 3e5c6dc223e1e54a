"""C2, C3: whoever decides, decides alike, at every size; and nobody waits for a liar where each signed one result."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.tier import draw
from lying_witnesses import SEED, Case, Client, build_case, build_client, commit

from psyche.core.committee.bloom import is_in_bloom
from psyche.core.committee.decision import Decided, Decision, Undecided, Void
from psyche.core.committee.elections import compute_liar_bound, compute_quorum
from psyche.core.state.bits import compute_bits
from psyche.testing.builders import build_hash

EVERY_N = range(1, 33)
FULL_SIZE = 256


def get_set(decision: Decision) -> tuple[tuple[int, bytes], ...]:
    return tuple(sorted(decision.commitments.items())) if isinstance(decision, Decided) else ()


def check_alike(decisions: list[Decision]) -> int:
    """How many decided; all of them the same."""
    made = [d for d in decisions if not isinstance(d, Undecided)]
    assert len({(type(d), get_set(d)) for d in made}) <= 1
    return len(made)


@pytest.mark.whole
@settings(max_examples=draw(400), deadline=None)
@given(n=st.integers(1, 32), members=st.integers(1, 6), number=st.integers(0, 2**32))
def test_whoever_decides_decides_alike(n: int, members: int, number: int) -> None:
    """Liars up to f, any number of results of one member, any false positives, any part of it all known."""
    rng = random.Random(number)
    case = build_case(rng, n, members, equivocators=rng.randint(0, min(2, members)))
    check_alike([build_client(rng, case, reaches_honest=rng.random() < 0.7).decide() for _ in range(4)])


@settings(max_examples=draw(200), deadline=None)
@given(n=st.integers(1, 32), members=st.integers(1, 6), number=st.integers(0, 2**32))
def test_nobody_waits_for_a_liar_where_every_member_signed_one_result(n: int, members: int, number: int) -> None:
    rng = random.Random(number)
    case = build_case(rng, n, members, equivocators=0)
    decisions = [build_client(rng, case, reaches_honest=True).decide() for _ in range(3)]
    assert check_alike(decisions) == 3


@pytest.mark.parametrize("n", [4, 7, 16, 31, 32])
def test_whoever_decides_decides_alike_at_full_size(n: int) -> None:
    """256 members, of whom eight signed several results."""
    rng = random.Random(n)
    decided = 0
    for _ in range(3):
        case = build_case(rng, n, FULL_SIZE, equivocators=8)
        decided += check_alike([build_client(rng, case, reaches_honest=True).decide() for _ in range(3)])
    assert decided, "not all of it was left open"


@pytest.mark.parametrize("n", [5, 32])
def test_nobody_waits_for_a_liar_at_full_size(n: int) -> None:
    rng = random.Random(n)
    case = build_case(rng, n, FULL_SIZE, equivocators=0)
    assert check_alike([build_client(rng, case, reaches_honest=True).decide() for _ in range(3)]) == 3


def build_later_signature(second: bytes) -> Case:
    """32 witnesses, 256 members, 10 liars; c of member 0 is held by 12 honest ones, and all liars' blooms have c, c'.

    The 22 honest lists differ, so that no root is agreed.
    """
    case = Case(32, FULL_SIZE, honest=set(range(10, 32)))
    for liar in range(10):
        case.add(liar, 1, [commit(0), second], None)
    for witness in range(10, 32):
        out = {1 + witness} | ({0} if witness >= 22 else set())
        listed = {m: commit(m) for m in range(FULL_SIZE) if m not in out}
        case.add(witness, compute_bits(listed), listed.values(), listed)
    return case


def test_a_later_signature_with_one_false_positive_takes_nobody_out() -> None:
    """Of the later signatures that a liar can try, those that 12 blooms of 256 commitments take for their own."""
    tried = (build_hash("later", number) for number in range(400))
    holders = build_later_signature(commit(0)).records[10:22]
    fitting = [c for c in tried if any(is_in_bloom(r.broadcast_bloom, SEED, r.member, c) for r in holders)]
    assert len(fitting) > 10, "one in eleven"
    for second in fitting[:6]:
        case = build_later_signature(second)
        known = {m: {commit(m)} for m in range(FULL_SIZE)}
        informed = Client(case, dict(known), set())
        kept_from_it = Client(case, known | {0: {second}}, case.honest)
        decisions = [informed.decide(), kept_from_it.decide()]
        assert check_alike(decisions) == 2
        assert (0, commit(0)) in get_set(decisions[0])


@pytest.mark.parametrize("n", [4, 5, 7, 10])
def test_two_false_positives_take_nobody_out_of_a_small_committee(n: int) -> None:
    """256 members: q holders of c, liars among them; two honest blooms seem to hold what this client knows instead."""
    q, f = compute_quorum(n), compute_liar_bound(n)
    second, third = commit(0, 1), commit(0, 2)
    case = Case(n, FULL_SIZE, honest=set(range(f, n)))
    for liar in range(f):
        case.add(liar, 1, [commit(0), second], None)
    for witness in range(f, n):
        listed = {m: commit(m) for m in range(FULL_SIZE) if m != 1 + witness and (m or witness < q)}
        planted = {f: [second], f + 1: [third]}.get(witness, [])
        case.add(witness, compute_bits(listed), [*listed.values(), *planted], listed)
    known = {m: {commit(m)} for m in range(FULL_SIZE)}
    clients = [Client(case, known | {0: set(own)}, case.honest)
               for own in ([commit(0)], [second], [second, third], [third], [])]  # fmt: skip
    decisions = [client.decide() for client in clients]
    assert check_alike(decisions) == len(clients)
    assert (0, commit(0)) in get_set(decisions[0])


def decide_beside_liars(n: int, liars: int, positives: int) -> Decision:
    """E - 1 honest tables list c, the other honest ones another result, `positives` of them with c in their blooms.

    All liars have c in their blooms; the first hides its table, the others show one that lists the other result.
    """
    case = Case(n, 1, honest=set(range(liars, n)))
    least = compute_quorum(n) - compute_liar_bound(n)
    for liar in range(liars):
        case.add(liar, 1, [commit(0)], {0: commit(0, 1)} if liar else None)
    for number, witness in enumerate(range(liars, n)):
        version = 0 if number < least - 1 else 1
        fooled = [commit(0)] if version and number < least - 1 + positives else []
        case.add(witness, 1, [commit(0, version), *fooled], {0: commit(0, version)})
    return Client(case, {0: {commit(0)}}, set(range(min(liars, 1), n))).decide()


@pytest.mark.parametrize(("n", "liars"), [(n, liars) for n in EVERY_N for liars in range(compute_liar_bound(n) + 1)])
def test_liars_alone_leave_nothing_open_and_with_false_positives_and_an_equivocator_they_can(
    n: int, liars: int
) -> None:
    """The limit, for every n and every number of liars: f + 1 - L false positives, and one table that is hidden."""
    needed = compute_liar_bound(n) + 1 - liars
    assert not isinstance(decide_beside_liars(n, liars, needed - 1), Undecided)
    decision = decide_beside_liars(n, liars, needed)
    assert isinstance(decision, Undecided) is (liars > 0)
    if isinstance(decision, Undecided):
        assert decision.ask == (0,), "the hidden table, and nobody else's"


def test_a_round_that_nobody_reports_is_void_for_all() -> None:
    assert Client(Case(4, 4), {}, set()).decide() == Void()
