"""What the parts of the round engine share: the newest state, this client's place in it, and the pending actions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from psyche.client.engine.actions import Action
from psyche.client.engine.records import RoundBook, RoundRecord
from psyche.core.state.bits import get_members
from psyche.core.state.state import ZERO32, ClientState, Coordinator, RunState
from psyche.core.state.timeline import get_attested_height, is_last_drain
from psyche.telemetry import types
from psyche.telemetry.types import Wait, WaitOutcome, WaitStarted
from psyche.wire.crypto import Identity

NAMED_MEMBERS: Final = 8


def describe_awaited(members: Sequence[int]) -> str:
    """`members [1, 5]`; of more than eight only that, so that a wait for many is not logged anew at every arrival."""
    few = len(members) <= NAMED_MEMBERS
    return f"members {list(members)}" if few else f"more than {NAMED_MEMBERS} members"


@dataclass(slots=True)
class RunFacts:
    """The facts that every result header of the run carries; known once the model is loaded."""

    plan_hash: bytes = ZERO32
    config_hash: bytes = ZERO32
    max_body_bytes: int = 0
    numeric_class: int = 0
    parameters: int = 0

    @property
    def is_known(self) -> bool:
        return self.plan_hash != ZERO32


@dataclass(slots=True)
class EngineContext:
    """The state shared by the parts of one engine. The engine drains `actions` after each event."""

    identity: Identity
    state: Coordinator = field(default_factory=Coordinator)
    member: int | None = None  # own index in the running epoch while Healthy and taking part
    facts: RunFacts = field(default_factory=RunFacts)
    book: RoundBook = field(default_factory=RoundBook)
    actions: list[Action] = field(default_factory=list)
    waits: dict[str, WaitStarted] = field(default_factory=dict)
    state_since: float = 0.0  # when this client first saw the current run state
    has_exited: bool = False  # nothing more is begun
    _sources: "tuple[Coordinator, int, list[int], list[bytes]] | None" = None  # cache of `get_sources`

    @property
    def epoch(self) -> int:
        return self.state.progress.epoch

    @property
    def height(self) -> int:
        return self.state.current.height

    @property
    def round_limit_s(self) -> int:
        """How long a round may take, both of its phases together."""
        return self.state.config.max_round_train_time + self.state.config.round_witness_time

    @property
    def current(self) -> RoundRecord | None:
        return self.book.get(self.height) if self.state.in_round else None

    def get_attested(self, height: int) -> RoundRecord | None:
        """What is known of the round whose payloads the witnesses of this one report."""
        return self.book.get(get_attested_height(self.state.config, self.state.epoch, height))

    def is_last_drain(self, height: int) -> bool:
        return is_last_drain(self.state.config, self.state.epoch, height)

    def do(self, action: Action) -> None:
        self.actions.append(action)

    def log(self, event: types.Event) -> None:
        self.actions.append(event)

    def drain(self) -> list[Action]:
        actions, self.actions = self.actions, []
        return actions

    def wait(
        self, key: str, wait: Wait, what: str, *, until: float | None = None, then: str, height: int | None = None,
        apply_height: int | None = None, members: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Log that a wait has started, once while it stays the same; its deadline is on this client's clock."""
        known = self.waits.get(key)
        if known is not None and known.what == what:
            return
        self.end_wait(key, WaitOutcome.REPLACED)  # every logged wait must be logged as ended
        named = tuple(members) if len(members) <= NAMED_MEMBERS else ()
        self.waits[key] = started = WaitStarted(
            what=what, until=until, then=then, wait=wait, members=named, height=height, apply_height=apply_height
        )
        self.log(started)

    def end_wait(self, key: str, outcome: WaitOutcome) -> None:
        wait = self.waits.pop(key, None)
        if wait is not None:
            ended = types.WaitEnded(
                what=wait.what, until=wait.until, outcome=outcome, wait=wait.wait, height=wait.height
            )
            self.log(ended)

    def end_all_waits(self, outcome: WaitOutcome) -> None:
        for key in list(self.waits):
            self.end_wait(key, outcome)

    def find_self(self) -> int | None:
        """This client's index among the epoch's members, healthy or not; None if it is none of them."""
        if self.state.run_state not in ACTIVE_STATES:
            return None
        own = self.identity.public
        return next((index for index, client in enumerate(self.state.clients) if client.p2p == own), None)

    def is_healthy(self, index: int) -> bool:
        return self.state.clients[index].state is ClientState.HEALTHY

    def get_sources(self, members: int) -> tuple[list[int], list[bytes]]:
        """The members of a round that may serve payloads (healthy, without this client), and their keys."""
        known = self._sources
        if known is None or known[0] is not self.state or known[1] != members:
            found = [m for m in get_members(members) if m != self.member and self.is_healthy(m)]
            known = self._sources = (self.state, members, found, [self.get_key(m) for m in found])
        return known[2:]

    def get_key(self, member: int) -> bytes:
        return self.state.clients[member].p2p


ACTIVE_STATES = (RunState.WARMUP, RunState.ROUND_TRAIN, RunState.ROUND_WITNESS, RunState.COOLDOWN)
