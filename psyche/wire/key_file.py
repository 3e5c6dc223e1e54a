"""Identity keys on disk: written once and atomically, readable by their owner only."""

import secrets
import shlex
from pathlib import Path
from typing import Final

from psyche.core.state.limits import HASH_BYTES
from psyche.durable import create_file, make_folder, read_file, warn_of_others
from psyche.errors import ConfigError
from psyche.wire.crypto import Identity

MAX_KEY_FILE_BYTES: Final = 1_024


def make_identity() -> Identity:
    return Identity(secrets.token_bytes(HASH_BYTES))


def read_key_file(path: Path) -> Identity:
    """Read the key from a file of 64 hex digits or 32 raw bytes.

    Raises:
        ConfigError: the file cannot be read or holds neither.
    """
    try:
        raw = read_file(path, MAX_KEY_FILE_BYTES)
        warn_of_others(path)
    except FileNotFoundError as error:
        raise ConfigError(
            f"identity file {path}: {error.strerror}; make one with "
            f"`psyche client show-identity --identity-secret-key-path {shlex.quote(str(path))} --create`"
        ) from error
    except OSError as error:
        raise ConfigError(f"identity file {path}: {error.strerror}; name a file of 64 hex digits") from error
    if len(raw) != HASH_BYTES:
        try:
            raw = bytes.fromhex(raw.decode("ascii").strip())
        except ValueError as error:
            raise ConfigError(f"identity file {path}: must hold 64 hex digits or 32 raw bytes") from error
    return Identity(raw)


def write_key_file(path: Path, identity: Identity) -> None:
    """Write the secret seed as 64 hex digits, readable by the owner only; never overwrites a file.

    Raises:
        OSError: the file exists already or cannot be created.
    """
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    temporary.touch(mode=0o600, exist_ok=False)
    create_file(path, (identity.seed.hex() + "\n").encode(), temporary)  # a half-written key would block a retry
