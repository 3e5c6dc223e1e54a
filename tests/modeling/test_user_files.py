"""What an export's small files say of the tokenizer, whatever the run's owner left out."""

import json
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from psyche.modeling.user_files import build_user_files, find_tokens

CONFIG = {"max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"}
WORDS = ["a", "b", "c"]


def build_tokenizer_json(*special: str) -> bytes:
    """A tokenizer.json of three words and these special tokens, which have the ids 3, 4, ..."""
    vocab = {word: number for number, word in enumerate(WORDS)}
    added = [{"id": 3 + n, "content": token, "special": True} for n, token in enumerate(special)]
    return json.dumps({"model": {"type": "BPE", "vocab": vocab, "merges": []}, "added_tokens": added}).encode()


def complete(*special: str, **files: dict[str, Any]) -> dict[str, Any]:
    """The completed files, by name without its end, of a run whose tokenizer has these special tokens."""
    given = {f"{name}.json": json.dumps(table).encode() for name, table in files.items()}
    made = build_user_files(
        {"config.json": json.dumps(CONFIG).encode(), "tokenizer.json": build_tokenizer_json(*special)} | given,
        "bfloat16", 512, {},
    )  # fmt: skip
    return {name.removesuffix(".json"): json.loads(raw) for name, raw in made.items()}


def test_a_bare_tokenizer_gets_its_own_end_token_padding_and_length() -> None:
    """The ids in config.json are those of another tokenizer: what a config says if nobody says anything."""
    made = complete("<|endoftext|>")
    assert made["config"] == {
        "max_position_embeddings": 512, "bos_token_id": None, "eos_token_id": 3, "dtype": "bfloat16",
    }  # fmt: skip
    assert made["generation_config"] == {"eos_token_id": 3, "bos_token_id": None, "pad_token_id": 3}
    assert made["tokenizer_config"] == {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
        "model_max_length": 512, "padding_side": "left",
    }  # fmt: skip


def test_what_the_owner_named_stays() -> None:
    named = {"eos_token": {"content": "<end>"}, "pad_token": "<pad>", "bos_token": "<begin>", "tokenizer_class": "Own"}
    made = complete("</s>", "<end>", "<pad>", "<begin>", tokenizer_config=named | {"model_max_length": 10**30})
    assert made["tokenizer_config"] == named | {"model_max_length": 512, "padding_side": "left"}
    assert made["generation_config"] == {"eos_token_id": 4, "bos_token_id": 6, "pad_token_id": 5}
    assert (made["config"]["eos_token_id"], made["config"]["bos_token_id"]) == (4, 6)


def test_several_end_tokens_stay_if_the_tokenizers_own_is_among_them() -> None:
    generation = {"eos_token_id": [3, 4], "temperature": 0.6, "_from_model_config": True}
    made = complete("<a>", "</s>", generation_config=generation)
    assert made["generation_config"]["eos_token_id"] == [3, 4]
    assert made["generation_config"]["temperature"] == 0.6
    assert "_from_model_config" not in made["generation_config"]
    made = complete("<a>", "</s>", generation_config={"eos_token_id": [8, 9]})
    assert made["generation_config"]["eos_token_id"] == 4


@pytest.mark.parametrize(
    ("special", "expected"),
    [
        ((), {}),
        (("</s>",), {"eos_token": "</s>", "pad_token": "</s>"}),
        (("<eos>", "<pad>"), {"eos_token": "<eos>", "pad_token": "<pad>"}),
    ],
)
def test_tokens_that_nobody_named_are_found_by_their_usual_names(
    special: tuple[str, ...], expected: dict[str, str]
) -> None:
    assert find_tokens({"tokenizer.json": build_tokenizer_json(*special)}) == expected


def test_a_model_without_a_tokenizer_and_one_with_sentencepiece_alone_keep_their_ids() -> None:
    config = json.dumps(CONFIG).encode()
    bare = build_user_files({"config.json": config}, "float16", 64, {"max_position_embeddings": 64})
    assert bare.keys() == {"config.json"}
    table = json.loads(bare["config.json"])
    assert (table["eos_token_id"], table["max_position_embeddings"]) == (2, 64)
    made = build_user_files({"config.json": config, "tokenizer.model": b"\x0a"}, "float16")
    assert json.loads(made["config.json"])["eos_token_id"] == 2
    assert json.loads(made["tokenizer_config.json"]) == {"model_max_length": 512, "padding_side": "left"}


def test_a_bare_tokenizer_json_reads_text_as_it_did_before_the_export(tmp_path: Any) -> None:
    """Without a class, transformers would take a Llama's own tokenizer, which cuts text in another way."""
    from transformers import AutoTokenizer

    own = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(pre_tokenizers.ByteLevel.alphabet())}, merges=[]))
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    own.add_special_tokens(["</s>"])
    files = {
        "config.json": json.dumps(CONFIG | {"model_type": "llama"}).encode(),
        "tokenizer.json": own.to_str().encode(),
    }
    for name, raw in build_user_files(files, "float32", 512, {}).items():
        (tmp_path / name).write_bytes(raw)
    read: Any = AutoTokenizer.from_pretrained(tmp_path)
    text = "def größe(x):  # two  spaces"
    assert read(text)["input_ids"] == own.encode(text).ids
    assert read.decode(read(text)["input_ids"]) == text
    assert (read.eos_token, read.pad_token, read.model_max_length) == ("</s>", "</s>", 512)
