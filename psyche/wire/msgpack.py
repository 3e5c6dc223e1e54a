"""What reading msgpack from somebody else may raise."""

from typing import Final

import msgspec

# A thousand nested arrays take a thousand bytes: whoever forgets the last one ends for a stranger's message.
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
