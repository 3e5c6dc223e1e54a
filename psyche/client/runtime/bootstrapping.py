"""The nodes that a run without an address book is found by: those named by a person, then those on record (N3)."""

from collections.abc import Callable, Sequence
from typing import Final

import trio

from psyche.client.runtime.weights.loading import Log
from psyche.errors import WireError
from psyche.wire.peer_address import PeerAddress, parse_peer_address
from psyche.wire.ports import BootstrapPeer, Network

SHOWN_DIGITS: Final = 16  # of a key

Place = tuple[bytes, str]  # key and address
Wait = tuple[str, float | None, str]  # what for, until when on trio's clock, what then


class Bootstrapping:
    """Gives the network its bootstrap addresses, and names how each of them stands in the event log.

    Args:
        network: the node.
        given: what a person has named; wins over what the record names of the same key.
        log: where events go.
        unix_now: people's clock, for the ends of waits.
    """

    def __init__(self, network: Network, given: Sequence[PeerAddress], log: Log, unix_now: Callable[[], float]) -> None:
        self._network = network
        self._given = tuple(given)
        self._log = log
        self._unix_now = unix_now
        self._recorded: list[str] = []
        self._connected: set[Place] = set()
        self._waits: dict[Place, Wait] = {}

    def start(self) -> None:
        """Dial what a person has named, as soon as it has a place in the run."""
        if self._given:
            self._network.set_bootstrap(self._given)

    def follow(self, recorded: list[str]) -> None:
        """Take up the record's addresses where they have changed, and log what has changed at any of them."""
        if recorded != self._recorded:
            self._recorded = [*recorded]
            self._network.set_bootstrap([*self._given, *self._read_recorded()])
            self._forget_dropped()
        if self._given or self._recorded:
            for peer in self._network.bootstrap():
                self._look_at(peer)

    def _read_recorded(self) -> list[PeerAddress]:
        found: list[PeerAddress] = []
        for text in self._recorded:
            try:
                peer = parse_peer_address(text)
            except WireError as error:
                self._log("error", message=f"the record's bootstrap address {text!r} is not dialed: {error}")
                continue
            if peer.key not in {given.key for given in self._given}:
                found.append(peer)
        return found

    def _forget_dropped(self) -> None:
        """Nobody dials any more what the owner has taken off the record."""
        named = {(peer.key, peer.address) for peer in self._network.bootstrap()}
        self._connected &= named
        for place in sorted(self._waits.keys() - named):
            self._end_wait(place, "its address is not on record any more")

    def _look_at(self, peer: BootstrapPeer) -> None:
        place, wait = (peer.key, peer.address), _describe_wait(peer)
        if wait != (known := self._waits.get(place)):
            if known is not None:
                self._end_wait(place, "connected" if peer.is_connected else wait[0] if wait is not None else "dialed")
            if wait is not None:
                self._waits[place] = wait
                self._log("wait_started", what=wait[0], until=self._get_unix(wait[1]), then=wait[2])
        if peer.is_connected and place not in self._connected:
            self._log("bootstrap_connected", peer=peer.key, address=peer.address)
        (self._connected.add if peer.is_connected else self._connected.discard)(place)

    def _end_wait(self, place: Place, outcome: str) -> None:
        what, until, _ = self._waits.pop(place)
        self._log("wait_ended", what=what, until=self._get_unix(until), outcome=outcome)

    def _get_unix(self, until: float | None) -> float | None:
        return None if until is None else self._unix_now() + until - trio.current_time()


def _describe_wait(peer: BootstrapPeer) -> Wait | None:
    who = f"bootstrap peer {peer.key.hex()[:SHOWN_DIGITS]} at {peer.address}"
    if peer.is_connected:
        return None
    if not peer.is_allowed:
        return f"{who} to have a place in the run", None, "dial it"
    if peer.failure and peer.next_dial_at > trio.current_time():
        return f"{who}: {peer.failure}", peer.next_dial_at, "dial it again"
    return None
