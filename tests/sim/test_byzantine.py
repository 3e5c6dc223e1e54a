"""Dishonest members, one program each: what it costs them, and that the others do not even notice."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest
from kits.tier import few
from scenarios.base import Size, get_events
from scenarios.judges import judge_prompt
from scenarios.named import play_named
from sim_kit import build, play

from psyche.client.engine import announcements, tables
from psyche.client.runtime.weights import loading
from psyche.core.committee import decision
from psyche.core.rules import membership, readiness, witnessing
from psyche.core.state.state import Client, Coordinator, RunState, SlotState
from psyche.network.blobs import fetch
from psyche.network.limits import NetworkLimits
from psyche.server import evidence
from psyche.sim.byzantine.programs import KINDS, ByzantineMember
from psyche.sim.world import Outcome, simulate
from psyche.telemetry import types
from psyche.wire.line import handshake

LIAR = 4  # client-4 of five


def play_with(kind: str, clients: int = 5, **config: int) -> Outcome:
    outcome = play(build(2, clients=clients, byzantine=(ByzantineMember(who=LIAR, kind=kind),), **config))
    assert outcome.state.run_state is RunState.FINISHED
    return outcome


def get_applied(outcome: Outcome) -> dict[tuple[int, int], list[int]]:
    applied = (seen.event for seen in get_events(outcome, types.Applied))
    return {(one.epoch, one.height): list(one.members) for one in applied if one.update}


FIRST: Final = (
    "equivocate",
    "forge",
    "garbage",
    "lie_root",
    "nothing_first",
    "withhold",
)
OTHERS: Final = sorted(KINDS.keys() - {"other_files", *FIRST})  # "other_files" needs who fetches a model: scenario B25


@pytest.mark.parametrize("kind", few([*FIRST, *OTHERS], len(FIRST)))
def test_a_run_with_one_dishonest_member_of_five_trains_every_step(kind: str) -> None:
    outcome = play_with(kind)
    assert outcome.facts["told"][f"client-{LIAR}"], "it lied"
    applied = get_applied(outcome)
    places = {e.event.index for e in get_events(outcome, types.Member, f"client-{LIAR}")}
    assert len(places) == 1, "it stays where it is in every epoch"
    honest = {0, 1, 2, 3, 4} - places
    assert len(applied) == 8
    assert all(honest <= set(members) for members in applied.values()), "nobody honest is left out, in any round"
    honest_drops = {name for name in outcome.facts["dropped"] if name != f"client-{LIAR}"}
    assert honest_drops == set(), "nobody honest is dropped"


@pytest.mark.parametrize("kind", ["equivocate", "equivocate_loudly"])
def test_who_signs_two_results_is_banned_and_what_was_decided_stays(kind: str) -> None:
    outcome = play_with(kind)
    banned = [slot for slot in outcome.state.registry.slots if slot.state is SlotState.BANNED]
    assert len(banned) == 1
    assert get_events(outcome, types.Equivocation)


@pytest.mark.parametrize("kind", ["withhold", "garbage"])
def test_who_delivers_nothing_is_out_after_three_rounds_without_credit(kind: str) -> None:
    outcome = play_with(kind)
    (member,) = {e.event.index for e in get_events(outcome, types.Member, f"client-{LIAR}")}
    applied = get_applied(outcome)
    assert all(member not in members for members in applied.values())
    tried = {e.event.height for e in get_events(outcome, types.Trained, f"client-{LIAR}") if e.event.epoch == 0}
    assert max(tried) <= 5, "late three times running: out (H2)"


@pytest.mark.whole
def test_payloads_that_nobody_delivers_take_no_places_from_others() -> None:
    liars = tuple(ByzantineMember(who=who, kind="withhold") for who in (0, 1))
    outcome = play(replace(build(1, clients=7, byzantine=liars), limits=NetworkLimits(fetches=3)))
    assert judge_prompt(outcome, Size()).holds, judge_prompt(outcome, Size()).seen


COLLUSIONS: Final = ("claim_all", "lie_digest", "lie_root", "lie_bloom", "claim_none", "deny_one")


@pytest.mark.whole
@pytest.mark.parametrize("kind", few(COLLUSIONS))
def test_q_minus_one_colluding_witnesses_put_nothing_false_on_record(kind: str) -> None:
    liars = tuple(ByzantineMember(who=who, kind=kind) for who in range(3, 7))  # four of seven; the quorum is five
    # so many may hold a run up; what they may not is put something false on record
    scenario = replace(build(3, clients=7, byzantine=liars), must_advance=False, limit_s=120.0)
    assert play(scenario).rounds > 3


@pytest.mark.whole
def test_one_witness_that_reports_nothing_first_voids_no_round_however_short() -> None:
    """W6: one member never delivers, so nobody is complete when the time to train is over; all else just came."""
    liars = (ByzantineMember(who=5, kind="nothing_first"), ByzantineMember(who=6, kind="withhold"))
    scenario = build(2, clients=7, byzantine=liars, max_round_train_time=2, round_witness_time=6, late_limit=255)
    outcome = play(scenario)
    assert outcome.facts["told"]["client-5"], "it lied"
    honest = {e.event.index for e in get_events(outcome, types.Member) if e.node not in ("client-5", "client-6")}
    assert len(honest) == 5, "everybody stays where it is"
    applied = get_applied(outcome)
    assert len(applied) == 8
    assert all(honest <= set(members) for members in applied.values())


def test_what_is_not_announced_is_asked_for() -> None:
    outcome = play_with("mute")
    (member,) = {e.event.index for e in get_events(outcome, types.Member, f"client-{LIAR}")}
    assert all(member in members for members in get_applied(outcome).values())


def test_nobody_joins_or_is_found_under_the_key_of_another() -> None:
    outcome = play_with("forge")
    assert outcome.facts["lies_refused"] == outcome.facts["told"]
    assert len([slot for slot in outcome.state.registry.slots if slot.state is not SlotState.FREE]) == 5


@pytest.mark.whole
def test_false_accusations_eject_nobody() -> None:
    outcome = play_with("accuse", total_steps=17)
    refused = [e for e in get_events(outcome, types.Dropped) if e.node != f"client-{LIAR}"]
    assert refused == []
    assert outcome.facts["ejected"] == 0
    assert sum(outcome.facts["lies_refused"].values()) > 3 * outcome.rounds


def test_more_junk_than_is_taken_of_anybody_is_refused_and_what_the_flooder_means_comes_through() -> None:
    outcome = play_with("flood", total_steps=17)
    counted = [e for e in get_events(outcome, types.Network) if e.node not in (f"client-{LIAR}", "server")]
    refused = {e.node: e.event.gossip_refused for e in counted}
    assert len(refused) == 4
    assert min(refused.values()) > 0, "at each of its peers"
    (member,) = {e.event.index for e in get_events(outcome, types.Member, f"client-{LIAR}")}
    assert any(member in members for members in get_applied(outcome).values())


# --- that a check which is not made shows -------------------------------------------------------------------------


def believe_any_signature(patch: pytest.MonkeyPatch) -> None:
    for module in (announcements, tables, evidence):
        patch.setattr(module, "is_signed_by", lambda _message, _key: True)


def believe_any_member(patch: pytest.MonkeyPatch) -> None:
    def get_member(state: Coordinator, _now: int, _sender: bytes, member: int) -> Client:
        return state.clients[member]

    for module in (witnessing, membership, readiness):
        patch.setattr(module, "get_member", get_member)


def believe_any_handshake(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(handshake, "_get_refusal", lambda *_: "")


def believe_any_chunk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fetch.Target, "is_right", lambda *_: True)


def believe_any_evidence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(evidence, "is_signed_by", lambda _message, _key: True)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("row", "kind", "break_check", "name"),
    [
        ("B11", "impersonate", believe_any_signature, "I9"),
        ("B12", "forge", believe_any_member, "I9"),
        ("B12", "forge", believe_any_handshake, "I9"),
        ("B17", "swap", believe_any_chunk, "I1"),
        ("B18", "accuse", believe_any_evidence, "R7"),
    ],
)
def test_what_is_believed_without_its_check_is_reported(
    monkeypatch: pytest.MonkeyPatch, row: str, kind: str, break_check: Callable[[pytest.MonkeyPatch], None], name: str
) -> None:
    break_check(monkeypatch)
    outcome = simulate(build(2, clients=5, byzantine=(ByzantineMember(who=LIAR, kind=kind),)))
    assert outcome.violations[0].name == name, outcome.describe()
    assert not play_named(row, Size(clients=5, rounds=6))[1].holds


@pytest.mark.whole
def test_a_bloom_that_is_said_to_hold_everything_is_reported_where_no_root_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decision, "is_in_bloom", lambda *_: True)
    outcome, judgement = play_named("B10", Size(clients=7, rounds=8))
    assert outcome.violations[0].name == "I4", outcome.describe()
    assert not judgement.holds


def test_a_manifest_that_is_believed_unchecked_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """B25: only what gives the digest on record may be fetched."""

    class AnyDigest:
        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = None  # type: ignore[assignment]

    monkeypatch.setattr(loading, "compute_offer_digest", lambda *_: AnyDigest())
    assert not play_named("B25", Size(clients=5, rounds=6))[1].holds
