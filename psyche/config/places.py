"""Places of models and data as a person names them on a command line: addresses, and names of the Hub."""

import re
from typing import Final

from psyche.core.state.enums import CheckpointKind, DataLocationKind, HttpLocationKind, TokenSize
from psyche.core.state.settings import Checkpoint, DataLocation, HttpLocation
from psyche.durable import expand_user
from psyche.errors import ConfigError, StorageRefused
from psyche.storage.hub import check_repo_id

NUMBERS: Final = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")
_HUB_NAME: Final = re.compile(r"\w[\w.-]*/[\w.-]+(@.+)?", re.ASCII)
MODELS: Final = "owner/name or owner/name@revision on the Hugging Face Hub, or gs://bucket/folder"
DATA: Final = (
    "https://host/tokens.bin, https://host/{000..127}.bin, https://host/mix.json, gs://bucket/folder or "
    "hf://datasets/owner/name"
)


def parse_model(named: str) -> Checkpoint | None:
    """The repository or bucket that is meant; None: a folder or file of this machine.

    Raises:
        ConfigError: it is an address, but of no model.
    """
    if "://" not in named and (expand_user(named).exists() or not _HUB_NAME.fullmatch(named)):
        return None
    return parse_model_address(named)


def parse_model_address(text: str) -> Checkpoint:
    """The repository, or the folder of a bucket, at an address.

    Raises:
        ConfigError: it is neither.
    """
    scheme, found, path = text.rpartition("://")
    if scheme == "gs":
        bucket, _, prefix = path.strip("/").partition("/")
        return Checkpoint(CheckpointKind.GCS, bucket, prefix or None)
    name, _, revision = path.partition("@")
    try:
        check_repo_id(name)
    except StorageRefused:
        name = ""
    if (found and scheme != "hf") or "/" not in name:
        raise ConfigError(f"{text}: is no address of a model; name {MODELS}")
    return Checkpoint(CheckpointKind.HUB, name, revision or None)


def format_address(place: Checkpoint) -> str:
    revision = place.revision or ""
    if place.kind is CheckpointKind.HUB:
        return f"hf://{place.name}{revision and f'@{revision}'}"
    return f"gs://{place.name}/{revision}".rstrip("/")


def parse_data(named: str, token_size_bytes: int) -> DataLocation | None:
    """The data at an address; None: files of this machine. Token files are of this token size, and not shuffled.

    Raises:
        ConfigError: it is an address, but of no data.
    """
    scheme, is_address, path = named.partition("://")
    if not is_address:
        return None
    if scheme == "hf" and path.startswith("datasets/"):
        return DataLocation(DataLocationKind.PREPROCESSED, path.removeprefix("datasets/"))
    if scheme == "gs":
        bucket, _, folder = path.strip("/").partition("/")
        http = HttpLocation(HttpLocationKind.GCP, bucket, filter_directory=folder)
    elif scheme not in ("https", "http"):
        raise ConfigError(f"{named}: no data are read from there; name {DATA}")
    elif re.split("[?#]", path, maxsplit=1)[0].endswith(".json"):
        return DataLocation(DataLocationKind.WEIGHTED_HTTP, named)
    elif numbers := NUMBERS.search(named):
        first, last = numbers.groups()
        if int(last) < int(first) or NUMBERS.search(named, numbers.end()):
            raise ConfigError(f"{named}: must count up in one place, as {{000..127}} does")
        digits = len(first) if first.startswith("0") and len(first) > 1 else 0
        url, count = f"{named[: numbers.start()]}{{}}{named[numbers.end() :]}", int(last) - int(first) + 1
        http = HttpLocation(HttpLocationKind.NUMBERED_FILES, url, "", int(first), digits, count)
    else:
        http = HttpLocation(HttpLocationKind.SINGLE_URL, named)
    size = TokenSize.TWO_BYTES if token_size_bytes == 2 else TokenSize.FOUR_BYTES
    return DataLocation(DataLocationKind.HTTP, "", http, size)
