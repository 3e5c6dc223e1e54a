"""Keys of identities on disk: made once, whole or not there, readable by their owner alone."""

import secrets
from pathlib import Path

from psyche.core.state.limits import HASH_BYTES
from psyche.durable import create_file, make_folder
from psyche.errors import ConfigError
from psyche.wire.crypto import Identity


def make_identity() -> Identity:
    """A fresh key, in no file yet."""
    return Identity(secrets.token_bytes(HASH_BYTES))


def read_key_file(path: Path) -> Identity:
    """The key in a file of 64 hex digits, or of 32 raw bytes.

    Raises:
        ConfigError: the file is missing or holds neither.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"identity file {path}: {error.strerror}; make one with "
            f"`psyche client show-identity --identity-secret-key-path {path} --create`"
        ) from error
    if len(raw) != HASH_BYTES:
        try:
            raw = bytes.fromhex(raw.decode("ascii").strip())
        except ValueError as error:
            raise ConfigError(f"identity file {path}: neither 64 hex digits nor 32 bytes") from error
    return Identity(raw)


def write_key_file(path: Path, identity: Identity) -> None:
    """Write the secret seed as 64 hex digits, readable by the owner alone; never overwrites.

    Raises:
        OSError: there is such a file, or it cannot be made.
    """
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    temporary.touch(mode=0o600, exist_ok=False)
    create_file(path, (identity.seed.hex() + "\n").encode(), temporary)  # a half key would be in everybody's way
