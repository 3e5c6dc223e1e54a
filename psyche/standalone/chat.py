"""`psyche model chat`: talk with an exported model."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from jinja2 import TemplateError

from psyche.errors import ConfigError
from psyche.standalone.exported import Writer, get_positions, load_exported, load_tokenizer

Say = Callable[[str], object]
Message = dict[str, str]
ROOM_TOKENS: Final = 2  # for the shortest answer


class Chat:
    """A model in a folder, and what was said; without a chat template the text of all of it goes on."""

    def __init__(self, folder: Path, *, tokens: int, temperature: float, seed: int) -> None:
        self._tokenizer = load_tokenizer(folder)
        model = load_exported(folder)
        self._writer, self._positions = Writer(model, self._tokenizer), get_positions(model)
        self.has_template = bool(self._tokenizer.chat_template)
        self._tokens, self._temperature = tokens, temperature
        self._messages: list[Message] = []
        self._text = ""
        torch.manual_seed(seed)

    def answer(self, said: str, say: Say) -> str:
        """Say the answer piece by piece; return what a user should know of it.

        Raises:
            ConfigError: the message is longer than the model, or the chat template refuses it.
        """
        if not self.has_template:
            self._text += said
            written = self._writer.write(self._encode(self._text), self._tokens, temperature=self._temperature, say=say)
            self._text += self._decode(written)
            return ""
        messages = [*self._messages, {"role": "user", "content": said}]
        ids, forgotten = self._encode_chat(messages), 0
        while len(ids) + ROOM_TOKENS > self._positions and len(messages) > 1:
            messages, forgotten = messages[2:], forgotten + 1
            ids = self._encode_chat(messages)
        if len(ids) + ROOM_TOKENS > self._positions:
            raise ConfigError(f"the message has {len(ids)} tokens, the model {self._positions} positions; say less")
        room = min(self._tokens, self._positions - len(ids))
        written = self._writer.write(ids, room, temperature=self._temperature, say=say)
        self._messages = [*messages, {"role": "assistant", "content": self._decode(written)}]
        return f"the first {forgotten} questions are forgotten: the model has {self._positions} positions" * (
            forgotten > 0
        )

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer(text).input_ids

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def _encode_chat(self, messages: list[Message]) -> list[int]:
        try:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise ConfigError(f"the model's chat template refuses the message: {error}") from error
        return self._tokenizer(text, add_special_tokens=False).input_ids
