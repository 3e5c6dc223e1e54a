"""A run's files for tests: a tiny model, its configuration, some tokens."""

import contextlib
import json
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from psyche.errors import PsycheError
from psyche.testnet.free_port import choose_port

MakeRun = Callable[..., Path]  # the type of the fixture `make_run`

MODEL: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": None,
}

CONFIG: Final = {
    "warmup_time": 120,
    "cooldown_time": 1,
    "waiting_for_members_extra_time": 1,
    "max_round_train_time": 60,
    "round_witness_time": 10,
    "rounds_per_epoch": 6,
    "total_steps": 13,
    "init_min_clients": 3,
    "min_clients": 1,
    "witness_nodes": 0,
    "verification_percent": 0,
    "global_batch_size_start": 12,
    "global_batch_size_end": 12,
    "global_batch_size_warmup_tokens": 0,
    "overlap": True,
}

RUN: Final = """
run_id = "e2e"

[config]
{config}

[access]
open = true

[model.LLM]
architecture = "HfLlama"
data_type = "Pretraining"
max_seq_len = 32

[model.LLM.checkpoint.Local]
path = "model"

[model.LLM.data_location]
Server = "{data_server}"

[model.LLM.lr_schedule.Constant]
base_lr = 1.0e-3
warmup_steps = 0
warmup_init_lr = 0.0

{optimizer}"""

DISTRO: Final = """
[model.LLM.optimizer.Distro]
clip_grad_norm = 1.0
compression_decay = 0.95
compression_chunk = 16
compression_topk = 16
quantize_1bit = true
"""

LOCAL_STEPS: Final = """
[model.LLM.optimizer.LocalSteps]
clip_grad_norm = 1.0
weight_decay = 0.1
inner_optimizer = "AdamW"
inner_steps = 4
merge_step = 1
compression_chunk = 16
compression_topk = 16
value_bits = 2
error_decay = 0.95
outer_rate = 1.0
"""

DATA: Final = """
dir = "data"
token_size = "TwoBytes"
seq_len = 32
shuffle_seed = [{seed}]
"""


def choose_neighbours() -> int:
    """A free port whose neighbour above, on which `psyche init` puts the data server, is free as well."""
    while True:
        port = choose_port()
        with contextlib.suppress(PsycheError):
            choose_port(wanted=port + 1)
            return port


def write_model(folder: Path, fields: Mapping[str, object] = MODEL) -> Path:
    """Write initial weights and a tokenizer as `psyche model init` does, without a process of its own."""
    from psyche.data.bytes_tokenizer import write_tokenizer
    from psyche.modeling.model import init_model

    config, tokenizer = folder / "model.json", folder / "tokenizer"
    folder.mkdir(parents=True)
    config.write_text(json.dumps(fields))
    write_tokenizer(tokenizer)
    init_model(config, folder / "model", 7, extra_files=sorted(tokenizer.iterdir()))
    return folder / "model"


def write_run(
    folder: Path, model: Path, *, host: str = "127.0.0.1", optimizer: str = DISTRO, **changes: object
) -> Path:
    """Write a run's configuration, weights and some tokens to `folder`; keywords replace values of `CONFIG`."""
    folder.mkdir(parents=True)
    config = {**CONFIG, **changes}
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in config.items())
    server = f"{host}:{choose_port()}"
    (folder / "run.toml").write_text(RUN.format(config=lines, data_server=server, optimizer=optimizer))
    (folder / "data.toml").write_text(DATA.format(seed=", ".join(["7"] * 32)))
    (folder / "model").symlink_to(model)
    (folder / "data").mkdir()
    tokens = array("H", list(Path(json.__file__).read_bytes()) * 4)
    (folder / "data" / "tokens.bin").write_bytes(tokens.tobytes())
    return folder
