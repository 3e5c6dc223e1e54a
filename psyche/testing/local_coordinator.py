"""A coordinator in this process: the real state machine, messages by function call, time on trio's clock."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import trio

from psyche.core import transitions
from psyche.core.layout import decode_state, encode_state
from psyche.core.messages import WitnessMessage
from psyche.core.state import Checkpoint, Coordinator
from psyche.testing.builders import build_hash
from psyche.wire.ports import AddressRecord

TICK_S = 0.5


@dataclass
class LocalCoordinator:
    """Holds the state, ticks it, and shows it to its backends. `start_unix` plus trio's clock is the time."""

    state: Coordinator
    start_unix: int
    book: dict[bytes, AddressRecord] = field(default_factory=dict)
    _draws: int = 0
    _changed: trio.Event = field(default_factory=trio.Event)
    _shown: Coordinator | None = None

    @property
    def now(self) -> int:
        """Unix seconds."""
        return self.start_unix + int(trio.current_time())

    def settle(self) -> None:
        """Tick until nothing changes (T3), then show what became of it."""
        while not self.state.halted:
            self._draws += 1
            if not transitions.tick(self.state, self.now, self.now, build_hash("entropy", self._draws)):
                break
        self._changed.set()
        self._changed = trio.Event()

    async def run(self) -> None:
        """Tick for ever."""
        while True:
            self.settle()
            await trio.sleep(TICK_S)

    def show(self) -> Coordinator:
        """The state as its bytes give it; nobody may change it."""
        if self._shown is None or self._shown.nonce != self.state.nonce:
            self._shown = decode_state(encode_state(self.state))
        return self._shown

    async def wait_until(self, condition: Callable[[Coordinator], bool]) -> None:
        """Wait for a state; bound it with a cancel scope."""
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

    async def states(self) -> AsyncIterator[Coordinator]:
        """Newest states, nonce rising."""
        nonce = -1
        while True:
            state = self.coordinator.show()
            if state.nonce > nonce:
                nonce = state.nonce
                yield state
            else:
                await self.coordinator.wait_change()

    async def _call(self, function: Callable[[Coordinator, int], object]) -> None:
        await trio.lowlevel.checkpoint()
        function(self.coordinator.state, self.coordinator.now)
        self.coordinator.settle()

    async def join(self, record: AddressRecord) -> None:
        """See `Backend.join`."""
        self.coordinator.book[record.p2p] = record
        await self._call(lambda state, now: transitions.join(state, now, self.key, self.key))

    async def withdraw(self, epoch: int, member: int) -> None:
        """See `Backend.withdraw`."""
        await self._call(lambda state, now: transitions.withdraw(state, now, self.key, epoch, member))

    async def witness(self, message: WitnessMessage) -> None:
        """See `Backend.witness`."""
        await self._call(lambda state, now: transitions.witness(state, now, self.key, message))

    async def warmup_witness(self, epoch: int, member: int, digest: bytes) -> None:
        """See `Backend.warmup_witness`."""
        await self._call(lambda state, now: transitions.warmup_witness(state, now, self.key, epoch, member, digest))

    async def health_check(self, epoch: int, height: int, member: int) -> None:
        """See `Backend.health_check`."""
        await self._call(lambda state, now: transitions.health_check(state, now, self.key, epoch, height, member))

    async def report_equivocation(self, first: bytes, second: bytes) -> None:
        """Evidence is for the server to judge; here it is dropped."""
        del first, second
        await trio.lowlevel.checkpoint()

    async def checkpoint(self, epoch: int, digest: bytes, source: Checkpoint) -> None:
        """See `Backend.checkpoint`."""
        await self._call(lambda state, now: transitions.checkpoint(state, now, self.key, epoch, digest, source))

    async def tick(self) -> None:
        """The coordinator ticks itself."""
        await trio.lowlevel.checkpoint()

    def address_book(self) -> Sequence[AddressRecord]:
        """Everybody who joined."""
        return tuple(self.coordinator.book.values())
