"""Model folders for tests that read no weights: a config.json, and weight files of zeros with true headers.

And tiny models of many families, as their config.json describes them: what transformers needs besides the sizes.
"""

import json
import math
import struct
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

LLAMA: Final[Mapping[str, Any]] = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
}
PREFIX: Final = "model."


def write_model_folder(folder: Path, **changes: object) -> Path:
    """Write a model's folder; keywords replace fields of `LLAMA`."""
    folder.mkdir(parents=True)
    settings = {**LLAMA, **changes}
    (folder / "config.json").write_text(json.dumps(settings))
    write_header(folder / "model.safetensors", settings)
    return folder


def list_tensors(settings: Mapping[str, Any]) -> Iterator[tuple[str, list[int]]]:
    """The tensors of a Llama with such settings, in which each head has its own keys and values."""
    hidden, inner, vocab = settings["hidden_size"], settings["intermediate_size"], settings["vocab_size"]
    yield "model.embed_tokens.weight", [vocab, hidden]
    for layer in range(settings["num_hidden_layers"]):
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{layer}.{name}.weight", [hidden]
        for name in "qkvo":
            yield f"model.layers.{layer}.self_attn.{name}_proj.weight", [hidden, hidden]
        for name, dims in {"gate": [inner, hidden], "up": [inner, hidden], "down": [hidden, inner]}.items():
            yield f"model.layers.{layer}.mlp.{name}_proj.weight", dims
    yield "model.norm.weight", [hidden]
    if not settings.get("tie_word_embeddings"):
        yield "lm_head.weight", [vocab, hidden]


def write_header(
    path: Path, settings: Mapping[str, Any], *, without: Collection[str] = (), prefix: str = PREFIX
) -> None:
    """Write a safetensors file of these sizes: its header, and a hole of the tensors' size."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dims in list_tensors(settings):
        if name not in without:
            first, end = end, end + 4 * math.prod(dims)
            shown = prefix + name.removeprefix(PREFIX) if name.startswith(PREFIX) else name
            header[shown] = {"dtype": "F32", "shape": dims, "data_offsets": [first, end]}
    raw = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + end)


COMMON: Final[Mapping[str, Any]] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
_SHORT: Final = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
_SPARSE: Final = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}
_GROUPED: Final = {**_SPARSE, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
                   "first_k_dense_replace": 1}  # fmt: skip
_LATENT: Final = {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
_OWN: Final[Mapping[str, Mapping[str, Any]]] = {
    "qwen3": {"head_dim": 8}, "gemma": {"head_dim": 8}, "gemma2": {"head_dim": 8}, "gemma3_text": {"head_dim": 8},
    "seed_oss": {"head_dim": 8}, "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {**_SPARSE, "num_experts": 4, "shared_expert_intermediate_size": 16, "decoder_sparse_step": 1},
    "qwen3_moe": {**_SPARSE, "num_experts": 4, "decoder_sparse_step": 1, "head_dim": 8},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2}, "glm4_moe": {**_GROUPED, "head_dim": 8},
    "deepseek_v2": {**_GROUPED, **_LATENT, "num_key_value_heads": 4},
    "deepseek_v3": {**_GROUPED, **_LATENT, "num_key_value_heads": 4},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": 16,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}},
}  # fmt: skip
_OTHER: Final[Mapping[str, Mapping[str, Any]]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32},
    "opt": {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "max_position_embeddings": 32},
    "falcon": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 32},
    "gpt_neox": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "max_position_embeddings": 32},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
    "mamba2": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "num_heads": 4, "head_dim": 16,
               "n_groups": 1, "chunk_size": 16},
}  # fmt: skip
PLAIN: Final = (
    "llama", "mistral", "qwen2", "phi3", "olmo2", "granite", "glm4", "smollm3", "cohere", "starcoder2", "stablelm",
)  # fmt: skip
FAMILIES: Final = {
    **{name: {"model_type": name, **COMMON, **_OWN.get(name, {})} for name in (*PLAIN, *_OWN)},
    **{name: {"model_type": name, **_SHORT, **fields} for name, fields in _OTHER.items()},
}


def write_config(path: Path, family: str, **changes: object) -> Path:
    path.write_text(json.dumps({**FAMILIES[family], **changes}))
    return path
