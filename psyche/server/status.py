"""The status of a run, for people."""

from psyche.core.state.limits import NO_UPLOADER
from psyche.core.state.roster import is_in_epoch
from psyche.core.state.state import CheckpointKind, ClientState, Coordinator, SlotState
from psyche.server.access import AllowList
from psyche.server.reports import ReportSummary
from psyche.wire.backend import Earnings, RunStatus


def get_named_sources(state: Coordinator) -> tuple[str, ...]:
    """Return the sources of the checkpoint that members named (S10)."""
    if state.checkpoint.uploader == NO_UPLOADER:
        return ()
    sources = (state.model.checkpoint, *state.model.extra_checkpoints)
    return tuple(f"{s.kind.name} {s.name}" for s in sources if s.kind is not CheckpointKind.EPHEMERAL)


def get_earnings(state: Coordinator) -> Earnings:
    """Return each signer's earnings that nobody has collected yet (M11)."""
    return Earnings(tuple((slot.signer, slot.earned) for slot in state.registry.slots if slot.earned))


def make_status(
    state: Coordinator, now: int, program: str, connections: int, access: AllowList | None = None,
    said: ReportSummary | None = None,
) -> RunStatus:  # fmt: skip
    """Build the status that `psyche run info` shows."""
    said = said or ReportSummary()
    in_epoch = is_in_epoch(state)
    healthy = {client.signer for client in state.clients if in_epoch and client.state is ClientState.HEALTHY}
    waiting = [
        slot
        for slot in state.registry.slots
        if slot.state is SlotState.JOINED and slot.active >= state.registry.next_active and slot.signer not in healthy
    ]
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
        waiting=len(waiting),
        min_clients=state.config.min_clients,
        init_min_clients=state.config.init_min_clients,
        connections=connections,
        earning_rate=state.registry.future_earning_rate,
        slashing_rate=state.registry.future_slashing_rate,
        checkpoint_step=state.checkpoint.step,
        checkpoint_sources=get_named_sources(state),
        is_open=access is not None and access.is_open,
        allowed=0 if access is None else len(access.keys),
        loss=said.loss,
        tokens_per_s=said.tokens_per_s,
        reporting=said.reporting,
        failing=said.failing,
    )
