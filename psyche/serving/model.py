"""What a gate knows of the model in a folder: its name, its longest text, and how many tokens a request has."""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from psyche.durable import read_file
from psyche.errors import ConfigError
from psyche.serving.requests import Asked, Chat, Completion
from psyche.wire.tokenizer_files import (
    TOKEN_ROLE_FILES,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
    find_positions,
    find_token_name,
    open_tokenizer,
    read_json_table,
)
from psyche.wire.web import Refused

if TYPE_CHECKING:
    from tokenizers import Tokenizer

USUAL_TOKENS: Final = 256  # of an answer whose length nobody names
UNBOUNDED_TOKENS: Final = 1 << 20  # in models without a longest text
MAX_FILE_BYTES: Final = 256 << 20
ROLES: Final = ("bos_token", "eos_token", "pad_token")
_SMALL_BYTES: Final = 80 << 20  # of weights, with which threads wait for each other longer than they compute
_CARD: Final = re.compile(r"\| run \| `([^`]+)`.*?\| digest on record \| `([0-9a-f]{64})` \|", re.DOTALL)


@dataclass(frozen=True)
class ServedModel:
    """A model's folder; `digest` is that on record, or else the BLAKE3 of its weight files."""

    folder: Path
    run: str
    step: int | None
    digest: str
    is_copy: bool = False  # made for the engine, and removed with it

    @property
    def id(self) -> str:
        return "/".join([self.run, *([] if self.step is None else [f"step{self.step}"]), self.digest[:16]])

    @cached_property
    def dtype(self) -> str:
        config = self._read_table("config.json")
        return str(config.get("dtype") or config.get("torch_dtype") or "")

    @cached_property
    def positions(self) -> int:
        return find_positions(self._read_table("config.json")) or UNBOUNDED_TOKENS

    @cached_property
    def ends(self) -> list[int]:
        """The ids that end a text."""
        tables = [self._read_table(name) for name in ("generation_config.json", "config.json")]
        found = next((one for table in tables if (one := table.get("eos_token_id")) is not None), [])
        return found if isinstance(found, list) else [found]

    @cached_property
    def template(self) -> str:
        """The chat template; empty if there is none."""
        path = self.folder / "chat_template.jinja"
        if path.is_file():
            return read_file(path, MAX_FILE_BYTES).decode()
        found = self._read_table(TOKENIZER_CONFIG_NAME).get("chat_template") or ""
        if isinstance(found, list):
            found = next((one["template"] for one in found if one.get("name") == "default"), "")
        return found

    @cached_property
    def is_small(self) -> bool:
        return sum(path.stat().st_size for path in _list_weights(self.folder)) < _SMALL_BYTES

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        path = self.folder / TOKENIZER_NAME
        return open_tokenizer(path, read_file(path, MAX_FILE_BYTES))

    def _read_table(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        return read_json_table(read_file(path, MAX_FILE_BYTES) if path.is_file() else None)

    def measure(self, asked: Asked) -> tuple[list[int], int]:
        """The tokens of a request, and how many its answer may have at most. Blocks.

        Raises:
            Refused: they do not fit into the model, or its chat template does not take the messages.
        """
        assert isinstance(asked, Chat | Completion), "the two kinds that there are"
        is_chat = isinstance(asked, Chat)
        text = self._render(asked) if is_chat else asked.prompt
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=not is_chat).ids
        count = len(ids)
        field, wanted = asked.limit
        left, what = self.positions - count, "messages" if is_chat else "prompt"
        if not count:
            raise Refused(400, f"{what}: has no token; write something", what)
        if left < 1:
            raise Refused(400, f"{what}: {count:,} tokens, and the model has {self.positions:,} positions", what)
        if wanted is not None and wanted > left:
            raise Refused(
                400, f"{field}: {wanted:,}, but {count:,} of the model's {self.positions:,} positions are used, so at "
                f"most {left:,}", field,
            )  # fmt: skip
        return ids, wanted or min(USUAL_TOKENS, left)

    def _render(self, asked: Chat) -> str:
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        if not self.template:
            raise Refused(
                400, "messages: the model has no chat template; ask /v1/completions to continue a text, or put "
                "chat_template.jinja into its folder", "messages",
            )  # fmt: skip
        files = {name: json.dumps(self._read_table(name)).encode() for name in TOKEN_ROLE_FILES}
        tokens: dict[str, Any] = {role: find_token_name(files, role) or "" for role in ROLES}
        try:
            found: Any = render_jinja_template(
                conversations=[asked.turns], chat_template=self.template, add_generation_prompt=True, **tokens
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise Refused(400, f"messages: the model's chat template refuses them: {error}", "messages") from error
        return found[0][0]


def read_model(folder: Path) -> ServedModel:
    """Look at the model that a user names; one without a run's card is called by its folder. Blocks.

    Raises:
        ConfigError: it lacks what a gate needs.
    """
    for name in ("config.json", TOKENIZER_NAME):
        if not (folder / name).is_file():
            raise ConfigError(f"{folder}: no {name} there; name a model's folder, as clients export it")
    folder = folder.resolve()
    card = folder / "README.md"
    match = _CARD.search(read_file(card, MAX_FILE_BYTES).decode(errors="replace")) if card.is_file() else None
    if match is not None:
        step = re.search(r"-step(\d+)$", folder.name)
        return ServedModel(folder, match[1], int(step[1]) if step else None, match[2])
    weights = _list_weights(folder)
    if not weights:
        raise ConfigError(f"{folder}: no weights there, as safetensors or GGUF")
    hasher = blake3()
    for path in weights:
        hasher.update_mmap(path)
    return ServedModel(folder, folder.name, None, hasher.hexdigest())


def _list_weights(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.safetensors"), *folder.glob("*.gguf")])
