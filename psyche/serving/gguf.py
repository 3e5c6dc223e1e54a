"""The GGUF file that llama-server reads: the one in a model's folder, or one that llama.cpp's converter makes of it."""

import sys
from pathlib import Path
from typing import Final

import trio

from psyche.errors import ConfigError, PsycheError
from psyche.serving.model import ServedModel
from psyche.serving.settings import ServeSettings
from psyche.testnet.process import Child, describe_exit_status

CONVERT_S: Final = 3600.0
HINT: Final = "docs/serve.md names what the converter needs, docs/export.md the tokenizers that it takes"
TYPES: Final = {"bfloat16": "bf16", "float16": "f16"}  # by the weights' own; others lose nothing as f32


def find_gguf(folder: Path) -> Path | None:
    """The GGUF file in a model's folder.

    Raises:
        ConfigError: it has several.
    """
    files = sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        raise ConfigError(f"--engine llama-server: {folder} has {len(files)} GGUF files; leave one of them there")
    return files[0] if files else None


async def make_gguf(model: ServedModel, settings: ServeSettings, scratch: Path, output: Path) -> Path:
    """Convert a model's folder, into itself where it is a copy; what the converter prints goes to `output`.

    Raises:
        PsycheError: the converter fails.
    """
    made = (model.folder if model.is_copy else scratch) / "model.gguf"
    kind = TYPES.get(model.dtype, "f32")
    argv = [sys.executable, settings.find_converter(), str(model.folder), "--outtype", kind, "--outfile", str(made)]
    child = Child("converter", argv, output=output, env={"HF_HUB_OFFLINE": "1"})
    try:
        with trio.move_on_after(CONVERT_S):
            code = await child.wait()
            if code == 0 and made.is_file():
                return made
            said = "\n  ".join(child.get_last_lines(4))
            raise PsycheError(f"{argv[1]} cannot convert {model.id}, {describe_exit_status(code)}:\n  {said}\n{HINT}")
        raise PsycheError(f"{argv[1]} has not converted {model.id} within {CONVERT_S:.0f} s")
    finally:
        await child.end()
