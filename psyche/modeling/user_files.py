"""The small files of an exported model, completed so that programs need no further settings, and its model card."""

import json
from collections.abc import Mapping, Sequence
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

CARD_NAME: Final = "README.md"
_HEAD: Final = """\
---
library_name: transformers
pipeline_tag: text-generation
license: unknown
tags:
- psyche
---
"""
GENERATION_NAME: Final = "generation_config.json"
SENTENCEPIECE_NAME: Final = "tokenizer.model"
PLAIN_TOKENIZER: Final = "PreTrainedTokenizerFast"  # takes tokenizer.json as it is; a model's own class may change it
PADDING_TOKENS: Final = ("<pad>", "[PAD]", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>")


def build_user_files(
    files: Mapping[str, bytes], dtype: str, positions: int | None = None, changes: Mapping[str, object] | None = None
) -> dict[str, bytes]:
    """The small files of an export, by name; `dtype` is the type of its numbers, `changes` are fields of config.json.

    config.json, generation_config.json and tokenizer_config.json name the tokenizer's own begin and end tokens, a
    padding token for batches, and the model's `positions` (None: those that config.json names, if any) as the longest
    text. Other files stay as they are.
    """
    config = read_json_table(files[CONFIG_NAME])
    config.pop("torch_dtype", None)
    config |= {**(changes or {}), "dtype": dtype}
    positions = positions or config.get("max_position_embeddings")
    generation = read_json_table(files.get(GENERATION_NAME))
    generation.pop("_from_model_config", None)  # otherwise transformers prefers what config.json says
    made = {CONFIG_NAME: config}
    if TOKENIZER_NAME in files or SENTENCEPIECE_NAME in files:
        names = find_tokens(files)
        ids = read_token_ids(files.get(TOKENIZER_NAME))
        made[TOKENIZER_CONFIG_NAME] = _complete_tokenizer(files, names, positions)
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


def _complete_tokenizer(files: Mapping[str, bytes], names: Mapping[str, str], positions: int | None) -> dict[str, Any]:
    table = read_json_table(files.get(TOKENIZER_CONFIG_NAME))
    if TOKENIZER_NAME in files:
        table.setdefault("tokenizer_class", PLAIN_TOKENIZER)
    for role, token in names.items():
        table[role] = table.get(role) or token
    if positions is not None:
        table["model_max_length"] = positions
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


def format_card(title: str, summary: str, rows: Sequence[tuple[str, str]]) -> str:
    """The card as Markdown with the header that the Hugging Face Hub reads; `rows` are names and values of a table."""
    table = "\n".join(f"| {name} | {_flatten(value)} |" for name, value in rows)
    return f"""{_HEAD}
# {_flatten(title)}

{_flatten(summary)}

| | |
|---|---|
{table}

## Use

```python
from transformers import pipeline

write = pipeline("text-generation", model=".")  # this folder
print(write("Once upon a time", max_new_tokens=50)[0]["generated_text"])
```

The model continues a text. It was not taught to answer questions, and nothing filters what it writes.

## Not known

- **Licence.** Nobody has stated one. Whoever publishes the model writes it at the top of this file; the training data
  may set terms.
- **Data.** Describe here what the model was trained on.
- **Evaluation.** Nobody has measured the model but for its loss.
"""


def _flatten(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
