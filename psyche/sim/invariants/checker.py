"""The invariants that must hold at every event of a simulated world, whatever crashes, is lost or lies.

| | |
|---|---|
| I1 | members that are honest and sound have equal digests of the same round |
| I2 | each sample belongs to one round only; a member applies each batch once and gets one credit for it |
| I3 | epoch, height and step only grow; the step goes back only where an epoch is given up (P3, P5) |
| I4 | the set of a round is what its records say, and all honest members decide the same |
| I5 | once healed, a run takes steps, certifies epochs and ends with its clients; a wrong weight heals (`liveness`) |
| I6 | stored bytes, queues, tables and open streams stay under their limits (`resource_limits`) |
| I7 | a banned member changes nothing any more |
| I8, I10 | replaying the journal gives the state of each record, and so does recovery from any snapshot |
| I9 | agreed and accepted results were signed by their members; a member's message is accepted only from itself |
| W4 | a member has one record for a round, which names only members that took part |
| K1 | nobody is shown a state, or gets an answer, that is not on disk |
| V12 | who is put out by an accusation has a quorum of a jury against it that was drawn after the accusation |
| R7, M9 | an honest member signs one result for a round, over all its lives, and is never ejected |
| R8 | a trainer is told the outcome of each of its results, once |
| H3 | a close never drops more than half of the electors |
| E1 | a round has the members and electors that there were when its seed was armed (`draws`) |
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from psyche.core.state.messages import ReportEquivocation, Tick, WitnessMessage
from psyche.core.state.roster import get_healthy
from psyche.core.state.state import ZERO32, ClientState, Coordinator, RoundFlag, RunState, SlotState
from psyche.core.state.timeline import get_round
from psyche.server.journal.changes import Change
from psyche.sim.invariants.agreement import Agreement, Outcomes
from psyche.sim.invariants.authenticity import Authenticity
from psyche.sim.invariants.draws import Draws
from psyche.sim.invariants.juries import Juries
from psyche.sim.invariants.liveness import Liveness
from psyche.sim.invariants.resource_limits import ResourceLimits
from psyche.sim.invariants.views import ClientView, WorldView
from psyche.telemetry import types

MAX_VIOLATIONS: Final = 8


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold, with the expected and the found value."""

    name: str
    expected: str
    found: str
    where: str

    def __str__(self) -> str:
        return f"{self.name} at {self.where}: expected {self.expected}; found {self.found}"


@dataclass(slots=True)
class _Seen:
    """The previous state of the record, as far as the checks need it."""

    run_state: RunState = RunState.UNINITIALIZED
    epoch: int = 0
    step: int = 0
    height: int = 0
    certified: bytes = ZERO32
    credits: tuple[int, ...] = ()
    electors: int = 0  # bitmap: the round's electors that are Healthy
    agreed: tuple[bytes, int, bytes] = (ZERO32, 0, ZERO32)


class Invariants:
    """Checks a world; keeps at most a few `violations`, of which the first is the most telling."""

    def __init__(self, world: WorldView) -> None:
        self.world = world
        self.violations: list[Violation] = []
        self.rounds = 0
        self.dropped: dict[str, int] = {}
        self.ejected: set[bytes] = set()
        self.maxima: dict[str, int] = {}
        self.size_listeners: list[Callable[[str, int], None]] = []  # called with each size that is measured
        self._seen = _Seen()
        self._applied: dict[tuple[int, int], tuple[str, bytes, tuple[int, ...]]] = {}
        self._applied_by: dict[tuple[str, int], tuple[int, int]] = {}
        self._samples: tuple[int, int] = (0, 0)
        self._hosts = {host.name: host for host in world.clients}
        self._by_key = {host.key: host for host in world.clients}
        self.outcomes = Outcomes(self.check)
        self.agreement = Agreement(self._by_key, self.check, self.outcomes, overlap=world.config.overlap)
        self.liveness = Liveness(world, self.check)
        self._draws = Draws(self.check)
        self._limits = ResourceLimits(world, self._note_held)
        self._authenticity = Authenticity(self._by_key, self.check)
        self._juries = Juries(self._by_key, self.check)
        world.trace.listeners += [self.liveness.take_event, self.check_event]

    # --- saying so --------------------------------------------------------------------------------------

    @property
    def place(self) -> tuple[int, int, int]:
        """The run's progress: epoch, step, closed rounds."""
        return self._seen.epoch, self._seen.step, self.rounds

    def where(self) -> str:
        """The run's position, in words."""
        state = self.world.shadow.state
        return (
            f"epoch {state.progress.epoch} {state.run_state.name} height {state.current.height} "
            f"step {state.progress.step} record {self.world.shadow.seq}"
        )

    def fail(self, name: str, expected: object, found: object, where: str = "") -> None:
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(Violation(name, str(expected), str(found), where or self.where()))

    def check(self, holds: object, name: str, expected: object, found: object) -> None:
        if not holds:
            self.fail(name, expected, found)

    def get_facts(self) -> dict[str, Any]:
        lies = [(host.name, one) for host in self.world.clients for one in host.programs]
        return {
            "dropped": self.dropped, "ejected": len(self.ejected), "maxima": self.maxima,
            "longest_wait_s": round(self.world.longest_wait_s, 1),
            "told": {name: one.told for name, one in lies}, "lies_refused": {name: one.refused for name, one in lies},
            "by_slots": self.agreement.by_slots,
            "banned_sources": {host.name: self._get_banned(host) for host in self.world.clients if host.is_honest},
        }  # fmt: skip

    def _get_banned(self, host: ClientView) -> list[str]:
        return sorted(self._by_key[key].name for key in host.get_banned())

    # --- the record, at every one of the journal's ------------------------------------------------------

    def check_record(self, change: Change) -> None:
        """Check the state after one more record."""
        state = self.world.shadow.state
        self._check_shadow()
        self._check_course(state)
        self._check_round(state)
        self._juries.check_record(state, change)
        self._check_members(state)
        if not isinstance(change.message, ReportEquivocation | Tick):  # valid whoever submits them (R7, T3)
            key = self._find_key(change.sender)
            self.check(key not in self.ejected, "I7", "no record of a banned member", key.hex()[:16])
        self._authenticity.check_change(self._seen.run_state, state, change)
        self.liveness.take_record(state)
        self._remember(state)

    def _find_key(self, sender: bytes) -> bytes:
        """The session key of whoever sent a message: on a chain it may be in the wallet's name."""
        slots = self.world.shadow.state.registry.slots
        return next((slot.p2p for slot in slots if slot.signer == sender), sender)

    def _check_shadow(self) -> None:
        for complaint in self.world.shadow.complaints:
            self.fail("I8", "the journal gives the state", complaint)

    def _check_course(self, state: Coordinator) -> None:
        """I3: epoch and height never go back, and the step only with a rollback to the certified one."""
        seen, progress = self._seen, state.progress
        self.check(progress.epoch >= seen.epoch, "I3", f"epoch from {seen.epoch} on", progress.epoch)
        if progress.epoch == seen.epoch and state.in_round and seen.run_state in _ROUND:
            self.check(state.current.height >= seen.height, "I3", f"height from {seen.height} on", state.current.height)
        if progress.step < seen.step:
            ended = seen.run_state in (RunState.COOLDOWN, RunState.WARMUP) and not state.in_round
            self.check(ended, "I3", f"step from {seen.step} on while the epoch lives", progress.step)
            self.check(
                progress.step == state.certified.step or state.certified.digest == ZERO32,
                "I3", f"a rollback to the certified step {state.certified.step}", progress.step,
            )  # fmt: skip

    def _check_round(self, state: Coordinator) -> None:
        round_ = state.current
        closed = self._seen.run_state is RunState.ROUND_WITNESS and state.run_state is not RunState.ROUND_WITNESS
        self.rounds += closed
        if closed:
            self.agreement.close(state, self._seen.height)
        if state.run_state is RunState.COOLDOWN and state.certified.digest not in (self._seen.certified, ZERO32):
            end, found = sum(self._samples), state.certified.data_index
            self.check(found == end, "I2", f"certified weights have the samples before {end}", found)
        if not state.in_round:
            return
        self.agreement.check_records(state, round_)
        if (state.progress.epoch, round_.height) != (self._seen.epoch, self._seen.height) or (
            self._seen.run_state not in _ROUND
        ):
            self._check_new_round(state)
            return
        agreed = (round_.agreed_root, round_.agreed_held, round_.agreed_digest)
        for name, was, now in zip(("root", "held", "digest"), self._seen.agreed, agreed, strict=True):
            self.check(was in (now, ZERO32, 0), "I4", f"the agreed {name} stands for good", f"{was!r}, then {now!r}")
        if agreed != self._seen.agreed:
            self.agreement.check_agreed(state, round_)

    def _check_new_round(self, state: Coordinator) -> None:
        """I2: a round's samples follow those of the round before; an epoch's follow those of its certified weights."""
        round_ = state.current
        self.agreement.check_new_round(state, round_)
        self._draws.check_new_round(state)
        first, size = round_.data_index, round_.batch_size
        if round_.flags & RoundFlag.DRAIN or not size:
            return
        certified = state.certified
        if round_.height and self._seen.epoch == state.progress.epoch:
            end = sum(self._samples)
            self.check(first == end, "I2", f"round {round_.height} begins at sample {end}", first)
        elif not round_.height and certified.digest != ZERO32:
            same = first == certified.data_index
            self.check(same, "I2", f"an epoch begins at sample {certified.data_index}, as its weights say", first)
        self._samples = (first, size)

    def _check_members(self, state: Coordinator) -> None:
        for slot in state.registry.slots:
            if slot.state is SlotState.BANNED and slot.p2p not in self.ejected:
                self.ejected.add(slot.p2p)
                host = self._by_key.get(slot.p2p)
                is_fair = host is None or not host.is_honest or slot.p2p in self._juries.excused
                self.check(is_fair, "R7", "only liars are ejected", host and host.name)
        if state.in_round or self._seen.run_state in _ROUND:
            self._check_credits(state)
        for client in state.clients:
            if client.p2p in self.ejected:
                self.check(client.state is not ClientState.HEALTHY, "I7", "no banned member is Healthy", "one is")

    def _check_credits(self, state: Coordinator) -> None:
        """I2: a close credits each member of the agreed set once (M7); H3: it drops at most half of the electors."""
        closed = get_round(state, self._seen.height) if self._seen.run_state is RunState.ROUND_WITNESS else None
        held = 0 if closed is None else closed.agreed_held
        for member, (was, client) in enumerate(zip(self._seen.credits, state.clients, strict=True)):
            allowed = (0,) if client.p2p in self.ejected else (was, was + (held >> member & 1))
            if state.run_state is RunState.COOLDOWN:  # V15: an open challenge costs its target one
                allowed = (*allowed, *(max(0, credit - 1) for credit in allowed))
            self.check(client.credits in allowed, "I2", f"credits of member {member} in {allowed}", client.credits)
        if self._seen.run_state in _ROUND:  # a Warmup that times out drops every member that is not ready (T8)
            before = self._seen.electors.bit_count()
            lost = before - (self._seen.electors & get_healthy(state)).bit_count()
            self.check(2 * lost <= max(before, 2), "H3", f"at most half of {before} electors leave", lost)

    def _remember(self, state: Coordinator) -> None:
        self._draws.take(state)
        seen, round_ = self._seen, state.current
        seen.run_state, seen.epoch, seen.step = state.run_state, state.progress.epoch, state.progress.step
        seen.height, seen.certified = round_.height, state.certified.digest
        seen.credits = tuple(client.credits for client in state.clients)
        seen.electors = round_.electors & get_healthy(state)
        seen.agreed = (round_.agreed_root, round_.agreed_held, round_.agreed_digest)

    # --- what the server says ----------------------------------------------------------------------------

    def check_shown(self, raw: bytes) -> None:
        """K1: a state that a client is shown is on disk."""
        self.check(self.world.shadow.has_state(raw), "K1", "states that are on disk", "a client is shown another one")

    def check_answered(self, who: str, message: WitnessMessage) -> None:
        """K1: a report that the server acknowledges to its witness is on disk."""
        place = (message.epoch, message.height, message.member)
        known = self.world.shadow.has_report(*place)
        self.check(known, "K1", "an answer when the record is on disk", f"{who} has one for its report {place} before")

    # --- what the machines log --------------------------------------------------------------------------

    def check_event(self, node: str, event: types.Event) -> None:
        if isinstance(event, types.Crashed | types.ServerDefect):
            self.fail("no defects", "no process dies of a defect of the program", f"{node}: {event.error}")
        host = self._hosts.get(node)
        if host is None or not host.is_honest:
            return
        match event:
            case types.RoundStarted() | types.Equivocation():
                self._authenticity.check_gossip(host)
            case types.Applied():
                self.agreement.check_applied(host, event)
                self._check_applied(host, event)
            case types.Decided():
                self.agreement.check_decided(host, event)
            case types.ResultSent():
                self.agreement.check_signed(host, event)
            case types.Dropped():
                self.dropped[node] = self.dropped.get(node, 0) + 1
            case _:
                pass

    def _check_applied(self, host: ClientView, event: types.Applied) -> None:
        """I1: equal digests after the same round; I2: a process applies each round once, in order."""
        place = (event.epoch, event.height)
        if host.is_corrupt:
            return
        mine = (host.name, event.digest, event.members)
        known = self._applied.setdefault(place, mine)
        self.check(
            known[1:] == mine[1:], "I1",
            f"round {place}: {known[0]} has {known[1].hex()[:16]} after {known[2]}",
            f"{host.name} has {mine[1].hex()[:16]} after {mine[2]}",
        )  # fmt: skip
        by = (host.name, host.lives)
        former = self._applied_by.get(by, (-1, -1))
        self.check(place > former, "I2", f"{host.name} applies a round after {former}", place)
        self._applied_by[by] = place

    # --- now and then, and at the end -------------------------------------------------------------------

    def check_limits(self) -> None:
        """I6, I9 for the lies that only the liars know of, and I5 for the certification of epochs."""
        self._limits.measure(self._seen.epoch)
        self.liveness.check_epochs()
        self._authenticity.check_lies()

    def _note_held(self, what: str, value: int, limit: int | None) -> None:
        self.maxima[what] = max(value, self.maxima.get(what, 0))
        for listen in self.size_listeners:
            listen(what, value)
        if limit is not None:
            self.check(value <= limit, "I6", f"at most {limit} {what}", value)

    def check_end(self) -> None:
        self._check_shadow()
        self._authenticity.check_lies()
        for host in self.world.clients:
            for complaint in host.complaints if host.is_honest else ():
                self.fail("R8", "each result's outcome is told once", f"{host.name}: {complaint}")
        self.liveness.check_end()
        self._check_weights()
        self.world.backend.check_end(self.check)

    def _check_weights(self) -> None:
        """I1: all honest clients that believe to hold the certified weights hold the same bits."""
        certified = self.world.shadow.state.certified.digest
        roots: dict[bytes, str] = {}
        for host in self.world.clients:
            root = host.compute_root(certified) if host.is_honest and certified != ZERO32 else None
            if root is not None:
                roots.setdefault(root, host.name)
        self.check(len(roots) <= 1, "I1", "one model behind the certified digest", sorted(roots.values()))


_ROUND: Final = (RunState.ROUND_TRAIN, RunState.ROUND_WITNESS)
