"""The page about trained models as it stands: uploads, and what is done with them; only llama.cpp is not here."""

import shutil
from pathlib import Path

import pytest
import trio
from kits.reader import DEADLINE_S, DOCS, Block, Reader, open_reader, read_blocks
from kits.run_files import choose_neighbours, write_run
from kits.storage.hub import TOKEN, open_hub_double
from kits.storage.servers import put_objects, serve_buckets
from kits.storage.sign_in import open_sign_in, write_key

from psyche.testnet.process import stop_all


async def serve(reader: Reader, name: str) -> None:
    """Begin the run once more, at a server of its own, as if nobody had taken part."""
    await stop_all(list(reader.terminals.values()), 10)
    shutil.rmtree(reader.folder / "psyche-data", ignore_errors=True)
    reader.ports["19400"] = str(choose_neighbours())
    command = f"psyche server run --state my-run --server-port 19400 --state-dir {name}"
    await reader.follow(Block("bash", {"terminal": name}, command))


@pytest.mark.e2e
@pytest.mark.whole
async def test_the_page_about_trained_models_works_as_it_stands(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = read_blocks(DOCS / "export.md")
    uploads = {"--hub-repo": "first", "--gcs-bucket": "second"}
    async with open_hub_double() as hub, open_sign_in() as sign_in, open_reader(tmp_path / "reader", {}) as reader:
        with serve_buckets() as buckets:
            put_objects(buckets, "my-weights", {})
            places = {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "STORAGE_EMULATOR_HOST": buckets}
            for name, value in {**places, "ALLOW_PRIVATE_HOSTS": "1"}.items():
                monkeypatch.setenv(name, value)
            write_key(reader.folder / "key.json", token_uri=sign_in.address)
            write_run(reader.folder / "my-run", tiny_model, init_min_clients=1, total_steps=7)
            run = reader.folder / "my-run" / "run.toml"
            run.write_text(run.read_text().replace('"e2e"', '"my-run"'))
            (reader.folder / "model").symlink_to(tiny_model)
            for block in [block for block in blocks if block.language == "bash"]:
                for option, server in uploads.items():
                    if option in block.text:
                        await serve(reader, server)
                with trio.fail_after(DEADLINE_S):
                    await reader.follow(block)
    repo = hub.repos["models/ada/my-run"]
    kept = {branch: set(repo.commits[head]) for branch, head in repo.refs.items()}
    assert kept.keys() == {"main", "bfloat16"}
    assert all(files >= {"model.safetensors", "config.json", "README.md", "tokenizer.json"} for files in kept.values())
    assert "models/ada/another-name" in hub.repos
    assert sorted(path.name for path in (reader.folder / "newest").iterdir()) == sorted(kept["main"])
    assert sign_in.claims, "the bucket was written as a service account"
