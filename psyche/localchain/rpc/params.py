"""The parameters of a call, each checked as it is taken. A member that is null counts as one that is not there."""

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from solders.pubkey import Pubkey
from solders.signature import Signature

from psyche.localchain.rpc.errors import InvalidParams

T = TypeVar("T", Pubkey, Signature)
MAX_INTEGER: Final = (1 << 64) - 1
COMMITMENTS: Final = ("processed", "confirmed", "finalized")
_MAX_KEY_TEXT: Final = 44
_MAX_SIGNATURE_TEXT: Final = 88


class Options:
    def __init__(self, raw: Any, name: str = "config") -> None:
        self._raw: dict[str, Any] = _expect(raw, dict, name, "an object") or {}

    def get_choice(self, name: str, choices: Sequence[str], default: str) -> str:
        value = self._raw.get(name)
        if value is None:
            return default
        if value not in choices:
            raise InvalidParams(f"Invalid params: {name}: expected one of {', '.join(choices)}.")
        return value

    def get_commitment(self, default: str = "finalized") -> str:
        return self.get_choice("commitment", COMMITMENTS, default)

    def get_integer(self, name: str, most: int = MAX_INTEGER) -> int | None:
        value = self._raw.get(name)
        return None if value is None else check_integer(value, name, most)

    def get_flag(self, name: str, *, default: bool = False) -> bool:
        value = _expect(self._raw.get(name), bool, name, "a boolean")
        return default if value is None else value

    def get_text(self, name: str) -> str:
        """A text; empty unless it is there."""
        return _expect(self._raw.get(name), str, name, "a string") or ""

    def get_config(self, name: str) -> "Options | None":
        value = self._raw.get(name)
        return None if value is None else Options(value, name)

    def get_configs(self, name: str) -> list["Options"]:
        return [Options(one, name) for one in _expect(self._raw.get(name), list, name, "a sequence") or ()]

    def get_keys(self, name: str, most: int) -> list[Pubkey]:
        value = self._raw.get(name)
        return [] if value is None else check_keys(value, most)

    def get_signature(self, name: str) -> Signature | None:
        value = self._raw.get(name)
        return None if value is None else check_signature(value)


class Params:
    def __init__(self, raw: Any) -> None:
        if raw is not None and not isinstance(raw, list):
            raise InvalidParams("Invalid params: expected an array.")
        self._raw: list[Any] = raw or []

    def get(self, place: int) -> Any:
        return self._raw[place] if place < len(self._raw) else None

    def get_config(self, place: int) -> Options:
        return Options(self.get(place))

    def take(self, place: int) -> Any:
        value = self.get(place)
        if value is None:
            raise InvalidParams(f"`params` should have at least {place + 1} argument(s)")
        return value

    def take_text(self, place: int) -> str:
        return _expect(self.take(place), str, f"argument {place}", "a string")

    def take_integer(self, place: int, most: int = MAX_INTEGER) -> int:
        return check_integer(self.take(place), f"argument {place}", most)

    def take_key(self, place: int) -> Pubkey:
        return check_key(self.take_text(place))

    def take_signature(self, place: int) -> Signature:
        return check_signature(self.take_text(place))


def _expect(value: Any, kind: type, name: str, what: str) -> Any:
    """A value that is of this type, or null."""
    if value is not None and not isinstance(value, kind):
        raise InvalidParams(f"Invalid params: {name}: expected {what}.")
    return value


def check_integer(value: Any, name: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise InvalidParams(f"Invalid params: {name}: expected an integer from 0 to {most}.")
    return value


def check_key(text: Any) -> Pubkey:
    return _read_base58(Pubkey, text, _MAX_KEY_TEXT)


def check_keys(value: Any, most: int) -> list[Pubkey]:
    if not isinstance(value, list):
        raise InvalidParams("Invalid params: expected a sequence of addresses.")
    if len(value) > most:
        raise InvalidParams(f"Too many inputs provided; max {most}")
    return [check_key(one) for one in value]


def check_signature(text: Any) -> Signature:
    return _read_base58(Signature, text, _MAX_SIGNATURE_TEXT)


def _read_base58(kind: type[T], text: Any, most: int) -> T:
    if not isinstance(text, str) or len(text) > most:
        raise InvalidParams("Invalid param: WrongSize")
    try:
        return kind.from_string(text)
    except ValueError as error:
        raise InvalidParams(f"Invalid param: {'WrongSize' if 'size' in str(error) else 'Invalid'}") from None
