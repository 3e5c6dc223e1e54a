"""The state of a client's weights: whatever the record, the trainer and peers do, only the table's steps are taken."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import hypothesis.strategies as st
from healing_kit import build_bench_in_second_epoch, diverge, let_go
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kits.bench import Bench
from kits.results import build_train_reply
from kits.tier import draw

from psyche.client.engine import actions as act
from psyche.client.engine.weights import (
    Absent,
    Comparing,
    Diverged,
    Following,
    Replaying,
    Weights,
    WeightsState,
)
from psyche.core.state.state import ZERO32
from psyche.testing.builders import build_hash

RARELY = st.integers(0, 9).map(lambda n: n == 9)
STEPS = {
    (Absent, Following), (Following, Diverged), (Diverged, Following), (Diverged, Replaying), (Replaying, Diverged),
    (Replaying, Comparing), (Comparing, Following), (Absent, Absent), (Following, Absent), (Diverged, Absent),
    (Replaying, Absent), (Comparing, Absent), (Diverged, Diverged), (Replaying, Replaying), (Comparing, Comparing),
}  # fmt: skip


@contextmanager
def watch_steps(found: list[tuple[WeightsState, WeightsState]]) -> Iterator[None]:
    write: Any = Weights.__setattr__

    def watch(weights: Weights, name: str, value: Any) -> None:
        if name == "_state" and hasattr(weights, "_state"):
            found.append((weights._state, value))
        write(weights, name, value)

    Weights.__setattr__ = watch  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Weights.__setattr__ = write  # type: ignore[method-assign]


class WeightsMachine(RuleBasedStateMachine):
    """A member of an epoch whose record agrees and contradicts at will, and whose trainer fails at will."""

    bench: Bench
    asked: list[act.Action]  # of the trainer, unanswered

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[WeightsState, WeightsState]] = []
        self._watch = watch_steps(self.steps)
        self._watch.__enter__()

    def teardown(self) -> None:
        self._watch.__exit__(None, None, None)

    @initialize(height=st.integers(1, 3), overlap=st.booleans(), is_wrong=st.booleans())
    def start(self, height: int, overlap: bool, is_wrong: bool) -> None:
        self.bench = build_bench_in_second_epoch(height, overlap=overlap)
        self.asked = []
        if is_wrong:
            diverge(self.bench)
            self.asked += [a for a in self.bench.actions if isinstance(a, act.Heal)]
            self.bench.forget()
            let_go(self.bench)
        self.bench.manual = {act.Apply, act.Load}
        self.look()

    @property
    def weights(self) -> Weights:
        return self.bench.engine.weights

    def look(self) -> None:
        """What the engine has asked for since the last look, and whether its state allowed that."""
        state = self.weights.state
        for action in self.bench.actions:
            match action:
                case act.Heal():
                    assert isinstance(state, Replaying | Absent)
                case act.Compare():
                    assert self.weights.is_fetching
                case act.Apply():
                    assert self.weights.can_apply
                case act.Train():
                    assert state == Following()
                case act.AskWeights():
                    assert isinstance(state, Comparing)
                    assert state.held is not None
        kinds = act.Heal | act.Compare | act.Apply | act.AskWeights
        self.asked += [a for a in self.bench.actions if isinstance(a, kinds)]
        self.bench.forget()

    def is_asked(self, *kinds: type[act.Action]) -> bool:
        return any(isinstance(a, kinds) for a in self.asked)

    def take(self, *kinds: type[act.Action]) -> Any:
        """The oldest unanswered request of these kinds."""
        found = next(a for a in self.asked if isinstance(a, kinds))
        self.asked.remove(found)
        return found

    # --- the record --------------------------------------------------------------------------------

    def in_round(self) -> bool:
        return self.bench.state.in_round and not self.bench.state.halted

    @precondition(in_round)
    @rule(agrees=st.booleans(), closes=st.booleans())
    def others_report(self, agrees: bool, closes: bool) -> None:
        """The others agree on a digest, its own or another."""
        bench = self.bench
        height = bench.state.current.height
        own = self.weights.digests.get(height)
        digest = own if agrees and own is not None else build_hash("agreed", height)
        members = [m for m in (1, 2, 3) if bench.state.current.members >> m & 1]
        reported = {w.member for w in bench.state.current.witnesses}
        changes: dict[str, Any] = {} if self.bench.engine.member is not None else {"held": 0, "commitments": {}}
        bench.record(*(m for m in members if m not in reported), state_digest=digest, **changes)
        if closes:
            bench.now += 1.0
            bench.settle()
        bench.show()
        self.look()

    @precondition(in_round)
    @rule(is_so=RARELY)
    def the_times_of_the_round_run_out(self, is_so: bool) -> None:
        if is_so:
            self.bench.pass_times()
            self.bench.show()
            self.look()

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.bench.wait(seconds)
        self.look()

    # --- the trainer -------------------------------------------------------------------------------

    @precondition(lambda self: self.is_asked(act.Apply))
    @rule(is_right=st.booleans())
    def a_set_is_applied(self, is_right: bool) -> None:
        action = self.take(act.Apply)
        part = self.bench.part if is_right else build_hash("wrong", action.height)
        self.bench.feed(self.bench.build_applied(action, part))
        self.look()

    @precondition(lambda self: self.bench.engine.training.in_flight is not None)
    @rule(ends=st.booleans())
    def a_training_ends(self, ends: bool) -> None:
        in_flight = self.bench.engine.training.in_flight
        assert in_flight is not None
        if ends:
            reply = build_train_reply(b"", cancelled=True)
            self.bench.feed(act.Trained(*in_flight, reply, ZERO32))
        else:
            self.bench.feed(act.TrainFailed(*in_flight, "planted", trainer_lost=False))
        self.look()

    @precondition(lambda self: self.is_asked(act.Heal))
    @rule(agrees=st.booleans())
    def a_replay_is_done(self, agrees: bool) -> None:
        action = self.take(act.Heal)
        digests = {h: build_hash("replayed", h) for h in range(action.height + 1)}
        if agrees:
            digests |= {
                r.height: r.agreed_digest
                for r in self.bench.state.rounds
                if r.height in digests and r.agreed_digest != ZERO32
            }
        healed = act.Healed(action.epoch, action.height, build_hash("chain"), digests, dict.fromkeys(digests, True))
        self.bench.feed(healed)
        self.look()

    @precondition(lambda self: self.is_asked(act.Heal, act.Compare))
    @rule(kept=st.booleans(), contradicts=st.booleans())
    def healing_fails(self, kept: bool, contradicts: bool) -> None:
        action = self.take(act.Heal, act.Compare)
        contradicts = contradicts and isinstance(action, act.Compare)
        self.bench.feed(act.HealFailed(action.epoch, "planted", kept, contradicts=contradicts))
        self.look()

    @precondition(lambda self: self.is_asked(act.Compare))
    @rule()
    def the_agreed_weights_are_loaded(self) -> None:
        action = self.take(act.Compare)
        digests = {action.height: action.agreed}
        self.bench.feed(act.Healed(action.epoch, action.height, build_hash("chain"), digests, {action.height: True}))
        self.look()

    @precondition(lambda self: self.is_asked(act.AskWeights))
    @rule()
    def a_peer_keeps_a_copy(self) -> None:
        action = self.take(act.AskWeights)
        self.bench.feed(act.WeightsPromised(action.epoch, action.height, action.member))
        self.look()

    @precondition(lambda self: not self.is_asked(act.Heal, act.Compare))
    @rule()
    def an_answer_comes_that_nobody_waits_for(self) -> None:
        before = self.weights.state
        self.bench.feed(act.Healed(1, 1, build_hash("chain"), {1: build_hash("stale")}, {1: True}))
        self.bench.feed(act.HealFailed(1, "stale", weights_kept=True))
        assert type(self.weights.state) is type(before)
        self.look()

    @rule(is_so=RARELY)
    def the_trainer_is_lost(self, is_so: bool) -> None:
        """What it was asked for is answered, if at all, after that."""
        if is_so:
            self.bench.feed(act.TrainerLost("planted"))
            assert isinstance(self.weights.state, Absent)
            self.look()

    # --- what holds --------------------------------------------------------------------------------

    @invariant()
    def only_steps_of_the_table_are_taken(self) -> None:
        assert {(type(a), type(b)) for a, b in self.steps} <= STEPS

    @invariant()
    def what_the_state_says_is_under_way_was_asked_for(self) -> None:
        if not hasattr(self, "bench"):
            return
        if isinstance(self.weights.state, Replaying):
            assert self.is_asked(act.Heal)
        if self.weights.is_fetching:
            assert self.is_asked(act.Compare)

    @invariant()
    def a_member_without_weights_has_computed_nothing(self) -> None:
        if hasattr(self, "bench") and self.bench.state.in_round and self.bench.engine.member is not None:
            assert self.weights.is_loaded or not self.weights.digests

    @invariant()
    def the_transfer_of_weights_is_a_wait_with_a_name(self) -> None:
        if hasattr(self, "bench") and self.weights.is_fetching and self.bench.state.in_round:
            assert "compare" in self.bench.engine._x.waits


TestWeightsMachine = WeightsMachine.TestCase
TestWeightsMachine.settings = settings(max_examples=draw(80), stateful_step_count=40, deadline=None)
