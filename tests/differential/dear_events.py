"""The events that cost the rules on a chain most, each in the state in which it costs most: for 2 to 256 members.

The states are those of runs, changed by hand where a run would need many epochs to get there. All are states that
`decode_state` accepts.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from kits.runs import Run, build_cooldown, build_run, build_training, build_warmup

from differential.backends import ACCEPTED, REFUSED, ProgramBackend, encode_event
from psyche.core.committee.elections import compute_quorum, get_verifiers, get_witnesses
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.rules.apply import apply
from psyche.core.rules.audits import get_jury
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.limits import MAX_BOOTSTRAP, MAX_CLIENTS
from psyche.core.state.messages import (
    Collect,
    HealthCheck,
    Join,
    JudgeChallenge,
    LeaveRun,
    Message,
    NameCheckpoint,
    ReclaimSlot,
    ReportAudit,
    ReportEquivocation,
    Resume,
    Tick,
    Update,
    WarmupWitness,
    Withdraw,
)
from psyche.core.state.state import (
    ZERO32,
    Audit,
    AuditReason,
    AuditStatus,
    Challenge,
    ChallengeState,
    Checkpoint,
    CheckpointKind,
    ClientFlag,
    ClientState,
    Coordinator,
    Mark,
    RoundFlag,
    RunState,
    SlotState,
    StartCandidate,
)
from psyche.testing.builders import build_hash, build_keys

UNITS: Final = 60_000  # the most that an event may cost
_RAMP_TOKENS: Final = 1 << 62  # a ramp whose product with a batch size needs more than 64 bits
_EARNINGS: Final = 10**15


@dataclass(frozen=True)
class DearEvent:
    """An event, and the state in which it costs most."""

    name: str
    state: bytes
    now: int
    sender: bytes
    message: Message


def measure_units(backend: ProgramBackend, event: DearEvent) -> int:
    """The compute units that an event costs; the program must do to the account what core does."""
    state, expected = decode_state(event.state), ACCEPTED
    try:
        apply(state, event.now, event.now, event.sender, event.message)
    except CoordinatorError as refusal:
        expected = REFUSED + refusal.number
    backend.load(event.state)
    assert backend.send(encode_event(event.now, event.now, event.sender, event.message)) == expected, event.name
    assert backend.read() == encode_state(state), event.name
    return backend.compute_units


def list_dear_events(members: int) -> Iterator[DearEvent]:
    """Every kind of event, and every phase of a tick, for a run with this many members (2 to 256)."""
    yield from _list_joining(members)
    yield from _list_formations(members)
    yield from _list_warmups(members)
    yield from _list_reports(members)
    yield from _list_closes(members)
    yield from _list_settlements(members)
    yield from _list_owner(members)
    yield from _list_audits(members)


def _get_batches(members: int) -> dict[str, Any]:
    sizes = {"global_batch_size_start": max(members, 12), "global_batch_size_end": 60_000}
    return {**sizes, "global_batch_size_warmup_tokens": _RAMP_TOKENS, "rounds_per_epoch": 50}


def _event(name: str, run: Run, message: Message, sender: bytes = ZERO32) -> DearEvent:
    state = encode_state(run.state)
    decode_state(state)
    return DearEvent(name, state, run.now, sender, message)


def _tick(name: str, run: Run) -> DearEvent:
    return _event(f"tick: {name}", run, Tick(build_hash("entropy")))


def _list_joining(members: int) -> Iterator[DearEvent]:
    run = build_run(members - 1)
    signer, p2p = build_keys(members - 1)
    yield _event("join, after all others", run, Join(p2p), signer)
    run.join(members - 1)
    yield _event("join again", run, Join(build_hash("other key")), signer)
    yield _event("leave, the last slot", run, LeaveRun(), signer)
    yield _event("withdraw a join", run, Withdraw(0, 0), p2p)
    for slot in run.state.registry.slots:
        slot.last_epoch = slot.active = 0
    run.state.progress.epoch = 9
    yield _event("reclaim a slot", run, ReclaimSlot())


def _list_formations(members: int) -> Iterator[DearEvent]:
    run = build_run(members, **_get_batches(members))
    run.now += 20
    yield _tick("formation", run)
    registry = run.state.registry
    registry.next_active = 500
    run.state.config.init_min_clients = 3 * members // 4
    for number, slot in enumerate(registry.slots):
        slot.active = 500 if number % 3 == 0 else 501 + 7 * number % 64
        slot.until = slot.active if number % 3 else 0
        slot.proven = number % 5 == 0
        slot.fruitless = 0 if slot.proven else 7 * number % 200
    _certify(run.state)
    yield _tick("formation, some wait and some are on probation", run)


def _certify(state: Coordinator) -> None:
    state.certified = Mark(build_hash("weights"), state.progress.epoch, step=state.progress.step)
    state.checkpoint = copy.copy(state.certified)


def _list_warmups(members: int) -> Iterator[DearEvent]:
    run = build_warmup(members, **_get_batches(members))
    last = members - 1
    run.show(*range(last))
    ready = WarmupWitness(0, last, run.get_start_digest())
    yield _event("warmup_witness, the last", run, ready, run.state.clients[last].p2p)
    yield _event("withdraw in Warmup", run, Withdraw(0, last), run.state.clients[last].p2p)
    half = _build_split_warmup(run, 1)
    half.tick()
    yield _tick("Warmup over, half are ready, round 0 starts", half)
    yield _tick("Warmup over, four digests, all leave", _build_split_warmup(run, 4))
    run.show(last)
    run.tick()
    yield _tick("all are ready, round 0 starts", run)


def _build_split_warmup(run: Run, digests: int) -> Run:
    """A Warmup at its end. One digest: half of the members show it; several: each is shown by an equal part."""
    split = copy.deepcopy(run)
    clients, epoch = split.state.clients, split.state.epoch
    epoch.start_candidates = [StartCandidate(build_hash("weights", n)) for n in range(digests)]
    epoch.ready_len = 0
    for member, client in enumerate(clients):
        shown = member % digests
        client.flags = ClientFlag(0)
        if digests > 1 or member < (len(clients) + 1) // 2:
            client.flags = ClientFlag.READY | ClientFlag(shown << 4)
            epoch.start_candidates[shown].count += 1
            epoch.ready_len += 1
    split.now += split.state.config.warmup_time
    return split


def _build_round(members: int) -> Run:
    return build_training(members, 2, **_get_batches(members))


def _list_reports(members: int) -> Iterator[DearEvent]:
    run = _build_round(members)
    *others, last = get_witnesses(run.state.current)
    for place, witness in enumerate(others):  # no two hold the same
        run.send(run.build_witness(witness, held=run.state.current.members & ~(1 << place)))
    yield _event("witness, the last", run, run.build_witness(last), run.state.clients[last].p2p)
    sender = run.state.clients[others[0]].p2p
    yield _event("witness again: refused", run, run.build_witness(others[0]), sender)
    yield _event("report_equivocation", run, ReportEquivocation(0, run.state.current.height, last))
    run.send(run.build_witness(last))
    yield _tick("RoundTrain over", run)


def _build_close(members: int) -> Run:
    """A round that closes: its records agree on nothing, and half of its members are late once too often."""
    run = _build_round(members)
    half = (1 << members // 2) - 1
    for place, witness in enumerate(get_witnesses(run.state.current)):
        held = run.state.current.members & ~half & ~(1 << place)
        run.send(run.build_witness(witness, held=held, state_digest=build_hash("digest", place)))
    run.tick()
    for client in run.state.clients[: members // 2]:
        client.late = run.state.config.late_limit - 1
    for client in run.state.clients:
        client.flags |= ClientFlag.PROBATION
    run.now += run.state.config.round_witness_time
    return run


def _list_closes(members: int) -> Iterator[DearEvent]:
    run = _build_close(members)
    yield _tick("close, nothing is agreed, half are dropped", run)
    verified = copy.deepcopy(run)
    verified.state.config.verification_percent = 30
    yield _tick("close, with verifiers", verified)
    if gone := _remove_listeners(verified.state):
        yield _tick(f"close, with verifiers, after {gone} have left", verified)
    silent = _build_round(members)
    accused = get_witnesses(silent.state.current)[-1]
    silent.run_round(silent={accused})
    before = silent.state.rounds[2]
    before.flags |= RoundFlag.BY_TIMEOUT
    for record in before.witnesses:
        record.heard = before.members
    health_check = HealthCheck(0, silent.state.current.height, accused)
    if len(before.witnesses) > before.witnesses_expected - before.quorum:
        yield _event("health_check", silent, health_check, silent.state.clients[-1].p2p)


def _remove_listeners(state: Coordinator) -> int:
    """Let four members leave that never reported, so that ranks are not indexes any more."""
    reported = {record.member for round_ in state.rounds for record in round_.witnesses}
    gone = [member for member in range(len(state.clients)) if member not in reported][:4]
    mask = sum(1 << member for member in gone)
    for member in gone:
        state.clients[member].state = ClientState.WITHDRAWN
    for round_ in state.rounds:
        if round_.members:
            round_.members, round_.electors = round_.members & ~mask, round_.electors & ~mask
            round_.clients_len -= len(gone)
    return len(gone)


def _list_settlements(members: int) -> Iterator[DearEvent]:
    run = build_cooldown(members, **{**_get_batches(members), "rounds_per_epoch": 1})
    source = NameCheckpoint(0, run.state.certified.digest, Checkpoint(CheckpointKind.HUB, "owner/" + "n" * 58))
    yield _event("checkpoint, by the last member", run, source, run.state.clients[-1].p2p)
    run.state.registry.current_earning_rate = _EARNINGS
    run.now += run.state.config.cooldown_time
    yield _tick("Cooldown over, all earn", run)
    for client, slot in zip(run.state.clients, run.state.registry.slots, strict=True):
        client.credits, client.flags = 0, ClientFlag(0)
        slot.proven, slot.fruitless, slot.strikes = False, 3, 2
        slot.state, slot.active = SlotState.LEAVING, 0
    run.state.epoch.credit_total = run.state.registry.current_earning_rate = 0
    yield _tick("Cooldown over, all leave and have to wait", run)


def _list_audits(members: int) -> Iterator[DearEvent]:
    """The last entry of a full table, and votes that convict its target, the last member, or clear it."""
    settings = {"verification_percent": 99, "convict": True, "witness_nodes": max(1, min(members // 2, 32))}
    run = build_training(members, 2, **_get_batches(members) | settings)
    round_, config = run.state.current, run.state.config
    *others, verifier = get_verifiers(round_, config)
    round_.audits = [Audit(one, (one + 1) % members, AuditStatus.DOUBTED, AuditReason.UNCLEAR, 0) for one in others]
    target = max(member for member in range(members) if member != verifier)
    slots = [slot for slot in range(members) if slot not in (verifier, target)]
    for number in range(min(15, len(slots) // 2)):
        run.state.challenges[number] = Challenge(
            verifier=slots[2 * number], target=slots[2 * number + 1], state=ChallengeState.OPEN, deadline_height=9
        )
    accuse = ReportAudit(0, round_.height, verifier, target, 3, AuditReason.GRADIENT, build_hash("commitment"))
    yield _event("audit, the last, opens a challenge", run, accuse, run.state.clients[verifier].p2p)
    run.apply(accuse, run.state.clients[verifier].p2p)
    number = next(n for n, one in enumerate(run.state.challenges) if one.target == target)
    challenge = run.state.challenges[number]
    challenge.deadline_height = round_.height + 1
    *jurors, last = get_jury(run.state, round_, challenge) or [verifier]
    for guilty in (1, 0):
        challenge.voters = sum(1 << juror for juror in jurors)
        challenge.guilty, challenge.innocent = (0, 0)
        name, votes = ("guilty", "innocent")[1 - guilty], min(len(jurors), compute_quorum(len(jurors) + 1) - 1)
        setattr(challenge, name, votes)
        setattr(challenge, ("innocent", "guilty")[1 - guilty], len(jurors) - votes)
        run.state.registry.slots[verifier].false_challenges = 1
        vote = JudgeChallenge(0, round_.height, last, number, guilty)
        yield _event(f"judge, the last vote: {name}", run, vote, run.state.clients[last].p2p)


def _list_owner(members: int) -> Iterator[DearEvent]:
    run = build_run(members)
    slots = run.state.registry.slots
    for slot in slots:
        slot.earned, slot.state = 5, SlotState.LEAVING
        slot.active = 0
    yield _event("collect", run, Collect(((slots[-1].signer, None),)))  # a transaction on a chain has one claim
    run.state.run_state = RunState.PAUSED
    yield _event("resume", run, Resume())
    parts = copy.deepcopy(run.state)
    parts.config.cooldown_time += 1
    parts.metadata.description = "d" * 280
    addresses = tuple("/dns4/" + "h" * 60 + f"/tcp/{port}" for port in range(1, 1 + MAX_BOOTSTRAP))
    first, nonce = build_hash("first weights"), run.state.nonce
    update = Update(parts.config, parts.model, parts.progress, parts.metadata, addresses, first, nonce)
    yield _event("update of everything", run, update)


assert MAX_CLIENTS == 256, "the states cost most with as many members as there can be"
