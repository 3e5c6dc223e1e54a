"""Bootstrap nodes for runs without an address book: those given by the user, then those on record (N3)."""

from collections.abc import Callable, Sequence
from typing import Final

import trio
from msgspec.structs import replace

from psyche.client.runtime.weights.loading import Log
from psyche.errors import WireError
from psyche.telemetry import types
from psyche.telemetry.types import Wait, WaitOutcome, WaitStarted
from psyche.wire.peer_address import PeerAddress, parse_peer_address
from psyche.wire.ports import BootstrapPeer, Network

SHOWN_DIGITS: Final = 16  # of a key

Place = tuple[bytes, str]  # key and address


class Bootstrapping:
    """Dials bootstrap addresses, and logs the progress of each; `given` ones win over the record's of the same key."""

    def __init__(self, network: Network, given: Sequence[PeerAddress], log: Log, unix_now: Callable[[], float]) -> None:
        self._network = network
        self._given = tuple(given)
        self._log = log
        self._unix_now = unix_now
        self._recorded: list[str] = []
        self._connected: set[Place] = set()
        self._waits: dict[Place, WaitStarted] = {}  # their deadlines are on trio's clock

    def start(self) -> None:
        if self._given:
            self._network.set_bootstrap(self._given)

    def follow(self, recorded: list[str]) -> None:
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
                self._log(types.Error(message=f"the record's bootstrap address {text!r} is not dialed: {error}"))
                continue
            if peer.key not in {given.key for given in self._given}:
                found.append(peer)
        return found

    def _forget_dropped(self) -> None:
        """Forget the addresses that the owner has taken off the record: nobody dials them any more."""
        named = {(peer.key, peer.address) for peer in self._network.bootstrap()}
        self._connected &= named
        for place in sorted(self._waits.keys() - named):
            self._end_wait(place, WaitOutcome.OFF_RECORD)

    def _look_at(self, peer: BootstrapPeer) -> None:
        place, wait = (peer.key, peer.address), _describe_wait(peer)
        if wait != (known := self._waits.get(place)):
            if known is not None:
                left = WaitOutcome.DIALED if wait is None else WaitOutcome.REPLACED
                self._end_wait(place, WaitOutcome.CONNECTED if peer.is_connected else left)
            if wait is not None:
                self._waits[place] = wait
                self._log(replace(wait, until=self._get_unix(wait.until)))
        if peer.is_connected and place not in self._connected:
            self._log(types.BootstrapConnected(peer=peer.key, address=peer.address))
        (self._connected.add if peer.is_connected else self._connected.discard)(place)

    def _end_wait(self, place: Place, outcome: WaitOutcome) -> None:
        wait = self._waits.pop(place)
        until = self._get_unix(wait.until)
        self._log(types.WaitEnded(what=wait.what, until=until, outcome=outcome, wait=wait.wait))

    def _get_unix(self, until: float | None) -> float | None:
        return None if until is None else self._unix_now() + until - trio.current_time()


def _describe_wait(peer: BootstrapPeer) -> WaitStarted | None:
    who = f"bootstrap peer {peer.key.hex()[:SHOWN_DIGITS]} at {peer.address}"
    if peer.is_connected:
        return None
    if not peer.is_allowed:
        what = f"{who} to have a place in the run"
        return WaitStarted(what=what, until=None, then="dial it", wait=Wait.BOOTSTRAP_PLACE)
    if peer.failure and peer.next_dial_at > trio.current_time():
        what, until = f"{who}: {peer.failure}", peer.next_dial_at
        return WaitStarted(what=what, until=until, then="dial it again", wait=Wait.BOOTSTRAP_DIAL)
    return None
