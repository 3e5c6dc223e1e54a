"""Names, settings and the environment."""

from pathlib import Path

import pytest
from kits.storage.servers import write_files

from psyche.errors import ConfigError, StorageRefused
from psyche.storage import port
from psyche.storage.port import StorageOptions, StoredFile, read_environment, sort_files

VARIABLES = (
    "HF_TOKEN", "HF_ENDPOINT", "HF_HOME", "HF_TOKEN_PATH", "XDG_CACHE_HOME", "STORAGE_EMULATOR_HOST",
    "GOOGLE_APPLICATION_CREDENTIALS",
)  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "name",
    ["", "/a", "a/", "a//b", "../a", "a/../b", "./a", "a\nb", "a\x1b[2J", "a\x00", "a\u202eb", "x" * 1_025, "é" * 513],
)  # fmt: skip
def test_a_name_that_is_no_path_below_the_place_is_refused(name: str) -> None:
    with pytest.raises(StorageRefused, match=r"^place: ") as caught:
        sort_files("place", [StoredFile(name, 1, "")])
    assert str(caught.value).isprintable()


def test_a_listing_is_sorted_and_bounded_and_names_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [StoredFile(name, 1, "") for name in ("b", "a/c", "ü", "a b")]
    assert [file.name for file in sort_files("place", files)] == ["a b", "a/c", "b", "ü"]
    with pytest.raises(StorageRefused, match="b is there twice"):
        sort_files("place", [*files, files[0]])
    monkeypatch.setattr(port, "MAX_FILES", 3)
    with pytest.raises(StorageRefused, match="has more than 3 files"):
        sort_files("place", files)


def test_without_variables_the_public_places_are_used(home: Path) -> None:
    assert read_environment() == StorageOptions()


def test_variables_and_the_token_file_are_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:4443")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "~/key.json")
    write_files(home, {".cache/huggingface/token": b"hf_default\n", "hf/token": b"hf_file\n"})
    options = read_environment()
    assert options.hub_token == "hf_default"
    assert (options.hub_endpoint, options.google_endpoint) == ("https://mirror.example", "http://127.0.0.1:4443")
    assert options.google_credentials == home / "key.json"
    monkeypatch.setenv("HF_HOME", str(home / "hf"))
    assert read_environment().hub_token == "hf_file"
    monkeypatch.setenv("HF_TOKEN", " hf_variable ")
    assert read_environment().hub_token == "hf_variable"
    assert "hf_variable" not in repr(read_environment())


@pytest.mark.parametrize("token", ["", "a b", "a\r\nhost: x", "ä"])
def test_a_token_that_no_header_can_have_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(ConfigError, match="must be printable ASCII without spaces") as caught:
        StorageOptions(hub_token=token)
    assert not token or token not in str(caught.value)
