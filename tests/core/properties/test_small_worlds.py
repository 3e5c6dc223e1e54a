"""Small worlds, searched as far as a test may take; `just worlds` goes to the end."""

from collections import deque
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from kits.tier import AMOUNTS, few
from model_checker import forms
from model_checker.__main__ import main
from model_checker.forms import build_copy
from model_checker.healing import Healer
from model_checker.inputs import Menu
from model_checker.search import Outcome, Search, Settings
from model_checker.worlds import World, build_worlds

from psyche.core.encoding.account import encode_state
from psyche.core.rules import health, phases, tally, witnessing
from psyche.core.rules.apply import BY_TYPE, PHASES
from psyche.core.state.bits import compute_at_least
from psyche.core.state.enums import ClientFlag, RoundFlag, RunState
from psyche.core.state.messages import Context, Withdraw, WitnessMessage
from psyche.core.state.state import Client, Coordinator, Round, WitnessRecord
from psyche.testing.builders import START_UNIX

SAMPLED = Settings(bytes_every=20, probe_every=10, heal_every=5, recheck_every=20)


def search(world: World, settings: Settings = SAMPLED, **changes: Any) -> Outcome:
    outcome = Search(world, replace(settings, **changes)).run()
    assert outcome.violation is None, str(outcome.violation)
    return outcome


# --- the worlds


@pytest.mark.parametrize("overlap", few([True, False]))
@pytest.mark.parametrize("name", list(build_worlds(3, overlap=True)))
def test_the_nearest_states_of_a_world_hold_every_invariant(name: str, overlap: bool) -> None:
    outcome = search(build_worlds(3, overlap=overlap)[name], max_states=AMOUNTS.world_states)
    assert outcome.states >= AMOUNTS.world_states or outcome.is_complete
    assert outcome.refused > AMOUNTS.world_states * 2 // 5


@pytest.mark.parametrize("name", few(["earnings", "witness", "members"]))
def test_a_small_world_is_searched_to_its_end(name: str) -> None:
    outcome = search(build_worlds(2, overlap=False)[name])
    assert outcome.is_complete
    assert outcome.ends["finished"]
    assert outcome.compared
    assert outcome.healed


def test_the_command_says_what_it_saw(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--members", "2", "--world", "rollback", "--overlap", "off", "--states", "200", "--sample", "9"]) == 0
    shown = capsys.readouterr().out
    assert "rollback, 2 members, overlap off" in shown
    assert "cut off: 20" in shown
    assert "I10" in shown


# --- what it would find


@pytest.fixture
def liar() -> World:
    return build_worlds(3, overlap=True)["liar"]


def find(world: World, settings: Settings = SAMPLED, **changes: Any) -> list[str]:
    """What is found, and then the inputs that lead there."""
    outcome = Search(world, replace(settings, max_states=6_000, **changes)).run()
    assert outcome.violation is not None, "nothing was found"
    assert not outcome.is_complete
    assert str(len(outcome.violation.inputs)) in str(outcome.violation)
    return [outcome.violation.what, *outcome.violation.inputs]


def replay(world: World, inputs: list[str]) -> Coordinator:
    """Follow inputs by their names."""
    state, now = Healer(world).build_start()
    for name in inputs:
        given = next(given for given in Menu(world).offer(state, now) if given.name == name)
        now = given.act(state, now)
    return state


def test_a_set_with_less_than_a_quorum_is_found_by_the_fewest_inputs(
    liar: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def agree_early(round_: Round, record: WitnessRecord) -> None:
        round_.quorum -= 1
        tally.process_agreement(round_, record)
        round_.quorum += 1

    monkeypatch.setattr(witnessing, "process_agreement", agree_early)
    what, *inputs = find(liar)
    assert what.startswith("S3: the agreed digest")
    # two joins, the wait, two digests, two ticks and three more to round 0, and one report is a quorum too early
    assert "reports" in inputs[-1]
    assert len(inputs) == 9
    monkeypatch.undo()
    assert len(replay(liar, inputs).current.witnesses) == 1


def test_a_refusal_that_leaves_a_mark_is_found(liar: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def mark(state: Coordinator, context: Context, message: WitnessMessage) -> bool:
        state.epoch.void_streak += 1
        return kind.process(state, context, message)

    kind = BY_TYPE[WitnessMessage]
    monkeypatch.setitem(BY_TYPE, WitnessMessage, kind._replace(process=mark))
    assert find(liar, probe_every=1)[0].startswith("T2: what must be refused had an effect")


def test_a_panic_is_found_where_it_happens_and_where_it_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise ZeroDivisionError("no credits")

    world = build_worlds(2, overlap=False)["witness"]
    monkeypatch.setattr(phases, "process_settlement", fail)
    assert "a panic further on: ZeroDivisionError" in find(world)[0]
    monkeypatch.setitem(BY_TYPE, Withdraw, BY_TYPE[Withdraw]._replace(process=fail))
    what, *inputs = find(world, heal_every=0, probe_every=0)
    assert "a panic: ZeroDivisionError" in what
    assert inputs == ["participant 0 joins", "member 0 or its join withdraws from epoch 0"]


def test_credit_given_twice_is_found(liar: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def give_twice(state: Coordinator) -> None:
        health.process_credits(state)
        health.process_credits(state)

    monkeypatch.setattr(phases, "process_credits", give_twice)
    assert find(replace(liar, faulty=()))[0].startswith("I2, H2, V15: credit at the close")


def test_a_judgement_by_too_few_is_found(liar: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(bitmaps: Iterator[int], threshold: int, universe: int) -> int:
        return compute_at_least(bitmaps, threshold - 1, universe)

    monkeypatch.setattr(health, "compute_at_least", judge)
    assert find(liar)[0].startswith("H1, H2")


def test_a_dead_end_is_found(liar: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PHASES, RunState.COOLDOWN, lambda *_: False)
    world = replace(build_worlds(2, overlap=False)["rollback"], certified_epochs=0, max_epoch=0)
    assert find(world, heal_every=0)[0].startswith("I5: after the last deadline a tick acts")


def test_a_run_that_never_certifies_again_is_found(liar: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(state: Coordinator, now: int) -> None:
        state.current.flags &= ~RoundFlag.FULL
        stop(state, now)

    stop = phases.process_cooldown_start
    monkeypatch.setattr(phases, "process_cooldown_start", forget)
    assert "nothing certified" in find(liar, heal_every=1)[0]


# --- what it leaves out


def test_a_form_that_leaves_out_too_much_is_found(liar: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(view: Any, client: Client, is_struck: bool) -> tuple[Any, ...]:
        return build(view, replace(client, flags=ClientFlag(0)), is_struck)  # who is ready, and with what

    build = forms._build_client
    monkeypatch.setattr(forms, "_build_client", forget)
    assert "different futures" in find(liar, recheck_every=1)[0]


class FirstIsFaulty(World):
    """The same world, with the faulty member in another place."""

    @property
    def faulty_participant(self) -> int | None:
        return 0


@pytest.mark.parametrize("name", ["liar", "earnings"])
def test_which_member_is_faulty_makes_no_difference(name: str) -> None:
    world = build_worlds(3, overlap=False)[name]
    other = FirstIsFaulty(**{f.name: getattr(world, f.name) for f in fields(world)})
    cut = Settings(bytes_every=0, probe_every=0, heal_every=0)
    assert count_layers(Search(world, cut)) == count_layers(Search(other, cut))


@pytest.mark.whole
@pytest.mark.parametrize("name", ["liar", "rollback"])
def test_seeds_make_no_difference(name: str) -> None:
    world = build_worlds(3, overlap=True)[name]
    cut = Settings(bytes_every=0, probe_every=0, heal_every=0)
    assert count_layers(Search(world, cut)) == count_layers(Search(world, replace(cut, normalize=False)))


def count_layers(search_: Search, layers: int = 11) -> list[int]:
    """How many states are new after each number of inputs."""
    counts, layer = list[int](), deque([search_._begin()])
    for _ in range(layers):
        layer = search_._go_through(layer)
        counts.append(len(layer))
    return counts


def test_a_copy_shares_nothing_that_changes() -> None:
    world = build_worlds(3, overlap=True)["members"]
    state, now = world.build_start(), START_UNIX
    healer = Healer(world)
    while state.run_state is not RunState.FINISHED:
        copied, before = build_copy(state), encode_state(state)
        assert copied == state
        now = healer._go_on(copied, now, silent=False)
        assert encode_state(state) == before
        state = copied
    assert state.certified.step == 3
