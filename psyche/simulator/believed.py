"""Whether what is believed comes from whom it names (I9).

The check was told who signed what, and sees who sent what: it verifies nothing, and so shares no mistake with the
code that it watches.
"""

from typing import TYPE_CHECKING

from psyche.core.header import RESULT_TAG
from psyche.core.limits import HEADER_BYTES
from psyche.core.state import Coordinator, RunState
from psyche.server.events import Event, WarmupWitness, Withdraw, Witness
from psyche.wire.crypto import Identity

if TYPE_CHECKING:
    from psyche.client.records import RoundRecord
    from psyche.simulator.agreement import Check
    from psyche.simulator.hosts import ClientHost


class SimIdentity(Identity):
    """A key that remembers what it signed, over all lives of its machine."""

    def __init__(self, seed: bytes) -> None:
        super().__init__(seed)
        self.signed: set[bytes] = set()

    def sign(self, message: bytes) -> bytes:
        """The signature, written down."""
        signature = super().sign(message)
        self.signed.add(message + signature)
        return signature


class Believed:
    """Watches what honest clients and the server believe.

    Args:
        hosts: all clients, by key.
        check: told whether something holds, the invariant's name, what was expected and what was found.
    """

    def __init__(self, hosts: "dict[bytes, ClientHost]", check: "Check") -> None:
        self._hosts = hosts
        self._check = check

    def check_event(self, before: RunState, state: Coordinator, event: Event) -> None:
        """A record of the journal that names a member came from that member."""
        if isinstance(event, Witness):
            member = state.current.witnesses[-1].member
        elif isinstance(event, WarmupWitness) or (
            isinstance(event, Withdraw) and before is not RunState.WAITING_FOR_MEMBERS  # it names no member there (M4)
        ):
            member = event.member
        else:
            return
        client = state.clients[member]
        own = event.sender in (client.p2p, client.signer)
        kind = type(event).__name__
        self._check(own, "I9", f"a {kind} of member {member} from itself", f"from {event.sender.hex()[:16]}")

    def check_gossip(self, host: "ClientHost") -> None:
        """What an honest client took in of a member, that member signed, byte for byte."""
        if host.engine is None:
            return
        state = host.get_state()
        clients = state.clients
        for record in host.engine.chain.context.book.all():
            if record.epoch != state.progress.epoch:
                continue
            for member, raw in _get_taken(record):
                signer = self._hosts.get(clients[member].p2p) if member < len(clients) else None
                if signer is None:
                    continue
                signed = raw[:-HEADER_BYTES] if raw.startswith(RESULT_TAG) else raw
                where = f"a message of {signer.name} in round {record.height}"
                holds = signed in signer.identity.signed
                self._check(holds, "I9", f"{where} that it signed", f"{host.name} believes another one")

    def check_lies(self) -> None:
        """Nobody got anything by naming another as the sender."""
        for host in self._hosts.values():
            for lies in host.lies:
                found = f"{lies.believed} lies of {host.name} were believed"
                self._check(not lies.believed, "I9", "the server refuses who names another", found)


def _get_taken(record: "RoundRecord") -> list[tuple[int, bytes]]:
    results = [(member, raw) for member, signed in record.signed.items() for raw in signed.values()]
    return results + list(record.finished_raw.items())
