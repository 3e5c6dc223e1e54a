"""A chat with a model that is served elsewhere, by anything that speaks OpenAI's API."""

import json
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from psyche.errors import ConfigError
from psyche.serving.requests import read_choice
from psyche.serving.settings import read_keys
from psyche.wire.web import LOOPBACK

SILENCE_S: Final = 120.0
Say = Callable[[str], object]


class RemoteChat:
    """What was said, in turns; without a chat template the text of all of it goes on.

    Raises:
        ConfigError: there is no such server, or it refuses.
    """

    def __init__(self, url: str, key_file: Path | None = None, **options: float | None) -> None:
        self._options = {name: value for name, value in options.items() if value is not None}
        self._turns: list[str] = []
        keys = read_keys(key_file)
        try:
            self._client = httpx2.Client(
                base_url=f"{url.rstrip('/').removesuffix('/v1')}/v1", timeout=SILENCE_S,
                headers={"authorization": f"Bearer {keys[0].decode()}"} if keys else {},
                trust_env=urlsplit(url).hostname not in LOOPBACK,
            )  # fmt: skip
        except (httpx2.InvalidURL, ValueError) as error:
            raise ConfigError(f"{url}: is no address: {error}") from error
        self._url = url
        self._model = ""
        self._look()

    def _look(self) -> str:
        """Learn which model answers now; return what a user should know of it."""
        try:
            answer = self._client.get("/models")
            models: list[dict[str, Any]] = answer.json()["data"] if answer.is_success else []
            model = models[0]["id"]
        except (httpx2.HTTPError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{self._url}: no server of OpenAI's API names a model there: {error!r}") from error
        self.has_template = bool(models[0].get("has_chat_template", True))
        known, self._model = self._model, model
        return f"{model} answers now" if known not in ("", model) else ""

    def answer(self, said: str, say: Say) -> str:
        """Say the answer piece by piece; return what a user should know of it.

        Raises:
            ConfigError: the server refuses, or breaks off.
        """
        notes, turns, forgotten = [self._look()], [*self._turns, said], 0
        try:
            while (text := self._ask(turns, say)) is None:
                turns, forgotten = turns[2:], forgotten + 1
        except (httpx2.HTTPError, ValueError) as error:
            raise ConfigError(f"{self._url}: {error!r}") from error
        self._turns = [*turns, text]
        notes.append(f"the first {forgotten} questions are forgotten: the model is too short" * (forgotten > 0))
        return "; ".join(filter(None, notes))

    def _ask(self, turns: list[str], say: Say) -> str | None:
        """The answer; None where the server takes no chat of this length."""
        roles = zip(cycle(("user", "assistant")), turns, strict=False)
        messages = [{"role": role, "content": text} for role, text in roles]
        path, what = ("/chat/completions", {"messages": messages}) if self.has_template else (
            "/completions", {"prompt": "".join(turns)}
        )  # fmt: skip
        body = {"model": self._model, "stream": True, **what, **self._options}
        text = ""
        with self._client.stream("POST", path, json=body) as response:
            if not response.is_success:
                if response.status_code == 400 and len(turns) > 1:
                    return None
                raise ConfigError(f"{self._url}: {_read_error(response.read())}")
            for line in response.iter_lines():
                if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
                    text += (piece := _read_piece(data))
                    say(piece)
        return text


def _read_piece(data: str) -> str:
    event = json.loads(data)
    if "error" in event:
        raise ConfigError(f"the server breaks off: {_read_error(data.encode())}")
    return read_choice(event)[0]


def _read_error(raw: bytes) -> str:
    try:
        return str(json.loads(raw)["error"]["message"])[:1024]
    except (ValueError, LookupError, TypeError):
        return raw[:256].decode(errors="replace")
