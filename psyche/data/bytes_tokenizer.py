"""The built-in tokenizer: every byte is a token, and byte 0 separates documents.

The vocabulary has exactly 256 entries: 257 is prime, and a prime dimension cannot be cut into chunks.
`write_tokenizer` saves the tokenizer beside a model, in the format of Hugging Face transformers.
"""

import json
from pathlib import Path
from typing import Any, Final

from psyche.core.encoding.manifest import FILE_NAMES
from psyche.durable import naming
from psyche.errors import ConfigError

TOKENIZER_FILES: Final = FILE_NAMES - {"config.json", "generation_config.json"}
VOCAB_SIZE: Final = 256
SEPARATOR_ID: Final = 0
SEPARATOR: Final = "<|end|>"  # the text form of byte 0
_MODEL_MAX_LENGTH: Final = 1_000_000


def get_byte_characters() -> list[str]:
    """The printable character that stands for each byte in byte-level tokenizers (the table of GPT-2)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    return [table[byte] for byte in range(256)]


def write_tokenizer(folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`, which `AutoTokenizer.from_pretrained(folder)` loads."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "tokenizer.json", _get_tokenizer())
    _write_json(folder / "tokenizer_config.json", _get_tokenizer_config())


def get_tokenizer_files(tokenizer: Path | None, scratch: Path) -> list[Path]:
    """Return the tokenizer's files: those of a folder, one file, or the byte tokenizer written into `scratch`."""
    if tokenizer is None:
        write_tokenizer(scratch)
        return sorted(scratch.iterdir())
    if tokenizer.is_file():
        if tokenizer.name not in TOKENIZER_FILES:
            names = ", ".join(sorted(TOKENIZER_FILES))
            raise ConfigError(f"--tokenizer {tokenizer}: a run keeps only {names}; rename the file")
        return [tokenizer]
    files = sorted(file for name in TOKENIZER_FILES if (file := tokenizer / name).is_file())
    if not files:
        raise ConfigError(f"--tokenizer {tokenizer}: none of {', '.join(sorted(TOKENIZER_FILES))} there")
    return files


def _get_tokenizer() -> dict[str, Any]:
    characters = get_byte_characters()
    vocab = {SEPARATOR: SEPARATOR_ID} | {characters[byte]: byte for byte in range(1, VOCAB_SIZE)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    separator = {
        "id": SEPARATOR_ID,
        "content": SEPARATOR,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [separator],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": SEPARATOR,  # a zero byte in a text has no entry of its own
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [],
        },
    }


def _get_tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SEPARATOR,
        "unk_token": SEPARATOR,
        "clean_up_tokenization_spaces": False,
        "model_max_length": _MODEL_MAX_LENGTH,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with naming(path):
        path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
