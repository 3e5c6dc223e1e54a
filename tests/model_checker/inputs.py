"""The inputs of a small world: what each member, the clock and the owner may do in a state, by name.

`Menu.offer` lists what may have an effect, `Menu.probe` what must not: refused, or without a change.
A message is built from the state and its symbols, as its sender would build it, and bears no bloom
filter: the core asks of a filter only that it has not too many bits (W4).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

from model_checker.forms import DIGESTS, ROOTS
from model_checker.worlds import Report, World
from psyche.core.committee.seeds import EXPIRED
from psyche.core.rules.apply import apply
from psyche.core.state.bits import get_members
from psyche.core.state.enums import CheckpointKind, ClientState, RoundFlag, RunState, SlotState, WitnessFlag
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.messages import (
    HealthCheck,
    Join,
    LeaveRun,
    NameCheckpoint,
    Pause,
    Recover,
    ReportEquivocation,
    Resume,
    Tick,
    WarmupWitness,
    Withdraw,
    WitnessMessage,
)
from psyche.core.state.roster import get_healthy
from psyche.core.state.state import ZERO32, Checkpoint, Client, Coordinator
from psyche.core.state.timeline import get_attested_round, get_round
from psyche.testing.builders import build_hash

ENTROPY: Final = build_hash("entropy")
STRANGER: Final = build_hash("stranger")
SOURCES: Final = tuple(Checkpoint(CheckpointKind.HUB, name) for name in ("org/first", "org/second"))
_NOT_LASTING: Final = Checkpoint(CheckpointKind.P2P, "org/peer")
_NEW_EPOCH: Final = (RunState.WAITING_FOR_MEMBERS, RunState.PAUSED)


class Input(NamedTuple):
    """Something that can happen: it changes the state, or is refused, and gives the time after it."""

    name: str
    act: Callable[[Coordinator, int], int]


Call = Callable[[Coordinator, int], object]


def build_input(name: str, call: Call) -> Input:
    """An input that takes no time."""

    def act(state: Coordinator, now: int) -> int:
        call(state, now)
        return now

    return Input(name, act)


TICK: Final = build_input("tick", lambda s, now: apply(s, now, now, ZERO32, Tick(ENTROPY)))
TICK_BEFORE_ENTROPY: Final = build_input("tick, no entropy yet", lambda s, now: apply(s, now, now, ZERO32, Tick(None)))
TICK_EXPIRED: Final = build_input("tick, entropy expired", lambda s, now: apply(s, now, now, ZERO32, Tick(EXPIRED)))
PAUSE: Final = build_input("the owner pauses", lambda s, now: apply(s, now, 0, ZERO32, Pause()))
RESUME: Final = build_input("the owner resumes", lambda s, now: apply(s, now, 0, ZERO32, Resume()))


def build_join(world: World, participant: int) -> Input:
    """A participant asks for a place."""
    keys = world.get_keys(participant)
    return build_input(f"participant {participant} joins", lambda s, now: apply(s, now, 0, keys[0], Join(keys[1])))


def build_ready(state: Coordinator, member: int, digest: str) -> Input:
    """A member shows its weights, in the running epoch."""
    key, epoch = state.clients[member].p2p, state.progress.epoch
    return build_input(
        f"member {member} shows {digest}",
        lambda s, now: apply(s, now, 0, key, WarmupWitness(epoch, member, DIGESTS[digest])),
    )


def build_witness(state: Coordinator, member: int, message: WitnessMessage) -> Input:
    """A witness reports."""
    key = state.clients[member].p2p
    return build_input(
        f"witness {member} reports {_format_report(message)}", lambda s, now: apply(s, now, 0, key, message)
    )


@lru_cache(maxsize=4096)
def _format_report(message: WitnessMessage) -> str:
    root = next(name for name, value in ROOTS.items() if value == message.results_root)
    digest = next(name for name, value in DIGESTS.items() if value == message.state_digest)
    complete = "complete" if message.flags & WitnessFlag.COMPLETE else "incomplete"
    return f"root {root} held {message.held:b} heard {message.heard:b} digest {digest}, {complete}"


@lru_cache(maxsize=4096)
def build_message(
    epoch: int, height: int, member: int, held: int, heard: int, root: str, digest: str, complete: bool
) -> WitnessMessage:
    """A witness message of these symbols."""
    flags = WitnessFlag.NO_DIGEST if digest == "-" else WitnessFlag.FULL_DIGEST
    if complete:
        flags |= WitnessFlag.COMPLETE
    return WitnessMessage(
        epoch=epoch, height=height, member=member, flags=flags, at_s=0, held=held, heard=heard, missing=0,
        broadcast_bloom=_NO_BLOOM, results_root=ROOTS[root] if held else ZERO32, state_digest=DIGESTS[digest],
    )  # fmt: skip


_NO_BLOOM: Final = bytes(320)


class Menu:
    """What can happen in the states of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._joins = [build_join(world, participant) for participant in range(world.members)]
        faulty = world.faulty_participant
        self._faulty_key = None if faulty is None else world.get_keys(faulty)[1]

    # --- what may have an effect

    def offer(self, state: Coordinator, now: int) -> Iterator[Input]:
        """All inputs of the world that the rules may accept in this state."""
        yield from self._offer_time(state, now)
        yield from self._offer_owner(state, now)
        yield from self._offer_membership(state)
        if state.run_state is RunState.WARMUP:
            for member in get_members(get_healthy(state)):
                for digest in self._get_shown(state, member):
                    yield build_ready(state, member, digest)
        elif state.in_round:
            for member in self._get_speakers(state):
                for message in self._get_messages(state, member):
                    yield build_witness(state, member, message)
            if "health" in self._world.inputs:
                yield from (self._build_accusation(state, m) for m in self._get_accusable(state))
        if "eject" in self._world.inputs:
            yield from self._offer_ejections(state)
        if "checkpoint" in self._world.inputs:
            yield from self._offer_checkpoints(state)

    def _offer_time(self, state: Coordinator, now: int) -> Iterator[Input]:
        if state.halted:
            return
        if state.in_round and "gaps" not in self._world.inputs:
            # no message of a round reads the clock (W4, H4): one that comes after the deadline and before the
            # tick does what it would have done before the deadline, so both happen at once here
            yield TICK
            yield build_deadline(state, self._world.get_deadlines(state)[-1])
            yield from self._offer_epoch_time(state, now)
            return
        yield TICK
        if "gaps" in self._world.inputs and state.run_state in (RunState.WARMUP, RunState.ROUND_WITNESS):
            yield TICK_BEFORE_ENTROPY
            yield TICK_EXPIRED
        for deadline in self._world.get_deadlines(state):
            if state.state_start_unix + deadline > now:
                yield build_wait(state, deadline)
        yield from self._offer_epoch_time(state, now)

    def _offer_epoch_time(self, state: Coordinator, now: int) -> Iterator[Input]:
        if "epoch time" in self._world.inputs and state.run_state is not RunState.WAITING_FOR_MEMBERS:
            end = state.epoch.start_timestamp + state.config.epoch_time
            if now < end:
                yield Input("epoch_time is reached", lambda _s, _now: end)

    def _offer_owner(self, state: Coordinator, now: int) -> Iterator[Input]:
        if "pause" in self._world.inputs:
            if not state.halted and not state.pending_pause:
                yield PAUSE
            if state.run_state is RunState.PAUSED:
                yield RESUME
        if "recover" in self._world.inputs and not state.halted and now > state.state_start_unix:
            gap = now - state.state_start_unix
            yield build_input(f"the backend was away for {gap} s", lambda s, t: apply(s, t, 0, ZERO32, Recover(gap, 0)))

    def _offer_membership(self, state: Coordinator) -> Iterator[Input]:
        world, waiting = self._world, state.run_state in _NEW_EPOCH
        if state.run_state is RunState.FINISHED:
            return
        if waiting or "rejoin" in world.inputs:
            for participant, join in enumerate(self._joins):
                if not self._is_joined(state, world.get_keys(participant)[0]):
                    yield join
        if "withdraw" in world.inputs and state.run_state is RunState.WAITING_FOR_MEMBERS:
            for slot in state.registry.slots:
                if slot.state is SlotState.JOINED and slot.active >= state.registry.next_active:
                    yield _build_withdrawal(state, slot.p2p, 0)
        elif "withdraw" in world.inputs and not state.halted:
            for member in get_members(get_healthy(state)):
                yield _build_withdrawal(state, state.clients[member].p2p, member)
        if "leave" in world.inputs:
            for slot in state.registry.slots:
                if slot.state is SlotState.JOINED:
                    yield _build_leave(slot.signer)

    def _is_joined(self, state: Coordinator, signer: bytes) -> bool:
        """Whether a join would change nothing, or is banned."""
        for slot in state.registry.slots:
            if slot.state is not SlotState.FREE and slot.signer == signer:
                wanted = max(state.registry.next_active, slot.until)
                same = slot.active == wanted and slot.last_epoch == state.progress.epoch
                return slot.state is SlotState.BANNED or (same and slot.state is SlotState.JOINED)
        return False

    def _offer_ejections(self, state: Coordinator) -> Iterator[Input]:
        if not state.in_round and state.run_state is not RunState.COOLDOWN:
            return
        for member, client in enumerate(state.clients):
            if client.p2p == self._faulty_key and client.state is not ClientState.EJECTED:
                yield _build_ejection(state, member, state.current.height)

    def _offer_checkpoints(self, state: Coordinator) -> Iterator[Input]:
        named = (state.model.checkpoint, *state.model.extra_checkpoints)
        before = state.run_state in (RunState.WARMUP, RunState.ROUND_TRAIN, RunState.ROUND_WITNESS)
        if state.certified.digest == ZERO32 or (before and state.certified.epoch == state.progress.epoch):
            return
        for client in state.clients:
            for source in SOURCES:
                if client.state is not ClientState.EJECTED and (
                    source not in named or state.checkpoint.digest != state.certified.digest
                ):
                    yield _build_checkpoint(state, client.p2p, source)

    # --- witnesses

    def _is_faulty(self, client: Client) -> bool:
        return client.p2p == self._faulty_key

    def _get_shown(self, state: Coordinator, member: int) -> str:
        """The digests that a member may show in Warmup; none twice (K3)."""
        client = state.clients[member]
        if client.flags & 1:
            return ""
        if state.certified.digest != ZERO32:  # S8
            return next(name for name, value in DIGESTS.items() if value == state.certified.digest)
        return self._world.ready_faulty if self._is_faulty(client) else self._world.ready_honest

    def _get_speakers(self, state: Coordinator) -> list[int]:
        """Who may still report: every elector of the round is elected in a small world (M10)."""
        sent = {record.member for record in state.current.witnesses}
        return [m for m in get_members(get_healthy(state)) if state.current.electors >> m & 1 and m not in sent]

    def _get_messages(self, state: Coordinator, member: int) -> Iterator[WitnessMessage]:
        """The different reports that a member may send now.

        An honest one says `complete` in RoundTrain alone (W6); a faulty one may say either, but from
        RoundWitness on nobody reads it (T4).
        """
        is_faulty = self._is_faulty(state.clients[member])
        reports = self._world.faulty if is_faulty else self._world.honest
        training = state.run_state is RunState.ROUND_TRAIN
        seen: set[WitnessMessage] = set()
        for report in reports:
            for complete in (True, False) if training and is_faulty else (training,):
                for message in self.build_messages(state, member, report, complete=complete):
                    if message not in seen:
                        seen.add(message)
                        yield message

    def build_messages(
        self, state: Coordinator, member: int, report: Report, *, complete: bool
    ) -> Iterator[WitnessMessage]:
        """What a report means in this state: one message, or one for each member that it may accuse."""
        attested = get_attested_round(state)
        due = attested.members if attested is not None else 0
        for held in self._get_bits(state, due, report.held):
            root = report.root if report.root != "=" else "AB"[held != due]
            for heard in self._get_bits(state, state.current.members, report.heard):
                yield build_message(
                    state.progress.epoch, state.current.height, member, held, heard, root, report.digest, complete
                )

    def _get_bits(self, state: Coordinator, members: int, word: str) -> list[int]:
        if word == "all":
            return [members]
        if word == "none":
            return [0]
        faulty = sum(1 << m for m, client in enumerate(state.clients) if self._is_faulty(client))
        if word == "but faulty":
            return [members & ~faulty]
        assert word == "but one", f"{word} is no word of a report"
        return [members & ~(1 << m) for m in get_members(members & ~faulty)]

    def _get_accusable(self, state: Coordinator) -> list[int]:
        """Members that H4 may count: no record in the round before, which closed by time-out."""
        height = state.current.height
        last = get_round(state, height - 1) if height else None
        if last is None or not last.flags & RoundFlag.BY_TIMEOUT:
            return []
        reported = {record.member for record in last.witnesses}
        return [
            m
            for m in get_members(get_healthy(state))
            if last.electors >> m & 1
            and m not in reported
            and state.clients[m].witness_checked_height != height
            and sum(r.heard >> m & 1 for r in last.witnesses) > last.witnesses_expected - last.quorum
        ]

    def _build_accusation(self, state: Coordinator, member: int, height_less: int = 0) -> Input:
        epoch, height = state.progress.epoch, state.current.height - height_less
        empty = (SlotState.FREE, SlotState.LEFT)
        key = next((slot.p2p for slot in state.registry.slots if slot.state not in empty), STRANGER)
        return build_input(
            f"member {member} is accused in round {height}",
            lambda s, now: apply(s, now, 0, key, HealthCheck(epoch, height, member)),
        )

    # --- what must not have an effect

    def probe(self, state: Coordinator) -> Iterator[Input]:
        """Inputs that a rule refuses, or that repeat what is on record already (T2, T7, K3, W4, S8, H4, S10).

        Repeated, late, early, by strangers, about others, in the wrong phase.
        """
        yield from self._probe_members(state)
        yield from self._probe_rounds(state)
        yield from self._probe_backend(state)

    def _probe_members(self, state: Coordinator) -> Iterator[Input]:
        for participant, join in enumerate(self._joins):
            if self._is_joined(state, self._world.get_keys(participant)[0]) or state.run_state is RunState.FINISHED:
                yield join
        yield build_input(
            "a stranger takes a key of another",
            lambda s, now: apply(s, now, 0, STRANGER, Join(s.registry.slots[0].p2p if s.registry.slots else ZERO32)),
        )
        yield _build_withdrawal(state, STRANGER, 0)
        if state.progress.epoch:
            yield _build_withdrawal(state, self._world.get_keys(0)[1], 0, state.progress.epoch - 1)
        for member, client in enumerate(state.clients):
            if client.state is not ClientState.HEALTHY and state.run_state is not RunState.WAITING_FOR_MEMBERS:
                yield _build_withdrawal(state, client.p2p, member)
            if state.run_state is not RunState.WARMUP or client.state is not ClientState.HEALTHY or client.flags & 1:
                yield build_ready(state, member, "X")
            if state.certified.digest != ZERO32:
                yield build_ready(state, member, "Y" if state.certified.digest == DIGESTS["X"] else "X")

    def _probe_rounds(self, state: Coordinator) -> Iterator[Input]:
        speakers = self._get_speakers(state) if state.in_round else []
        accusable = self._get_accusable(state) if state.in_round else []
        for member in range(len(state.clients)):
            for message in self.build_messages(state, member, Report(), complete=True):
                if member not in speakers:
                    yield build_witness(state, member, message)
                else:
                    yield from self._probe_speaker(state, member, message)
            if member not in accusable:
                yield self._build_accusation(state, member)
        if state.clients:
            yield self._build_accusation(state, 0, 1)
            yield _build_ejection(state, 0, state.current.height + 1)
            yield _build_ejection(state, len(state.clients), state.current.height)

    def _probe_speaker(self, state: Coordinator, member: int, message: WitnessMessage) -> Iterator[Input]:
        """W4 from a witness that may still speak: of another round, by another, with bits and fields that lie."""
        everybody = (1 << (len(state.clients) + 1)) - 1
        for change in (
            {"height": message.height + 1}, {"epoch": message.epoch + 1}, {"heard": everybody}, {"held": everybody},
            {"results_root": ROOTS["A"] if not message.held else ZERO32},
            {"state_digest": ZERO32}, {"broadcast_bloom": b"\xff" * 320}, {"at_s": -1},
        ):  # fmt: skip
            yield build_witness_like(state.clients[member].p2p, replace(message, **change), ", ".join(change))
        yield build_witness_like(STRANGER, message, "by a stranger")

    def _probe_backend(self, state: Coordinator) -> Iterator[Input]:
        if state.run_state is not RunState.PAUSED:
            yield RESUME
        if state.halted:
            yield from (PAUSE, TICK, TICK_BEFORE_ENTROPY, TICK_EXPIRED)
        if state.certified.digest == ZERO32:  # S10: nothing is certified, so nothing has a source
            yield from (_build_checkpoint(state, client.p2p, SOURCES[0]) for client in state.clients)
        key = self._world.get_keys(0)[1]
        yield _build_checkpoint(state, STRANGER, SOURCES[0])
        yield _build_checkpoint(state, key, _NOT_LASTING)
        yield build_input(
            "a checkpoint of other weights",
            lambda s, now: apply(s, now, 0, key, NameCheckpoint(s.certified.epoch, STRANGER, SOURCES[0])),
        )


def build_witness_like(key: bytes, message: WitnessMessage, how: str) -> Input:
    """A report that something is wrong with."""
    return build_input(
        f"witness {message.member} reports wrongly: {how}", lambda s, now: apply(s, now, 0, key, message)
    )


def build_wait(state: Coordinator, deadline_s: int) -> Input:
    """Time passes up to a deadline of the phase."""
    end = state.state_start_unix + deadline_s
    return Input(f"{deadline_s} s of {state.run_state.name} are over", lambda _state, now: max(now, end))


def build_deadline(state: Coordinator, deadline_s: int) -> Input:
    """Time passes up to a deadline of the phase, and the backend ticks."""
    end, phase = state.state_start_unix + deadline_s, state.run_state.name

    def act(state: Coordinator, now: int) -> int:
        apply(state, max(now, end), max(now, end), ZERO32, Tick(ENTROPY))
        return max(now, end)

    return Input(f"{deadline_s} s of {phase} are over, tick", act)


def _build_withdrawal(state: Coordinator, key: bytes, member: int, epoch: int | None = None) -> Input:
    named = state.progress.epoch if epoch is None else epoch
    whose = "stranger" if key == STRANGER else f"member {member} or its join"
    return build_input(
        f"{whose} withdraws from epoch {named}", lambda s, now: apply(s, now, 0, key, Withdraw(named, member))
    )


def _build_leave(signer: bytes) -> Input:
    return build_input(f"signer {signer[:2].hex()} leaves", lambda s, now: apply(s, now, 0, signer, LeaveRun()))


def _build_ejection(state: Coordinator, member: int, height: int) -> Input:
    epoch = state.progress.epoch
    return build_input(
        f"member {member} is caught with two results of round {height}",
        lambda s, now: apply(s, now, 0, ZERO32, ReportEquivocation(epoch, height, member)),
    )


def _build_checkpoint(state: Coordinator, key: bytes, source: Checkpoint) -> Input:
    mark = state.certified
    return build_input(
        f"{source.name} is named as checkpoint",
        lambda s, now: apply(s, now, 0, key, NameCheckpoint(mark.epoch, mark.digest, source)),
    )


def is_refused(given: Input, state: Coordinator, now: int) -> bool:
    """Do it on this very state: whether it was refused, or changed nothing by its own account (T2)."""
    nonce = state.nonce
    try:
        given.act(state, now)
    except CoordinatorError:
        return True
    return state.nonce == nonce
