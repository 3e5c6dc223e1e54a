"""What weights write: the prompt that they continue, which member lets them, and its message."""

from dataclasses import dataclass
from typing import Final

from psyche.core.encoding.fields import raw, u16, up_to
from psyche.core.state.limits import MAX_CLIENTS
from psyche.evals.messages import MessageKind
from psyche.wire.crypto import blake3_hash

MAX_TOKENS: Final = 256
MAX_TEXT_BYTES: Final = 2_048
PROMPTS: Final = (
    "Once upon a time, there was a", "The most important thing about the sea is", "My grandmother always said that",
    "Water boils when", "The train had just left the station when", "To bake a loaf of bread, you first",
    "In the year 1905,", "She opened the letter and read:",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenText:
    """How a member's model goes on with the prompt of these weights."""

    run_uid: bytes
    digest: bytes
    epoch: int
    member: int
    text: str
    signature: bytes = b""


TEXTS: Final = MessageKind(
    WrittenText, "text of weights", b"psyche/text/1",
    [raw("run_uid"), raw("digest"), u16("epoch"), up_to(MAX_CLIENTS - 1, u16("member"))],
    max_text_bytes=MAX_TEXT_BYTES,
)  # fmt: skip


def choose_prompt(digest: bytes) -> str:
    return PROMPTS[_draw(digest) % len(PROMPTS)]


def choose_writer(digest: bytes, members: int) -> int:
    """The member whose turn it is with these weights."""
    return (_draw(digest) // len(PROMPTS)) % members


def cut_text(text: str) -> str:
    return text.encode(errors="replace")[:MAX_TEXT_BYTES].decode(errors="ignore")


def _draw(digest: bytes) -> int:
    return int.from_bytes(blake3_hash(b"psyche/prompt/1", digest)[:8], "little")
