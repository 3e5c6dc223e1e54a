"""Presence of clients (H6): a key counts as absent only 15 s after its connection is lost."""

from typing import Final

from psyche.core.state.roster import find_member, is_in_epoch
from psyche.core.state.state import ClientState, Coordinator, RunState, Slot, SlotState

RECONNECT_S: Final = 15
MAX_LOST: Final = 1_024  # four times as many as there are slots


class Presence:
    """Which keys are connected, and since when keys with a slot are disconnected."""

    def __init__(self) -> None:
        self._connected: set[bytes] = set()
        self._lost: dict[bytes, int] = {}

    @property
    def keys(self) -> frozenset[bytes]:
        return frozenset(self._connected)

    def connected(self, key: bytes) -> None:
        self._connected.add(key)
        self._lost.pop(key, None)

    def disconnected(self, key: bytes, now: int, *, is_known: bool) -> None:
        """Note that a key's connection is lost; only keys with a slot (`is_known`) are remembered."""
        self._connected.discard(key)
        if is_known and len(self._lost) < MAX_LOST:
            self._lost[key] = now

    def get_overdue(self, now: int) -> list[tuple[bytes, int]]:
        """Return the keys disconnected for longer than the grace period, and since when."""
        return [(key, since) for key, since in self._lost.items() if now - since >= RECONNECT_S]

    def forget(self, key: bytes) -> None:
        self._lost.pop(key, None)


def is_member(state: Coordinator, key: bytes) -> bool:
    return is_in_epoch(state) and any(
        client.state is ClientState.HEALTHY and key in (client.signer, client.p2p) for client in state.clients
    )


def find_departure(state: Coordinator, number: int) -> tuple[int, int] | None:
    """Return the (epoch, member) with which a slot's holder can be withdrawn now, or None (M4)."""
    if state.run_state is RunState.WAITING_FOR_MEMBERS:
        return (state.progress.epoch, 0) if _has_join(state, number) else None  # the member index is ignored there
    member = find_member(state, number)
    if member is None or state.clients[member].state is not ClientState.HEALTHY:
        return None
    return state.progress.epoch, member


def can_be_given_up(state: Coordinator, number: int) -> bool:
    """Whether the backend may free the slot of an absent key now (H6)."""
    return _is_worth_nothing(state.registry.slots[number]) and find_member(state, number) is None


def has_departure_ahead(state: Coordinator, number: int) -> bool:
    """Whether a slot's holder can be withdrawn, or the slot freed, when the run next waits for members."""
    return _has_join(state, number) or _is_worth_nothing(state.registry.slots[number])


def _has_join(state: Coordinator, number: int) -> bool:
    """Whether the slot has a join that the next epoch formation would use."""
    slot = state.registry.slots[number]
    return slot.state is SlotState.JOINED and slot.active >= state.registry.next_active


def _is_worth_nothing(slot: Slot) -> bool:
    """Whether the slot never had a credit and holds no earnings, slashes or stake.

    A waiting period of its signer is no reason to keep the slot: it remains when the slot is freed (H5).
    """
    return slot.state is SlotState.JOINED and not (slot.proven or slot.earned or slot.slashed or slot.stake)
