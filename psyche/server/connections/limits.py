"""The limits of connections, each with its reason."""

from typing import Final

MAX_UNAUTHENTICATED: Final = 384  # connections that have proven no preferred key (K7); the oldest are closed
MAX_UNAUTHENTICATED_PER_HOST: Final = 256  # so that one address cannot take all places
MAX_CONNECTIONS_PER_KEY: Final = 3  # a client, the connection that it replaces, and a command
HANDSHAKE_TIMEOUT_S: Final = 10.0  # handshake and hello together are two round trips
IDLE_TIMEOUT_S: Final = 30.0  # a client pings every 5 s: six lost in a row are a dead connection
SEND_TIMEOUT_S: Final = 10.0  # a client that does not take 64 KiB within this is too slow to follow a run
GOODBYE_TIMEOUT_S: Final = 1.0
MAX_REPLIES: Final = 128  # answers to a client that it has not read yet
REQUESTS_PER_S: Final = 20.0  # a client sends about five in a round
REQUEST_BURST: Final = 128.0  # a reconnecting client resends at most 64
UNAUTHENTICATED_REQUESTS_PER_S: Final = 200.0  # of all unauthenticated peers together; 384 that ping every 5 s need 77
UNAUTHENTICATED_BURST: Final = 400.0  # one of each
TICK_S: Final = 0.5
