"""Messages that a member signs: a tag, fields of a fixed layout, perhaps a text at the end, and the signature."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from psyche.core.encoding.fields import Field
from psyche.core.encoding.records import FieldLayout
from psyche.core.state.limits import SIGNATURE_BYTES
from psyche.errors import WireError
from psyche.wire.crypto import Identity, verify

T = TypeVar("T")  # a dataclass of the fields, of `text` if there is one, and of `signature`


class MessageKind(Generic[T]):
    """One kind of these messages.

    Args:
        cls: the dataclass that a message is decoded to.
        what: it is, in errors.
        tag: the bytes that it begins with.
        fields: of fixed size, in their order.
        max_text_bytes: as long its `text` may be in UTF-8; None: it has no text.
        check: raises WireError for values that do not fit together.
    """

    def __init__(
        self, cls: Callable[..., T], what: str, tag: bytes, fields: Sequence[Field], *,
        max_text_bytes: int | None = None, check: Callable[[T], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._cls, self._what, self.tag, self._check, self._has_text = cls, what, tag, check, max_text_bytes is not None
        self._layout = FieldLayout(getattr(cls, "__name__", what), fields, is_aligned=False)
        self._start = len(tag) + self._layout.size  # of the text
        self.least_bytes = self._start + SIGNATURE_BYTES
        self.most_bytes = self.least_bytes + (max_text_bytes or 0)

    def get_signed_bytes(self, message: T) -> bytes:
        """Encode what the member's key signs.

        Raises:
            WireError: a value does not fit its field; the message names the field.
        """
        self._check(message)
        plain: Any = message
        return self.tag + self._layout.write(message) + (plain.text.encode() if self._has_text else b"")

    def sign(self, identity: Identity, message: T) -> T:
        plain: Any = message
        return replace(plain, signature=identity.sign(self.get_signed_bytes(message)))

    def encode(self, message: T) -> bytes:
        plain: Any = message
        return self.get_signed_bytes(message) + plain.signature

    def decode(self, raw: bytes) -> T:
        """Decode a message; `is_signed_by` checks the signature.

        Raises:
            WireError: unknown tag, wrong length, a field without a valid value, or a text that is not UTF-8.
        """
        if not raw.startswith(self.tag) or not self.least_bytes <= len(raw) <= self.most_bytes:
            sizes = dict.fromkeys((self.least_bytes, self.most_bytes))
            raise WireError(f"{self._what}: {len(raw)} bytes that begin with {raw[: len(self.tag)]!r}, must be "
                            f"{' to '.join(map(str, sizes))} that begin with {self.tag!r}")  # fmt: skip
        body = raw[len(self.tag) : self._start]
        self._layout.check_pads(body)
        values = dict(zip(self._layout.places, self._layout.read_values(body), strict=True))
        if self._has_text:
            try:
                values["text"] = raw[self._start : -SIGNATURE_BYTES].decode()
            except UnicodeDecodeError as error:
                raise WireError(f"{self._what}: is not UTF-8: {error}") from error
        message = self._cls(**values, signature=raw[-SIGNATURE_BYTES:])
        self._check(message)
        return message

    def is_signed_by(self, message: T, public: bytes) -> bool:
        return verify(public, self.get_signed_bytes(message), getattr(message, "signature", b""))
