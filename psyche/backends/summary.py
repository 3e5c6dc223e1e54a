"""The status of a run, computed from its record."""

from msgspec.structs import replace

from psyche.core.committee.schedule import compute_learning_rate, get_cold_start
from psyche.core.state.limits import NO_UPLOADER, STORED_ROUNDS
from psyche.core.state.roster import is_in_epoch
from psyche.core.state.state import (
    AuditStatus,
    ChallengeState,
    CheckpointKind,
    Client,
    ClientState,
    Coordinator,
    RunState,
    Slot,
    SlotState,
)
from psyche.core.state.timeline import get_round
from psyche.telemetry.challenges import UNDECIDED
from psyche.wire.backend import MemberInfo, RunStatus
from psyche.wire.report import Accusation, Verification


def summarize_run(state: Coordinator, now: int, program: str) -> RunStatus:
    """Build the status of a run at the time `now`; `program` is the backend's name and version."""
    in_epoch = is_in_epoch(state)
    healthy = {client.signer for client in state.clients if in_epoch and client.state is ClientState.HEALTHY}
    return RunStatus(
        run_id=state.run_id,
        run_uid=state.run_uid,
        program=program,
        now_unix=now,
        nonce=state.nonce,
        run_state=state.run_state,
        state_start_unix=state.state_start_unix,
        pending_pause=state.pending_pause,
        epoch=state.progress.epoch,
        height=state.current.height if in_epoch else 0,
        step=state.progress.step,
        total_steps=state.config.total_steps,
        healthy=len(healthy),
        members=len(state.clients) if in_epoch else 0,
        waiting=sum(slot.signer not in healthy for slot in get_joined_slots(state)),
        min_clients=state.config.min_clients,
        init_min_clients=state.config.init_min_clients,
        earning_rate=state.registry.future_earning_rate,
        slashing_rate=state.registry.future_slashing_rate,
        checkpoint_step=state.checkpoint.step,
        checkpoint_sources=_get_named_sources(state),
        tokens=count_samples(state) * state.model.max_seq_len,
        learning_rate=get_learning_rate(state, state.progress.step),
        epoch_rounds=state.config.rounds_per_epoch,
        limit_unix=_find_limit(state),
        verification=_summarize_audits(state),
    )


def _summarize_audits(state: Coordinator) -> Verification | None:
    """What the record says of audits, in the rounds that it keeps, and of challenges (V9, V12)."""
    percent, slots = state.config.verification_percent, state.registry.slots
    if not percent:
        return None
    newest = state.current.height if is_in_epoch(state) else -1
    kept = filter(None, (get_round(state, newest - age) for age in range(min(STORED_ROUNDS, newest + 1))))
    found = [audit.status for round_ in kept for audit in round_.audits]
    open_ = [one for one in state.challenges if one.state is not ChallengeState.FREE]
    return Verification(
        percent,
        state.config.convict,
        found.count(AuditStatus.PASSED),
        found.count(AuditStatus.DOUBTED),
        found.count(AuditStatus.CHALLENGED),
        tuple(
            Accusation(
                one.epoch, one.height, slots[one.target].signer, slots[one.verifier].signer, one.reason, one.guilty,
                one.innocent, UNDECIDED if one.state is ChallengeState.UNDECIDED else "",
            )
            for one in open_
        ),
        tuple(slot.signer for slot in slots if slot.state is SlotState.BANNED),
    )  # fmt: skip


def count_samples(state: Coordinator) -> int:
    """The samples that the run has trained, in rounds that are over."""
    has_rounds = is_in_epoch(state) and state.run_state is not RunState.WARMUP
    return state.current.data_index if has_rounds else state.progress.epoch_start_data_index


def count_due(state: Coordinator, client: Client) -> int:
    """How many results of a member's the running epoch has asked for, and judged."""
    if not is_in_epoch(state) or state.run_state is RunState.WARMUP:
        return 0
    height, drain_from = state.current.height, state.epoch.drain_from_height
    end = min(height - int(state.config.overlap), drain_from or height, client.exited_height or height)
    return max(0, end - client.joined_height)


def add_counts(row: MemberInfo, state: Coordinator, client: Client) -> MemberInfo:
    """Add to what is told of a member how its rounds went, as the record has it."""
    return replace(
        row, due=count_due(state, client), credits=client.credits, missed=client.missed, late=client.late
    )  # fmt: skip


def get_learning_rate(state: Coordinator, step: int) -> float:
    return compute_learning_rate(state.model.lr_schedule, step, get_cold_start(state.epoch, state.model))


def _find_limit(state: Coordinator) -> int:
    config = state.config
    limits = {
        RunState.WARMUP: config.warmup_time, RunState.COOLDOWN: config.cooldown_time,
        RunState.ROUND_TRAIN: config.max_round_train_time, RunState.ROUND_WITNESS: config.round_witness_time,
    }  # fmt: skip
    limit_s = limits.get(state.run_state, 0)
    return state.state_start_unix + limit_s if limit_s else 0


def get_joined_slots(state: Coordinator) -> list[Slot]:
    """Return the slots that have joined for the next formation, or a later one."""
    registry = state.registry
    return [s for s in registry.slots if s.state is SlotState.JOINED and s.active >= registry.next_active]


def _get_named_sources(state: Coordinator) -> tuple[str, ...]:
    if state.checkpoint.uploader == NO_UPLOADER:
        return ()
    sources = (state.model.checkpoint, *state.model.extra_checkpoints)
    return tuple(f"{s.kind.name} {s.name}" for s in sources if s.kind is not CheckpointKind.EPHEMERAL)
