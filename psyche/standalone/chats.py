"""Chats and texts as token ids, by a tokenizer and its chat template: in a chat, the assistant's turns count."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray
from transformers.models.auto.tokenization_auto import AutoTokenizer
from transformers.utils import logging

from psyche.data.prepared.sources import Record
from psyche.errors import DataError

CHAT_FIELDS: Final = ("conversations", "messages")
TEXT_FIELDS: Final = ("text",)
ASSISTANT: Final = "assistant"
_OTHER_ROLES: Final = {"human": "user", "gpt": ASSISTANT}  # of ShareGPT
Message = dict[str, Any]


class Encoded(NamedTuple):
    ids: NDArray[np.int32]
    counts: NDArray[np.bool_]  # in the loss


class Encoder:
    """Encodes records by the tokenizer of a folder, or of a model on the Hub.

    Raises:
        DataError: it cannot be loaded, or lacks what is needed.
    """

    def __init__(self, tokenizer: str, *, is_chat: bool) -> None:
        logging.set_verbosity_error()  # it warns of texts longer than its model's
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer)
        except Exception as error:  # the library raises whatever its own libraries do
            raise DataError(f"--tokenizer {tokenizer}: transformers cannot load it: {error}") from error
        if not self._tokenizer.is_fast:
            raise DataError(f"--tokenizer {tokenizer}: has no tokenizer.json, which says where tokens are in a text")
        if is_chat and not self._tokenizer.chat_template:
            raise DataError(
                f"--tokenizer {tokenizer}: has no chat template; take that of the model's chat version, or put "
                "chat_template.jinja beside tokenizer.json"
            )
        if not is_chat and self._tokenizer.eos_token_id is None:
            raise DataError(f"--tokenizer {tokenizer}: names no end token (eos_token) to put behind each text")
        self.fields: Final = CHAT_FIELDS if is_chat else TEXT_FIELDS
        self._encode = self._encode_chat if is_chat else self._encode_text
        known = (self._tokenizer.pad_token_id, self._tokenizer.eos_token_id)
        self.padding: int = next((one for one in known if one is not None), 0)

    def encode(self, record: Record) -> Encoded:
        """Encode a record; of a chat without a turn of the assistant's, nothing counts.

        Raises:
            DataError: the record is no text, or no chat, or the template refuses it.
        """
        return self._encode(record)

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)

    def _encode_text(self, record: Record) -> Encoded:
        if not isinstance(record.value, str):
            raise DataError(f"{record.where}: {record.field} is {_name(record.value)}, must be text")
        ids = np.array([*self._tokenizer(record.value).input_ids, self._tokenizer.eos_token_id], dtype=np.int32)
        return Encoded(ids, np.ones(len(ids), dtype=bool))

    def _encode_chat(self, record: Record) -> Encoded:
        messages = read_messages(record)
        text = self._render(record, messages)
        turns = [
            self._find_turn(record, messages, number, text)
            for number, message in enumerate(messages)
            if message["role"] == ASSISTANT
        ]
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        places = np.array(found.offset_mapping, dtype=np.int64).reshape(-1, 2)
        counts = np.zeros(len(places), dtype=bool)
        for start, end in turns:  # by the ends too: of a token that is a space, some tokenizers say (end, end)
            counts |= (places[:, 0] >= start) & (places[:, 1] > start) & (places[:, 1] <= end)
        return Encoded(np.array(found.input_ids, dtype=np.int32), counts)

    def _find_turn(self, record: Record, messages: list[Message], number: int, text: str) -> tuple[int, int]:
        """Where a turn of the assistant's is in the text: from behind what asks for it to what the next one adds."""
        before = self._render(record, messages[:number], asks=True) if number else ""
        after = self._render(record, messages[: number + 1])
        if not (text.startswith(after) and after.startswith(before)):
            raise DataError(
                f"{record.where}: {record.field}[{number}]: the chat template writes the turns up to this one in "
                "another way when more follow, so that nobody can say which tokens are the answer; leave out what it "
                "changes (often the thoughts in earlier answers), or take a tokenizer with another template"
            )
        return len(before), len(after)

    def _render(self, record: Record, messages: list[Message], *, asks: bool = False) -> str:
        try:
            return self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=asks)
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise DataError(f"{record.where}: {record.field}: the chat template refuses it: {error}") from error


def read_messages(record: Record) -> list[Message]:
    """Read the messages of a chat, of OpenAI's form (role, content) or ShareGPT's (from, value).

    Raises:
        DataError: one is of neither form.
    """
    if not isinstance(record.value, list) or not record.value:
        raise DataError(f"{record.where}: {record.field} is {_name(record.value)}, must be a list of messages")
    return [
        _read_message(f"{record.where}: {record.field}[{number}]", one)
        for number, one in enumerate(cast("list[object]", record.value))
    ]


def _read_message(where: str, value: object) -> Message:
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: is {_name(value)}, must be a message: an object with role and content")
    found = {key: one for key, one in cast("Mapping[str, object]", value).items() if one is not None}
    if "from" in found:
        role = found.pop("from")
        found["role"] = _OTHER_ROLES.get(role, role) if isinstance(role, str) else role
        found["content"] = found.pop("value", None)
    for key in ("role", "content"):
        one = found.get(key, "" if key == "content" and "tool_calls" in found else None)
        if not isinstance(one, str):
            raise DataError(
                f"{where}: {key} is {_name(one)}, must be text (a message has role and content, or from and value)"
            )
        found[key] = one
    return found


def _name(value: object) -> str:
    return "nothing" if value is None else f"an empty {type(value).__name__}" if not value else type(value).__name__
