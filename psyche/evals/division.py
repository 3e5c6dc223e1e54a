"""Dividing a task among the members of a run: the order of its documents, their blocks, and who does which when.

All members compute the same order, so they need no agreement. Each has a part and does it first, leaving out what
others have done; then it goes round: so the parts of dead and slow members are taken over (`ledger` says when).
"""

from collections.abc import Iterator
from typing import Final

from psyche.wire.crypto import blake3_hash

BLOCK_DOCUMENTS: Final = 32
REPEATED_PERCENT: Final = 5  # of the blocks of others, which each member does once more
_ORDER: Final = b"psyche/eval/1"
_REPEAT: Final = b"psyche/eval-repeat/1"
Block = tuple[int, ...]  # places of documents


def cut_blocks(certified: bytes, task_hash: bytes, documents: int) -> list[Block]:
    """Shuffle the documents of a task, for weights with this digest, and cut them into blocks; the last is shorter."""
    order = sorted(range(documents), key=lambda place: _draw(_ORDER, certified, task_hash, place))
    return [tuple(order[start : start + BLOCK_DOCUMENTS]) for start in range(0, documents, BLOCK_DOCUMENTS)]


def get_part(member: int, members: int, blocks: int) -> range:
    """The blocks that a member does first."""
    return range(member * blocks // members, (member + 1) * blocks // members)


def go_round(member: int, members: int, blocks: int) -> Iterator[int]:
    """All blocks, from a member's first one on."""
    first = member * blocks // members
    return ((first + step) % blocks for step in range(blocks))


def find_home(block: int, members: int, blocks: int) -> int:
    """The member whose part a block is in."""
    return ((block + 1) * members - 1) // blocks


def is_repeated(secret: bytes, certified: bytes, task_hash: bytes, block: int) -> bool:
    """Whether a member with this secret repeats a block of another member's: nobody else can tell."""
    drawn = int.from_bytes(_draw(_REPEAT + secret, certified, task_hash, block)[:8], "little")
    return drawn * 100 < REPEATED_PERCENT << 64


def _draw(purpose: bytes, certified: bytes, task_hash: bytes, number: int) -> bytes:
    return blake3_hash(purpose, certified, task_hash, number.to_bytes(4, "little"))
