"""Fields of accounts and instructions, described by words such as `lamports:u64 owner:key`, and read into JSON."""

from collections.abc import Iterable
from typing import Any, Final

from solders.pubkey import Pubkey

from psyche.backends.solana.interface.borsh import BorshForm, BorshReader, KeyForm, NumberForm, OptionForm
from psyche.localchain.tokens import describe_amount

_FORMS: Final[dict[str, BorshForm]] = {
    "u8": NumberForm(1), "u32": NumberForm(4), "u64": NumberForm(8), "i64": NumberForm(8, signed=True),
    "key": KeyForm(), "key?": OptionForm(KeyForm()),
}  # fmt: skip


def read_fields(words: Iterable[str], raw: bytes) -> dict[str, Any]:
    """Read the fields that words name; one whose name ends with `?` is left out if it is not set.

    Raises:
        WireError: the bytes have other fields.
    """
    reader, found = BorshReader(raw), dict[str, Any]()
    for word in words:
        name, _, kind = word.partition(":")
        value = _read(kind, reader, name)
        if value is not None or not name.endswith("?"):
            found[name.removesuffix("?")] = value
    return found


def _read(kind: str, reader: BorshReader, name: str) -> Any:
    if kind == "amount":
        return str(reader.take_number(8, name))
    if kind == "tokens":
        return describe_amount(reader.take_number(8, name), reader.take_number(1, name))
    if kind == "text":
        return reader.take(reader.take_number(8, name), name).decode(errors="replace")
    value = _FORMS[kind].read(reader, name)
    return str(value) if isinstance(value, Pubkey) else value
