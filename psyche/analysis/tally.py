"""The accounts of one client and of one round, and payloads in transit, which `accounts.py` folds events into."""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

DIED = "died"  # a notice that comes from no event of the node itself
Place = tuple[int, int]  # epoch, height
KEPT_NOTICES: Final = 20  # of a member, where rounds are forgotten
KEPT_ROUNDS: Final = 8  # of payloads that are on their way
MAX_PLACES: Final = 64


@dataclass(slots=True)
class Span:
    start: float
    end: float


def find_spans(spans: Sequence[Span], start: float, end: float) -> list[Span]:
    """The spans, of a sorted sequence, that touch the time from `start` to `end`."""
    first = bisect_left(spans, start, key=lambda span: span.end)
    found: list[Span] = []
    for span in spans[first:]:
        if span.start >= end:
            break
        found.append(span)
    return found


def take_out(left: Iterable[Span], taken: Sequence[Span]) -> tuple[float, list[Span]]:
    """The seconds of `left` that lie within `taken`, and the rest of `left`."""
    seconds, rest = 0.0, list(left)
    for span in taken:
        parts: list[Span] = []
        for free in rest:
            start, end = max(free.start, span.start), min(free.end, span.end)
            if start >= end:
                parts.append(free)
                continue
            seconds += end - start
            parts += [part for part in (Span(free.start, start), Span(end, free.end)) if part.start < part.end]
        rest = parts
    return seconds, rest


class What(StrEnum):
    TRAIN = "train"
    VAIN = "vain"  # training that was cancelled because the round was over
    APPLY = "apply"
    TRANSFER = "transfer"
    WITNESS = "witness"
    SEND = "send"  # its payload is on its way to others
    WAIT = "wait"
    AWAY = "away"


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that happened to a client: `what` is `DIED` or the kind of its event, `said` the event's text."""

    t: float
    what: str
    said: str = ""


@dataclass(slots=True)
class NodeAccount:
    name: str
    spans: dict[What, list[Span]] = field(default_factory=lambda: {what: [] for what in What})
    times: dict[What, float] = field(default_factory=lambda: dict.fromkeys(What, 0.0))  # in rounds with data
    cut_off: list[Place] = field(default_factory=list)  # rounds whose set lacks its result
    tokens: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    weights_received: int = 0  # simulated runs only; in others part of bytes_received
    notices: list[Notice] = field(default_factory=list)  # when and why it was dropped, died or left
    epoch: int = 0
    away_since: float | None = None
    ended_away: bool = False
    round_since: float = 0.0
    member_of: int | None = None  # the epoch that it is a member of, as far as the log shows
    out_of: int | None = None  # the epoch that it left or was dropped from
    is_applying: bool = False
    training_since: float | None = None
    present: set[Place] = field(default_factory=set)
    rounds_done: int = 0  # of rounds that are forgotten: its result was in the set, or was not
    rounds_missed: int = 0
    _before: tuple[int, int] = (0, 0)

    @property
    def is_dead(self) -> bool:
        return self.ended_away and bool(self.notices) and self.notices[-1].what == DIED

    def add(self, what: What, start: float, end: float) -> None:
        """Add a span and merge it with earlier ones that it touches. Ends must not decrease."""
        spans = self.spans[what]
        while spans and start <= spans[-1].end:
            start = min(start, spans.pop().start)
        spans.append(Span(start, end))

    def forget(self, one: "RoundAccount") -> None:
        """Drop what belongs to a round and to the time before its end; how it went is counted."""
        if one.place in self.present and one.is_decided and not one.is_drain:
            is_done = self.name in one.members
            self.rounds_done += is_done
            self.rounds_missed += not is_done
            self.tokens += one.trained.get(self.name, 0) if is_done else 0
        self.present.discard(one.place)
        for what, spans in self.spans.items():
            if spans and spans[0].end <= one.end:
                self.spans[what] = [span for span in spans if span.end > one.end]
        del self.notices[:-KEPT_NOTICES]

    def leave(self) -> None:
        self.member_of, self.out_of = None, self.epoch if self.member_of is None else self.member_of

    def start_process(self) -> None:
        # Each process counts its own bytes from 0.
        self._before = (self.bytes_sent, self.bytes_received)

    def count_bytes(self, sent: int, received: int) -> None:
        self.bytes_sent, self.bytes_received = self._before[0] + sent, self._before[1] + received


@dataclass(slots=True)
class Bound:
    """The last thing a round waited for: `kind` is training, transfer, patience, limit or none."""

    kind: str
    who: str = ""
    other: str = ""  # the receiver of a transfer

    @property
    def text(self) -> str:
        if self.kind == "transfer":
            return f"payload of {self.who} on its way to {self.other}"
        if self.kind in ("patience", "limit"):
            named = {"patience": "patience with", "limit": "max_round_train_time, missing"}[self.kind]
            return f"{named} {self.who or 'nobody in particular'}"
        return f"training of {self.who}" if self.kind == "training" else "messages alone"


@dataclass(slots=True)
class RoundAccount:
    epoch: int
    height: int
    step: int
    start: float
    closing: float = 0.0  # when RoundTrain ended
    end: float = 0.0
    is_drain: bool = False
    bound: Bound = field(default_factory=lambda: Bound("none"))
    trained: dict[str, int] = field(default_factory=dict)  # tokens, by node
    batch_tokens: int = 0  # of all members; 0: unknown
    members: Collection[str] = ()  # of the set, once it is decided; in order
    healthy: int = 0  # number of healthy members at its start; 0: unknown
    is_void: bool = False
    is_decided: bool = False
    shares: dict[What, float] = field(default_factory=dict)  # shares of its members' time

    @property
    def place(self) -> Place:
        return self.epoch, self.height

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def tokens(self) -> int:
        return sum(tokens for node, tokens in self.trained.items() if node in self.members)

    @property
    def lost_tokens(self) -> int:
        """Tokens handed out or trained whose results were not applied; 0 while nothing is decided."""
        handed_out = max(self.batch_tokens, sum(self.trained.values()))
        return handed_out - self.tokens if self.is_decided else 0


def compute_times(node: NodeAccount, one: RoundAccount) -> dict[What, float]:
    """Seconds of a member's time in a round by use; they add up to the round's duration."""
    left = [Span(one.start, one.end)]
    times: dict[What, float] = {}
    for what in (What.AWAY, What.TRAIN, What.VAIN, What.APPLY, What.TRANSFER):
        times[what], left = take_out(left, find_spans(node.spans[what], one.start, one.end))
    times[What.WITNESS], left = take_out(left, [Span(one.closing, one.end)])
    times[What.SEND], left = take_out(left, find_spans(node.spans[What.SEND], one.start, one.end))
    times[What.WAIT] = math.fsum(span.end - span.start for span in left)
    return times


def sort_nodes(nodes: Iterable[NodeAccount]) -> list[NodeAccount]:
    return sorted(nodes, key=lambda node: _get_order(node.name))


def _get_order(name: str) -> tuple[str, int]:
    head, _, number = name.rpartition("-")
    return (head, int(number)) if number.isdecimal() else (name, 0)


@dataclass(frozen=True, slots=True)
class Pending:
    """A payload that some have not received yet."""

    sender: str
    receivers: set[str]
    since: float


class Transfers:
    def __init__(self) -> None:
        self._sent: defaultdict[Place, dict[str, float]] = defaultdict(dict)
        self._arrived: defaultdict[Place, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))

    def send(self, place: Place, sender: str, t: float) -> None:
        self._sent[place][sender] = t
        if len(self._sent) > MAX_PLACES:
            del self._sent[max(self._sent)]  # no round of this run
        for old in [one for one in self._sent if one < (place[0], place[1] - KEPT_ROUNDS)]:
            del self._sent[old]
            self._arrived.pop(old, None)

    def arrive(self, place: Place, sender: str, receiver: str) -> None:
        self._arrived[place][sender].add(receiver)
        if len(self._arrived) > MAX_PLACES:  # whose senders' logs are elsewhere
            del self._arrived[min(self._arrived)]

    def get_sent(self, place: Place, sender: str) -> float | None:
        return self._sent.get(place, {}).get(sender)

    def find_pending(self, place: Place, receivers: Iterable[str]) -> list[Pending]:
        """The payloads that these receivers lack, the longest in transit first."""
        wanted, arrived = {*receivers}, self._arrived.get(place, {})
        found = [
            Pending(sender, wanted - arrived.get(sender, set()) - {sender}, since)
            for sender, since in self._sent.get(place, {}).items()
        ]
        return sorted((one for one in found if one.receivers), key=lambda one: one.since)
