"""The errors that decoding untrusted msgpack may raise."""

from typing import Final

import msgspec

# A thousand bytes can nest a thousand arrays: without RecursionError here, such a message would end the process.
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
