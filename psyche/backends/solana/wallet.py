"""Wallets: the keys that own runs, join them and pay for transactions. A secret never stands in an error or a log."""

import os
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec
from solders.keypair import Keypair
from solders.signature import Signature

from psyche.backends.solana.cluster import read_cli_config
from psyche.durable import create_file, expand_user, make_folder, read_file, warn_of_others
from psyche.errors import ConfigError

Wallet: TypeAlias = Keypair  # for those who hold one without touching solders
SEED_BYTES: Final = 32
SECRET_BYTES: Final = 64  # the seed, then the public key that follows from it
MAX_FILE_BYTES: Final = 4_096
RAW_VARIABLE: Final = "RAW_WALLET_PRIVATE_KEY"
FORMS: Final = "a solana-keygen file (64 numbers), a key of 64 bytes in base58, or 32 or 64 raw bytes"


def read_wallet(path: Path) -> Keypair:
    try:
        raw = read_file(path, MAX_FILE_BYTES)
        warn_of_others(path)
    except FileNotFoundError as error:
        raise ConfigError(
            f"wallet {path}: {error.strerror}; make one with `solana-keygen new -o {shlex.quote(str(path))}` or "
            f"`psyche client show-wallet --wallet-private-key-path {shlex.quote(str(path))} --create`"
        ) from error
    except OSError as error:
        raise ConfigError(f"wallet {path}: {error.strerror}; it must be {FORMS}") from error
    return parse_wallet(raw, f"wallet {path}")


def parse_wallet(raw: bytes, where: str) -> Keypair:
    """Read a wallet from the content of a file or a variable; `where` names it in errors."""
    if len(raw) in (SEED_BYTES, SECRET_BYTES) and not raw.isascii():
        return _build(raw, where)
    try:
        text = raw.decode("ascii").strip()
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: {len(raw)} bytes that are no key; it must be {FORMS}") from None
    if text.startswith("["):
        return _build(_read_numbers(text, where), where)
    try:
        return _build(bytes(Signature.from_string(text)), where)  # 64 bytes in base58 have the form of a signature
    except ValueError:
        pass
    if len(raw) in (SEED_BYTES, SECRET_BYTES):
        return _build(raw, where)
    raise ConfigError(f"{where}: a text of {len(text)} characters that is no key; it must be {FORMS}")


def _read_numbers(text: str, where: str) -> bytes:
    try:
        return bytes(msgspec.json.decode(text, type=list[int]))
    except (ValueError, msgspec.MsgspecError):
        raise ConfigError(f"{where}: the list must hold {SECRET_BYTES} numbers from 0 to 255") from None


def _build(raw: bytes, where: str) -> Keypair:
    if len(raw) not in (SEED_BYTES, SECRET_BYTES):
        raise ConfigError(f"{where}: {len(raw)} bytes, must be {SECRET_BYTES}")
    wallet = Keypair.from_seed(raw[:SEED_BYTES])
    if len(raw) == SECRET_BYTES and bytes(wallet.pubkey()) != raw[SEED_BYTES:]:
        raise ConfigError(f"{where}: the public half does not belong to the secret half; the file is damaged")
    return wallet


class FoundWallet(NamedTuple):
    key: Keypair
    note: str = ""  # for its owner


def find_wallet(path: Path | None, environment: Mapping[str, str] = os.environ) -> FoundWallet:
    """Find the wallet: RAW_WALLET_PRIVATE_KEY, else the file `path`, ANCHOR_WALLET, or that of the Solana CLI."""
    if raw := environment.get(RAW_VARIABLE):
        is_passed_over = path is not None and not environment.get("WALLET_PRIVATE_KEY_PATH")
        note = f"{RAW_VARIABLE} is set, so {path} is not used" if is_passed_over else ""
        return FoundWallet(parse_wallet(raw.encode(), RAW_VARIABLE), note)
    if path is None and (named := environment.get("ANCHOR_WALLET")):
        path = Path(named)
    if path is None and (config := read_cli_config()):
        path = config.wallet
    if path is None:
        raise ConfigError(f"no wallet: name its file with --wallet-private-key-path, or set {RAW_VARIABLE} to its key")
    return FoundWallet(read_wallet(expand_user(path)))


def write_wallet(path: Path, wallet: Keypair) -> None:
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    create_file(path, msgspec.json.encode(list(bytes(wallet))), temporary)
