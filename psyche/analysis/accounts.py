"""Where the time of a run went, folded from its events: of a simulated one while it runs, or of a real one's logs.

    accounts = Accounts()
    for event in read_events(folder):
        accounts.take(event)
    accounts.finish()

A member's time in a round is one of these, the first that holds: it was away; it trains; it trains in vain;
it applies; payloads that are due are announced and not here yet; the round only waits for witnesses; it waits.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from psyche.analysis.spans import Span
from psyche.analysis.tally import DIED, Bound, NodeAccount, Place, RoundAccount, What, compute_times
from psyche.analysis.transfers import Pending, Transfers
from psyche.telemetry.events import Event

WORLD: Final = "world"
SIMULATED: Final = "simulated"  # the world's event with what a log of a played run stands for
CARRIED: Final = "carried"  # the world's event with all that a client's line has carried
ROUND_MEMBERS: Final = "round_members"  # the world's event with whom the record has in a round
SERVER: Final = "server"
ROUND_STATES: Final = frozenset({"round_train", "round_witness"})
EPOCH_STATES: Final = ROUND_STATES | {"warmup", "cooldown"}
PATIENCE_S: Final = 1.5  # a round that goes on for so long after the last thing anybody did waits for somebody


class Accounts:
    """Takes a run's events in the order of time; after `finish` everything is known.

    Args:
        reference: whose view of the record counts.
        limit_s: max_round_train_time, where it is known.
        overlap: whether results are due one round later.
        tokens_scale: how many tokens one of the log stands for.

    `is_stand_in`: the log is of a small model whose tokens and bytes stand for nobody's.
    """

    def __init__(
        self, *, reference: str = SERVER, limit_s: float = 0.0, overlap: bool = True, tokens_scale: float = 1.0
    ) -> None:
        self.is_stand_in = False
        self.nodes: dict[str, NodeAccount] = {}
        self.rounds: list[RoundAccount] = []
        self.phases: defaultdict[str, float] = defaultdict(float)  # seconds by state of the record
        self.started = self.ended = 0.0
        self.seen = 0
        self._reference = reference
        self._limit_s = limit_s
        self._scale = tokens_scale
        self._delay = int(overlap)
        self._state = ("", 0.0)
        self._worked: Span | None = None  # from the first Warmup to the end of the last Cooldown
        self._by_place: dict[Place, RoundAccount] = {}
        self._open: RoundAccount | None = None
        self._names: dict[Place, str] = {}  # (epoch, member): node
        self._keys: dict[str, str] = {}  # identity: node
        self._is_told = False  # the log says itself who is a member of each round
        self._transfers = Transfers()
        self._handlers: dict[str, Callable[[NodeAccount, float, Event], None]] = {
            "state_changed": self._on_state, "member": self._on_member, "round_started": self._on_round,
            "applied": self._on_applied, "trained": self._on_trained, "result_sent": self._on_sent,
            "payload_received": self._on_payload, "decided": self._on_decided, "network": self._on_network,
            "client_started": self._on_process, "dropped": self._on_notice, "left": self._on_notice,
            "withdrew": self._on_withdrew, "not_sent": self._on_notice,
            "trainer_lost": self._on_notice,
        }  # fmt: skip
        self._last_trained: tuple[float, Bound] = (0.0, Bound("none"))
        self._last_arrived: tuple[float, Bound] = (0.0, Bound("none"))

    def take(self, event: Event) -> None:
        """Fold in one event."""
        t, node, kind = float(event["t"]), str(event["node"]), event["kind"]
        self.started = t if not self.seen else self.started
        self.ended = max(self.ended, t)
        self.seen += 1
        if kind == "state_changed" and node == self._reference:
            self._take_state(t, event)
        if node == WORLD:
            self._take_process(str(event.get("who", "")), t, event)
        elif kind in ("killed", "process_ended"):  # of a testnet
            self._take_process(str(event.get("name", "")), t, event)
        elif node == SERVER:
            if kind == "client_withdrawn":
                self._take_withdrawal(str(event.get("key", "")))
        elif handler := self._handlers.get(kind):
            handler(self._get(node), t, event)

    def wants(self, node: str, kind: str) -> bool:
        """Whether an event tells anything that is counted."""
        return kind in self._handlers or node == WORLD

    def _get(self, name: str) -> NodeAccount:
        found = self.nodes.get(name)
        if found is None:
            found = self.nodes[name] = NodeAccount(name)
        return found

    # --- rounds --------------------------------------------------------------------------------------

    def _take_state(self, t: float, event: Event) -> None:
        state = str(event.get("run_state", "")).lower()
        self.phases[self._state[0] or "starting"] += t - (self._state[1] or self.started)
        if self._state[0] in EPOCH_STATES:
            self._note_work(t)
        self._state = (state, t)
        place = (_get_int(event, "epoch"), _get_int(event, "height"))
        running = self._open
        if running is not None and not running.closing:
            running.closing = t
            self._admit(running)
            running.bound = self._find_bound(running, self._count_pending(running))
        if running is not None and (state not in ROUND_STATES or running.place != place):
            running.end = t
            self._open = None
        if state in ROUND_STATES and self._open is None:
            self._open = RoundAccount(*place, _get_int(event, "step"), t, healthy=_get_int(event, "members"))
            self.rounds.append(self._open)
            self._by_place[place] = self._open

    def _note_work(self, end: float) -> None:
        if self._worked is None:
            self._worked = Span(self._state[1], end)
        self._worked.end = end

    def _count_pending(self, running: RoundAccount) -> list[Pending]:
        """Payloads that are due in a round that closes, and not where they are wanted, cost time until then."""
        receivers = [node.name for node in self.nodes.values() if running.place in node.present]
        pending = self._transfers.find_pending((running.epoch, running.height - self._delay), receivers)
        for name, since in {one.receiver: one.since for one in reversed(pending)}.items():
            self.nodes[name].add(What.TRANSFER, max(running.start, since), running.closing)
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
            return Bound("transfer", pending[0].sender, pending[0].receiver)
        return Bound(kind, missing) if is_idle and (missing or kind == "limit") else bound

    def _find_missing(self, running: RoundAccount) -> str:
        """Who was in the round and had not trained when it closed; the first three."""
        late = [n.name for n in self.nodes.values() if running.place in n.present and n.name not in running.trained]
        return ", ".join(late[:3]) + (f" and {len(late) - 3} more" if len(late) > 3 else "")

    def set_batch(self, place: Place, tokens: int) -> None:
        """How many tokens a round hands out."""
        if place in self._by_place:
            self._by_place[place].batch_tokens = tokens

    # --- who is a member -----------------------------------------------------------------------------

    def _admit(self, one: RoundAccount) -> None:
        """Who is a member of the epoch is one of its round, and silent ones too: the record keeps them for a while.

        Where it has fewer than were heard of, those are out who were not heard of for longest.
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

    def _take_members(self, event: Event) -> None:
        """The record's own word: nothing else is looked at any more."""
        self._is_told = True
        place = (_get_int(event, "epoch"), _get_int(event, "height"))
        names = event.get("members")
        for name in names if isinstance(names, Sequence) else ():
            self._get(str(name)).present.add(place)
        self.set_batch(place, _get_int(event, "tokens"))

    def _take_withdrawal(self, key: str) -> None:
        """Somebody's connection was gone for too long; the round that runs was still to be its."""
        node = self.nodes.get(self._keys.get(key, ""))
        if node is None:
            return
        if self._open is not None and node.member_of == self._open.epoch and not self._is_told:
            node.present.add(self._open.place)
        node.leave()

    def _on_withdrew(self, node: NodeAccount, _t: float, _event: Event) -> None:
        node.leave()

    # --- what clients tell ---------------------------------------------------------------------------

    def _take_process(self, who: str, t: float, event: Event) -> None:
        if event["kind"] == ROUND_MEMBERS:
            self._take_members(event)
        if not who or who == SERVER:
            return
        node = self._get(who)
        if event["kind"] == "started":
            self._on_process(node, t, event)
        elif event["kind"] in ("killed", "ended", "stopped", "process_ended"):
            if event["kind"] == "killed":
                node.notices.append((t, DIED))
            node.away_since = t if node.away_since is None else node.away_since
        elif event["kind"] == "resumed":
            self._return(node, t)
        elif event["kind"] == CARRIED:
            node.bytes_sent, node.bytes_received = _get_int(event, "bytes_sent"), _get_int(event, "bytes_received")
            node.weights_received = _get_int(event, "weights_received")

    def _return(self, node: NodeAccount, t: float) -> None:
        if node.away_since is not None:
            node.add(What.AWAY, node.away_since, t)
        node.away_since = None

    def _on_process(self, node: NodeAccount, t: float, event: Event) -> None:
        self._return(node, t)
        if "identity" in event:
            self._keys[str(event["identity"])] = node.name
        node.start_process()

    def _on_state(self, node: NodeAccount, t: float, event: Event) -> None:
        node.epoch = _get_int(event, "epoch", node.epoch)
        node.round_since = t

    def _on_member(self, node: NodeAccount, _t: float, event: Event) -> None:
        node.epoch = _get_int(event, "epoch", node.epoch)
        index = event.get("index")
        if isinstance(index, int):
            node.member_of, node.out_of = node.epoch, None
            self._names[node.epoch, index] = node.name

    def _on_round(self, node: NodeAccount, t: float, event: Event) -> None:
        place = (_get_int(event, "epoch", node.epoch), _get_int(event, "height"))
        node.epoch, node.round_since, node.is_applying = place[0], t, True
        self._admit_self(node, place)
        if place in self._by_place and event.get("drain"):
            self._by_place[place].is_drain = True

    def _on_applied(self, node: NodeAccount, t: float, _event: Event) -> None:
        if node.is_applying and t > node.round_since:
            node.add(What.APPLY, node.round_since, t)
        node.is_applying = False
        node.training_since = t

    def _on_trained(self, node: NodeAccount, t: float, event: Event) -> None:
        seconds, tokens = event.get("seconds"), round(_get_int(event, "tokens") * self._scale)
        start = t - float(seconds) if isinstance(seconds, int | float) else t
        node.add(What.TRAIN, start, t)
        node.training_since = None
        place = (_get_int(event, "epoch", node.epoch), _get_int(event, "height"))
        if (found := self._by_place.get(place)) is not None:
            found.trained[node.name] = tokens
            if node.out_of != place[0]:
                node.member_of = place[0]  # the beginning of its epoch may lie before the log's
            self._admit_self(node, place)
        self._last_trained = (t, Bound("training", node.name))

    def _on_sent(self, node: NodeAccount, t: float, event: Event) -> None:
        self._transfers.send((_get_int(event, "epoch", node.epoch), _get_int(event, "height")), node.name, t)

    def _on_payload(self, node: NodeAccount, t: float, event: Event) -> None:
        name = self._names.get((node.epoch, _get_int(event, "from_member", -1)), "")
        height = _get_int(event, "height")
        self._transfers.arrive((node.epoch, height), name, node.name)
        needing = self._by_place.get((node.epoch, height + self._delay))
        if needing is None:
            return  # it came before anybody waited for it
        sent = self._transfers.get_sent((node.epoch, height), name)
        start = needing.start if sent is None else max(needing.start, sent)
        node.add(What.TRANSFER, start, t)
        self._last_arrived = (t, Bound("transfer", name or "somebody", node.name))

    def _on_decided(self, node: NodeAccount, _t: float, event: Event) -> None:
        found = self._by_place.get((node.epoch, _get_int(event, "height")))
        members = event.get("members")
        if found is not None and not found.is_decided and isinstance(members, Sequence):
            found.is_decided, found.is_void = True, bool(event.get("void"))
            found.members = tuple(self._names.get((node.epoch, m), f"member {m}") for m in members)

    def _on_network(self, node: NodeAccount, _t: float, event: Event) -> None:
        node.count_bytes(_get_int(event, "bytes_sent"), _get_int(event, "bytes_received"))

    def _on_notice(self, node: NodeAccount, t: float, event: Event) -> None:
        fields = {"dropped": "state", "left": "reason", "not_sent": "reason", "trainer_lost": "reason"}
        said = str(event.get(fields[event["kind"]], "")) or "?"
        node.notices.append((t, f"{event['kind']}: {said}"))
        if event["kind"] == "dropped":
            node.leave()
        if event["kind"] == "not_sent" and node.training_since is not None:
            node.add(What.VAIN, node.training_since, t)
            node.training_since = None

    # --- the end -------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Nothing more comes: count."""
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
            for what, seconds in compute_times(node, one).items():
                node.times[what] += 0.0 if one.is_drain else seconds
                total[what] += seconds
            if node.name in one.trained and node.name in one.members:
                node.tokens += one.trained[node.name]
            elif one.is_decided and not one.is_drain:
                node.cut_off.append(one.place)
        whole = sum(total.values())
        one.shares = {what: total[what] / whole if whole else 0.0 for what in What}

    # --- figures -------------------------------------------------------------------------------------

    @property
    def data_rounds(self) -> list[RoundAccount]:
        """Rounds that trained, and are over."""
        return [one for one in self.rounds if not one.is_drain and one.seconds > 0]

    @property
    def rounds_s(self) -> float:
        """From the first round with data to the end of the last one."""
        rounds = self.data_rounds
        return rounds[-1].end - rounds[0].start if rounds else 0.0

    @property
    def before_s(self) -> float:
        """Start and Warmup: until the first round."""
        return self.rounds[0].start - self.started if self.rounds else 0.0

    @property
    def shares(self) -> dict[What, float]:
        """Of all members' time in rounds with data."""
        total = {what: sum(node.times[what] for node in self.nodes.values()) for what in What}
        whole = sum(total.values())
        return {what: total[what] / whole if whole else 0.0 for what in What}

    @property
    def bounds(self) -> Counter[tuple[str, str]]:
        """How many rounds ended with what: (kind, who)."""
        return Counter((one.bound.kind, one.bound.who) for one in self.data_rounds)

    @property
    def tokens(self) -> int:
        """Tokens whose training counts."""
        return sum(one.tokens for one in self.rounds)

    @property
    def lost_tokens(self) -> int:
        """Tokens handed out or trained in vain."""
        return sum(one.lost_tokens for one in self.rounds)

    @property
    def whole_training_share(self) -> float:
        """Of all members' time from the first Warmup to the end of the last Cooldown."""
        if not self.rounds or self._worked is None:
            return 0.0
        start, end = self._worked.start, self._worked.end
        members = [node for node in self.nodes.values() if node.present]
        trained = sum(span.end - span.start for node in members for span in node.spans[What.TRAIN])
        return trained / (len(members) * (end - start)) if members and end > start else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Tokens whose training counts, by the time from the first round on."""
        seconds = max(one.end for one in self.rounds) - self.rounds[0].start if self.rounds else 0.0
        return self.tokens / seconds if seconds else 0.0

    def get_sets(self) -> list[tuple[Place, tuple[str, ...]]]:
        """The decided sets, in order, with their members' names sorted."""
        return [(one.place, tuple(sorted(one.members))) for one in self.rounds if one.is_decided]


def find_reference(events: Iterable[Event]) -> str:
    """Whose view of the record a log has: the server's, else the client's that tells most."""
    counts = Counter(str(event["node"]) for event in events if event["kind"] == "state_changed")
    return SERVER if SERVER in counts or not counts else counts.most_common(1)[0][0]


def is_overlapped(events: Iterable[Event]) -> bool:
    """Whether a log is of a run with overlap: its sets are decided two rounds later at the earliest."""
    heights: dict[str, int] = {}
    delays: list[int] = []
    for event in events:
        node = str(event["node"])
        if event["kind"] == "state_changed":
            heights[node] = _get_int(event, "height")
        elif event["kind"] == "decided" and node in heights:
            delays.append(heights[node] - _get_int(event, "height"))
    return not delays or min(delays) > 1


def read_accounts(events: Sequence[Event]) -> Accounts:
    """The accounts of a log that is over; one of `psyche simulate` says itself what it stands for."""
    reference = find_reference(events)
    told = next((event for event in events if event["node"] == WORLD and event["kind"] == SIMULATED), None)
    if told is None:
        accounts = Accounts(reference=reference, overlap=is_overlapped(events))
        accounts.is_stand_in = any(event["node"] == WORLD for event in events)
    else:
        limit_s, scale = (float(_get_int(told, name, 1)) for name in ("limit_s", "sequence_tokens"))
        small = _get_int(told, "played_tokens", 1) or 1
        accounts = Accounts(
            reference=reference, limit_s=limit_s, overlap=told.get("overlap") is True, tokens_scale=scale / small
        )
    for event in events:
        accounts.take(event)
    accounts.finish()
    return accounts


def _get_int(event: Event, name: str, default: int = 0) -> int:
    value = event.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else default
