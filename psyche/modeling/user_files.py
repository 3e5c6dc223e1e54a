"""The small files of an exported model: those of the run, completed so that programs need no further settings."""

import json
from collections.abc import Mapping
from typing import Any, Final

from psyche.modeling.snapshot import CONFIG_NAME
from psyche.wire.tokenizer_files import (
    END_TOKENS,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
    find_token_name,
    read_json_table,
    read_token_ids,
)

GENERATION_NAME: Final = "generation_config.json"
SENTENCEPIECE_NAME: Final = "tokenizer.model"
DEFAULT_POSITIONS: Final = 2048  # of a Llama whose config names none
PLAIN_TOKENIZER: Final = "PreTrainedTokenizerFast"  # takes tokenizer.json as it is; a Llama's own class changes it
PADDING_TOKENS: Final = ("<pad>", "[PAD]", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>")


def build_user_files(files: Mapping[str, bytes], dtype: str) -> dict[str, bytes]:
    """The small files of an export, by name; `dtype` is the type of its numbers.

    config.json, generation_config.json and tokenizer_config.json name the tokenizer's own begin and end tokens, a
    padding token for batches, and the model's positions as the longest text. Other files stay as they are.
    """
    config = read_json_table(files[CONFIG_NAME])
    config.pop("torch_dtype", None)
    config["dtype"] = dtype
    generation = read_json_table(files.get(GENERATION_NAME))
    generation.pop("_from_model_config", None)  # otherwise transformers prefers what config.json says
    made = {CONFIG_NAME: config}
    if TOKENIZER_NAME in files or SENTENCEPIECE_NAME in files:
        names = find_tokens(files)
        ids = read_token_ids(files.get(TOKENIZER_NAME))
        made[TOKENIZER_CONFIG_NAME] = _complete_tokenizer(files, names, config)
        for table in (config, generation):
            _set_ids(table, names, ids)
        if names.get("pad_token") in ids:
            generation["pad_token_id"] = ids[names["pad_token"]]
    if generation:
        made[GENERATION_NAME] = generation
    return {**files, **{name: json.dumps(table, indent=2, ensure_ascii=False).encode() for name, table in made.items()}}


def find_tokens(files: Mapping[str, bytes]) -> dict[str, str]:
    """The tokens with a role, by role: what the tokenizer's files name, else a token that is usual for the role."""
    ids = read_token_ids(files.get(TOKENIZER_NAME))
    found = {role: find_token_name(files, role) for role in ("bos_token", "eos_token", "pad_token", "unk_token")}
    found["eos_token"] = found["eos_token"] or next((token for token in END_TOKENS if token in ids), None)
    usual = next((token for token in PADDING_TOKENS if token in ids), None)
    found["pad_token"] = found["pad_token"] or usual or found["eos_token"] or found["unk_token"]
    return {role: token for role, token in found.items() if token}


def _complete_tokenizer(
    files: Mapping[str, bytes], names: Mapping[str, str], config: Mapping[str, Any]
) -> dict[str, Any]:
    table = read_json_table(files.get(TOKENIZER_CONFIG_NAME))
    if TOKENIZER_NAME in files:
        table.setdefault("tokenizer_class", PLAIN_TOKENIZER)
    for role, token in names.items():
        table[role] = table.get(role) or token
    table["model_max_length"] = config.get("max_position_embeddings", DEFAULT_POSITIONS)
    table["padding_side"] = "left"  # a text is continued at its right end
    return table


def _set_ids(table: dict[str, Any], names: Mapping[str, str], ids: Mapping[str, int]) -> None:
    """Set the ids of the begin and end token; several end tokens are kept if the tokenizer's own is one of them."""
    if not ids:
        return  # a tokenizer.model alone cannot be read here
    end = ids.get(names.get("eos_token", ""))
    named = table.get("eos_token_id")
    if not (isinstance(named, list) and end in named):
        table["eos_token_id"] = end
    table["bos_token_id"] = ids.get(names.get("bos_token", ""))
