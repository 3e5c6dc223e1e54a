"""Who is connected, and what follows for whom is not (H6): a lost connection is no absence until 15 s have passed."""

from typing import Final

from psyche.core.roster import find_slot, is_in_epoch
from psyche.core.state import ClientState, Coordinator, RunState, SlotState

RECONNECT_S: Final = 15
MAX_LOST: Final = 1_024  # four times as many as there are slots


class Presence:
    """Which keys are connected, and since when those that have a slot are not."""

    def __init__(self) -> None:
        self._connected: set[bytes] = set()
        self._lost: dict[bytes, int] = {}

    @property
    def count(self) -> int:
        """How many keys are connected."""
        return len(self._connected)

    def connected(self, key: bytes) -> None:
        """The key is there (again)."""
        self._connected.add(key)
        self._lost.pop(key, None)

    def disconnected(self, key: bytes, now: int, *, is_known: bool) -> None:
        """The key's connection is lost; only of those with a slot (`is_known`) is it remembered."""
        self._connected.discard(key)
        if is_known and len(self._lost) < MAX_LOST:
            self._lost[key] = now

    def get_overdue(self, now: int) -> list[tuple[bytes, int]]:
        """Keys that have been lost for longer than the grace, and since when."""
        return [(key, since) for key, since in self._lost.items() if now - since >= RECONNECT_S]

    def forget(self, key: bytes) -> None:
        """Nothing more follows for this key."""
        self._lost.pop(key, None)


def get_departure(state: Coordinator, key: bytes) -> tuple[int, int] | None:
    """The (epoch, member) with which this key can be withdrawn now (M4); None where it has nothing to leave."""
    epoch = state.progress.epoch
    if state.run_state is RunState.WAITING_FOR_MEMBERS:
        return (epoch, 0) if has_join(state, key) else None  # the member is not read there
    if not is_in_epoch(state):
        return None
    for member, client in enumerate(state.clients):
        if client.state is ClientState.HEALTHY and key in (client.signer, client.p2p):
            return epoch, member
    return None


def has_join(state: Coordinator, key: bytes) -> bool:
    """Whether the key waits for an epoch that has not been formed, or holds a join that formation would take."""
    number = find_slot(state, key)
    if number is None:
        return False
    slot = state.registry.slots[number]
    return slot.state is SlotState.JOINED and slot.active >= state.registry.next_active
