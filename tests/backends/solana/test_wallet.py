"""Wallet files: what is read, what is refused and why, and that no secret is ever shown."""

import json
import stat
import traceback
from pathlib import Path

import pytest
from solders.keypair import Keypair

from psyche.backends.solana.wallet import parse_wallet, read_wallet, write_wallet
from psyche.errors import ConfigError

WALLET = Keypair.from_seed(bytes(range(200, 232)))
NUMBERS = json.dumps(list(bytes(WALLET)))


@pytest.mark.parametrize(
    "raw",
    [NUMBERS.encode(), f"  {NUMBERS}\n".encode(), str(WALLET).encode(), bytes(WALLET), bytes(WALLET)[:32]],
    ids=["numbers", "numbers with blanks", "base58", "64 raw bytes", "32 raw bytes"],
)
def test_a_wallet_is_read_in_each_form(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "wallet").write_bytes(raw)
    assert read_wallet(tmp_path / "wallet") == WALLET


def test_an_ascii_seed_of_32_bytes_is_read() -> None:
    seed = b"abcdefghijklmnopqrstuvwxyz012345"
    assert parse_wallet(seed, "wallet") == Keypair.from_seed(seed)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "a text of 0 characters that is no key"),
        (b"\xff" * 33, "33 bytes that are no key"),
        (b"[1, 2, 3]", "3 bytes, must be 64"),
        (b"[1, 256]", "numbers from 0 to 255"),
        (b'["a"]', "numbers from 0 to 255"),
        (b"[1, 2", "numbers from 0 to 255"),
        (str(WALLET)[:-4].encode(), "that is no key"),
        (json.dumps([*bytes(WALLET)[:63], 0]).encode(), "does not belong to the secret half"),
    ],
)
def test_what_is_no_key_is_refused_with_the_reason(raw: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "wallet").write_bytes(raw)
    with pytest.raises(ConfigError, match=reason) as refused:
        read_wallet(tmp_path / "wallet")
    assert str(refused.value).startswith(f"wallet {tmp_path / 'wallet'}: ")


def test_a_secret_is_in_no_error_and_no_traceback() -> None:
    damaged = bytes(WALLET)[:63] + b"\0"
    for raw in (str(WALLET)[:-2].encode(), damaged, json.dumps(list(damaged)).encode()):
        with pytest.raises(ConfigError) as refused:
            parse_wallet(raw, "wallet")
        shown = "".join(traceback.format_exception(refused.value))
        assert str(WALLET)[:20] not in shown
        assert NUMBERS[1:30] not in shown


def test_a_missing_and_an_endless_file_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="solana-keygen new"):
        read_wallet(tmp_path / "none")
    (tmp_path / "large").write_bytes(bytes(5_000))
    with pytest.raises(ConfigError, match="more than 4,096 bytes"):
        read_wallet(tmp_path / "large")


def test_a_written_wallet_is_for_its_owner_only_and_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "new" / "wallet.json"
    write_wallet(path, WALLET)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == list(bytes(WALLET))
    with pytest.raises(FileExistsError):
        write_wallet(path, Keypair())
    assert read_wallet(path) == WALLET
    assert [one.name for one in path.parent.iterdir()] == ["wallet.json"]
