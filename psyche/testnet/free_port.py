"""Free TCP ports, not given twice by this process."""

import socket
from typing import Final

from psyche.errors import PsycheError

_given: Final[set[int]] = set()
ATTEMPTS: Final = 64


def choose_port(host: str = "127.0.0.1", *, wanted: int = 0) -> int:
    """A port that is free at this moment: `wanted` where it is above 0, else one that the system picks.

    Another program may take it before it is bound; whoever binds it says so clearly.

    Raises:
        PsycheError: `wanted` is in use.
    """
    for _ in range(ATTEMPTS):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, wanted))
            except OSError as error:
                raise PsycheError(
                    f"port {wanted} on {host}: {error.strerror}; choose another, or 0 for a free one"
                ) from error
            port = int(probe.getsockname()[1])
        if wanted or port not in _given:
            _given.add(port)
            return port
    raise PsycheError(f"no free port on {host} in {ATTEMPTS} attempts")
