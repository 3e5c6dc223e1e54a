"""The named scenarios, small: each reaches its figure, and no invariant is violated."""

from dataclasses import replace

import pytest
from kits.log import make
from kits.tier import few

from psyche.backends.solana.member import following, view
from psyche.backends.solana.member.following import RecordFollower
from psyche.backends.solana.member.link import Reading
from psyche.server import handler
from psyche.server.handler import ReplyCache
from psyche.sim.byzantine.programs import ByzantineMember
from psyche.sim.world import Outcome
from psyche.telemetry import types
from psyche.telemetry.events import Entry
from scenarios.base import Size, compute_applied_share, get_events, get_ledger
from scenarios.builders import build_base, build_quiet
from scenarios.byzantine_judges import judge_inclusion, judge_lies, judge_unharmed, judge_unpaid
from scenarios.chain_judges import FAILOVER_S, get_chain_facts
from scenarios.crash_judge import Point, find_points, find_stall, play_killed
from scenarios.judges import judge_admitted, judge_clocks, judge_flat, judge_records, judge_witnesses_replaced
from scenarios.ledger import EpochFacts, Ledger, Phase, play
from scenarios.named import SCENARIOS, play_named
from scenarios.trend import compute_trends

SMALL = Size(clients=5, rounds=6)
SIZES = {  # the smallest at which a scenario means something
    "F1": Size(clients=6, rounds=8),  # fewer, and those who die are too many of a round's witnesses
    "F2": Size(clients=3, rounds=4),  # at each of its points
    "F6": Size(clients=6, rounds=6),
    "B6": Size(clients=6, rounds=6),  # half of the others see the one result: too few to be asked for the decision
    "F9": Size(clients=5, rounds=8),
    "B8": Size(clients=7, rounds=6),  # two who lie, each in its way
    "B10": Size(clients=7, rounds=8),  # as many, and rounds enough to hang in two of them
}


LONG = ("F13c", "F2", "F24", "F6", "F9", "F12w")  # left to the second tier, as is every other one
SHORT = sorted(SCENARIOS.keys() - {*LONG})


@pytest.mark.parametrize("name", few([*SHORT[::2], *SHORT[1::2], *LONG], len(SHORT) // 4))
def test_a_named_scenario_reaches_its_figure(name: str) -> None:
    named = SCENARIOS[name]
    outcome, judgement = play_named(name, SIZES.get(name, SMALL))
    assert not outcome.violations, outcome.describe()
    assert judgement.holds, f"{name}, {named.title}: expected {named.expected}, seen {judgement.seen}"


# --- that the judges can say no ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played() -> Outcome:
    return play(build_base(Size(clients=3, rounds=3)))


def change(outcome: Outcome, **changes: object) -> Outcome:
    known = get_ledger(outcome)
    ledger = Ledger(known.names, known.honest)
    for name in ("rounds", "phases", "formations", "epochs", "samples"):
        setattr(ledger, name, changes.get(name, getattr(known, name)))
    return replace(outcome, facts=outcome.facts | {"ledger": ledger})


def test_a_result_that_nobody_sent_is_a_wrong_inclusion(played: Outcome) -> None:
    assert judge_inclusion(played, SMALL).holds
    rounds = dict(get_ledger(played).rounds)
    rounds[0, 1] = replace(rounds[0, 1], sent=0b101)
    assert not judge_inclusion(change(played, rounds=rounds), SMALL).holds


def test_a_result_that_was_sent_and_left_out_shows(played: Outcome) -> None:
    rounds = dict(get_ledger(played).rounds)
    rounds[0, 1] = replace(rounds[0, 1], applied=0b011)
    changed = change(played, rounds=rounds)
    assert not judge_inclusion(changed, SMALL).holds
    assert compute_applied_share(changed) == 8 / 9
    rounds[0, 1] = replace(rounds[0, 1], lost=0b100)
    assert compute_applied_share(change(played, rounds=rounds)) == 1


def test_a_phase_that_ends_early_or_late_is_untimely(played: Outcome) -> None:
    faulty = replace(played, entries=[Entry(0.0, "world", make(types.Fault))])
    assert judge_clocks(faulty, SMALL).holds
    phases = get_ledger(played).phases
    first = phases[0]
    for moved_s in (-3.0, 3.0):
        moved: list[Phase] = [replace(first, end_s=first.end_s + moved_s), *phases[1:]]
        assert "WAITING_FOR_MEMBERS" in judge_clocks(change(faulty, phases=moved), SMALL).seen


def test_witnesses_that_are_wrong_too_often_show(played: Outcome) -> None:
    rounds = dict(get_ledger(played).rounds)
    rounds[0, 1] = replace(rounds[0, 1], wrong_bits=1)
    assert not judge_records(change(played, rounds=rounds), SMALL).holds


def test_who_was_never_a_member_and_told_nothing_shows(played: Outcome) -> None:
    formations = [replace(one, names=one.names[:2]) for one in get_ledger(played).formations]
    assert judge_admitted(played, SMALL).holds
    assert not judge_admitted(change(played, formations=formations), SMALL).holds


def test_a_liar_that_is_paid_or_never_lied_shows(played: Outcome) -> None:
    lying = replace(played, scenario=replace(played.scenario, byzantine=(ByzantineMember(who=2, kind="withhold"),)))
    epochs = get_ledger(played).epochs
    unpaid = [EpochFacts(one.epoch, one.credits | {"client-2": 0}, one.is_certified) for one in epochs]
    assert judge_unpaid(0)(change(lying, epochs=unpaid), SMALL).holds
    assert not judge_unpaid(0)(lying, SMALL).holds
    assert not judge_lies(replace(lying, facts=lying.facts | {"told": {"client-2": 0}}), SMALL).holds


def test_who_is_short_of_a_credit_or_has_none_shows(played: Outcome) -> None:
    assert judge_unharmed(played, SMALL).holds
    rounds, epochs = get_ledger(played).rounds, get_ledger(played).epochs
    first = epochs[0].credits
    short = [EpochFacts(epochs[0].epoch, first | {"client-2": first["client-2"] - 1}, is_certified=True), *epochs[1:]]
    assert not judge_unharmed(change(played, epochs=short), SMALL).holds
    bits = {epoch: 1 << get_ledger(played).get_names(epoch).index("client-2") for epoch, _ in rounds}
    never = {place: replace(one, members=one.members & ~bits[place[0]]) for place, one in rounds.items()}
    unpaid = [EpochFacts(one.epoch, one.credits | {"client-2": 0}, one.is_certified) for one in epochs]
    assert not judge_unharmed(change(played, rounds=never, epochs=unpaid), SMALL).holds, "it was never a member"


def test_a_kill_at_the_very_moment_at_which_a_round_begins_is_in_that_round() -> None:
    """Events have whole microseconds, rounds have not."""
    outcome, _ = play_named("F3", SMALL)
    at_s = get_events(outcome, types.Killed)[0].t
    rounds = get_ledger(outcome).rounds
    (place,) = [place for place, one in rounds.items() if one.start_s <= at_s + 1e-6 and at_s < one.end_s]
    moved = rounds | {place: replace(rounds[place], start_s=at_s + 4e-7)}
    assert judge_witnesses_replaced(change(outcome, rounds=moved), SMALL).holds
    moved = rounds | {place: replace(rounds[place], start_s=at_s + 1.0)}
    assert not judge_witnesses_replaced(change(outcome, rounds=moved), SMALL).holds


def test_what_grows_shows_and_what_only_varies_does_not(played: Outcome) -> None:
    rounds = dict(get_ledger(played).rounds)
    rounds[0, 1] = replace(rounds[0, 1], lost=0b100)
    hours = [n / 4 for n in range(40)]
    growing = [(3_600 * at, {"kept": 1_000 + round(20 * at)}) for at in hours]
    varying = [(3_600 * at, {"kept": 1_000 + 50 * (n % 3)}) for n, at in enumerate(hours)]
    hours_long = replace(played, simulated_s=36_000.0)
    judged = [judge_flat(change(hours_long, rounds=rounds, samples=s), SMALL) for s in (growing, varying)]
    assert [one.holds for one in judged] == [False, True], judged


def test_what_is_now_none_and_now_one_does_not_grow() -> None:
    rare = [(400.0 * number, {"fetches": int(number in (15, 17, 19))}) for number in range(20)]
    assert [one.slope for one in compute_trends(rare)] == [0.0]


@pytest.mark.whole
def test_those_who_are_killed_in_every_epoch_die_at_points_of_their_own_within_a_round() -> None:
    outcome, _ = play_named("F1", Size(clients=8, rounds=6))
    begins = [one.start_s for one in get_ledger(outcome).rounds.values()]
    points = [min(e.t - at for at in begins if at <= e.t) for e in get_events(outcome, types.Killed)]
    assert len(points) == 2
    assert min(points) > 0.01
    assert len(set(points)) == len(points)


@pytest.mark.whole
def test_repeats_that_the_server_does_not_know_again_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplyCache, "get", lambda *_: None)
    monkeypatch.setattr(handler, "is_on_record", lambda *_: False)
    assert not play_named("F13", SMALL)[1].holds


@pytest.mark.whole
def test_a_doubt_between_endpoints_that_never_ends_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "FORK_S", 1e6)
    assert not play_named("F12w", SMALL)[1].holds


@pytest.mark.whole
def test_clients_that_follow_one_endpoint_alone_show(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_first(self: RecordFollower, reading: Reading) -> None:
        if reading.endpoint.endswith("endpoint-1"):
            take(self, reading)

    take = RecordFollower._take
    monkeypatch.setattr(RecordFollower, "_take", take_first)
    outcome, judgement = play_named("F12", Size(clients=3, rounds=6))
    assert not judgement.holds
    assert max(get_chain_facts(outcome).behind_s.values()) > 2 * FAILOVER_S


@pytest.mark.whole
def test_an_endpoint_that_was_wrong_and_is_believed_first_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "SILENT_SLOTS", -1_000_000)
    assert {one.name for one in play_named("F12w", SMALL)[0].violations} == {"K1"}


# --- F2 ----------------------------------------------------------------------------------------------------------


def test_a_victim_dies_at_the_very_step_that_was_found() -> None:
    scenario = build_quiet(SIZES["F2"])
    points = find_points(scenario)
    assert len({(p.task, p.place) for p in points}) == len(points) > 10
    places = {point.place.split(":")[0] for point in points}
    assert {"psyche/client/runtime/trainer_tasks.py", "psyche/backends/tcp/backend.py"} <= places
    late = Point(points[-1].step + 100_000, "", "")
    assert find_stall(play_killed(scenario, late)) == "it was not killed"
