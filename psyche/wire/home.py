"""The home of a run's record, as its owner reaches it: a TCP server (`tcp.owner`) or Solana (`solana.home`)."""

from typing import Protocol

from psyche.core.state.limits import NO_UPLOADER
from psyche.core.state.roster import is_in_epoch
from psyche.core.state.state import CheckpointKind, ClientState, Coordinator, Slot, SlotState
from psyche.wire.backend import Members, RunStatus
from psyche.wire.messages import AnyMessage


class Spell(Protocol):
    """Writes a further command as it can be run for the same run, in quotes; `signed`: it needs the same key."""

    def __call__(self, command: str, *, signed: bool = True) -> str:
        """Write the command, whose name and own options are given."""
        ...


def spell_briefly(command: str, *, signed: bool = True) -> str:  # noqa: ARG001  # a Spell
    """Write a command without the options that say where the run is."""
    return f"`psyche {command}`"


class Home(Protocol):
    """Answers questions about one run and carries out its owner's commands."""

    async def get_status(self) -> RunStatus:
        """Return a summary of the run, for people.

        Raises:
            BackendError: the home refuses, or could not be reached in time.
        """
        ...

    async def get_record(self) -> Coordinator:
        """Return the whole record.

        Raises:
            BackendError: the home refuses, or could not be reached in time.
        """
        ...

    async def get_members(self) -> Members:
        """Return who takes part and what each client says of itself; errors only if an owner asks (K8).

        Raises:
            BackendError: the home refuses, or could not be reached in time.
        """
        ...

    async def command(self, message: AnyMessage) -> RunStatus:
        """Carry out a command once, even if it must be sent again; return the status after it.

        Raises:
            CoordinatorError: the record's rules refuse it.
            BackendError: the home refuses, or could not be reached in time.
        """
        ...

    def name_key(self, key: bytes) -> str:
        """Write a key on record as the home's commands take it."""
        ...


def summarize_run(state: Coordinator, now: int, program: str) -> RunStatus:
    """Build the status of a run at the time `now`; `program` is the home's name and version."""
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
    )


def get_joined_slots(state: Coordinator) -> list[Slot]:
    """Return the slots that have joined for the next formation, or a later one."""
    registry = state.registry
    return [s for s in registry.slots if s.state is SlotState.JOINED and s.active >= registry.next_active]


def _get_named_sources(state: Coordinator) -> tuple[str, ...]:
    """Return the sources of the checkpoint that members named (S10)."""
    if state.checkpoint.uploader == NO_UPLOADER:
        return ()
    sources = (state.model.checkpoint, *state.model.extra_checkpoints)
    return tuple(f"{s.kind.name} {s.name}" for s in sources if s.kind is not CheckpointKind.EPHEMERAL)
