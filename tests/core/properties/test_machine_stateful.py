"""The state machine under random members, witnesses, clocks, pauses and accusations.

After every single transition the invariants below are checked against a model that is kept beside
the machine: what was assigned, who has earned what, which (epoch, height) was reached.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hypothesis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kits.runs import Run, build_run

from psyche.core.committee.assignment import compute_assignments
from psyche.core.committee.elections import compute_quorum, get_roles, get_witnesses
from psyche.core.committee.seeds import EXPIRED, Entropy
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.rules.apply import apply
from psyche.core.state.bits import compute_bits, get_members
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.messages import (
    HealthCheck,
    Join,
    LeaveRun,
    NameCheckpoint,
    Pause,
    ReclaimSlot,
    Recover,
    ReportEquivocation,
    Resume,
    SetRates,
    Tick,
    WarmupWitness,
    Withdraw,
    WitnessMessage,
)
from psyche.core.state.state import (
    ZERO32,
    Checkpoint,
    CheckpointKind,
    ClientState,
    Mark,
    Role,
    Round,
    RoundFlag,
    RunState,
    Slot,
    SlotState,
    WitnessFlag,
)
from psyche.core.state.timeline import get_attested_round
from psyche.testing.builders import build_hash, build_keys

PARTICIPANTS = 7
IN_EPOCH = (RunState.WARMUP, RunState.ROUND_TRAIN, RunState.ROUND_WITNESS, RunState.COOLDOWN)
numbers = st.integers(0, PARTICIPANTS - 1)
few = st.sets(numbers, max_size=2)
turns = st.integers(0, 4)  # how far the run goes on by itself after an event
SLOW = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much, hypothesis.HealthCheck.data_too_large]


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    least = draw(st.integers(1, 3))
    return {
        "overlap": draw(st.booleans()),
        "min_clients": least,
        "init_min_clients": draw(st.integers(least, 4)),
        "witness_nodes": draw(st.sampled_from([0, 0, 1, 3, 4])),
        "rounds_per_epoch": draw(st.integers(1, 4)),
        "verification_percent": draw(st.sampled_from([0, 0, 40])),
        "evict_after": draw(st.integers(1, 2)),
        "late_limit": draw(st.integers(1, 3)),
        "straggler_percent": draw(st.sampled_from([0, 150])),
        "entropy_delay": draw(st.sampled_from([0, 4])),
        "global_batch_size_start": draw(st.integers(1, 9)),
        "global_batch_size_end": draw(st.integers(9, 20)),
        "global_batch_size_warmup_tokens": draw(st.sampled_from([0, 500])),
        "total_steps": draw(st.sampled_from([4, 1_000])),
    }


class CoordinatorMachine(RuleBasedStateMachine):
    """Random events; `attempt` is the only way in which the state changes."""

    @initialize(config=configs(), members=st.integers(2, PARTICIPANTS))
    def begin(self, config: dict[str, Any], members: int) -> None:
        self.run_: Run = build_run(0, **config)
        self.state = self.run_.state
        self.bytes = encode_state(self.state)
        self.reached = (0, -1)
        self.frontier = 0  # the next sample that nobody was given yet
        self.credits: Counter[int] = Counter()
        self.closed: set[tuple[int, int]] = set()
        self.banned: set[bytes] = set()
        self.certified: Mark = self.state.certified
        self.identities: list[tuple[bytes, bytes, int]] = []
        self.started: tuple[int, int] | None = None
        self.gray: set[int] = set()  # members that are heard and never deliver
        apply(self.state, 0, 0, ZERO32, SetRates(earning=1_000, slashing=3))
        self.bytes = encode_state(self.state)
        for number in range(members):
            self.attempt(lambda n=number: apply(self.state, self.now, 0, build_keys(n)[0], Join(build_keys(n)[1])))

    @property
    def now(self) -> int:
        return self.run_.now

    def attempt(self, call: Callable[[], Any]) -> bool:
        """Do one transition: refused ones change no byte, effective ones raise the nonce by one (T2)."""
        nonce, before = self.state.nonce, self.snapshot()
        try:
            call()
        except CoordinatorError:
            assert encode_state(self.state) == self.bytes, "a refusal changed the state"
            return False
        after = encode_state(self.state)
        assert self.state.nonce == nonce + (after != self.bytes), "the nonce does not tell the effect"
        effective = after != self.bytes
        self.bytes = after
        if effective:
            self.observe(before)
        return effective

    # --- the model

    def snapshot(self) -> tuple[RunState, Mark, int, int]:
        return (
            self.state.run_state, self.state.certified, self.state.progress.step,
            self.state.progress.epoch_start_data_index,
        )  # fmt: skip

    def observe(self, before: tuple[RunState, Mark, int, int]) -> None:
        state = self.state
        was = before[0]
        if was is RunState.WAITING_FOR_MEMBERS and state.run_state is RunState.WARMUP:
            self.observe_formation()
        for round_ in state.rounds:
            key = (state.progress.epoch, round_.height)
            if round_.flags & RoundFlag.CLOSED and key not in self.closed and state.run_state in IN_EPOCH:
                self.closed.add(key)
                self.observe_close(round_)
        if state.run_state is RunState.ROUND_TRAIN:
            key = (state.progress.epoch, state.current.height)
            if key != self.started:
                self.started = key
                self.observe_start(state.current)
        if was is RunState.COOLDOWN and state.run_state is not RunState.COOLDOWN:
            self.observe_epoch_end()
        elif before[2:] != (state.progress.step, state.progress.epoch_start_data_index):
            self.observe_progress(was, before)
        self.observe_height()

    def observe_formation(self) -> None:
        self.credits.clear()
        self.identities = [(c.signer, c.p2p, c.slot) for c in self.state.clients]
        assert not self.banned & {c.signer for c in self.state.clients}, "I7: the banned never come back"
        slots = [client.slot for client in self.state.clients]
        assert slots == sorted(set(slots)), "M3: epoch order is slot order"

    def observe_start(self, round_: Round) -> None:
        """Assigned samples are contiguous, and none is assigned twice (I2)."""
        state = self.state
        assert round_.data_index == self.frontier
        assert round_.witnesses_expected == len(get_witnesses(round_))
        assert round_.quorum == compute_quorum(round_.witnesses_expected)
        owed = compute_assignments(round_, state.config)
        samples = [sample for start, end in owed.values() for sample in range(start, end + 1)]
        has_trainers = Role.TRAINER in get_roles(round_, state.config).values()
        assert has_trainers, "somebody always trains"
        assert sorted(samples) == list(range(round_.data_index, round_.data_index + round_.batch_size))
        self.frontier = round_.data_index + round_.batch_size

    def observe_close(self, round_: Round) -> None:
        for member in get_members(round_.agreed_held):
            if self.state.clients[member].state is not ClientState.EJECTED:
                self.credits[member] += 1
        assert bool(round_.flags & RoundFlag.ROOT) == (round_.agreed_root != ZERO32)
        assert bool(round_.flags & RoundFlag.DIGEST) == (round_.agreed_digest != ZERO32)
        assert not (round_.flags & RoundFlag.VOID and round_.agreed_held)

    def observe_epoch_end(self) -> None:
        """P3: the run stands where `certified` stands; anything else is a rollback on record."""
        progress, certified = self.state.progress, self.state.certified
        assert (progress.step, progress.epoch_start_data_index) == (certified.step, certified.data_index)
        if certified.epoch == progress.epoch - 1 and certified is not self.certified:
            assert certified.data_index == self.frontier, "a certified epoch loses nothing"
        assert progress.epoch_start_data_index <= self.frontier
        self.frontier = progress.epoch_start_data_index
        self.certified = certified

    def observe_progress(self, was: RunState, before: tuple[RunState, Mark, int, int]) -> None:
        progress = self.state.progress
        if was is RunState.WARMUP:  # P5
            assert self.state.certified == self.state.checkpoint
            assert progress.epoch_start_data_index <= before[3]
            self.frontier = progress.epoch_start_data_index
            self.certified = self.state.certified
            return
        assert was is RunState.ROUND_WITNESS
        assert (progress.step, progress.epoch_start_data_index) == (before[2] + 1, before[3])

    def observe_height(self) -> None:
        state = self.state
        height = state.current.height if state.in_round or state.run_state is RunState.COOLDOWN else -1
        assert (state.progress.epoch, height) >= self.reached, "I3: (epoch, height) never falls"
        self.reached = (state.progress.epoch, height)
        if state.run_state is RunState.ROUND_TRAIN and self.certified.digest == ZERO32:
            self.certified = state.certified  # S8

    # --- the run goes on by itself

    def drive(self, count: int) -> None:
        """Do what members and backend would do now, so often; the silent and the gray are `faults`."""
        for _ in range(count):
            state, config = self.state, self.state.config
            if state.run_state is RunState.WAITING_FOR_MEMBERS:
                for number in range(PARTICIPANTS - 2):
                    self.attempt(
                        lambda n=number: apply(self.state, self.now, 0, build_keys(n)[0], Join(build_keys(n)[1]))
                    )
                self.settle(config.waiting_for_members_extra_time)
            elif state.run_state is RunState.WARMUP:
                self.everybody_shows(config.warmup_time)
            elif state.in_round:
                self.everybody_witnesses()
            elif state.run_state is RunState.COOLDOWN:
                self.settle(config.cooldown_time)
            elif state.run_state is RunState.PAUSED:
                self.attempt(lambda: apply(self.state, self.now, 0, ZERO32, Resume()))

    def settle(self, seconds: int) -> None:
        self.run_.now += seconds
        for _ in range(20):
            entropy = self.run_.build_entropy()
            if not self.attempt(lambda e=entropy: apply(self.state, self.now, self.now, ZERO32, Tick(e))):
                return
        raise AssertionError("the state machine does not come to rest")

    def everybody_shows(self, limit_s: int) -> None:
        digest = self.run_.get_start_digest()
        for member in set(self.run_.get_members()) - self.run_.silent:
            self.show_digest(member, digest)
        self.settle(0)
        if self.state.run_state is RunState.WARMUP:
            self.settle(limit_s)

    def everybody_witnesses(self) -> None:
        round_, config = self.state.current, self.state.config
        for member in self.run_.get_speaking_witnesses():
            self.send(self.run_.build_witness(member, **self.without_gray()))
        self.settle(1)
        for limit_s in (config.max_round_train_time, config.round_witness_time):
            if self.state.current is round_ and self.state.in_round:
                self.settle(limit_s)

    def without_gray(self) -> dict[str, Any]:
        attested = get_attested_round(self.state)
        if attested is None:
            return {}
        return {"held": attested.members & ~compute_bits(self.gray | self.run_.silent)}

    # --- events

    @rule(count=st.integers(1, 12))
    def go_on(self, count: int) -> None:
        self.drive(count)

    @rule(silent=few, gray=few, go=turns)
    def set_faults(self, silent: set[int], gray: set[int], go: int) -> None:
        self.run_.silent, self.gray = silent, gray
        self.drive(go)

    @rule(number=numbers, other=st.booleans(), go=turns)
    def join(self, number: int, other: bool, go: int) -> None:
        signer, p2p = build_keys(number)
        key = build_keys((number + 1) % PARTICIPANTS)[1] if other else p2p
        self.attempt(lambda: apply(self.state, self.now, 0, signer, Join(key)))
        self.drive(go)

    @rule(number=numbers, go=turns)
    def leave(self, number: int, go: int) -> None:
        self.attempt(lambda: apply(self.state, self.now, 0, build_keys(number)[0], LeaveRun()))
        self.drive(go)

    @rule(number=numbers, member=numbers, stale=st.integers(0, 4), go=turns)
    def withdraw(self, number: int, member: int, stale: int, go: int) -> None:
        epoch = self.state.progress.epoch - (stale == 1)
        key = self.key_of(member) if stale else build_keys(number)[1]
        self.attempt(lambda: apply(self.state, self.now, 0, key, Withdraw(epoch, member)))
        self.drive(go)

    @rule(seconds=st.one_of(st.integers(-9, 9), st.integers(10, 60)))
    def pass_time(self, seconds: int) -> None:
        self.run_.now += seconds

    @rule(entropy=st.sampled_from([None, EXPIRED, b""]))
    def tick(self, entropy: Entropy) -> None:
        drawn = self.run_.build_entropy() if entropy == b"" else entropy
        self.attempt(lambda: apply(self.state, self.now, self.now, ZERO32, Tick(drawn)))

    @precondition(lambda self: self.state.run_state is RunState.WARMUP)
    @rule(member=numbers, junk=st.integers(0, 9), stale=st.integers(0, 9), go=turns)
    def show(self, member: int, junk: int, stale: int, go: int) -> None:
        digest = build_hash("junk", junk) if junk < 3 else self.run_.get_start_digest()
        self.show_digest(member, digest, self.state.progress.epoch - (stale == 0))
        self.drive(go)

    @precondition(lambda self: self.state.in_round)
    @rule(member=numbers, data=st.data(), go=turns)
    def one_witness(self, member: int, data: st.DataObject, go: int) -> None:
        """An honest report, or one with a field that lies, or is malformed."""
        if member < len(self.state.clients):
            message = self.run_.build_witness(member)
            self.send(replace(message, **data.draw(self.lies())))
        self.drive(go)

    @precondition(lambda self: self.state.in_round)
    @rule(rounds=st.integers(1, 2), what=st.sampled_from(["digest", "held", "both"]), go=turns)
    def disagree(self, rounds: int, what: str, go: int) -> None:
        """Rounds in which the witnesses do not agree on anything."""
        for _ in range(rounds):
            for member in self.run_.get_speaking_witnesses() if self.state.in_round else ():
                lie: dict[str, Any] = {"state_digest": build_hash("split", member)} if what != "held" else {}
                if what != "digest":
                    lie["held"] = self.without_gray().get("held", 0) & (1 << member)
                self.send(self.run_.build_witness(member, **lie))
            if self.state.in_round:
                self.everybody_witnesses()
        self.drive(go)

    @precondition(lambda self: self.state.in_round)
    @rule(member=numbers, past=st.integers(0, 5), outsider=st.integers(0, 5), go=turns)
    def accuse(self, member: int, past: int, outsider: int, go: int) -> None:
        height = self.state.current.height - (past == 0)
        sender = build_hash("stranger") if outsider == 0 else self.key_of(0)
        epoch = self.state.progress.epoch
        self.attempt(lambda: apply(self.state, self.now, 0, sender, HealthCheck(epoch, height, member)))
        self.drive(go)

    @rule(member=numbers, odds=st.integers(0, 9), go=turns)
    def report_equivocation(self, member: int, odds: int, go: int) -> None:
        state, height = self.state, self.state.current.height
        evidence = (state.progress.epoch, height, member)
        if odds < 2 and self.attempt(lambda: apply(state, self.now, 0, ZERO32, ReportEquivocation(*evidence))):
            self.credits[member] = 0
            self.banned.add(state.clients[member].signer)
        self.drive(go)

    @rule(member=numbers, source=st.integers(0, 5), go=turns)
    def name_checkpoint(self, member: int, source: int, go: int) -> None:
        place = Checkpoint(CheckpointKind.HUB, f"org/{source}") if source else Checkpoint(CheckpointKind.P2P, "x")
        mark = self.state.certified
        self.attempt(
            lambda: apply(self.state, self.now, 0, self.key_of(member), NameCheckpoint(mark.epoch, mark.digest, place))
        )
        self.drive(go)

    @rule(go=turns)
    def pause(self, go: int) -> None:
        self.attempt(lambda: apply(self.state, self.now, 0, ZERO32, Pause()))
        self.drive(go)

    @rule(gap=st.integers(-3, 100))
    def recover(self, gap: int) -> None:
        self.run_.now += max(0, gap)
        self.attempt(lambda: apply(self.state, self.now, 0, ZERO32, Recover(gap)))

    @rule(go=turns)
    def reclaim(self, go: int) -> None:
        self.attempt(lambda: apply(self.state, self.now, 0, ZERO32, ReclaimSlot()))
        self.drive(go)

    @precondition(lambda self: self.certified.digest != ZERO32 and self.state.run_state is RunState.WARMUP)
    @rule(times=st.integers(1, 2))
    def nobody_shows(self, times: int) -> None:
        """P5: Warmups in which nobody can show what is certified."""
        for _ in range(times):
            self.settle(self.state.config.warmup_time)
            self.drive(1)

    # --- helpers

    def key_of(self, member: int) -> bytes:
        clients = self.state.clients
        return clients[member].p2p if member < len(clients) else build_hash("nobody")

    def show_digest(self, member: int, digest: bytes, epoch: int | None = None) -> None:
        named = self.state.progress.epoch if epoch is None else epoch
        key = self.key_of(member)
        self.attempt(lambda: apply(self.state, self.now, 0, key, WarmupWitness(named, member, digest)))

    def send(self, message: WitnessMessage) -> None:
        key = self.key_of(message.member)
        self.attempt(lambda: apply(self.state, self.now, 0, key, message))

    def lies(self) -> st.SearchStrategy[dict[str, Any]]:
        every = (1 << PARTICIPANTS) - 1
        return st.sampled_from([
            {},
            {"held": 0, "results_root": ZERO32, "broadcast_bloom": bytes(320)},
            {"held": every, "results_root": build_hash("invented")},
            {"heard": 0},
            {"heard": every},
            {"state_digest": build_hash("split")},
            {"state_digest": ZERO32},
            {"flags": WitnessFlag.COMPLETE | WitnessFlag.NO_DIGEST},
            {"flags": WitnessFlag.FULL_DIGEST},
            {"broadcast_bloom": b"\xff" * 320},
            {"epoch": self.state.progress.epoch + 1},
            {"height": self.state.current.height + 1},
            {"member": PARTICIPANTS},
        ])  # fmt: skip

    # --- invariants

    @invariant()
    def credits_are_the_bits_of_decided_sets(self) -> None:
        if self.state.run_state in IN_EPOCH:
            mine = {m: c.credits for m, c in enumerate(self.state.clients) if c.credits}
            assert mine == +self.credits
            assert self.state.epoch.credit_total == self.credits.total()

    @invariant()
    def at_most_one_set_and_one_digest_can_win(self) -> None:
        round_ = self.state.current
        roots = Counter((r.results_root, r.held) for r in round_.witnesses)
        winners = [key for key, count in roots.items() if count >= round_.quorum and key[0] != ZERO32]
        assert len(winners) <= 1
        if round_.flags & RoundFlag.ROOT:
            assert winners == [(round_.agreed_root, round_.agreed_held)]
        flags = WitnessFlag.NO_DIGEST | WitnessFlag.FULL_DIGEST
        digests = Counter((r.state_digest, r.flags & flags) for r in round_.witnesses)
        agreed = [k for k, count in digests.items() if count >= round_.quorum and not k[1] & WitnessFlag.NO_DIGEST]
        assert bool(agreed) == bool(round_.flags & RoundFlag.DIGEST)
        assert len(agreed) <= 1

    @invariant()
    def members_never_move_within_an_epoch(self) -> None:
        if self.state.run_state in IN_EPOCH:
            assert self.identities == [(c.signer, c.p2p, c.slot) for c in self.state.clients]

    @invariant()
    def slots_are_freed_and_never_shared(self) -> None:
        slots = self.state.registry.slots
        taken = [slot for slot in slots if slot.state not in (SlotState.FREE, SlotState.LEFT)]
        assert all(slot == Slot() for slot in slots if slot.state is SlotState.FREE)
        assert len({slot.signer for slot in taken}) == len({slot.p2p for slot in taken}) == len(taken)
        assert all(slot.until and slot.p2p == ZERO32 for slot in slots if slot.state is SlotState.LEFT), "H5"
        if self.state.run_state not in IN_EPOCH:
            assert all(slot.earned for slot in slots if slot.state is SlotState.LEAVING)

    @invariant()
    def only_healthy_members_start_a_round(self) -> None:
        if self.state.run_state is RunState.ROUND_TRAIN and not self.state.current.witnesses:
            assert self.state.current.members, "P1: with no member there is no round"

    @invariant()
    def counters_stay_below_their_limits(self) -> None:
        for client in self.state.clients:
            if client.state is ClientState.HEALTHY and self.state.in_round:
                assert client.missed < self.state.config.evict_after
                assert client.late < self.state.config.late_limit
                assert client.witness_missed < 2

    def teardown(self) -> None:
        if hasattr(self, "state"):
            assert decode_state(self.bytes) == self.state, "I10: the record is the whole state"


CoordinatorMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=SLOW
)
TestCoordinator = CoordinatorMachine.TestCase
