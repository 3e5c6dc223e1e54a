"""One run in both rules: every event goes to core and to the Rust rules, and must do the same to both."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from conformance_traces import MEETABLE as REFUSALS_OF_KINDS
from conformance_traces import Trace, compute_hash, write_event
from kits.runs import Run

from differential.backends import ACCEPTED, REFUSED, Backend, NoBackend, encode_event
from differential.facts import find_facts, take_view
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.encoding.tables import ACCOUNT
from psyche.core.rules.apply import BY_TYPE, apply
from psyche.core.rules.timing import clamp_time
from psyche.core.state.errors import REFUSALS, CoordinatorError
from psyche.core.state.messages import Message
from psyche.core.state.state import ZERO32, Coordinator


class Event(NamedTuple):
    """The arguments of `apply` after the state."""

    now: int
    slot: int
    sender: bytes
    message: Message


class Seen(NamedTuple):
    """What happened to an event; `answer` is a refusal's name, "changed" or "unchanged"."""

    run_state: str
    kind: str
    answer: str


def apply_to_core(state: Coordinator, event: Event) -> tuple[int, bool]:
    """Apply an event to core; return what the Rust rules must answer, and whether a byte has changed."""
    try:
        return ACCEPTED, apply(state, *event)
    except CoordinatorError as refusal:
        return REFUSED + refusal.number, False


class Difference(AssertionError):
    """Core and the Rust rules did different things; `trace` replays it."""

    def __init__(self, trace: Trace, what: str) -> None:
        self.trace = trace
        super().__init__(f"{what}\nIts trace, for tests/conformance/found:\n{trace.format()}")


@dataclass
class Pair(Run):
    """A run that is played in both rules. `slot` follows the clock unless it is set."""

    backend: Backend = field(kw_only=True)
    seen: Counter[Seen] = field(default_factory=Counter, kw_only=True)
    facts: Counter[str] = field(default_factory=Counter, kw_only=True)  # what has come about, from `note_facts`
    slot: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self.start = self.bytes = encode_state(self.state)
        self.events: list[Event] = []
        self.backend.load(self.start)

    def apply(self, message: Message, sender: bytes = ZERO32) -> bool:
        """Apply a message to both.

        Raises:
            CoordinatorError: both refuse it.
            Difference: they disagree; its trace is as short as could be found.
        """
        now = clamp_time(self.now)
        event = Event(now, now if self.slot is None else self.slot, sender, message)
        before = take_view(self.state)
        self.events.append(event)
        answer, changed = apply_to_core(self.state, event)
        said = self.backend.send(encode_event(*event))
        if changed:
            self.bytes = encode_state(self.state)
            self.facts.update(find_facts(before, self.state))
        self._note(before.run_state.name, event, answer, changed=changed)
        if not isinstance(self.backend, NoBackend) and (said != answer or self.backend.read() != self.bytes):
            raise explain(self.backend, self.start, shrink(self.backend, self.start, self.events))
        if answer != ACCEPTED:
            raise REFUSALS[answer - REFUSED]("both rules refuse it")
        return changed

    def _note(self, run_state: str, event: Event, answer: int, *, changed: bool) -> None:
        name = REFUSALS[answer - REFUSED].__name__ if answer != ACCEPTED else "changed" if changed else "unchanged"
        self.seen[Seen(run_state, BY_TYPE[type(event.message)].name, name)] += 1

    def attempt(self, message: Message, sender: bytes = ZERO32) -> bool:
        """Apply a message that may be refused; return whether it changed anything."""
        try:
            return self.apply(message, sender)
        except CoordinatorError:
            return False


def is_different(backend: Backend, start: bytes, events: Sequence[Event]) -> bool:
    """Whether core and the Rust rules differ after the last of these events, and not before."""
    state = decode_state(start)
    backend.load(start)
    for number, event in enumerate(events, start=1):
        answer, _ = apply_to_core(state, event)
        said = backend.send(encode_event(*event))
        if said != answer or backend.read() != encode_state(state):
            return number == len(events)
    return False


def shrink(backend: Backend, start: bytes, events: Sequence[Event]) -> list[Event]:
    """Leave out events as long as the last one still makes the difference: many at once first, then single ones."""
    kept, size = list(events), max(1, len(events) // 2)
    while size:
        before = len(kept)
        kept = _leave_out(backend, start, kept, size)
        size = size // 2 if size > 1 or len(kept) == before else 1
    return kept


def _leave_out(backend: Backend, start: bytes, kept: list[Event], size: int) -> list[Event]:
    place = 0
    while place < len(kept) - 1:
        shorter = kept[:place] + kept[min(place + size, len(kept) - 1) :]
        if is_different(backend, start, shorter):
            kept = shorter
        else:
            place += size
    return kept


def explain(backend: Backend, start: bytes, events: Sequence[Event]) -> Difference:
    """The difference that the last event makes, with the trace as core plays it."""
    state = decode_state(start)
    trace = Trace("found", "found by random events", start)
    backend.load(start)
    said = answer = ACCEPTED
    for event in events:
        answer, _ = apply_to_core(state, event)
        said = backend.send(encode_event(*event))
        written = write_event(*event)
        written |= {} if answer == ACCEPTED else {"error": REFUSALS[answer - REFUSED].__name__}
        trace.events.append(written | {"sha256": compute_hash(state)})
    trace.end = encode_state(state)
    left, right = trace.end, backend.read()
    places = [place for place in range(len(left)) if left[place] != right[place]]
    names = sorted({ACCOUNT.locate(place) for place in places})
    what = f"core answers {answer}, the Rust rules {said}; {len(places)} bytes differ, in {names[:9]}"
    return Difference(trace, f"after {len(events)} events, at a {type(events[-1].message).__name__}: {what}")


# A round's records come from elected members alone, so no message meets this one (L9 lets it through, W4 does not).
UNMET = {("witness", "WitnessesFull")}
MEETABLE = REFUSALS_OF_KINDS - UNMET
