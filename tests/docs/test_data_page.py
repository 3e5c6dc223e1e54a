"""docs/data.md: its commands, run as they stand, with caddy for the web."""

import re
import shlex
from collections.abc import Generator
from pathlib import Path

import pytest
import trio
from kits.storage.places import open_places
from kits.storage.servers import serve_folder
from typer.testing import CliRunner

from psyche.cli.app import app
from psyche.config.load import load_run

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
COMMANDS = [
    line for block in re.findall(r"^```bash\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL) for line in block.splitlines()
]
(EDIT,) = re.findall(r"^```toml edit=my-run/run.toml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def call(line: str) -> str:
    words = shlex.split(line)
    assert words[0] == "psyche"
    result = CliRunner().invoke(app, words[1:])
    assert result.exit_code == 0, f"{line}\n{result.output}"
    return result.output


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALLOW_PRIVATE_HOSTS", "1")
    monkeypatch.setenv("PSYCHE_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "book.txt").write_text("It was the best of times, it was the worst of times. " * 9_000)
    return tmp_path


@pytest.fixture
def address(folder: Path) -> Generator[str]:
    (folder / "my-run" / "data").mkdir(parents=True)
    with serve_folder(folder / "my-run" / "data") as address:
        yield address


@pytest.mark.whole
def test_the_commands_of_the_page_run_as_they_stand(folder: Path, address: str) -> None:
    making, validating, asking, _, _, listing, fetching = COMMANDS
    (folder / "my-run" / "data").rmdir()
    (folder / "my-run").rmdir()
    call(making)
    run = folder / "my-run" / "run.toml"
    before, after = re.subn(r"(?ms)^\[model\.LLM\.data_location.*?(?=^\[)|^data_location = .*?$", "", run.read_text())
    assert after == 1
    run.write_text(before + "\n" + EDIT.replace("https://example.org/tokens/train.bin", f"{address}/train.bin"))
    call(validating)
    assert re.search(r"^ok    data .*/train\.bin: [\d,]+ samples", call(asking), re.MULTILINE)
    assert "my-run/data.manifest: 1 file," in call(listing)
    call(validating)
    assert "data: all" in call(fetching)
    assert list((folder / "cache" / "chunks").glob("??/*"))
    run.write_text(run.read_text().replace("train.bin", "none.bin"))
    result = CliRunner().invoke(app, shlex.split(asking)[1:])
    assert (result.exit_code, bool(re.search(r"^fail  data .*none\.bin", result.output, re.MULTILINE))) == (1, True)


def test_every_variable_of_the_page_is_one_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from psyche.cli.helpers.remote import Remote
    from psyche.storage.port import StorageOptions

    read = {"HF_TOKEN", "HF_ENDPOINT", "GOOGLE_APPLICATION_CREDENTIALS"}
    known = read | set(StorageOptions(hub_token="x", cache_dir=Path()).get_variables())
    assert set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", TEXT)) <= known
    monkeypatch.setenv("HF_TOKEN", "from-the-environment")
    assert Remote().get_options().hub_token == "from-the-environment"
    assert "hf_secret" not in repr(Remote(hf_token="hf_secret").get_options())


@pytest.mark.whole
async def test_a_run_and_a_training_of_addresses_alone_are_made_as_the_page_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_places(folder, monkeypatch) as places:
        for line in COMMANDS[3:5]:
            named = line.replace("https://example.org/{000..127}.bin", places.names["numbered files"])
            named = named.replace("https://example.org/tokens.bin", places.names["one file"])
            await trio.to_thread.run_sync(call, named)
    assert load_run(Path("far-run")).model.checkpoint.name == "owner/name"
