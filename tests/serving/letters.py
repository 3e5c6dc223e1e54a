"""A tiny model that writes letters: whatever its weights are, every answer is text that can be compared."""

import json
import string
from pathlib import Path

from kits.models import write_config
from tokenizers import Tokenizer, decoders, models, normalizers

from psyche.modeling.model import init_model

END = "|"
BLANK = "▁"  # as sentencepiece writes it, and llama.cpp reads it
LETTERS = [BLANK, *string.ascii_letters, *":;.,!?-+<>", END]
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}a:"


def make_letters_model(folder: Path, seed: int, positions: int = 128) -> Path:
    """Write the model's folder, with a tokenizer of which each letter is a token."""
    vocabulary = {sign: number for number, sign in enumerate(LETTERS)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="?", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", BLANK)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(BLANK, " "), decoders.Fuse()])
    tokenizer.add_special_tokens([END])
    parts = folder.with_name(f"{folder.name}.parts")
    parts.mkdir(parents=True)
    tokenizer.save(str(parts / "tokenizer.json"))
    fields = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "clean_up_tokenization_spaces": False}
    (parts / "tokenizer_config.json").write_text(json.dumps(fields))
    config = write_config(
        parts / "config.json", "llama", max_position_embeddings=positions, initializer_range=0.5,
        eos_token_id=len(LETTERS) - 1, bos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    init_model(config, folder, seed, extra_files=[parts / "tokenizer.json", parts / "tokenizer_config.json"])
    return folder
