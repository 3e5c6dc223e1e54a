"""What an address or a name on a command line means."""

from pathlib import Path

import pytest

from psyche.config.places import parse_data, parse_model
from psyche.core.state.enums import CheckpointKind, DataLocationKind, HttpLocationKind, TokenSize
from psyche.core.state.settings import Checkpoint, HttpLocation
from psyche.errors import ConfigError

HUB, GCS = CheckpointKind.HUB, CheckpointKind.GCS
NUMBERED, SINGLE = HttpLocationKind.NUMBERED_FILES, HttpLocationKind.SINGLE_URL


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("owner/name", Checkpoint(HUB, "owner/name")),
        ("owner/name@v1.0/x", Checkpoint(HUB, "owner/name", "v1.0/x")),
        ("hf://owner/name@main", Checkpoint(HUB, "owner/name", "main")),
        ("gs://bucket", Checkpoint(GCS, "bucket")),
        ("gs://bucket/a/b/", Checkpoint(GCS, "bucket", "a/b")),
        ("here/model", None),
        ("./owner/name", None),
        ("/owner/name", None),
        ("name", None),
    ],
)
def test_a_model_is_a_folder_that_is_here_or_else_a_repository_or_bucket(
    named: str, meant: Checkpoint | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "model").mkdir(parents=True)
    assert parse_model(named) == meant


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("https://h/t.bin", HttpLocation(SINGLE, "https://h/t.bin")),
        ("https://h/{7..12}.bin?a", HttpLocation(NUMBERED, "https://h/{}.bin?a", "", 7, 0, 6)),
        ("https://h/{007..012}", HttpLocation(NUMBERED, "https://h/{}", "", 7, 3, 6)),
        ("https://h/{0..0}", HttpLocation(NUMBERED, "https://h/{}", "", 0, 0, 1)),
        ("gs://bucket/a/b", HttpLocation(HttpLocationKind.GCP, "bucket", "a/b")),
    ],
)
def test_token_files_are_at_one_address_at_numbered_ones_or_in_a_bucket(named: str, meant: HttpLocation) -> None:
    location = parse_data(named, 4)
    assert location is not None
    assert (location.http, location.token_size) == (meant, TokenSize.FOUR_BYTES)


def test_a_json_is_a_mix_and_a_data_set_of_the_hub_has_prepared_rows() -> None:
    mix, rows = parse_data("https://h/m.json#sha256=0", 2), parse_data("hf://datasets/o/n@c", 2)
    assert mix is not None
    assert (mix.kind, mix.address) == (DataLocationKind.WEIGHTED_HTTP, "https://h/m.json#sha256=0")
    assert rows is not None
    assert (rows.kind, rows.address) == (DataLocationKind.PREPROCESSED, "o/n@c")
    assert parse_data("folder/with.bin", 2) is None


@pytest.mark.parametrize("named", ["hf://owner/name", "s3://bucket/x", "https://h/{9..1}", "https://h/{0..1}/{0..1}"])
def test_other_addresses_are_no_data_and_the_error_names_those_that_are(named: str) -> None:
    with pytest.raises(ConfigError, match=r"https://host/\{000\.\.127\}|count up in one place, as \{000\.\.127\}"):
        parse_data(named, 2)
