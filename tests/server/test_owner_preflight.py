"""What no client could train is refused by validate-config, `server run` and the testnet alike."""

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kits.models import LLAMA, write_model_folder
from kits.run_files import write_run
from kits.server import MemoryDisk

from psyche.cli.commands.server import load_runnable
from psyche.config.load import load_run
from psyche.config.rewrite import set_values
from psyche.errors import ConfigError
from psyche.server.preflight import validate_run
from psyche.server.run import open_run
from psyche.testnet.prepare import prepare
from psyche.testnet.settings import TestnetSettings

pytestmark = pytest.mark.usefixtures("trainer_host")


def write_ready_run(folder: Path) -> Path:
    """A run whose tokens are bytes, and whose model has a row for each."""
    return write_run(folder / "config", write_model_folder(folder / "made", vocab_size=256), init_min_clients=1)


def rewrite_model(**changes: object) -> Callable[[Path], None]:
    def rewrite(config: Path) -> None:
        (config / "model" / "config.json").write_text(json.dumps({**LLAMA, "vocab_size": 256, **changes}))

    return rewrite


def to_bin(config: Path) -> None:
    (config / "model" / "model.safetensors").rename(config / "model" / "pytorch_model.bin")


def tokenize_with_more(config: Path) -> None:
    sidecar = {"format": "psyche/tokens/1", "token_size_bytes": 2, "vocab_size": 4_096}
    (config / "data" / "tokens.json").write_text(json.dumps(sidecar))


def set_run(config: Path, values: dict[tuple[str, ...], object], more: str = "") -> None:
    path = config / "run.toml"
    path.write_text(set_values(path.read_text(), values) + more)  # type: ignore[arg-type]


def use_local_data(config: Path) -> None:
    text = (config / "run.toml").read_text()
    start = text.index("Server =")
    (config / "run.toml").write_text(text[:start] + 'Local = "data"' + text[text.index("\n", start) :])
    (config / "data" / "tokens.bin").write_bytes(np.full(64, 256, dtype="<u2").tobytes())


CASES: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "code": (rewrite_model(auto_map={"AutoModel": "x.X"}), ("run.toml:", "model.LLM.checkpoint", "AR1: auto_map")),
    "no kind": (rewrite_model(model_type=None), ("model.LLM.checkpoint", "AR1: model_type is missing")),
    "weights in .bin": (to_bin, ("model.LLM.checkpoint", "has pytorch_model.bin", "write the model again")),
    "token ids without rows": (tokenize_with_more, ("data.toml:2: dir", "a vocabulary of 4096", "model's has 256")),
    "such ids in local data": (use_local_data, ("model.LLM.data_location", "token 256 at position 0")),
    "another vocabulary in the run's description": (
        lambda config: set_run(config, {}, "\n[metadata]\nvocab_size = 300\n"),
        ("metadata.vocab_size: is 300, the model's is 256 -> vocab_size = 256",),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "words"), CASES.values(), ids=CASES)
async def test_what_no_client_could_train_is_refused_with_its_place(
    tmp_path: Path, spoil: Callable[[Path], None], words: tuple[str, ...]
) -> None:
    config = write_ready_run(tmp_path)
    assert validate_run(config).problems == ()
    spoil(config)
    report = validate_run(config)
    assert report.exit_code == 1
    found = "\n".join(map(str, report.problems))
    assert all(word in found for word in words), found
    with pytest.raises(ConfigError, match=r"run\.toml|data\.toml"):
        load_runnable(config, None)
    settings = TestnetSettings(num_clients=1, config_path=config, run_dir=tmp_path / "run", cache_dir=tmp_path / "c")
    with pytest.raises(ConfigError, match=r"run\.toml|data\.toml"):
        await prepare(settings, print)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": 255}, "AR4: lm_head.weight is 256 x 32, not 255 x 32"),
        ({"model_type": "gpt_2"}, "AR1: model_type 'gpt_2' is no causal language model"),
    ],
)
def test_validate_config_asks_transformers_where_it_is_installed(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    config = write_ready_run(tmp_path)
    assert validate_run(config, reads_weights=True).problems == ()
    rewrite_model(**changes)(config)
    (problem,) = validate_run(config, reads_weights=True).problems
    assert words in str(problem)


def test_what_is_not_on_the_owner_s_machine_is_no_error(tmp_path: Path) -> None:
    config = write_ready_run(tmp_path)
    (config / "model").unlink()
    (config / "data" / "tokens.bin").unlink()
    report = validate_run(config)
    assert report.problems == ()
    assert sum("makes one" in text for text in (*report.warnings, *report.missing)) == 2
    with pytest.raises(ConfigError, match=r"no token file in .*`psyche data tokenize"):
        load_runnable(config, None)


def test_weights_that_are_no_numbers_are_refused_by_check_and_server_alike(tmp_path: Path) -> None:
    config = write_ready_run(tmp_path)
    folder = (config / "model").resolve()
    weights = folder / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-4:] = struct.pack("<f", math.nan)  # of the tensor that lies last in the file
    weights.write_bytes(raw)
    assert validate_run(config).problems == (), "only headers are read"
    (problem,) = validate_run(config, reads_weights=True).problems
    assert "has values that are NaN or infinite" in str(problem)
    with pytest.raises(ConfigError, match="has values that are NaN or infinite"):
        open_run(MemoryDisk(), load_run(config), bytes(32), "test", lambda: 1, model_folder=folder)


async def test_a_testnet_on_a_device_that_nobody_has_is_refused(tmp_path: Path) -> None:
    settings = TestnetSettings(num_clients=1, config_path=write_ready_run(tmp_path), device="gpu")
    with pytest.raises(ConfigError, match="--device gpu"):
        await prepare(settings, print)
