"""A whole run in one process on a virtual clock: real core and engines; arithmetic and links are replaced."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kits.log import E, choose
from kits.results import PAYLOAD_BYTES, PLAN, build_train_reply
from psyche.client.engine import actions as act
from psyche.client.engine.round_engine import RoundEngine
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.messages import ReportEquivocation
from psyche.core.state.state import ZERO32, Checkpoint, CheckpointKind, Coordinator, RunState
from psyche.telemetry import types
from psyche.testing.builders import START_UNIX, build_config, build_identity, build_model, build_state
from psyche.testing.state_machine import StateMachine
from psyche.wire.crypto import blake3_hash, blob_id_of, compute_chain_digest, compute_state_digest
from psyche.wire.trainer import ApplyReply, SnapshotReply

CONFIGURED = blake3_hash(b"the configured source")
TICK_S = 0.5


@dataclass
class Pace:
    """The speed and the defects of a client."""

    train_s: float = 0.4
    apply_s: float = 0.05
    gossip_s: float = 0.01
    fetch_s: float = 0.02
    gossip_cut: bool = False  # sends and receives nothing
    deaf: bool = False  # receives no gossip and no answers, but sends
    fetch_cut: bool = False  # fetches no payloads
    withhold: bool = False  # announces results, but never serves them
    silent: bool = False  # never trains or sends, but stays connected


@dataclass
class Disk:
    """The data that survives a kill."""

    snapshots: dict[bytes, tuple[bytes, bytes]] = field(default_factory=dict)  # digest -> weights, chain
    replay: dict[tuple[int, int], tuple[act.AppliedSet, tuple[bytes, ...]]] = field(default_factory=dict)


class Node:
    """One client: an engine, a fake trainer, a disk."""

    def __init__(self, world: "World", index: int) -> None:
        self.world = world
        self.index = index
        self.identity = build_identity(index)
        self.pace = Pace()
        self.disk = Disk()
        self.generation = 0
        self.exit: act.Exit | None = None
        self.alive = False
        self.events: list[types.Event] = []
        self.signed: list[bytes] = []  # raw announcements, over all lives
        self.start()

    def start(self) -> None:
        """Start a fresh process on the old disk."""
        self.generation += 1
        self.alive = True
        self.exit = None
        self.engine = RoundEngine(self.identity)
        self.weights = ZERO32
        self.bodies: dict[bytes, bytes] = {}
        self.cancelled: set[int] = set()
        self.busy_until = 0.0

    def kill(self) -> None:
        self.alive = False
        self.generation += 1

    # --- plumbing ---------------------------------------------------------------------------------

    def later(self, delay: float, function: Callable[[], None]) -> None:
        generation = self.generation

        def run() -> None:
            if self.generation == generation and self.alive:
                function()

        self.world.at(self.world.now + delay, run)

    def trainer_later(self, delay: float, function: Callable[[], None]) -> None:
        """Run a trainer's work after the work before it."""
        self.busy_until = max(self.busy_until, self.world.now) + delay
        self.later(self.busy_until - self.world.now, function)

    def feed(self, event: act.EngineEvent) -> None:
        self.execute(self.engine.on_events((event,), self.world.now))

    def execute(self, actions: list[act.Action]) -> None:
        for action in actions:
            self.do(action)
        deadline = self.engine.get_deadline(self.world.now)
        if deadline is not None and self.alive:
            self.later(max(deadline - self.world.now, 1e-3), self.wake)

    def wake(self) -> None:
        self.execute(self.engine.on_tick(self.world.now))

    def do(self, action: act.Action) -> None:  # noqa: PLR0912  # one line per action
        match action:
            case act.Log():
                self.events.append(action.event)
            case act.Publish():
                self.world.gossip(self, action.raw)
            case act.Announce():
                self.bodies[blob_id_of(action.body)] = action.body
                self.signed.append(action.raw)
                self.world.gossip(self, action.raw)
            case act.FetchPayload():
                self.later(self.pace.fetch_s, lambda: self.fetched(action))
            case act.FetchData() | act.SetPeers() | act.SetPlan() | act.Export() | act.FetchAhead():
                pass
            case act.CancelTrain():
                self.cancelled.add(action.height)
            case act.Expire():
                pass
            case act.Exit():
                self.exit = action
            case act.Train():
                self.trainer_later(self.pace.train_s, lambda: self.trained(action))
            case act.Apply():
                self.trainer_later(self.pace.apply_s, lambda: self.applied(action))
            case act.Load():
                self.trainer_later(0.1, lambda: self.loaded(action))
            case act.Heal():
                self.trainer_later(0.1, lambda: self.healed(action))
            case act.AskWeights():
                self.later(0.02, lambda: self.ask_weights(action))
            case act.Compare():
                self.trainer_later(0.1, lambda: self.compared(action))
            case act.WriteSnapshot():
                self.trainer_later(0.05, lambda: self.snapshot(action))
            case act.FetchSnapshot():
                self.trainer_later(0.1, lambda: self.fetch_snapshot(action))
            case act.StoreReplay():
                bodies = tuple(self.bodies[b] for b in action.entry.blobs)
                self.disk.replay[action.entry.epoch, action.entry.height] = (action.entry, bodies)
            case act.AskAnnouncements():
                self.later(0.02, lambda: self.ask_announcements(action))
            case act.AskTable():
                self.later(0.02, lambda: self.ask_table(action))
            case _:
                self.later(0.005, lambda: self.world.send(self, action))

    # --- the fake world's answers -----------------------------------------------------------------

    def find_peer(self, key: bytes) -> "Node | None":
        """The node with this key, if it can be reached."""
        node = self.world.by_key.get(key)
        cut = node is None or not node.alive or node.pace.gossip_cut or self.pace.gossip_cut
        return None if cut else node

    def fetched(self, action: act.FetchPayload) -> None:
        for source in action.sources:
            node = self.find_peer(source)
            served = node is not None and not node.pace.withhold and not self.pace.fetch_cut
            if node is not None and served and action.blob_id in node.bodies:
                self.bodies[action.blob_id] = node.bodies[action.blob_id]
                self.feed(act.PayloadArrived(action.commitment))
                return
        self.feed(act.PayloadFailed(action.commitment, "no source has it", refused=False))

    def trained(self, action: act.Train) -> None:
        if action.height in self.cancelled:
            self.cancelled.discard(action.height)
            reply = build_train_reply(b"", cancelled=True)
        else:
            seed = blake3_hash(self.weights, b"%d %d" % (action.start, action.end))
            reply = build_train_reply((seed * (PAYLOAD_BYTES // len(seed) + 1))[:PAYLOAD_BYTES])
        self.feed(act.Trained(action.epoch, action.height, reply, ZERO32))

    def apply_bodies(self, bodies: tuple[bytes, ...], *, run_update: bool) -> bytes:
        if run_update:
            self.weights = blake3_hash(b"update", self.weights, *bodies)
        return blake3_hash(b"part", self.weights)

    def applied(self, action: act.Apply) -> None:
        part = self.apply_bodies(tuple(self.bodies[b] for b in action.blobs), run_update=action.run_update)
        self.feed(act.Applied(action.epoch, action.height, ApplyReply(weight_part=part, is_full=True, seconds=0.05)))

    def loaded(self, action: act.Load) -> None:
        found = self.find_weights(action.certified)
        if found is None:
            self.feed(act.LoadFailed(action.epoch, "nobody has it"))
            return
        self.weights, chain, source = found
        digest = compute_state_digest(chain, blake3_hash(b"part", self.weights))
        self.feed(act.Loaded(action.epoch, digest, source, PLAN, 4096, 256, 0, 0, ZERO32))

    def find_weights(self, certified: bytes | None) -> tuple[bytes, bytes, types.WeightSource] | None:
        configured = compute_state_digest(ZERO32, blake3_hash(b"part", CONFIGURED))
        if certified is None or certified == configured:
            return CONFIGURED, ZERO32, types.WeightSource.CONFIGURED
        if certified in self.disk.snapshots:
            return (*self.disk.snapshots[certified], types.WeightSource.OWN_SNAPSHOT)
        for node in self.world.nodes:
            if node.alive and certified in node.disk.snapshots and not node.pace.gossip_cut:
                self.disk.snapshots[certified] = node.disk.snapshots[certified]
                return (*node.disk.snapshots[certified], types.WeightSource.PEERS)
        return None

    def healed(self, action: act.Heal) -> None:
        found = self.find_weights(action.certified)
        missing = [h for h in range(action.height + 1) if (action.epoch, h) not in self.disk.replay]
        if found is None or missing:
            reason = f"the replay store lacks {missing}" if missing else "nobody has the weights"
            self.feed(act.HealFailed(action.epoch, reason, weights_kept=True))
            return
        self.weights, chain = found[0], action.certified
        digests: dict[int, bytes] = {}
        for height in range(action.height + 1):
            entry, bodies = self.disk.replay[action.epoch, height]
            part = self.apply_bodies(bodies, run_update=entry.run_update)
            chain = compute_chain_digest(chain, entry.epoch, height, entry.step, entry.lr_bits, entry.applied)
            digests[height] = compute_state_digest(chain, part)
        self.feed(act.Healed(action.epoch, action.height, chain, digests, dict.fromkeys(digests, True)))

    def ask_weights(self, action: act.AskWeights) -> None:
        node = self.world.by_key[action.key]
        if not node.alive or node.pace.silent:
            return
        promised, actions = node.engine.on_weights_wanted(self.identity.public, action.epoch, action.height)
        node.execute(actions)
        if promised:
            self.feed(act.WeightsPromised(action.epoch, action.height, action.member))

    def compared(self, action: act.Compare) -> None:
        for helper in action.helpers:
            copy = self.world.by_key[helper].disk.snapshots.get(action.agreed)
            if copy is not None:
                self.weights, chain = copy
                digests = {action.height: action.agreed}
                self.feed(act.Healed(action.epoch, action.height, chain, digests, {action.height: True}))
                return
        self.feed(act.HealFailed(action.epoch, "no helper has a copy", weights_kept=True))

    def snapshot(self, action: act.WriteSnapshot) -> None:
        self.disk.snapshots[action.digest] = (self.weights, action.chain)
        reply = SnapshotReply(path="", size_bytes=1, weight_root=ZERO32, seconds=0.05)
        self.feed(act.SnapshotWritten(action.epoch, action.height, action.digest, Path(), reply))

    def fetch_snapshot(self, action: act.FetchSnapshot) -> None:
        found = self.find_weights(action.digest)
        if found is not None:
            self.weights = found[0]
        self.feed(act.SnapshotFetched(action.digest, ok=found is not None))

    def ask_announcements(self, action: act.AskAnnouncements) -> None:
        for node in self.world.nodes:
            if node is self or self.pace.deaf or self.find_peer(node.identity.public) is None:
                continue
            items = node.engine.get_announcements(action.epoch, action.height, action.have)
            self.execute(self.engine.on_answer(items, self.world.now))

    def ask_table(self, action: act.AskTable) -> None:
        node = None if self.pace.deaf else self.find_peer(action.key)
        items = None if node is None else node.engine.get_table(action.root)
        self.feed(act.TableArrived(action.epoch, action.height, action.member, action.root, items))

    # --- what tests ask ---------------------------------------------------------------------------

    def get_applied_sets(self) -> dict[tuple[object, object], list[int]]:
        """The members of each applied set, by epoch and height."""
        return {(event.epoch, event.height): sorted(event.members) for event in self.get_logs(types.Applied)}

    def get_logs(self, kind: type[E]) -> list[E]:
        return choose(self.events, kind)


class World(StateMachine):
    """A coordinator that ticks itself, and nodes around it."""

    def __init__(self, state: Coordinator, clients: int) -> None:
        super().__init__(state)
        self.now = 1000.0
        self.shown: Coordinator | None = None  # the copy that the nodes see; treat it as read-only
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.timeline: list[tuple[float, int, int, str, int]] = []
        self.refusals: list[tuple[str, str]] = []
        self.nodes: list[Node] = []
        self.by_key: dict[bytes, Node] = {}
        self.gossip_filter: Callable[[Node, Node, bytes], bool] | None = None
        for _ in range(clients):
            self.add()
        self.at(self.now, self.beat)

    @property
    def unix(self) -> int:
        return START_UNIX + int(self.now)

    def add(self) -> Node:
        node = Node(self, len(self.nodes))
        self.nodes.append(node)
        self.by_key[node.identity.public] = node
        self.at(self.now, lambda: self.show(node))
        return node

    def at(self, when: float, function: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (when, next(self.order), function))

    def restart(self, node: Node) -> None:
        node.start()
        self.show(node)

    def show(self, node: Node) -> None:
        if node.alive and not node.pace.silent:
            if self.shown is None or self.shown.nonce != self.state.nonce:
                self.shown = decode_state(encode_state(self.state))
            node.execute(node.engine.on_state(self.shown, self.now))

    def push(self) -> None:
        """Show all nodes the new state, encoded and decoded."""
        current = self.state.current
        row = (self.now, self.state.progress.epoch, current.height, self.state.run_state.name, self.state.progress.step)
        if not self.timeline or self.timeline[-1][1:] != row[1:]:
            self.timeline.append(row)
        for node in self.nodes:
            self.at(self.now + 0.005, lambda node=node: self.show(node))

    def beat(self) -> None:
        """Tick the server, and show its new state."""
        nonce = self.state.nonce
        self.settle()
        if self.state.nonce != nonce:
            self.push()
        self.at(self.now + TICK_S, self.beat)

    def send(self, node: Node, action: act.Action) -> None:
        """Send a message to the coordinator."""
        nonce = self.state.nonce
        try:
            if isinstance(action, act.Submit) and not isinstance(action.message, ReportEquivocation):
                self.apply(action.message, node.identity.public)
        except CoordinatorError as error:
            self.refusals.append((type(getattr(action, "message", action)).__name__, error.code))
            return
        self.settle()
        if self.state.nonce != nonce:
            self.push()

    def gossip(self, sender: Node, raw: bytes) -> None:
        if sender.pace.gossip_cut:
            return
        for node in self.nodes:
            if node is sender or node.pace.gossip_cut or node.pace.deaf:
                continue
            if self.gossip_filter is not None and not self.gossip_filter(sender, node, raw):
                continue
            node.later(node.pace.gossip_s, lambda node=node: node.execute(node.engine.on_messages((raw,), self.now)))

    def run_until(self, done: Callable[[], bool], limit_s: float = 600.0) -> None:
        """Play events until `done`; fail when virtual time runs out."""
        end = self.now + limit_s
        while not done():
            assert self.queue, "nothing left to happen"
            when, _, function = heapq.heappop(self.queue)
            assert when <= end, f"not done after {limit_s} s: {self.describe()}"
            self.now = max(self.now, when)
            function()

    def run_to_end(self, limit_s: float = 2000.0) -> None:
        living = [n for n in self.nodes if n.alive]
        self.run_until(
            lambda: self.state.run_state is RunState.FINISHED and all(n.exit is not None for n in living if n.alive),
            limit_s,
        )

    def describe(self) -> str:
        waits = {n.index: [w.what for w in n.engine.waits()] for n in self.nodes if n.alive}
        return f"{self.timeline[-5:]} waits {waits} refusals {self.refusals[-5:]}"

    def digests(self) -> set[bytes]:
        """The digests of the living nodes' weights, as their engines know them."""
        return {n.engine.membership.weights_digest or ZERO32 for n in self.nodes if n.alive}

    def assert_all_equal(self) -> None:
        """Assert that all living nodes hold the certified weights, and that these were trained."""
        assert self.digests() == {self.state.certified.digest}, self.describe()
        weights = {n.weights for n in self.nodes if n.alive}
        assert len(weights) == 1
        assert weights != {CONFIGURED}


def build_world(clients: int = 3, **changes: object) -> World:
    """A run of six rounds, three an epoch, with that many clients; keywords override the configuration."""
    values: dict[str, object] = {
        "warmup_time": 20, "cooldown_time": 2, "max_round_train_time": 10, "round_witness_time": 2, "total_steps": 7,
        "init_min_clients": clients, "min_clients": 2, "global_batch_size_start": 2 * clients,
        "global_batch_size_end": 2 * clients, "rounds_per_epoch": 3,
    }  # fmt: skip
    model = build_model(checkpoint=Checkpoint(CheckpointKind.LOCAL, "model"))
    return World(build_state(build_config(**(values | changes)), model, start_unix=START_UNIX + 1000), clients)
