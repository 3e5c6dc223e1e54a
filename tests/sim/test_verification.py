"""Members that cheat in a verified run: what the record does about them, and that nobody else pays."""

import re
from dataclasses import replace
from typing import Any, Final

import pytest
from kits.log import E, choose
from kits.tier import IS_WHOLE, few
from scenarios import ledger
from scenarios.base import get_events
from sim_kit import build, play

from psyche.core.committee.verdicts import Verdict
from psyche.core.rules import audits
from psyche.core.state.state import RunState, SlotState
from psyche.sim.byzantine.cheats import CHEATS
from psyche.sim.byzantine.program import ByzantineMember
from psyche.sim.identity import build_machine_identity
from psyche.sim.scenarios.scenario import MachineClass
from psyche.sim.trainer import MachineModel
from psyche.sim.world import Outcome
from psyche.telemetry import types

CHEAT: Final = 4  # client-4
MEMBERS, PERCENT, SAMPLES, ROUNDS = (8, 25, 64, 12) if IS_WHOLE else (6, 34, 32, 8)
SETTINGS: Final[dict[str, Any]] = {
    "verification_percent": PERCENT, "convict": 1, "global_batch_size_start": SAMPLES, "global_batch_size_end": SAMPLES,
    "rounds_per_epoch": ROUNDS, "total_steps": ROUNDS + 1,
}  # fmt: skip
NOT_PUT_OUT: Final = {"silent_verifier"}  # it is late in the rounds in which it verifies (H1), no more
SENDS_OTHERWISE: Final = ("poison", "flip_signs")  # beside honest tables
FOUND_BY_PIECES: Final = sorted(CHEATS.keys() - {"lazy", "lazy_verifier", *SENDS_OTHERWISE})
INNER_STEPS: Final = 8  # of local steps, each of which is a piece
CASES: Final = [
    ("lazy", 0), ("lazy_verifier", 0), ("lazy", INNER_STEPS), ("lazy_verifier", INNER_STEPS),
    *((kind, inner_steps) for inner_steps in (0, INNER_STEPS) for kind in FOUND_BY_PIECES),
]  # fmt: skip


def play_verified(
    *cheats: ByzantineMember, clients: int = MEMBERS, inner_steps: int = 0, seed: int = 2, **config: Any
) -> Outcome:
    settings: dict[str, Any] = SETTINGS | config
    outcome = play(replace(build(seed, clients=clients, byzantine=cheats, **settings), inner_steps=inner_steps))
    assert outcome.state.run_state is RunState.FINISHED
    return outcome


def choose_events(outcome: Outcome, kind: type[E]) -> list[E]:
    return choose((seen.event for seen in get_events(outcome, kind)), kind)


def get_banned(outcome: Outcome) -> set[bytes]:
    return {slot.p2p for slot in outcome.state.registry.slots if slot.state is SlotState.BANNED}


@pytest.mark.parametrize(("kind", "inner_steps"), few(CASES, 3))
def test_a_cheat_is_put_out_by_a_jury_and_nobody_else_is(kind: str, inner_steps: int) -> None:
    """B1, B2, B3, B4, B18, B19; that only liars are put out, by a quorum of a later jury, `play` checks."""
    outcome = play_verified(ByzantineMember(who=CHEAT, kind=kind), inner_steps=inner_steps)
    assert outcome.facts["told"][f"client-{CHEAT}"], "it cheated"
    assert len(get_banned(outcome)) == (kind not in NOT_PUT_OUT)
    ended = {one.outcome for one in choose_events(outcome, types.ChallengeEnded)}
    is_out = any(re.match("put out|not guilty, and the accuser is put out", one) for one in ended)
    assert is_out == (kind not in NOT_PUT_OUT)


@pytest.mark.parametrize("seed", few([3, 2]))  # it does not always train in the first round
def test_an_honest_machine_that_computes_wrong_numbers_is_named_leaves_and_is_not_put_out(seed: int) -> None:
    """V6: off by as much as cheats are, it would be convicted if it went on."""
    classes = (MachineClass(count=MEMBERS), MachineClass(machine=MachineModel(noise=0.2)))
    scenario = build(seed, clients=MEMBERS, **SETTINGS)
    outcome = play(replace(scenario, classes=classes, config={**scenario.config, "init_min_clients": MEMBERS + 1}))
    assert get_banned(outcome) == set()
    left = [event for event in choose_events(outcome, types.LeftEpoch) if event.cause is types.LeaveCause.UNFIT]
    assert {"computes wrong numbers" in event.reason for event in left} == {True}
    assert f"client-{MEMBERS}" in {seen.node for seen in get_events(outcome, types.ArithmeticOff)}


@pytest.mark.whole
@pytest.mark.parametrize("inner_steps", [0, INNER_STEPS])
@pytest.mark.parametrize("kind", SENDS_OTHERWISE)
def test_who_shows_honest_work_and_sends_something_else_gets_nobody_else_put_out(kind: str, inner_steps: int) -> None:
    """Pieces do not show it; a whole round computed again may, for who sends the opposite, but of local steps (V11)."""
    outcome = play_verified(ByzantineMember(who=CHEAT, kind=kind), inner_steps=inner_steps)
    assert outcome.facts["told"][f"client-{CHEAT}"], "it cheated"
    assert get_banned(outcome) <= {build_machine_identity(outcome.scenario.seed, f"client-{CHEAT}").public}
    assert not (inner_steps and get_banned(outcome))
    assert {one.verdict for one in choose_events(outcome, types.Audited)} == {Verdict.OK}


@pytest.mark.whole
@pytest.mark.parametrize("inner_steps", [0, INNER_STEPS])
@pytest.mark.parametrize(("kind", "share"), [("lazy", 0.5), ("lazy", 0.125), ("spoil_calibration", 0.5)])
def test_who_fakes_a_share_of_its_pieces_is_put_out_too(kind: str, share: float, inner_steps: int) -> None:
    outcome = play_verified(ByzantineMember(who=CHEAT, kind=kind, share=share), inner_steps=inner_steps)
    assert len(get_banned(outcome)) == 1


@pytest.mark.whole
@pytest.mark.parametrize("inner_steps", [0, INNER_STEPS])
def test_two_cheats_that_shield_each_other_are_put_out(inner_steps: int) -> None:
    """B9: fewer than a third of a jury."""
    cheats = (ByzantineMember(who=CHEAT, kind="shield_friends"), ByzantineMember(who=2, kind="shield_friends"))
    assert len(get_banned(play_verified(*cheats, inner_steps=inner_steps))) == 2


@pytest.mark.parametrize("inner_steps", [0, pytest.param(INNER_STEPS, marks=pytest.mark.whole)])
@pytest.mark.parametrize("overlap", [pytest.param(1), pytest.param(0, marks=pytest.mark.whole)])
def test_honest_members_with_the_noise_of_bf16_are_never_doubted(overlap: int, inner_steps: int) -> None:
    scenario = build(
        3, clients=MEMBERS, cls={"machine": MachineModel(noise=0.002)}, tolerance_fp32_ppm=20_000, overlap=overlap,
        **SETTINGS,
    )  # fmt: skip
    outcome = play(replace(scenario, inner_steps=inner_steps))
    audited = choose_events(outcome, types.Audited)
    assert len(audited) > (50 if IS_WHOLE and not inner_steps else 15)
    assert {one.verdict for one in audited} == {Verdict.OK}
    whole = {one.link_distance for one in choose_events(outcome, types.RoundAudited)}
    assert (0.0 in whole) == (not inner_steps), "V11: they open momenta"
    assert whole <= {0.0, -1.0}, "of who verified in the round before nobody knows its momentum then"
    assert get_events(outcome, types.Challenged) == []


@pytest.mark.whole
@pytest.mark.parametrize("inner_steps", [0, INNER_STEPS])
def test_rounds_of_a_verified_run_are_hardly_longer(inner_steps: int) -> None:
    """Nothing waits for an audit longer than for one piece."""
    plain = play_verified(inner_steps=inner_steps, verification_percent=0, convict=0)
    verified = play_verified(inner_steps=inner_steps)
    lasted = [max(seen.t for seen in get_events(one, types.RoundStarted)) for one in (plain, verified)]
    # a quarter of the members verify, so each of the others has a third more to train
    assert lasted[1] < 1.5 * lasted[0]


@pytest.mark.parametrize("members", few([2, 1, 3]))
def test_few_members_can_verify_each_other_or_go_on_without(members: int) -> None:
    batch = dict.fromkeys(("global_batch_size_start", "global_batch_size_end"), 16)  # in time (20 s) by one member
    outcome = play_verified(clients=members, min_clients=1, total_steps=9, rounds_per_epoch=8, **batch)
    assert get_banned(outcome) == set()
    assert bool(get_events(outcome, types.Audited)) == (members > 1)


@pytest.mark.whole
def test_epochs_of_two_rounds_still_convict() -> None:
    """V15: challenges go on in the next epoch."""
    cheat = ByzantineMember(who=CHEAT, kind="lazy")
    # epochs form again without the one that is put out
    outcome = play_verified(cheat, rounds_per_epoch=2, total_steps=11, init_min_clients=MEMBERS - 1)
    assert len(get_banned(outcome)) == 1


@pytest.mark.whole
def test_a_cheat_in_a_run_that_only_shows_is_named_and_stays() -> None:
    """V14."""
    outcome = play_verified(ByzantineMember(who=CHEAT, kind="lazy"), convict=0, total_steps=9, rounds_per_epoch=8)
    assert get_banned(outcome) == set()
    assert any(one.target is not None for one in choose_events(outcome, types.AuditsReported))


@pytest.mark.whole
def test_a_record_in_which_one_juror_is_enough_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The invariant itself, in a world whose rule is broken."""
    monkeypatch.setattr(audits, "compute_quorum", lambda _: 1)
    cheat = ByzantineMember(who=CHEAT, kind="lazy")
    violations = ledger.play(build(2, clients=MEMBERS, byzantine=(cheat,), **SETTINGS)).violations
    assert any("votes of the jury" in str(one) for one in violations)
