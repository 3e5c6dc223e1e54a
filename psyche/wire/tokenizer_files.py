"""What a tokenizer's files say: its tokens' ids, and the tokens with a role.

All but `open_tokenizer` read them without a tokenizer library.
"""

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from psyche.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_NAME: Final = "tokenizer.json"
TOKENIZER_CONFIG_NAME: Final = "tokenizer_config.json"
SPECIAL_TOKENS_NAME: Final = "special_tokens_map.json"
TOKEN_ROLE_FILES: Final = (TOKENIZER_CONFIG_NAME, SPECIAL_TOKENS_NAME)
MAX_TOKEN_ROLE_BYTES: Final = 16 << 20
POSITION_KEYS: Final = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
# Tokens that end a text, in tokenizers that do not say which one does.
END_TOKENS: Final = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>", "<eos>", "<|end|>")


def open_tokenizer(place: object, raw: bytes) -> "Tokenizer":
    """Open a tokenizer.json, which is at this place, for texts of any length.

    Raises:
        DataError: it cannot be loaded, or the library is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise DataError("tokenizers is not installed; install the `train` extra") from error
    try:
        found = Tokenizer.from_buffer(raw)
    except Exception as error:  # the library raises plain Exception
        raise DataError(f"{place}: is no tokenizer that can be loaded: {error}") from error
    found.no_truncation()  # some files ask for it, and for padding
    found.no_padding()
    return found


def read_json_table(raw: bytes | None) -> dict[str, Any]:
    """A JSON table; empty if there is none, or the bytes are something else."""
    try:
        table = json.loads(raw or b"{}")
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", table) if isinstance(table, dict) else {}


def find_positions(config: Mapping[str, Any]) -> int | None:
    """The longest text, in tokens, that a config.json names; None if it names none."""
    inner: Any = config.get("text_config")
    tables = [config, cast("dict[str, Any]", inner)] if isinstance(inner, dict) else [config]
    found: Iterable[Any] = (table.get(key) for table in tables for key in POSITION_KEYS)
    return next((positions for positions in found if isinstance(positions, int) and positions > 0), None)


def find_token_name(files: Mapping[str, bytes], role: str) -> str | None:
    """The token that a tokenizer's files, by name, give a role such as "eos_token"; None if they give it to none."""
    for name in TOKEN_ROLE_FILES:
        token = read_json_table(files.get(name)).get(role)
        if isinstance(token, dict):
            token = cast("dict[str, Any]", token).get("content")
        if isinstance(token, str) and token:
            return token
    return None


def read_token_ids(raw: bytes | None) -> dict[str, int]:
    """The ids of all tokens in a tokenizer.json, by token; empty if it cannot be read."""
    table = read_json_table(raw)
    model = table.get("model")
    vocab: Any = cast("dict[str, Any]", model).get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, list):  # Unigram: pairs of a token and its score
        entries = [cast("list[Any]", entry) if isinstance(entry, list) else [] for entry in cast("list[Any]", vocab)]
        pairs: Iterable[tuple[Any, Any]] = ((entry[0], number) for number, entry in enumerate(entries) if entry)
    else:
        pairs = cast("dict[Any, Any]", vocab).items() if isinstance(vocab, dict) else ()
    ids = {token: number for token, number in pairs if isinstance(token, str) and isinstance(number, int)}
    added: Any = table.get("added_tokens")
    for entry in cast("list[Any]", added) if isinstance(added, list) else ():
        about = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
        if isinstance(about.get("content"), str) and isinstance(about.get("id"), int):
            ids[about["content"]] = about["id"]
    return ids
