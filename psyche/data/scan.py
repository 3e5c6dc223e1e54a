"""Looks for token ids that a model does not have, before anybody trains on them; bounded for files of any size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from psyche.data.files import TokenFile

MAX_SCANNED_BYTES: Final = 256 << 20  # less than a second from memory; larger files are scanned in places
PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ForeignToken:
    """An id that is not below the vocabulary's size, at `position` of a file (in tokens, from 0)."""

    file: TokenFile
    position: int
    token: int

    def describe(self, vocab_size: int) -> str:
        """What is wrong, and what to do."""
        return (
            f"{self.file.path}: token {self.token} at position {self.position} is not below the vocabulary's size "
            f"{vocab_size}; tokenize with the model's tokenizer, or set the right token size"
        )


def find_foreign_token(
    files: Sequence[TokenFile], vocab_size: int, *, max_bytes: int = MAX_SCANNED_BYTES
) -> ForeignToken | None:
    """Find an id that is not below `vocab_size`; None if there is none in what was scanned; blocks on the disk.

    Files of more than `max_bytes` together are scanned in places that lie evenly over all of them.

    Raises:
        DataError: a file cannot be read.
    """
    share = min(1.0, max_bytes / max(1, sum(file.tokens * file.token_size_bytes for file in files)))
    for file in files:
        ids = file.map() if file.tokens else np.empty(0, dtype=np.uint16)
        for first, end in _list_pieces(file, share):
            piece = ids[first:end]
            if int(piece.max()) >= vocab_size:
                offset = int(np.argmax(piece >= vocab_size))
                return ForeignToken(file, first + offset, int(piece[offset]))
    return None


def _list_pieces(file: TokenFile, share: float) -> Iterator[tuple[int, int]]:
    """First and end of the pieces to scan, in tokens: `share` of the file, at least one piece."""
    piece = PIECE_BYTES // file.token_size_bytes
    count = -(-file.tokens // piece)
    scanned = max(1, int(count * share)) if count else 0
    for number in range(scanned):
        first = number * count // scanned * piece
        yield first, min(first + piece, file.tokens)
