"""What weights write: the prompt that they continue, which member lets them, and its signed message."""

from dataclasses import dataclass, replace
from typing import Final

from psyche.core.encoding.fields import raw, u16, up_to
from psyche.core.encoding.records import FieldLayout
from psyche.core.state.limits import MAX_CLIENTS
from psyche.errors import WireError
from psyche.evals.results import SIGNATURE_BYTES
from psyche.wire.crypto import Identity, blake3_hash, verify

TAG: Final = b"psyche/text/1"
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


LAYOUT: Final = FieldLayout(
    "WrittenText",
    [raw("run_uid"), raw("digest"), u16("epoch"), up_to(MAX_CLIENTS - 1, u16("member"))],
    is_aligned=False,
)
FIXED_BYTES: Final = len(TAG) + LAYOUT.size + SIGNATURE_BYTES


def choose_prompt(digest: bytes) -> str:
    return PROMPTS[_draw(digest) % len(PROMPTS)]


def choose_writer(digest: bytes, members: int) -> int:
    """The member whose turn it is with these weights."""
    return (_draw(digest) // len(PROMPTS)) % members


def cut_text(text: str) -> str:
    return text.encode(errors="replace")[:MAX_TEXT_BYTES].decode(errors="ignore")


def get_signed_bytes(text: WrittenText) -> bytes:
    return TAG + LAYOUT.write(text) + text.text.encode()


def sign_text(identity: Identity, text: WrittenText) -> WrittenText:
    return replace(text, signature=identity.sign(get_signed_bytes(text)))


def encode_text(text: WrittenText) -> bytes:
    return get_signed_bytes(text) + text.signature


def decode_text(message: bytes) -> WrittenText:
    """Decode a message; `is_text_of` checks the signature.

    Raises:
        WireError: unknown tag, wrong length, a field without a valid value, or a text that is not UTF-8.
    """
    length = len(message) - FIXED_BYTES
    if not message.startswith(TAG) or not 0 <= length <= MAX_TEXT_BYTES:
        raise WireError(f"text of weights: {len(message)} bytes that begin with {message[:13]!r}, must be "
                        f"{FIXED_BYTES} to {FIXED_BYTES + MAX_TEXT_BYTES} that begin with {TAG!r}")  # fmt: skip
    start = len(TAG) + LAYOUT.size
    values = dict(zip(LAYOUT.places, LAYOUT.read_values(message[len(TAG) : start]), strict=True))
    try:
        text = message[start : start + length].decode()
    except UnicodeDecodeError as error:
        raise WireError(f"text of weights: is not UTF-8: {error}") from error
    return WrittenText(**values, text=text, signature=message[-SIGNATURE_BYTES:])


def is_text_of(text: WrittenText, public: bytes) -> bool:
    return verify(public, get_signed_bytes(text), text.signature)


def _draw(digest: bytes) -> int:
    return int.from_bytes(blake3_hash(b"psyche/prompt/1", digest)[:8], "little")
