"""A local chain for the commands of one file; each test has wallets and runs of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.chain.box import ChainBox, open_chain_box


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChainBox]:
    with open_chain_box(tmp_path_factory.mktemp("wallets")) as box:
        yield box


@pytest.fixture(autouse=True)
def _only_this_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RPC", "RUN_ID", "SERVER_ADDR", "RAW_WALLET_PRIVATE_KEY", "WALLET_PRIVATE_KEY_PATH", "ANCHOR_WALLET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
