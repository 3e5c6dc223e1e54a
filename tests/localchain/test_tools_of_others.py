"""Other people's tools join a run on the chain in a box: they share no code with this project, only the interfaces.

They are installed once, from the usual registries, into a cache of the user's: 40 MB of npm's packages and 59 MB of
Python's, in half a minute. After that all of them together take about 10 seconds.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from box import make_mint
from kits.chain.chain_run import BoxedRun, begin_run, fund
from kits.packages import install, install_modules
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.addresses import AUTHORIZER, COORDINATOR
from psyche.backends.solana.interface.idl import find_file, load_idl
from psyche.core.state.limits import STATE_BYTES
from psyche.core.state.state import RunState, SlotState
from psyche.localchain.chain import LocalChain, open_local_chain
from psyche.localchain.legacy_idl import convert_to_legacy

FOLDER = Path(__file__).parent / "strangers"
PACKAGES = FOLDER / "package.json"
ANCHORPY = "anchorpy==0.21.0"
REGISTRY_NOT_FULL = 6109
JOIN_S = 120


@pytest.fixture(scope="module")
def modules() -> Path:
    return install_modules(PACKAGES)


@pytest.fixture(scope="module")
def anchorpy() -> Path:
    """The Python of an environment with anchorpy, which does not go together with ours."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if uv is None:
        pytest.skip("uv is not installed")

    def fill(folder: Path) -> list[list[str]]:
        python = folder / "venv" / "bin" / "python"
        return [
            [uv, "venv", "--quiet", "--python", sys.executable, str(folder / "venv")],
            [uv, "pip", "install", "--quiet", "--python", str(python), ANCHORPY],
        ]

    return install(f"{ANCHORPY} {sys.version_info[:2]}", fill) / "venv" / "bin" / "python"


async def ask(command: list[str], told: dict[str, Any]) -> dict[str, Any]:
    """What a stranger says that was told this."""
    with trio.fail_after(JOIN_S):
        done = await trio.run_process(
            command, stdin=json.dumps(told).encode(), capture_stdout=True, capture_stderr=True, check=False
        )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


async def join(command: list[str], chain: LocalChain, run: BoxedRun, **more: Any) -> dict[str, Any]:
    """Let a stranger join the run; what it saw."""
    told = {
        "http": chain.http,
        "idl": str(find_file("psyche_coordinator.json")),
        "authorizer_idl": str(find_file("psyche_authorizer.json")),
        "program": str(COORDINATOR),
        "authorizer": str(AUTHORIZER),
        "account": str(run.run.account),
        "account_bytes": STATE_BYTES,
        "run_id": run.run_id,
        "grantor": str(run.owner.pubkey()),
        **more,
    }
    said = await ask(command, told)
    (slot,) = [one for one in run.read(chain.bank).registry.slots if str(Pubkey(one.signer)) == said["user"]]
    assert str(Pubkey(slot.p2p)) == said["p2p"]
    return said


async def test_web3_js_joins_and_follows_the_run(modules: Path) -> None:
    async with open_local_chain(slot_ms=50) as chain:
        run = begin_run(chain.bank)
        said = await join(["node", str(FOLDER / "web3.cjs")], chain, run, modules=str(modules))
    assert said["error"] is None
    assert said["changes"][-1][1] == STATE_BYTES
    assert said["logs"] == 1
    assert said["slots"] > 0
    assert said["fee"] == 10_000
    assert said["found"] == [str(run.run.account)]
    assert said["listed"] == 2
    assert f"custom program error: {REGISTRY_NOT_FULL:#x}" in said["refused"]["text"]
    assert said["refused"]["logs"] == 5


@pytest.mark.whole
@pytest.mark.parametrize(("client", "p2p_name"), [("@anchor-lang/core", "p2p"), ("@coral-xyz/anchor", "p2P")])
async def test_anchors_clients_begin_a_run_and_join_another(modules: Path, client: str, p2p_name: str) -> None:
    async with open_local_chain(slot_ms=50) as chain:
        run = begin_run(chain.bank)
        command = ["node", str(FOLDER / "anchor.cjs")]
        said = await join(command, chain, run, modules=str(modules), client=client, p2p_name=p2p_name)
    assert said["instance"] == {"run_id": "anchored", "account": said["own"]}
    assert said["active"] is True
    assert said["events"] == said["keys"] == [said["p2p"]]
    assert (said["paused"], said["states"]) == (RunState.PAUSED, [said["joined"]])
    assert said["joined"] == SlotState.JOINED
    assert said["signers"] == [said["user"]]
    assert said["refused"]["code"] == REGISTRY_NOT_FULL


async def test_web3_js_reads_what_explorers_and_wallets_show(modules: Path) -> None:
    async with open_local_chain(slot_ms=50) as chain:
        owner = fund(chain.bank)
        mint, _ = make_mint(chain.bank, owner)
        told = {"http": chain.http, "modules": str(modules), "mint": str(mint), "program": str(COORDINATOR)}
        said = await ask(["node", str(FOLDER / "explore.cjs")], {**told, "owner": str(owner.pubkey())})
    assert said["sent"]["type"] == "transfer"
    assert said["sent"]["info"]["lamports"] == 5_000_000
    assert said["found"] is True
    assert said["held"] == ["5"]
    assert said["kinds"] == ["mint", "program", 0]
    assert said["votes"] == {"current": [], "delinquent": []}
    counted = ("keys", "blocks", "nodes", "largest", "leaders", "produced")
    assert [said[name] for name in counted] == [3, 1, 1, 1, 3, 1]
    assert said["changes"] > 0


async def test_anchorpy_joins_with_the_legacy_interface(anchorpy: Path, tmp_path: Path) -> None:
    legacy = tmp_path / "legacy.json"
    legacy.write_text(json.dumps(convert_to_legacy(load_idl("coordinator"))))
    async with open_local_chain(slot_ms=50) as chain:
        run = begin_run(chain.bank)
        command = [str(anchorpy), str(FOLDER / "anchorpy_member.py")]
        said = await join(command, chain, run, idl=str(legacy))
    assert said["run_id"] == run.run_id
    assert said["signers"] == [said["user"]]
    assert said["refused"]["code"] == REGISTRY_NOT_FULL
