"""Records a forecast while it is played: the accounts, early exits and their causes, and bytes carried."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import trio

from psyche.analysis.accounts import WORLD, Accounts, Place
from psyche.analysis.tally import DIED
from psyche.core.state.bits import get_members
from psyche.core.state.roster import get_healthy
from psyche.core.state.state import Client, ClientState, Config, Coordinator, RoundFlag, RunState
from psyche.forecast.workload import Workload
from psyche.network.blobs.messages import REPLY_HEAD_BYTES
from psyche.network.memory.line import AccessLine
from psyche.server.journal.changes import Change
from psyche.sim.payloads import WEIGHTS
from psyche.sim.scenarios.scenario import build_small_model
from psyche.sim.world import World
from psyche.telemetry import types

BODY_BYTES: Final = 8  # size of a simulated payload
PAYLOAD_REPLY: Final = REPLY_HEAD_BYTES + BODY_BYTES
PARTS: Final = 32  # of the weights, so that they are fetched from many sources at once, as a model's tensors are
PART_REPLY: Final = REPLY_HEAD_BYTES + 4 * WEIGHTS // PARTS


@dataclass(slots=True)
class Carried:
    """Bytes of one client, scaled to the real model: payloads and messages together, weights apart."""

    sent: float = 0.0
    received: float = 0.0
    weights_sent: float = 0.0
    weights_received: float = 0.0


@dataclass(frozen=True, slots=True)
class Played:
    """Progress of a forecast. `rounds` never decreases; `given_up` counts rounds that were rolled back."""

    rounds: int
    given_up: int
    simulated_s: float


GONE: Final = "its process had died"
OnProgress = Callable[[Played], None]  # called at every event


class ExitCause(StrEnum):
    EJECTED = "ejected"
    SILENT = "silent"
    LATE = "late"
    NO_REPORT = "no_report"  # missing as a witness
    NOT_READY = "not_ready"
    DIED = "died"
    CUT_OFF = "cut_off"
    LEFT = "left"


@dataclass(slots=True)
class EarlyExit:
    at_s: float
    name: str
    cause: ExitCause
    why: str


class Recorder:
    """Keeps the accounts while a world is played; where no machine logs how the record changes, the world does."""

    def __init__(self, config: Config, workload: Workload, on_progress: OnProgress | None, reference: str) -> None:
        self.accounts = Accounts(
            reference=reference, limit_s=config.max_round_train_time, overlap=config.overlap,
            tokens_scale=workload.sequence_tokens / build_small_model().max_seq_len,
        )  # fmt: skip
        self.exits: list[EarlyExit] = []
        self._tokens = workload.sequence_tokens
        self._config = config
        self._on_progress = on_progress
        self._reference = reference
        self._run_state: RunState | None = None
        self._states: dict[bytes, ClientState] = {}
        self._closed = self._furthest = self._given_up = 0
        self._place: Place | None = None
        self._names: dict[bytes, str] = {}  # key -> client name
        self._lost: dict[bytes, int] = {}  # key of a client that the server withdrew -> seconds it had been away
        self._epoch_since = 0.0
        self.world: World

    def attach(self, world: World) -> None:
        self.world = world
        self._names = {host.key: host.name for host in world.clients}
        world.trace.listeners.append(self._listen)
        world.record_listeners.append(self._look)

    def _listen(self, node: str, event: types.Event) -> None:
        if self._on_progress is not None:
            self._on_progress(Played(self._furthest, self._given_up, trio.current_time()))
        if isinstance(event, types.ClientWithdrawn):
            self._lost[event.key] = event.after_s
        if self.accounts.wants(node, event):
            self.accounts.take(trio.current_time(), node, event)

    def _look(self, _: Change) -> None:
        state = self.world.shadow.state
        place = (state.progress.epoch, state.current.height)
        if self._place is None or self._place[0] != place[0]:
            self._epoch_since = trio.current_time()
        if self._reference == WORLD:
            self._tell_state(state)
        if state.in_round and place != self._place:
            self._place = place
            self._tell_members(state)
        for client in state.clients:
            self._look_at(client, trio.current_time(), is_paused=state.run_state is RunState.PAUSED)
        closed = max(0, state.progress.step - 1)
        self._given_up += max(0, self._closed - closed)
        self._closed, self._furthest = closed, max(closed, self._furthest)

    def _tell_state(self, state: Coordinator) -> None:
        if state.run_state is self._run_state:
            return
        self._run_state = state.run_state
        self.world.note(
            types.StateChanged(
                epoch=state.progress.epoch, height=state.current.height, run_state=state.run_state,
                step=state.progress.step, members=get_healthy(state).bit_count(),
            )
        )  # fmt: skip

    def _tell_members(self, state: Coordinator) -> None:
        one = state.current
        names = tuple(self._names[state.clients[member].p2p] for member in get_members(one.members))
        tokens = 0 if one.flags & RoundFlag.DRAIN else one.batch_size * self._tokens
        epoch = state.progress.epoch
        self.world.note(types.RoundMembers(epoch=epoch, height=one.height, members=names, tokens=tokens))

    def _look_at(self, client: Client, now: float, *, is_paused: bool) -> None:
        """Note a member that left; who leaves with all others because the owner pauses the run has not."""
        before, self._states[client.p2p] = self._states.get(client.p2p), client.state
        if before is ClientState.HEALTHY and client.state is not before and not is_paused:
            self.exits.append(EarlyExit(now, self._names[client.p2p], *self._judge(client)))

    def _judge(self, client: Client) -> tuple[ExitCause, str]:
        """Why a member left the epoch; for a withdrawn one, what happened to its process or connection."""
        node = self.accounts.nodes.get(self._names[client.p2p])
        is_dead = node is not None and node.away_since is not None
        if client.state is not ClientState.WITHDRAWN:
            cause, why = describe_drop(client, self._config)
            return cause, why + (f": {GONE}" if is_dead else "")
        lost_s = self._lost.pop(client.p2p, None)
        if is_dead:
            return ExitCause.DIED, GONE
        if node is not None and any(one.what == DIED and one.t >= self._epoch_since for one in node.notices):
            return ExitCause.DIED, "its process died and was started again"
        if lost_s is not None:
            return ExitCause.CUT_OFF, f"was cut off from the server for {lost_s} s"
        return ExitCause.LEFT, "left the epoch"


def describe_drop(client: Client, config: Config) -> tuple[ExitCause, str]:
    if client.state is ClientState.EJECTED:
        return ExitCause.EJECTED, "signed two results for one round"
    if config.evict_after and client.missed >= config.evict_after:
        return ExitCause.SILENT, f"was silent for {client.missed} rounds"
    if config.late_limit and client.late >= config.late_limit:
        return ExitCause.LATE, f"was late in {client.late} rounds"
    if client.witness_missed:
        return ExitCause.NO_REPORT, "did not report as a witness"
    return ExitCause.NOT_READY, "was not ready in time"


def build_sizes(workload: Workload) -> dict[int, int]:
    return {
        PAYLOAD_REPLY: max(PAYLOAD_REPLY, workload.payload_bytes),
        PART_REPLY: max(PART_REPLY, workload.weights_bytes // PARTS),
    }


def count_bytes(recorder: Recorder) -> dict[str, Carried]:
    found: dict[str, Carried] = {}
    for host in recorder.world.clients:
        node = recorder.accounts.nodes.get(host.name)
        one = found[host.name] = Carried(node.bytes_sent, node.bytes_received) if node else Carried()
        access = recorder.world.links.get_access(host.key)
        if access is not None:
            (sent, one.weights_sent), (received, one.weights_received) = map(_split, access)
            one.sent += sent
            one.received += received
    return found


def _split(way: AccessLine) -> tuple[float, float]:
    """Bytes carried in one direction of a line: all but weights, and weights."""
    weights = way.carried.get(PART_REPLY, 0.0)
    return way.carried_bytes - weights, weights
