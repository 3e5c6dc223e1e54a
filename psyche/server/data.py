"""The data server in the coordinator's process: serves each client the samples that the record assigns to it."""

import trio

from psyche.core.committee.assignment import compute_assignments
from psyche.core.state.bits import get_members
from psyche.core.state.state import Coordinator
from psyche.data.provider import LocalFiles, open_files
from psyche.data.server import DataServer, PortStatus
from psyche.errors import ConfigError
from psyche.wire.crypto import Identity


class RunData:
    """A data server that follows the run's rounds; the port is that of the run's `data_location`."""

    def __init__(self, server: DataServer, host: str, port: int, kept_files: int = 0) -> None:
        self.server = server
        self.kept_files = kept_files
        self._host, self._port = host, port
        self._round: tuple[int, int] | None = None

    def update(self, state: Coordinator) -> None:
        """Serve the current round of `state`; call this before clients see that state."""
        now = (state.progress.epoch, state.current.height)
        if not state.in_round or now == self._round:
            return
        self._round = now
        keys = {member: state.clients[member].p2p for member in get_members(state.current.members)}
        ranges = compute_assignments(state.current, state.config)
        assigned = {keys[member]: samples for member, samples in ranges.items()}
        self.server.set_assignments(*now, assigned, frozenset(keys.values()))

    async def serve(self, *, task_status: PortStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled; raises DataError if the address cannot be bound."""
        await self.server.serve(self._host, self._port, task_status=task_status)


def open_run_data(state: Coordinator, files: LocalFiles | None, identity: Identity, host: str) -> RunData:
    """Open the data server of a run whose `data_location` is Server; blocks on the disk, so call it in a thread.

    Raises:
        ConfigError: there is no data.toml, or it does not fit the run.
        DataError: the files cannot be used.
    """
    address = state.model.data_location.address
    port = address.rpartition(":")[2]
    if not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f'model.LLM.data_location.Server: {address!r} must be "host:port", port 1 to 65535')
    if files is None:
        raise ConfigError("model.LLM.data_location is Server: name the data to serve with --data-config")
    if files.sequence_length != state.model.max_seq_len:
        raise ConfigError(
            f"data.toml seq_len: {files.sequence_length}, but the run's max_seq_len is {state.model.max_seq_len}; "
            "they must be equal"
        )
    source = open_files(files, state.metadata.vocab_size or None)
    return RunData(DataServer(source, identity), host, int(port), source.kept_files)
