"""The sources from which the certified weights can be loaded (S10)."""

from dataclasses import replace
from typing import Final

from psyche.core.encoding.fields import fits_text
from psyche.core.state.errors import (
    DigestMismatch,
    Halted,
    InvalidCheckpoint,
    InvalidRunState,
    UnknownMember,
    WrongRound,
)
from psyche.core.state.limits import LOCAL_PATH_BYTES, STRING_BYTES, U8_MAX
from psyche.core.state.messages import Context, NameCheckpoint
from psyche.core.state.state import ZERO32, Checkpoint, CheckpointKind, Client, ClientState, Coordinator, RunState

# no P2P: such a source may disappear with its peer
_NAME_BYTES: Final = {
    CheckpointKind.HUB: STRING_BYTES,
    CheckpointKind.GCS: STRING_BYTES,
    CheckpointKind.LOCAL: LOCAL_PATH_BYTES,
}
_BEFORE_COOLDOWN: Final = frozenset({RunState.WARMUP, RunState.ROUND_TRAIN, RunState.ROUND_WITNESS})


def process_checkpoint(state: Coordinator, context: Context, message: NameCheckpoint) -> bool:
    """Record a source of the certified weights: the first replaces the old source, up to three more are kept (S10)."""
    client = _check_checkpoint(state, context.sender, message)
    digest, source = message.digest, message.source
    check_source(source)
    if state.checkpoint.digest != digest:
        state.checkpoint = replace(state.certified, uploader=client.slot)
        state.model.checkpoint = replace(source)
        state.model.extra_checkpoints = [Checkpoint() for _ in state.model.extra_checkpoints]
    else:
        _add_source(state, source)
    if state.run_state is RunState.COOLDOWN and message.epoch == state.progress.epoch:
        state.epoch.checkpoint_sources = min(state.epoch.checkpoint_sources + 1, U8_MAX)  # P10
    return True


def _add_source(state: Coordinator, source: Checkpoint) -> None:
    if source in (state.model.checkpoint, *state.model.extra_checkpoints):
        raise InvalidCheckpoint("this source is on record already", "K3")
    room = [i for i, c in enumerate(state.model.extra_checkpoints) if c.kind is CheckpointKind.EPHEMERAL]
    if not room:
        raise InvalidCheckpoint("four sources of these weights are on record already, the most there can be", "S10")
    state.model.extra_checkpoints[room[0]] = replace(source)


def _check_checkpoint(state: Coordinator, sender: bytes, message: NameCheckpoint) -> Client:
    epoch, digest = message.epoch, message.digest
    if state.run_state is RunState.UNINITIALIZED:
        raise Halted("the run has not begun")
    if epoch != state.certified.epoch:
        raise WrongRound(f"checkpoint of epoch {epoch}, but epoch {state.certified.epoch} is certified", "T7, S10")
    if state.run_state in _BEFORE_COOLDOWN and epoch == state.progress.epoch:
        raise InvalidRunState(f"checkpoints are named from Cooldown on, not in {state.run_state.name}", "S10")
    members = (c for c in state.clients if sender in (c.signer, c.p2p) and c.state is not ClientState.EJECTED)
    client = next(members, None)
    if client is None:
        raise UnknownMember("the sender is not a member of the epoch", "S10")
    if digest == ZERO32 or digest != state.certified.digest:
        raise DigestMismatch("the digest is not that of the certified weights", "S10")
    return client


def check_source(source: Checkpoint) -> None:
    """Refuse a source that depends on a peer or whose texts do not fit the record (S10)."""
    limit = _NAME_BYTES.get(source.kind)
    if limit is None:
        raise InvalidCheckpoint(f"a {source.kind.name} source cannot be recorded: only Hub, Gcs and Local can", "S10")
    if source.kind is CheckpointKind.LOCAL and source.revision is not None:
        raise InvalidCheckpoint("a LOCAL source is a path and has no revision", "layout")
    revision = source.revision or ""
    if not source.name or not fits_text(source.name, limit) or not fits_text(revision, STRING_BYTES):
        what = f"its name must have 1 to {limit} bytes, its revision at most {STRING_BYTES}"
        raise InvalidCheckpoint(f"{what}, both UTF-8 without zero bytes", "layout")
