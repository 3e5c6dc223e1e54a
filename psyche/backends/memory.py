"""The backend in this process: the record itself, messages by function call, time on trio's clock."""

import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import trio

from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.rules.apply import apply, is_repeat
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.messages import Message, ReportEquivocation, Tick
from psyche.core.state.state import ZERO32, Coordinator
from psyche.wire.address_record import AddressRecord
from psyche.wire.ports import Proof

TICK_S = 0.5


@dataclass
class MemoryCoordinator:
    """Holds the record, ticks it, and shows it to its backends. The time is `start_unix` plus trio's clock."""

    state: Coordinator
    start_unix: int
    draw_entropy: Callable[[], bytes] = partial(secrets.token_bytes, 32)
    book: dict[bytes, AddressRecord] = field(default_factory=dict)
    _changed: trio.Event = field(default_factory=trio.Event)
    _shown: Coordinator | None = None

    @property
    def unix(self) -> int:
        """Unix seconds, which are the slot too."""
        return self.start_unix + int(trio.current_time())

    def apply(self, message: Message, sender: bytes = ZERO32) -> bool:
        return apply(self.state, self.unix, self.unix, sender, message)

    def settle(self) -> None:
        """Tick until nothing changes (T3), then wake the waiting tasks."""
        while not self.state.halted and self.apply(Tick(self.draw_entropy())):
            pass
        self._changed.set()
        self._changed = trio.Event()

    async def run(self) -> None:
        while True:
            self.settle()
            await trio.sleep(TICK_S)

    def show(self) -> Coordinator:
        """A decoded copy of the record, shared by all backends: decoding one for each takes most of a test's time."""
        if self._shown is None or self._shown.nonce != self.state.nonce:
            self._shown = decode_state(encode_state(self.state))
        return self._shown

    async def wait_until(self, condition: Callable[[Coordinator], bool]) -> None:
        while not condition(self.state):
            await self._changed.wait()

    async def wait_change(self) -> None:
        await self._changed.wait()


@dataclass
class MemoryBackend:
    """One client's `Backend` over a coordinator in this process. `key` is both its signer and its p2p key."""

    coordinator: MemoryCoordinator
    key: bytes
    report: None = None  # nobody looks at this run
    ask_data_manifest: None = None
    reconnect_soon: None = None  # it cannot be lost

    async def states(self) -> AsyncGenerator[Coordinator, None]:
        last: Coordinator | None = None
        while True:
            state = self.coordinator.show()
            if state is not last:
                last = state
                yield state
            else:
                await self.coordinator.wait_change()

    async def submit(self, message: Message, proof: Proof = None) -> None:
        """Submit a message. Evidence is judged by a server or a chain; here the report is dropped."""
        await trio.lowlevel.checkpoint()
        if isinstance(message, ReportEquivocation):
            return
        if isinstance(proof, AddressRecord):
            self.coordinator.book[proof.p2p] = proof
        try:
            self.coordinator.apply(message, self.key)
        except CoordinatorError:
            if not is_repeat(self.coordinator.state, self.key, message):
                raise  # K3
        self.coordinator.settle()

    def get_addresses(self) -> Sequence[AddressRecord]:
        return tuple(self.coordinator.book.values())
