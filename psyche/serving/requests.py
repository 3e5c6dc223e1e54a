"""What a request may ask for: those fields of OpenAI's API that a gate can keep; all others are refused by name."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec

from psyche.wire.web import Refused

# Values that ask for nothing; programs send them with every request.
NEUTRAL: Final = {
    "n": 1, "best_of": 1, "echo": False, "logprobs": False, "presence_penalty": 0, "frequency_penalty": 0,
    "logit_bias": {}, "tools": [], "suffix": "", "store": False, "metadata": {},
}  # fmt: skip
MAX_STOPS: Final = 4
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
_Stop = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class Part(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class Turn(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]

    def write_plainly(self) -> dict[str, str]:
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        return {"role": self.role, "content": " ".join(parts)}


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool = False


class Asked(msgspec.Struct, kw_only=True):
    model: str = ""
    max_tokens: _Tokens | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] | None = None
    stop: _Stop | Annotated[list[_Stop], msgspec.Meta(max_length=MAX_STOPS)] = ""
    stream: bool = False
    stream_options: StreamOptions = msgspec.field(default_factory=StreamOptions)
    user: str = ""  # accepted, and of no use here

    @property
    def stops(self) -> Sequence[str]:
        return list(filter(None, [self.stop])) if isinstance(self.stop, str) else self.stop

    @property
    def limit(self) -> tuple[str, int | None]:
        """The most tokens of the answer, and the field that says so."""
        return "max_tokens", self.max_tokens


class Completion(Asked, kw_only=True):
    prompt: str


class Chat(Asked, kw_only=True):
    messages: Annotated[list[Turn], msgspec.Meta(min_length=1, max_length=4096)]
    max_completion_tokens: _Tokens | None = None

    @property
    def limit(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is None:
            return "max_tokens", self.max_tokens
        return "max_completion_tokens", self.max_completion_tokens

    @property
    def turns(self) -> list[dict[str, str]]:
        return [turn.write_plainly() for turn in self.messages]


def read_request(raw: bytes, kind: type[Asked]) -> Asked:
    """Read the body of a request.

    Raises:
        Refused: it is no JSON object, or has fields or values that nothing here can keep.
    """
    try:
        fields = msgspec.json.decode(raw, type=dict[str, Any])
        given = {name: one for name, one in fields.items() if one is not None and NEUTRAL.get(name) != one}
        unknown = sorted(given.keys() - {*kind.__struct_fields__})
        if unknown:
            raise Refused(400, f"{', '.join(unknown)[:512]}: not supported here; leave it out", unknown[0][:64])
        return msgspec.convert(given, kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        what, _, where = str(error).partition(" - at `$.")
        name = where.rstrip("`")
        raise Refused(400, f"{name or 'the body'}: {what[:512]}", name or None) from error


def read_choice(event: dict[str, Any]) -> tuple[str, str]:
    """The text in an event of a stream, of a chat or not, and why the answer ends; empty if it goes on."""
    choice = next(iter(event.get("choices") or ()), {})
    text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    return text, choice.get("finish_reason") or ""


class Cutter:
    """Ends a text before the first of some words; what may be the beginning of one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""

    def take(self, text: str) -> tuple[str, bool]:
        """What can be said now, and whether the text ends with it."""
        held = self._held + text
        places = [place for stop in self._stops if (place := held.find(stop)) >= 0]
        if places:
            return held[: min(places)], True
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        kept = next(
            (n for n in range(min(longest, len(held)), 0, -1) if any(s.startswith(held[-n:]) for s in self._stops)), 0
        )
        self._held = held[len(held) - kept :]
        return held[: len(held) - kept], False

    def finish(self) -> str:
        return self._held
