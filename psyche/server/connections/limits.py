"""What a connection may cost the server, with the reason for each."""

from typing import Final

MAX_STRANGERS: Final = 384  # connections of who has no slot and is not on the allow list; the oldest make room
MAX_STRANGERS_PER_HOST: Final = 256  # an address alone cannot take all places
MAX_CONNECTIONS_PER_KEY: Final = 3  # a client, the one that it replaces, and a command
HANDSHAKE_TIMEOUT_S: Final = 10.0  # handshake and hello together are two round trips
IDLE_TIMEOUT_S: Final = 30.0  # a client pings every 5 s: six lost in a row are a dead connection
SEND_TIMEOUT_S: Final = 10.0  # who does not take 64 KiB within this is too slow to follow a run
GOODBYE_TIMEOUT_S: Final = 1.0
MAX_REPLIES: Final = 128  # answers that a client has not read yet
REQUESTS_PER_S: Final = 20.0  # a round asks for about five
REQUEST_BURST: Final = 128.0  # a reconnecting client resends at most 64
STRANGERS_REQUESTS_PER_S: Final = 200.0  # of all together; 384 that ping every 5 s need 77
STRANGERS_BURST: Final = 400.0  # one of each
TICK_S: Final = 0.5
