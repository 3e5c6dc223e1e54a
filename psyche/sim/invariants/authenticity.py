"""Checks that each message that somebody accepts comes from the member it names (I9).

The check is told who signed what, and sees who sent what: it verifies no signature, so it shares no mistake with the
code under test.
"""

from collections.abc import Mapping

from psyche.client.engine.records import RoundRecord
from psyche.core.encoding.gossip import RESULT_TAG
from psyche.core.state.limits import HEADER_BYTES
from psyche.core.state.messages import WarmupWitness, Withdraw, WitnessMessage
from psyche.core.state.state import Coordinator, RunState
from psyche.server.journal.changes import Change
from psyche.sim.invariants.views import Check, ClientView


class Authenticity:
    """Checks what honest clients and the server accept.

    Args:
        hosts: all clients, by key.
        check: receives whether the invariant holds, its name, the expected and the found value.
    """

    def __init__(self, hosts: Mapping[bytes, ClientView], check: Check) -> None:
        self._hosts = hosts
        self._check = check

    def check_change(self, before: RunState, state: Coordinator, change: Change) -> None:
        """A record of the journal that names a member was sent by that member."""
        message = change.message
        if isinstance(message, WitnessMessage):
            member = state.current.witnesses[-1].member
        elif isinstance(message, WarmupWitness) or (
            isinstance(message, Withdraw)
            and before is not RunState.WAITING_FOR_MEMBERS  # in that state it names no member (M4)
        ):
            member = message.member
        else:
            return
        client = state.clients[member]
        own = change.sender in (client.p2p, client.signer)
        kind = change.name
        self._check(own, "I9", f"a {kind} of member {member} from itself", f"from {change.sender.hex()[:16]}")

    def check_gossip(self, host: ClientView) -> None:
        """An honest client attributes to a member only messages that the member signed, byte for byte."""
        state = host.get_state()
        clients = state.clients
        for record in host.get_records():
            if record.epoch != state.progress.epoch:
                continue
            for member, raw in _get_taken(record):
                signer = self._hosts.get(clients[member].p2p) if member < len(clients) else None
                if signer is None:
                    continue
                signed = raw[:-HEADER_BYTES] if raw.startswith(RESULT_TAG) else raw
                where = f"a message of {signer.name} in round {record.height}"
                holds = signed in signer.signed
                self._check(holds, "I9", f"{where} that it signed", f"{host.name} believes another one")

    def check_lies(self) -> None:
        """No message was accepted that named another member as its sender."""
        for host in self._hosts.values():
            for program in host.programs:
                found = f"{program.believed} lies of {host.name} were believed"
                self._check(not program.believed, "I9", "the server refuses who names another", found)


def _get_taken(record: RoundRecord) -> list[tuple[int, bytes]]:
    results = [(member, raw) for member, signed in record.signed.items() for raw in signed.values()]
    return results + list(record.finished_raw.items())
