"""A Hub, web server and bucket with one model and one data set each, for commands that are named their addresses."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import trio
from pyarrow import parquet
from safetensors.numpy import save_file

from kits.commands import call
from kits.models import LLAMA, list_tensors
from kits.storage.hub import HubDouble, open_hub_double
from kits.storage.servers import put_objects, serve_buckets, serve_folder, write_files
from psyche.data.bytes_tokenizer import write_tokenizer

LENGTH = 16
VOCAB = 256
SETTINGS = {**LLAMA, "vocab_size": VOCAB}


@dataclass
class Places:
    hub: HubDouble
    web: str
    tokens: Path  # the same as in the places, on this machine
    model: Path
    names: dict[str, str]  # addresses of data, by kind

    async def call(self, *arguments: object) -> str:
        """Call a command beside these servers; what it prints."""
        return await trio.to_thread.run_sync(lambda: call(*arguments, "--allow-private-hosts").output)


def write_model(folder: Path) -> Path:
    """A model with random weights and the tokenizer of bytes."""
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(SETTINGS))
    rng = np.random.default_rng(3)
    tensors = {name: rng.normal(0, 0.05, dims).astype("<f4") for name, dims in list_tensors(SETTINGS)}
    save_file(tensors, folder / "model.safetensors")
    return folder


def write_rows(path: Path) -> bytes:
    rows: dict[str, Any] = {"inputs": [[(row + i) % VOCAB for i in range(LENGTH)] for row in range(32)]}
    rows["labels"] = [[-100] * 4 + row[4:] for row in rows["inputs"]]
    columns = {name: pa.array(values, pa.large_list(pa.int32())) for name, values in rows.items()}
    parquet.write_table(pa.table(columns), path)
    return path.read_bytes()


@asynccontextmanager
async def open_places(folder: Path, monkeypatch: Any) -> AsyncGenerator[Places]:
    """Serve a model, and tokens in three files."""
    tokens = ((np.arange(96 * LENGTH) * 7 + 1) % VOCAB).astype("<u2")
    files = {f"part-{n:02}.bin": tokens[512 * n : 512 * (n + 1)].tobytes() for n in range(3)}
    source = {"token_size_in_bytes": "TwoBytes", "shuffle": "DontShuffle"}
    model = write_model(folder / "their-model")
    write_files(folder / "tokens", files)
    write_files(folder / "web", files | {"whole.bin": tokens.tobytes()})
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    with serve_folder(folder / "web") as web, serve_buckets() as google:
        mix = {"shuffle": "DontShuffle", "providers": [source | {"location": {"SingleUrl": f"{web}/whole.bin"}}]}
        (folder / "web" / "mix.json").write_text(json.dumps(mix))
        put_objects(google, "bucket", {f"tokens/{name}": raw for name, raw in files.items()})
        put_objects(google, "bucket", {f"m/{file.name}": file.read_bytes() for file in model.iterdir()})
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", google)
        async with open_hub_double() as hub:
            monkeypatch.setenv("HF_ENDPOINT", hub.address)
            hub.add("owner/name", {file.name: file.read_bytes() for file in model.iterdir()})
            hub.add("owner/rows", {"data/train-0.parquet": write_rows(folder / "x.parquet")}, kind="dataset")
            names = {
                "one file": f"{web}/whole.bin",
                "numbered files": f"{web}/part-{{00..02}}.bin",
                "bucket": "gs://bucket/tokens",
                "mix": f"{web}/mix.json",
                "prepared rows": "hf://datasets/owner/rows",
            }
            yield Places(hub, web, folder / "tokens", model, names)
