"""The types of values in configuration files, each with its checks."""

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, Final, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from psyche.core.committee.schedule import round_f32
from psyche.core.state.limits import LOCAL_PATH_BYTES, RUN_ID_BYTES, STRING_BYTES, URL_BYTES

SEED_BYTES: Final = 32
MAX_PORT: Final = 65_535
HASH_FORM: Final = "64 hex digits"
SEED_FORM: Final = "32 numbers from 0 to 255, or 64 hex digits"


@dataclass(frozen=True, slots=True)
class ByteLimit:
    """A check of a text: at most `size_bytes` of UTF-8, without zero bytes."""

    size_bytes: int

    def __call__(self, text: str) -> str:
        if (length := len(text.encode())) > self.size_bytes:
            raise PydanticCustomError(
                "too_many_bytes", "has {length} bytes, at most {limit}", {"length": length, "limit": self.size_bytes}
            )
        if "\0" in text:
            raise PydanticCustomError("zero_byte", "must not contain a zero byte")
        return text


def _check_address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= MAX_PORT:
        raise PydanticCustomError("address", 'must be "host:port" with a port from 1 to 65535')
    return text


def _round_to_f32(value: float) -> float:
    """Round to float32 as the record does, so that every client computes with the same number."""
    try:
        return round_f32(value)
    except OverflowError:
        raise PydanticCustomError("float32", "is too large for a float32") from None


def read_hex(value: object) -> bytes | None:
    """The 32 bytes of a text of 64 hex digits; None: it is none."""
    return bytes.fromhex(value) if isinstance(value, str) and re.fullmatch(r"[0-9a-fA-F]{64}", value) else None


def _read_seed(value: object) -> object:
    if (seed := read_hex(value)) is not None:
        return seed
    if isinstance(value, list):
        items = cast("list[object]", value)
        if len(items) == SEED_BYTES and all(type(i) is int and 0 <= i <= 0xFF for i in items):
            return bytes(cast("list[int]", items))
    raise PydanticCustomError("seed", f"must be {SEED_FORM} in quotes")


def _read_root(value: object) -> object:
    if (root := read_hex(value)) is not None:
        return root
    raise PydanticCustomError("root", "must be 64 hex digits in quotes")


def get_variant_name(member: IntEnum) -> str:
    """The name in configuration files of a member of the core's enumerations: HfLlama for HF_LLAMA."""
    name = member.name.title().replace("_", "")
    return name.replace("Adamw", "AdamW")


def pick_variant(kinds: type[IntEnum]) -> Any:
    """The type of a key that is the name of a variant without content; its value is the member of the core."""
    named = {get_variant_name(member): member for member in kinds}
    return Annotated[Literal[*named], AfterValidator(named.__getitem__)]


U8 = Annotated[int, Field(ge=0, le=0xFF)]
U16 = Annotated[int, Field(ge=0, le=0xFFFF)]
U32 = Annotated[int, Field(ge=0, le=0xFFFF_FFFF)]
Count32 = Annotated[int, Field(ge=1, le=0xFFFF_FFFF)]
U64 = Annotated[int, Field(ge=0, le=0xFFFF_FFFF_FFFF_FFFF)]
F32 = Annotated[float, AfterValidator(_round_to_f32)]
String = Annotated[str, AfterValidator(ByteLimit(STRING_BYTES))]
Url = Annotated[str, AfterValidator(ByteLimit(URL_BYTES))]
RunId = Annotated[str, Field(min_length=1), AfterValidator(ByteLimit(RUN_ID_BYTES))]
LocalPath = Annotated[str, AfterValidator(ByteLimit(LOCAL_PATH_BYTES))]
Address = Annotated[str, AfterValidator(ByteLimit(STRING_BYTES)), AfterValidator(_check_address)]
Seed = Annotated[bytes, BeforeValidator(_read_seed)]
Root = Annotated[bytes, BeforeValidator(_read_root)]
TOKEN_SIZE_BYTES: Final = {"TwoBytes": 2, "FourBytes": 4}
