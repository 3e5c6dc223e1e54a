"""Time accounts of a run, folded from its events: of a simulated run while it is played, or from a real run's logs.

    accounts = Accounts()
    for entry in read_entries(folder):
        accounts.take(*entry)
    accounts.finish()

Each moment of a member's time in a round counts as the first of these that holds: it is away; it trains; it trains
in vain; it applies; due payloads are announced but not here yet; the round only waits for witnesses; its own payload
is on its way to others; it waits.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from psyche.analysis import tally
from psyche.analysis.tally import Bound, NodeAccount, Notice, Pending, Place, RoundAccount, Span, What
from psyche.telemetry import types
from psyche.telemetry.events import Entry

Trouble = types.LeftEpoch | types.ClientEnded | types.NotSent | types.TrainerLost
WORLD: Final = "world"
SERVER: Final = "server"
ROUND_STATES: Final = frozenset({"round_train", "round_witness"})
EPOCH_STATES: Final = ROUND_STATES | {"warmup", "cooldown"}
MAX_KEYS: Final = 4_096  # identities that are remembered where rounds are forgotten
PATIENCE_S: Final = 1.5  # a round idle for longer than this is waiting for some member


class Accounts:
    """Folds a run's events in order of time; after `finish` all figures are complete.

    `reference` is the node whose view of the record counts, `limit_s` the run's max_round_train_time (0: unknown);
    with `overlap` results are due one round later; `tokens_scale` are real tokens per token in the log. With `keep`
    only the last rounds are remembered, and of those before how many results of each member counted.
    """

    def __init__(
        self, *, reference: str = SERVER, limit_s: float = 0.0, overlap: bool = True, tokens_scale: float = 1.0,
        keep: int = 0,
    ) -> None:  # fmt: skip
        self.is_stand_in = False  # the log's tokens and bytes are a small simulated model's and stand for no real one's
        self.nodes: dict[str, NodeAccount] = {}
        self.rounds: list[RoundAccount] = []
        self.phases: defaultdict[str, float] = defaultdict(float)  # seconds by run state
        self.started = self.ended = 0.0
        self.seen = 0
        self.reference = reference
        self._keep = keep
        self._limit_s = limit_s
        self._scale = tokens_scale
        self._delay = int(overlap)
        self._state = ("", 0.0)
        self._worked: Span | None = None  # from the first Warmup to the end of the last Cooldown
        self._by_place: dict[Place, RoundAccount] = {}
        self._open: RoundAccount | None = None
        self._names: dict[Place, str] = {}  # (epoch, member): node
        self.keys: dict[bytes, str] = {}  # identity: node
        self._is_told = False  # the log itself names the members of each round
        self._transfers = tally.Transfers()
        self._handlers: dict[type[types.Event], Callable[[NodeAccount, float, Any], None]] = {
            types.StateChanged: self._on_state, types.Member: self._on_member, types.RoundStarted: self._on_round,
            types.Applied: self._on_applied, types.Trained: self._on_trained, types.ResultSent: self._on_sent,
            types.PayloadReceived: self._on_payload, types.Decided: self._on_decided,
            types.Network: self._on_network, types.ClientStarted: self._on_process, types.Dropped: self._on_dropped,
            types.LeftEpoch: self._on_trouble, types.ClientEnded: self._on_trouble, types.TrainerLost: self._on_trouble,
            types.Withdrew: self._on_withdrew, types.NotSent: self._on_not_sent,
        }  # fmt: skip
        self._last_trained: tuple[float, Bound] = (0.0, Bound("none"))
        self._last_arrived: tuple[float, Bound] = (0.0, Bound("none"))

    def take(self, t: float, node: str, event: types.Event) -> None:
        """Fold in one event of a node; `t` on the log's clock, in seconds."""
        self.started = t if not self.seen else self.started
        self.ended = max(self.ended, t)
        self.seen += 1
        # Before what follows: the reference may be a client, whose own account goes on below.
        if node == self.reference and isinstance(event, types.StateChanged):
            self._take_state(t, event)
        if node == WORLD:
            self._take_world(t, event)
        elif node == SERVER:
            if isinstance(event, types.ClientWithdrawn):
                self._take_withdrawal(event.key)
        elif handler := self._handlers.get(type(event)):
            handler(self._get(node), t, event)
        elif isinstance(event, types.ProcessKilled):  # of a testnet
            self._take_death(event.name, t, is_killed=True)
        elif isinstance(event, types.ProcessEnded):
            self._take_death(event.name, t)

    def wants(self, node: str, event: types.Event) -> bool:
        return type(event) in self._handlers or node == WORLD

    def _get(self, name: str) -> NodeAccount:
        found = self.nodes.get(name)
        if found is None:
            found = self.nodes[name] = NodeAccount(name)
        return found

    # --- rounds --------------------------------------------------------------------------------------

    def _take_state(self, t: float, event: types.StateChanged) -> None:
        state = event.run_state.name.lower()
        self.phases[self._state[0] or "starting"] += t - (self._state[1] or self.started)
        if self._state[0] in EPOCH_STATES:
            self._note_work(t)
        self._state = (state, t)
        place = (event.epoch, event.height)
        running = self._open
        if running is not None and not running.closing:
            running.closing = t
            self._admit(running)
            running.bound = self._find_bound(running, self._count_pending(running))
        if running is not None and (state not in ROUND_STATES or running.place != place):
            running.end = t
            self._open = None
        if state in ROUND_STATES and self._open is None:
            self._open = RoundAccount(*place, event.step, t, healthy=event.members)
            self.rounds.append(self._open)
            self._by_place[place] = self._open
            if self._keep and len(self.rounds) > self._keep:
                self._forget(self.rounds.pop(0))

    def _forget(self, one: RoundAccount) -> None:
        self._by_place.pop(one.place, None)
        for node in self.nodes.values():
            node.forget(one)
        for name in [name for name in self._names if name[0] < one.epoch]:
            del self._names[name]

    def get_names(self, epoch: int) -> dict[int, str]:
        """The nodes of an epoch's members, by index."""
        return {member: node for (of, member), node in self._names.items() if of == epoch}

    def find_node(self, identity: bytes) -> str:
        """The node with this identity; empty if it is not known."""
        return self.keys.get(identity, "")

    def _note_work(self, end: float) -> None:
        if self._worked is None:
            self._worked = Span(self._state[1], end)
        self._worked.end = end

    def _count_pending(self, running: RoundAccount) -> list[Pending]:
        receivers = [node.name for node in self.nodes.values() if running.place in node.present]
        pending = self._transfers.find_pending((running.epoch, running.height - self._delay), receivers)
        waiting = {*receivers}
        for one in pending:
            for name in one.receivers & waiting:
                self.nodes[name].add(What.TRANSFER, max(running.start, one.since), running.closing)
            waiting -= one.receivers
            if any(self.nodes[name].away_since is None for name in one.receivers):
                self.nodes[one.sender].add(What.SEND, one.since, running.closing)
        return pending

    def _find_bound(self, running: RoundAccount, pending: Sequence[Pending]) -> Bound:
        last, bound = max(self._last_trained, self._last_arrived, key=lambda found: found[0])
        if last < running.start:
            last, bound = running.start, Bound("none")
        if self._limit_s and running.closing - running.start >= self._limit_s - 0.1:
            is_idle, kind = True, "limit"
        else:
            is_idle, kind = running.closing - last > PATIENCE_S, "patience"
        missing = self._find_missing(running)
        if is_idle and pending and not missing:
            return Bound("transfer", pending[0].sender, min(pending[0].receivers))
        return Bound(kind, missing) if is_idle and (missing or kind == "limit") else bound

    def _find_missing(self, running: RoundAccount) -> str:
        late = [n.name for n in self.nodes.values() if running.place in n.present and n.name not in running.trained]
        return ", ".join(late[:3]) + (f" and {len(late) - 3} more" if len(late) > 3 else "")

    # --- membership ----------------------------------------------------------------------------------

    def _admit(self, one: RoundAccount) -> None:
        """Count the epoch's members into the round, even silent ones: the record keeps these for a while.

        If the record has fewer members than that, leave out those that have been silent for longest.
        """
        if self._is_told:
            return
        members = [node for node in self.nodes.values() if node.member_of == one.epoch]
        silent = sorted((node for node in members if one.place not in node.present), key=lambda node: node.round_since)
        for node in silent[max(0, len(members) - one.healthy) if one.healthy else 0 :]:
            node.present.add(one.place)

    def _admit_self(self, node: NodeAccount, place: Place) -> None:
        if not self._is_told and node.member_of == place[0]:
            node.present.add(place)

    def _take_members(self, event: types.RoundMembers) -> None:
        """Take a round's members from the log itself; from now on they are not guessed."""
        self._is_told = True
        place = (event.epoch, event.height)
        for name in event.members:
            self._get(name).present.add(place)
        if place in self._by_place:
            self._by_place[place].batch_tokens = event.tokens

    def _take_withdrawal(self, key: bytes) -> None:
        """The server withdrew a client whose connection was lost; the running round still counts for it."""
        node = self.nodes.get(self.keys.get(key, ""))
        if node is None:
            return
        if self._open is not None and node.member_of == self._open.epoch and not self._is_told:
            node.present.add(self._open.place)
        node.leave()

    def _on_withdrew(self, node: NodeAccount, _t: float, _event: types.Withdrew) -> None:
        node.leave()

    # --- processes -----------------------------------------------------------------------------------

    def _take_world(self, t: float, event: types.Event) -> None:
        match event:
            case types.RoundMembers():
                self._take_members(event)
            case types.Killed():
                self._take_death(event.who, t, is_killed=True)
            case types.Ended() | types.Stopped():
                self._take_death(event.who, t)
            case types.Started() | types.Resumed() | types.Carried() if event.who != SERVER:
                self._take_life(self._get(event.who), t, event)
            case _:
                pass

    def _take_life(self, node: NodeAccount, t: float, event: types.Started | types.Resumed | types.Carried) -> None:
        if isinstance(event, types.Carried):
            node.bytes_sent, node.bytes_received = event.bytes_sent, event.bytes_received
            node.weights_received = event.weights_received
            return
        self._return(node, t)
        if isinstance(event, types.Started):
            node.start_process()

    def _take_death(self, who: str, t: float, *, is_killed: bool = False) -> None:
        if who == SERVER:
            return
        node = self._get(who)
        if is_killed:
            node.notices.append(Notice(t, tally.DIED))
        node.away_since = t if node.away_since is None else node.away_since

    def _return(self, node: NodeAccount, t: float) -> None:
        if node.away_since is not None:
            node.add(What.AWAY, node.away_since, t)
        node.away_since = None

    # --- events of clients ---------------------------------------------------------------------------

    def _on_process(self, node: NodeAccount, t: float, event: types.ClientStarted) -> None:
        self._return(node, t)
        self.keys[event.identity] = node.name
        if self._keep and len(self.keys) > MAX_KEYS:
            del self.keys[next(iter(self.keys))]
        node.start_process()

    def _on_state(self, node: NodeAccount, t: float, event: types.StateChanged) -> None:
        node.epoch = event.epoch
        node.round_since = t

    def _on_member(self, node: NodeAccount, _t: float, event: types.Member) -> None:
        node.member_of, node.out_of = node.epoch, None
        self._names[node.epoch, event.index] = node.name

    def _on_round(self, node: NodeAccount, t: float, event: types.RoundStarted) -> None:
        place = (event.epoch, event.height)
        node.epoch, node.round_since, node.is_applying = place[0], t, True
        self._admit_self(node, place)
        if place in self._by_place and event.drain:
            self._by_place[place].is_drain = True

    def _on_applied(self, node: NodeAccount, t: float, _event: types.Applied) -> None:
        if node.is_applying and t > node.round_since:
            node.add(What.APPLY, node.round_since, t)
        node.is_applying = False
        node.training_since = t

    def _on_trained(self, node: NodeAccount, t: float, event: types.Trained) -> None:
        node.add(What.TRAIN, t - event.seconds, t)
        node.training_since = None
        place = (event.epoch, event.height)
        if (found := self._by_place.get(place)) is not None:
            found.trained[node.name] = round(event.tokens * self._scale)
            if node.out_of != place[0]:
                node.member_of = place[0]  # the log may begin after its epoch did
            self._admit_self(node, place)
        self._last_trained = (t, Bound("training", node.name))

    def _on_sent(self, node: NodeAccount, t: float, event: types.ResultSent) -> None:
        self._transfers.send((event.epoch, event.height), node.name, t)

    def _on_payload(self, node: NodeAccount, t: float, event: types.PayloadReceived) -> None:
        name = self._names.get((node.epoch, event.from_member), "")
        self._transfers.arrive((node.epoch, event.height), name, node.name)
        sent = self._transfers.get_sent((node.epoch, event.height), name)
        if sent is not None:
            self.nodes[name].add(What.SEND, sent, t)
        needing = self._by_place.get((node.epoch, event.height + self._delay))
        if needing is None:
            return  # it arrived before it was due
        start = needing.start if sent is None else max(needing.start, sent)
        node.add(What.TRANSFER, start, t)
        self._last_arrived = (t, Bound("transfer", name or "somebody", node.name))

    def _on_decided(self, node: NodeAccount, _t: float, event: types.Decided) -> None:
        found = self._by_place.get((node.epoch, event.height))
        if found is not None and not found.is_decided:
            found.is_decided, found.is_void = True, event.void
            found.members = dict.fromkeys(self._names.get((node.epoch, m), f"member {m}") for m in event.members)

    def _on_network(self, node: NodeAccount, _t: float, event: types.Network) -> None:
        node.count_bytes(event.bytes_sent, event.bytes_received)

    def _on_dropped(self, node: NodeAccount, t: float, event: types.Dropped) -> None:
        node.notices.append(Notice(t, types.get_type_name(event), event.reason or event.state.name.lower()))
        node.leave()

    def _on_trouble(self, node: NodeAccount, t: float, event: Trouble) -> None:
        node.notices.append(Notice(t, types.get_type_name(event), event.reason))

    def _on_not_sent(self, node: NodeAccount, t: float, event: types.NotSent) -> None:
        self._on_trouble(node, t, event)
        if node.training_since is not None:
            node.add(What.VAIN, node.training_since, t)
            node.training_since = None

    # --- the end -------------------------------------------------------------------------------------

    def finish(self) -> None:
        if self._open is not None:
            self._open.end = self.ended
            self._open.closing = self._open.closing or self.ended
        if self._state[0]:
            self.phases[self._state[0]] += self.ended - self._state[1]
        if self._state[0] in EPOCH_STATES:
            self._note_work(self.ended)
        for node in self.nodes.values():
            node.ended_away = node.away_since is not None
            self._return(node, self.ended)
        for one in self.rounds:
            self._count(one)

    def _count(self, one: RoundAccount) -> None:
        total = dict.fromkeys(What, 0.0)
        for node in self.nodes.values():
            if one.place not in node.present:
                continue
            for what, seconds in tally.compute_times(node, one).items():
                node.times[what] += 0.0 if one.is_drain else seconds
                total[what] += seconds
            if node.name in one.trained and node.name in one.members:
                node.tokens += one.trained[node.name]
            elif one.is_decided and not one.is_drain:
                node.cut_off.append(one.place)
        whole = math.fsum(total.values())
        one.shares = {what: total[what] / whole if whole else 0.0 for what in What}

    # --- figures -------------------------------------------------------------------------------------

    @property
    def data_rounds(self) -> list[RoundAccount]:
        return [one for one in self.rounds if not one.is_drain and one.seconds > 0]

    @property
    def rounds_s(self) -> float:
        rounds = self.data_rounds
        return rounds[-1].end - rounds[0].start if rounds else 0.0

    @property
    def before_s(self) -> float:
        return self.rounds[0].start - self.started if self.rounds else 0.0

    @property
    def shares(self) -> dict[What, float]:
        total = {what: math.fsum(node.times[what] for node in self.nodes.values()) for what in What}
        whole = math.fsum(total.values())
        return {what: total[what] / whole if whole else 0.0 for what in What}

    @property
    def bounds(self) -> Counter[tuple[str, str]]:
        """How many rounds with data waited last for what: (kind, who)."""
        return Counter((one.bound.kind, one.bound.who) for one in self.data_rounds)

    @property
    def tokens(self) -> int:
        return sum(one.tokens for one in self.rounds)

    @property
    def lost_tokens(self) -> int:
        return sum(one.lost_tokens for one in self.rounds)

    @property
    def whole_training_share(self) -> float:
        """The share of training in all members' time from the first Warmup to the end of the last Cooldown."""
        if not self.rounds or self._worked is None:
            return 0.0
        start, end = self._worked.start, self._worked.end
        members = [node for node in self.nodes.values() if node.present]
        trained = math.fsum(span.end - span.start for node in members for span in node.spans[What.TRAIN])
        return trained / (len(members) * (end - start)) if members and end > start else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Trained tokens that were applied, per second from the first round on."""
        seconds = max(one.end for one in self.rounds) - self.rounds[0].start if self.rounds else 0.0
        return self.tokens / seconds if seconds else 0.0

    def get_sets(self) -> list[tuple[Place, tuple[str, ...]]]:
        return [(one.place, tuple(sorted(one.members))) for one in self.rounds if one.is_decided]


def find_reference(entries: Iterable[Entry]) -> str:
    """The node whose view of the record to use: the server, or a simulated chain; else the client with the most
    state changes.
    """
    counts = Counter(node for _, node, event in entries if isinstance(event, types.StateChanged))
    backends = (node for node in (SERVER, WORLD) if node in counts or not counts)
    return next(backends, "") or counts.most_common(1)[0][0]


def is_overlapped(entries: Iterable[Entry]) -> bool:
    """Whether a log is of a run with overlap: then no set is decided earlier than two rounds later."""
    heights: dict[str, int] = {}
    delays: list[int] = []
    for _, node, event in entries:
        if isinstance(event, types.StateChanged):
            heights[node] = event.height
        elif isinstance(event, types.Decided) and node in heights:
            delays.append(heights[node] - event.height)
    return not delays or min(delays) > 1


def read_accounts(entries: Iterable[Entry]) -> Accounts:
    """Make the accounts of a complete log; a log of `psyche simulate` itself says what its tokens stand for."""
    entries = list(entries)
    reference = find_reference(entries)
    stands_for = next((event for _, _, event in entries if isinstance(event, types.Simulated)), None)
    if stands_for is None:
        accounts = Accounts(reference=reference, overlap=is_overlapped(entries))
        accounts.is_stand_in = any(entry.node == WORLD for entry in entries)
    else:
        accounts = Accounts(
            reference=reference, limit_s=stands_for.limit_s, overlap=stands_for.overlap,
            tokens_scale=stands_for.sequence_tokens / (stands_for.played_tokens or 1),
        )  # fmt: skip
    for entry in entries:
        accounts.take(*entry)
    accounts.finish()
    return accounts
