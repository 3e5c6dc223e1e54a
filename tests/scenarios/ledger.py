"""The facts of each round, epoch and member on record, collected while a world plays; the judges read them."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import trio

from psyche.analysis.tally import Place
from psyche.core.committee.elections import get_witnesses
from psyche.core.rules.formation import get_joined
from psyche.core.state.bits import compute_bits
from psyche.core.state.state import Coordinator, Round, RoundFlag, RunState
from psyche.core.state.timeline import get_round
from psyche.server.journal.changes import Change
from psyche.sim.scenarios.scenario import Scenario
from psyche.sim.world import Outcome, World, simulate
from psyche.telemetry import types

ROUND_STATES = (RunState.ROUND_TRAIN, RunState.ROUND_WITNESS)


@dataclass(slots=True)
class RoundFacts:
    """One round on record; bitmaps are of members, times in simulated seconds."""

    epoch: int
    height: int
    start_s: float
    members: int
    witnesses: int  # the elected members
    quorum: int
    is_drain: bool
    closing_s: float = 0.0  # when RoundWitness began
    end_s: float = 0.0
    lost: int = 0  # members whose process died in this epoch, until this round's end
    sent: int = 0  # members that announced a result of this round
    agreed: int = 0  # the members of the agreed set, which are credited
    applied: int = 0  # members whose results honest clients have applied
    decided_s: float = 0.0  # when the round that decides it was closed
    is_by_timeout: bool = False
    records: int = 0
    wrong_bits: int = 0  # the number of bits in all records' `held` that differ from the agreed set, out of `bits`
    bits: int = 0


@dataclass(slots=True)
class Phase:
    """One stay in a run state; `is_complete`: it ended because its condition was met, not by time-out.

    `enough_s`: when enough members had joined to form an epoch (WaitingForMembers).
    """

    run_state: RunState
    start_s: float
    end_s: float = 0.0
    is_complete: bool = False
    enough_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Formation:
    """The formation of one epoch."""

    at_s: float
    epoch: int
    names: tuple[str, ...]


@dataclass(slots=True)
class EpochFacts:
    """A finished epoch: each member's credits, and whether its weights were certified."""

    epoch: int
    credits: dict[str, int]
    is_certified: bool


@dataclass(slots=True)
class Ledger:
    """Follows a world's record and events; `names` has the clients by key, `honest` the clients whose events count."""

    names: Mapping[bytes, str]
    honest: frozenset[str]
    rounds: dict[Place, RoundFacts] = field(default_factory=dict)
    phases: list[Phase] = field(default_factory=list)
    formations: list[Formation] = field(default_factory=list)
    epochs: list[EpochFacts] = field(default_factory=list)
    samples: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    _lag: int = 2
    _seen: tuple[RunState, int, int] = (RunState.UNINITIALIZED, 0, -1)
    _dead: set[str] = field(default_factory=set)
    _window: dict[str, int] = field(default_factory=dict)

    # --- the record --------------------------------------------------------------------------------------

    def take(self, state: Coordinator, unix: int, now: float) -> None:
        """Take the state after one more record, with its unix time and the simulated seconds."""
        height = state.current.height if state.run_state in ROUND_STATES else -1
        here = (state.run_state, state.progress.epoch, height)
        self._lag = 2 if state.config.overlap else 1
        if not self.phases:  # the first record: the run has waited since its creation
            self.phases.append(Phase(RunState.WAITING_FOR_MEMBERS, now - (unix - state.state_start_unix)))
            self._seen = (RunState.WAITING_FOR_MEMBERS, 0, -1)
        if state.run_state is RunState.WAITING_FOR_MEMBERS and not self.phases[-1].enough_s:
            self._note_enough(state, unix, now)
        if here == self._seen:
            return
        before, self._seen = self._seen, here
        if before[0] in ROUND_STATES:
            self._leave_round(state, before, now)
        if before[0] is RunState.COOLDOWN:
            self._end_epoch(state, before[1], now)
        self._enter(state, before, now)
        if state.run_state is RunState.WAITING_FOR_MEMBERS:
            self._note_enough(state, unix, now)

    def _note_enough(self, state: Coordinator, unix: int, now: float) -> None:
        if len(get_joined(state, unix)) >= state.config.init_min_clients:
            self.phases[-1].enough_s = now

    def _leave_round(self, state: Coordinator, before: tuple[RunState, int, int], now: float) -> None:
        facts = self.rounds[before[1:]]
        round_ = get_round(state, before[2])
        if before[0] is RunState.ROUND_TRAIN:
            facts.closing_s = now
            self._end_phase(now, is_complete=round_ is not None and round_.complete_len >= round_.quorum)
            return
        facts.end_s = now
        facts.is_by_timeout = round_ is not None and bool(round_.flags & RoundFlag.BY_TIMEOUT)
        self._end_phase(now, is_complete=not facts.is_by_timeout)
        if round_ is not None:
            self._close(state, facts, round_, now)

    def _close(self, state: Coordinator, facts: RoundFacts, round_: Round, now: float) -> None:
        facts.records = len(round_.witnesses)
        facts.lost = self._find_bits(facts.epoch, self._dead)
        attested = self.rounds.get((facts.epoch, facts.height - state.config.overlap))
        if attested is None or attested.is_drain:
            return
        attested.decided_s, attested.agreed = now, round_.agreed_held
        for record in round_.witnesses:
            attested.wrong_bits += (record.held ^ round_.agreed_held).bit_count()
            attested.bits += attested.members.bit_count()

    def _end_epoch(self, state: Coordinator, epoch: int, now: float) -> None:
        credits_ = {self.names.get(client.p2p, "?"): client.credits for client in state.clients}
        self.epochs.append(EpochFacts(epoch, credits_, state.certified.epoch == epoch))
        self.samples.append((now, self._window))
        self._window = {}

    def _enter(self, state: Coordinator, before: tuple[RunState, int, int], now: float) -> None:
        if not self.phases[-1].end_s:
            self._end_phase(now, is_complete=True)
        if state.run_state is RunState.WARMUP:
            names = tuple(self.names.get(client.p2p, "?") for client in state.clients)
            self.formations.append(Formation(now, state.progress.epoch, names))
            self._dead.clear()
        if state.run_state is RunState.ROUND_TRAIN and before[1:] != self._seen[1:]:
            self._open(state, now)
        self.phases.append(Phase(state.run_state, now))

    def _open(self, state: Coordinator, now: float) -> None:
        round_ = state.current
        place = (state.progress.epoch, round_.height)
        self.rounds[place] = RoundFacts(
            *place, start_s=now, members=round_.members, witnesses=compute_bits(get_witnesses(round_)),
            quorum=round_.quorum, is_drain=bool(round_.flags & RoundFlag.DRAIN),
        )  # fmt: skip

    def _end_phase(self, now: float, *, is_complete: bool) -> None:
        self.phases[-1].end_s, self.phases[-1].is_complete = now, is_complete

    # --- what machines log -------------------------------------------------------------------------------

    def take_event(self, node: str, event: types.Event) -> None:
        match event:
            case types.ResultSent():
                facts = self.rounds.get((event.epoch, event.height))
                if facts is not None:
                    facts.sent |= self._find_bits(facts.epoch, {node})
            case types.Applied(update=True) if node in self.honest:
                facts = self.rounds.get((event.epoch, event.height - self._lag))
                if facts is not None:
                    facts.applied = compute_bits(event.members)
            case types.Killed() | types.Ended():
                self._dead.add(event.who)
            case _:
                pass

    def note(self, what: str, value: int) -> None:
        """Note a measured size; each epoch keeps the maximum."""
        self._window[what] = max(value, self._window.get(what, 0))

    # --- asking ------------------------------------------------------------------------------------------

    def get_names(self, epoch: int) -> tuple[str, ...]:
        """The names of an epoch's members, by index, as it was last formed."""
        return next((one.names for one in reversed(self.formations) if one.epoch == epoch), ())

    def find_names(self, epoch: int, bits: int) -> set[str]:
        return {name for index, name in enumerate(self.get_names(epoch)) if bits >> index & 1}

    def _find_bits(self, epoch: int, names: set[str]) -> int:
        return compute_bits(index for index, name in enumerate(self.get_names(epoch)) if name in names)

    @property
    def data_rounds(self) -> list[RoundFacts]:
        return [one for _, one in sorted(self.rounds.items()) if not one.is_drain and one.end_s]

    @property
    def credits(self) -> dict[str, int]:
        return sum((Counter(epoch.credits) for epoch in self.epochs), Counter[str]())


def play(
    scenario: Scenario, *, keep_lines: bool = True, prepare: Callable[[World], None] = lambda _world: None
) -> Outcome:
    """Play a scenario as `simulate` does, with a ledger among the facts of its outcome."""
    ledgers: list[Ledger] = []

    def attach(world: World) -> None:
        honest = frozenset(host.name for host in world.clients if host.is_honest)
        ledger = Ledger({host.key: host.name for host in world.clients}, honest)

        def take(_: Change) -> None:
            ledger.take(world.shadow.state, world.shadow.now, trio.current_time())

        ledgers.append(ledger)
        world.record_listeners.append(take)
        world.trace.listeners.append(ledger.take_event)
        world.invariants.size_listeners.append(ledger.note)
        prepare(world)

    outcome = simulate(scenario, keep_lines=keep_lines, prepare=attach)
    outcome.facts["ledger"] = ledgers[0]
    return outcome
