"""A client's connections: to peers, and to the backend of the run, which is a server or a chain."""

from psyche.telemetry.types.base import INFO, WARNING, Event, Hex


class BootstrapConnected(Event):
    """A node that `--bootstrap` or the record names has answered."""

    peer: Hex
    address: str


class Network(Event):
    """Counters since the process began."""

    bytes_sent: int
    bytes_received: int
    peers: int
    gossip_sent: int
    gossip_received: int
    gossip_refused: int


class BackendConnected(Event, level=INFO):
    """The server has greeted this client, or an RPC endpoint has shown it the record."""

    run_id: str
    program: str


class BackendLost(Event, level=WARNING):
    """The connection to server or chain is lost, or could not be made; the client tries again."""

    reason: str
    tries: int


class BackendGivenUp(Event):
    """The client will not connect to this server or chain any more."""

    reason: str


class StateMismatch(Event, level=WARNING):
    """A pushed state did not fit, and a full one is asked for; or what an endpoint of a chain shows cannot be."""

    reason: str
