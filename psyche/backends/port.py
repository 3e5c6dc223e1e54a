"""How a run's record is reached: the member's part (`Backend`) and the owner's (`Administration`) of a backend.

Implementations: `tcp.backend` and `tcp.owner`, `solana.member.backend` and `solana.owner.administration`. Every wait is
bounded by a deadline that is passed in, or else by its caller.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from psyche.core.state.messages import Message
from psyche.core.state.state import Coordinator
from psyche.wire.address_record import AddressRecord
from psyche.wire.backend import Members, RunStatus
from psyche.wire.messages import AnyMessage
from psyche.wire.ports import Proof
from psyche.wire.report import SelfReport


class Backend(Protocol):
    """The coordinator's backend as a client sees it.

    `submit` returns when the message is on record, or raises the coordinator's own error. A repeat of a message
    that has already taken effect counts as success (K3). An implementation reconnects and resends by itself; it
    raises `BackendError` only when it gives up for good.
    """

    def states(self) -> AsyncGenerator[Coordinator, None]:
        """Receive states as they change: only the newest, with increasing nonces.

        Raises:
            BackendError: it gave up for good.
            VersionMismatch: the run's owner wants another version of this program.
        """
        ...

    async def submit(self, message: Message, proof: Proof = None) -> None:
        """Submit a message; `proof` is what the backend checks before it accepts the message.

        A `Join` needs the address record of the joining member (M2), a `ReportEquivocation` two signed results (R7);
        other messages need no proof.
        """
        ...

    async def tick(self) -> None:
        """Ask the backend to check its clock; does nothing if the backend ticks by itself."""
        ...

    def reconnect_soon(self) -> None:
        """Cut a wait before the next try short: peers are in a later round; does nothing while connected."""
        ...

    def address_book(self) -> Sequence[AddressRecord]:
        """Return the address records that the backend knows."""
        ...

    def report(self, report: SelfReport) -> None:
        """Show the run's owner what this client does; does nothing if the backend has no place for that (K8).

        Returns at once; a report may be lost, and the next one replaces it.
        """
        ...


class Administration(Protocol):
    """Answers questions about one run and carries out its owner's commands."""

    async def get_status(self) -> RunStatus:
        """Return a summary of the run, for people.

        Raises:
            BackendError: the backend refuses, or could not be reached in time.
        """
        ...

    async def get_record(self) -> Coordinator:
        """Return the whole record.

        Raises:
            BackendError: the backend refuses, or could not be reached in time.
        """
        ...

    async def get_members(self) -> Members:
        """Return who takes part and what each client says of itself; errors only if an owner asks (K8).

        Raises:
            BackendError: the backend refuses, or could not be reached in time.
        """
        ...

    async def command(self, message: AnyMessage) -> RunStatus:
        """Carry out a command once, even if it must be sent again; return the status after it.

        Raises:
            CoordinatorError: the record's rules refuse it.
            BackendError: the backend refuses, or could not be reached in time.
        """
        ...

    def name_key(self, key: bytes) -> str:
        """Write a key on record as the backend's commands take it."""
        ...
