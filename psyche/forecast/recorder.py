"""What is written down while a forecast is played: the accounts, who left and why, and what lines carried."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import trio

from psyche.analysis.accounts import ROUND_MEMBERS, SERVER, Accounts, Place
from psyche.analysis.tally import DIED
from psyche.core.state.bits import get_members
from psyche.core.state.state import Client, ClientState, Config, Coordinator, RoundFlag
from psyche.forecast.workload import Workload
from psyche.network.blobs.messages import REPLY_HEAD_BYTES
from psyche.network.links import AccessLine
from psyche.server.journal.events import Event as JournalEvent
from psyche.sim.scenarios.scenario import build_model
from psyche.sim.trainer import WEIGHTS
from psyche.sim.world import World
from psyche.telemetry.events import Event, get_plain

BODY_BYTES: Final = 8  # a simulated payload
PAYLOAD_REPLY: Final = REPLY_HEAD_BYTES + BODY_BYTES
PARTS: Final = 32  # of the weights, so that they come from many sources at once, as a model's tensors do
PART_REPLY: Final = REPLY_HEAD_BYTES + 4 * WEIGHTS // PARTS


@dataclass(slots=True)
class Carried:
    """Bytes of one client, at the size of what they stand for: payloads and messages, and apart from them weights."""

    sent: float = 0.0
    received: float = 0.0
    weights_sent: float = 0.0
    weights_received: float = 0.0


@dataclass(frozen=True, slots=True)
class Played:
    """How far a forecast is. `rounds` never falls; `given_up` were played and do not count."""

    rounds: int
    given_up: int
    simulated_s: float


LATE: Final = "was late in"
GONE: Final = "its process had died"
OnProgress = Callable[[Played], None]  # told at every event


@dataclass(slots=True)
class EarlyExit:
    """A member that left the epoch before its end."""

    at_s: float
    name: str
    why: str


class Recorder:
    """Keeps the accounts while a world is played."""

    def __init__(self, config: Config, workload: Workload, on_progress: OnProgress | None) -> None:
        self.accounts = Accounts(
            limit_s=config.max_round_train_time, overlap=config.overlap,
            tokens_scale=workload.sequence_tokens / build_model().max_seq_len,
        )  # fmt: skip
        self.exits: list[EarlyExit] = []
        self._tokens = workload.sequence_tokens
        self._config = config
        self._on_progress = on_progress
        self._states: dict[bytes, ClientState] = {}
        self._closed = self._furthest = self._given_up = 0
        self._place: Place | None = None
        self._names: dict[bytes, str] = {}  # by key
        self._lost: dict[bytes, str] = {}  # whom the server withdrew, and why
        self._epoch_since = 0.0
        self.world: World

    def attach(self, world: World) -> None:
        """Listen to a world that is about to start."""
        self.world = world
        self._names = {host.key: host.name for host in world.clients}
        world.trace.listeners.append(self._listen)
        world.record_listeners.append(self._look)

    def _listen(self, node: str, kind: str, given: Mapping[str, object]) -> None:
        if self._on_progress is not None:
            self._on_progress(Played(self._furthest, self._given_up, trio.current_time()))
        if node == SERVER and kind == "client_withdrawn" and isinstance(key := given.get("key"), bytes):
            self._lost[key] = f"was cut off from the server for {given.get('after_s')} s"
        if not self.accounts.wants(node, kind):
            return
        event: Event = {name: get_plain(value) for name, value in given.items()}
        event |= {"t": trio.current_time(), "node": node, "kind": kind}
        self.accounts.take(event)

    def _look(self, _: JournalEvent) -> None:
        """Read from the record, as each of its changes reaches the disk, what no client's event tells."""
        state = self.world.shadow.state
        place = (state.progress.epoch, state.current.height)
        if self._place is None or self._place[0] != place[0]:
            self._epoch_since = trio.current_time()
        if state.in_round and place != self._place:
            self._place = place
            self._tell_members(state)
        for client in state.clients:
            self._look_at(client, trio.current_time())
        closed = max(0, state.progress.step - 1)
        self._given_up += max(0, self._closed - closed)
        self._closed, self._furthest = closed, max(closed, self._furthest)

    def _tell_members(self, state: Coordinator) -> None:
        """Whom a round began with, and what it hands out; also in the log."""
        one = state.current
        names = [self._names[state.clients[member].p2p] for member in get_members(one.members)]
        tokens = 0 if one.flags & RoundFlag.DRAIN else one.batch_size * self._tokens
        self.world.note(ROUND_MEMBERS, epoch=state.progress.epoch, height=one.height, members=names, tokens=tokens)

    def _look_at(self, client: Client, now: float) -> None:
        before, self._states[client.p2p] = self._states.get(client.p2p), client.state
        if before is ClientState.HEALTHY and client.state is not before:
            self.exits.append(EarlyExit(now, self._names[client.p2p], self._describe(client)))

    def _describe(self, client: Client) -> str:
        """Why a member is none any more; of one that was withdrawn, what befell it."""
        node = self.accounts.nodes.get(self._names[client.p2p])
        is_dead = node is not None and node.away_since is not None
        if client.state is not ClientState.WITHDRAWN:
            return describe_exit(client, self._config) + (f": {GONE}" if is_dead else "")
        died = node is not None and any(why == DIED and t >= self._epoch_since for t, why in node.notices)
        lost = self._lost.pop(client.p2p, "left the epoch")
        return GONE if is_dead else f"{GONE}, and a new one came" if died else lost


def describe_exit(client: Client, config: Config) -> str:
    """Why a member is none any more."""
    if client.state is ClientState.EJECTED:
        return "signed two results for one round"
    if config.evict_after and client.missed >= config.evict_after:
        return f"was silent for {client.missed} rounds"
    if config.late_limit and client.late >= config.late_limit:
        return f"{LATE} {client.late} rounds"
    return "did not report as a witness" if client.witness_missed else "was not ready in time"


def build_sizes(workload: Workload) -> dict[int, int]:
    """What the small model's blobs stand for, by the length of the answers that bring them."""
    return {
        PAYLOAD_REPLY: max(PAYLOAD_REPLY, workload.payload_bytes),
        PART_REPLY: max(PART_REPLY, workload.weights_bytes // PARTS),
    }


def count_bytes(recorder: Recorder) -> dict[str, Carried]:
    """What every client sent and received."""
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
    """Bytes that one way of a line carried: what was no weights, and weights."""
    weights = way.carried.get(PART_REPLY, 0.0)
    return way.carried_bytes - weights, weights
