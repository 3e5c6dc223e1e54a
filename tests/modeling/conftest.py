"""One tiny model for all tests here: loading torch and transformers is most of their time."""

import json
from pathlib import Path

import msgspec
import pytest

from psyche.core.state.state import Model, Optimizer, OptimizerKind
from psyche.wire.trainer import LoadRequest

TINY = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
SEQUENCE_LENGTH = 16


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Threads that wait for one another cost a tiny model more than they give, above all on a busy machine."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "tiny.json"
    path.write_text(json.dumps(TINY))
    return path


@pytest.fixture(scope="session")
def tiny_model(tiny_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from psyche.modeling.model import init_model

    extra = tmp_path_factory.mktemp("extra") / "tokenizer_config.json"
    extra.write_text("{}")
    folder = tmp_path_factory.mktemp("models") / "tiny"
    init_model(tiny_config, folder, 7, extra_files=[extra])
    return folder


def make_run_model() -> Model:
    """What the record says of the tiny run: DisTrO at chunk 8, k 4, 1-bit."""
    optimizer = Optimizer(
        kind=OptimizerKind.DISTRO,
        clip_grad_norm=1.0,
        compression_decay=0.95,
        compression_topk=4,
        compression_chunk=8,
        quantize_1bit=True,
    )
    return Model(max_seq_len=SEQUENCE_LENGTH, optimizer=optimizer)


@pytest.fixture
def run_model() -> Model:
    return make_run_model()


@pytest.fixture(scope="session")
def shared_load_request(tiny_model: Path) -> LoadRequest:
    """For fixtures that several tests share; nobody may change it."""
    return LoadRequest(
        path=str(tiny_model), is_snapshot=False, model=make_run_model(), micro_batch_size=2, device="cpu"
    )


@pytest.fixture
def load_request(shared_load_request: LoadRequest, run_model: Model) -> LoadRequest:
    return msgspec.structs.replace(shared_load_request, model=run_model)
