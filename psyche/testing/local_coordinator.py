"""A coordinator in this process: the real state machine, messages by function call, time on trio's clock."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

import trio

from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state.messages import Message, ReportEquivocation
from psyche.core.state.state import Coordinator
from psyche.testing.state_machine import StateMachine
from psyche.wire.address_record import AddressRecord
from psyche.wire.ports import Proof

TICK_S = 0.5


@dataclass
class LocalCoordinator(StateMachine):
    """Holds the state, ticks it, and shows it to its backends. The time is `start_unix` plus trio's clock."""

    start_unix: int
    book: dict[bytes, AddressRecord] = field(default_factory=dict)
    _changed: trio.Event = field(default_factory=trio.Event)
    _shown: Coordinator | None = None

    @property
    def unix(self) -> int:
        """Unix seconds."""
        return self.start_unix + int(trio.current_time())

    def settle(self) -> int:
        """Tick until nothing changes, then wake the waiting tasks."""
        count = super().settle()
        self._changed.set()
        self._changed = trio.Event()
        return count

    async def run(self) -> None:
        """Tick for ever."""
        while True:
            self.settle()
            await trio.sleep(TICK_S)

    def show(self) -> Coordinator:
        """A decoded copy of the state, shared by all backends; treat it as read-only."""
        if self._shown is None or self._shown.nonce != self.state.nonce:
            self._shown = decode_state(encode_state(self.state))
        return self._shown

    async def wait_until(self, condition: Callable[[Coordinator], bool]) -> None:
        """Wait until the state meets the condition; bound it with a cancel scope."""
        while not condition(self.state):
            await self._changed.wait()

    async def wait_change(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()


@dataclass
class LocalBackend:
    """One client's `Backend` over a coordinator in this process."""

    coordinator: LocalCoordinator
    key: bytes
    report: None = None  # nobody looks at this run
    reconnect_soon: None = None  # it cannot be lost

    async def states(self) -> AsyncGenerator[Coordinator, None]:
        """Yield the newest states. Their nonce rises, unless a test puts an older state back."""
        last: Coordinator | None = None
        while True:
            state = self.coordinator.show()
            if state is not last:
                last = state
                yield state
            else:
                await self.coordinator.wait_change()

    async def submit(self, message: Message, proof: Proof = None) -> None:
        """See `Backend.submit`. Only a real server judges evidence; here the report is dropped."""
        await trio.lowlevel.checkpoint()
        if isinstance(message, ReportEquivocation):
            return
        if isinstance(proof, AddressRecord):
            self.coordinator.book[proof.p2p] = proof
        self.coordinator.apply(message, self.key)
        self.coordinator.settle()

    def get_addresses(self) -> Sequence[AddressRecord]:
        """The address records of everybody who joined."""
        return tuple(self.coordinator.book.values())
