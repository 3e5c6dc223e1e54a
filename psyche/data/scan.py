"""Looks for token ids that a model does not have, before anybody trains on them; bounded for files of any size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from psyche.data.files import TokenFile

MAX_SCANNED_BYTES: Final = 256 << 20  # less than a second from memory; larger files are scanned in places
LEAST_BYTES: Final = 4096  # of each file
PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ForeignToken:
    """An id that is not below the vocabulary's size, at `position` of a file (in tokens, from 0)."""

    file: str
    position: int
    token: int

    def describe(self, vocab_size: int) -> str:
        return (
            f"{self.file}: token {self.token} at position {self.position} is not below the vocabulary's size "
            f"{vocab_size}; tokenize with the model's tokenizer, or set the right token size"
        )


def find_foreign_token(
    files: Sequence[TokenFile], vocab_size: int, *, max_bytes: int = MAX_SCANNED_BYTES
) -> ForeignToken | None:
    """Find an id that is not below `vocab_size`; None if there is none in what was scanned; blocks on the disk.

    Files of more than `max_bytes` together are scanned in places that lie evenly over all of them.
    """
    share = min(1.0, max_bytes / max(1, sum(file.tokens * file.token_size_bytes for file in files)))
    for file in files:
        ids = file.map() if file.tokens else np.empty(0, dtype=np.uint16)
        for first, end in _list_pieces(file, share):
            piece = ids[first:end]
            if int(piece.max()) >= vocab_size:
                offset = int(np.argmax(piece >= vocab_size))
                return ForeignToken(str(file.path), first + offset, int(piece[offset]))
    return None


def _list_pieces(file: TokenFile, share: float) -> Iterator[tuple[int, int]]:
    """First and end of the pieces to scan, in tokens: about `share` of the file, and something of each file.

    Of a file that is too small for a piece of its share, so many tokens are scanned as that is: thousands of small
    files would cost a whole piece each.
    """
    piece = PIECE_BYTES // file.token_size_bytes
    count = -(-file.tokens // piece)
    scanned = int(count * share)
    if not scanned and count:
        yield 0, min(file.tokens, max(LEAST_BYTES // file.token_size_bytes, int(file.tokens * share)))
    for number in range(scanned):
        first = number * count // scanned * piece
        yield first, min(first + piece, file.tokens)
