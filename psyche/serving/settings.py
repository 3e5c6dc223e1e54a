"""What a user sets of a gate and its engines."""

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from psyche.durable import read_file, warn_of_others
from psyche.errors import ConfigError

MAX_KEYS_BYTES: Final = 64 << 10
GATES_OWN: Final = ("--host", "--port", "--api-key")
CONVERTER: Final = "convert_hf_to_gguf.py"
EngineName = Literal["transformers", "vllm", "llama-server"]
INSTALLING: Final = {
    "vllm": "pip install vllm, best in an environment of its own, and put it on the PATH",
    "llama-server": "it is part of llama.cpp (https://github.com/ggml-org/llama.cpp); put it on the PATH",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    engine: EngineName = "transformers"
    host: str = "127.0.0.1"
    port: int = 8000
    api_key_file: Path | None = None
    gguf_converter: Path | None = None
    engine_args: str = ""
    device: str = "auto"
    batch: bool = False
    temperature: float = 1.0
    parallel: int = 8
    queue: int = 32
    idle_s: float = 60.0
    deadline_s: float = 600.0
    swap: Literal["both", "stop"] = "both"

    @property
    def is_sampling_fixed(self) -> bool:
        """Whether all answers are sampled alike: a batch of transformers knows one way for all that is in it."""
        return self.batch and self.engine == "transformers"

    @property
    def at_once(self) -> int:
        """Answers that the engine writes at the same time."""
        return 1 if self.engine == "transformers" and not self.batch else self.parallel

    def split_engine_args(self) -> list[str]:
        """What else the engine is started with.

        Raises:
            ConfigError: it is not words, or takes the engine away from the gate.
        """
        try:
            words = shlex.split(self.engine_args)
        except ValueError as error:
            raise ConfigError(f"--engine-args {self.engine_args!r}: {error}") from error
        for word in words:
            if word.partition("=")[0] in GATES_OWN:
                raise ConfigError(f"--engine-args: {word} is set by the gate, leave it out")
        return words

    def find_command(self) -> str:
        """The program of an engine that is not Psyche's own.

        Raises:
            ConfigError: it is not on the PATH.
        """
        found = shutil.which(self.engine)
        if found is None:
            raise ConfigError(f"--engine {self.engine}: no such command on the PATH: {INSTALLING[self.engine]}")
        return found

    def find_converter(self) -> str:
        """The program of llama.cpp that makes a GGUF file of a model's folder.

        Raises:
            ConfigError: there is none.
        """
        if self.gguf_converter is not None:
            if not self.gguf_converter.is_file():
                raise ConfigError(f"--gguf-converter {self.gguf_converter}: there is no such file")
            return str(self.gguf_converter)
        found = shutil.which(CONVERTER)
        if found is None:
            raise ConfigError(
                f"--engine llama-server: reads a GGUF file, which llama.cpp's {CONVERTER} makes; name that with "
                "--gguf-converter, put it on the PATH, or convert a folder yourself (docs/export.md)"
            )
        return found


def read_keys(path: Path | None) -> tuple[bytes, ...]:
    """The keys that callers show, a line each; none: there is no file, and no key.

    Raises:
        ConfigError: the file has none.
    """
    if path is None:
        return ()
    warn_of_others(path)
    keys = tuple(filter(None, map(bytes.strip, read_file(path, MAX_KEYS_BYTES).splitlines())))
    if not keys:
        raise ConfigError(f"--api-key-file {path}: has no key; write one on each line")
    return keys
