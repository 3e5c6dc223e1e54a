"""The home of a run's record, as its owner reaches it: a TCP server today (`backends.tcp.owner`)."""

from typing import Protocol

from psyche.core.state.state import Coordinator
from psyche.wire.backend import Members, RunStatus
from psyche.wire.messages import AnyMessage


class Home(Protocol):
    """Answers questions about one run and carries out its owner's commands."""

    async def get_status(self) -> RunStatus:
        """Return a summary of the run, for people.

        Raises:
            BackendError: the home refuses, or could not be reached in time.
        """
        ...

    async def get_record(self) -> Coordinator:
        """Return the whole record.

        Raises:
            BackendError: the home refuses, or could not be reached in time.
        """
        ...

    async def get_members(self) -> Members:
        """Return who takes part and what each client says of itself; errors only if an owner asks (K8).

        Raises:
            BackendError: the home refuses, or could not be reached in time.
        """
        ...

    async def command(self, message: AnyMessage) -> RunStatus:
        """Carry out a command once, even if it must be sent again; return the status after it.

        Raises:
            CoordinatorError: the record's rules refuse it.
            BackendError: the home refuses, or could not be reached in time.
        """
        ...
