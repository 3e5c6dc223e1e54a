"""`--validator real`: a validator of Solana's own tools, where one is on the path.

Elsewhere a stand-in takes its place, which accepts the options that solana-test-validator documents, and serves the
chain in a box. So what is tested everywhere is how the validator is started, used and ended, not the validator.
"""

import base64
import stat
import sys
from pathlib import Path

import pytest
import trio
from box import encode
from kits.chain.chain_run import SOL, list_steps, sign
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair

from psyche.backends.solana.interface.addresses import COORDINATOR, EVERYBODY, get_authorization_address
from psyche.backends.solana.interface.coordinator import ChainRun, build_join_run
from psyche.core.encoding.account import decode_state
from psyche.core.state.limits import STATE_BYTES
from psyche.errors import ConfigError
from psyche.localchain.real import VALIDATOR, RealChain, find_tool, open_real_chain

STAND_IN = """
import argparse, pathlib, sys, trio
from solders.pubkey import Pubkey
from psyche.localchain.chain import open_local_chain
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--quiet", action="store_true")
parser.add_argument("--reset", action="store_true")
parser.add_argument("--ledger", type=pathlib.Path, required=True)
parser.add_argument("--bind-address", required=True)
parser.add_argument("--rpc-port", type=int, required=True)
parser.add_argument("--faucet-port", type=int, required=True)
parser.add_argument("--ticks-per-slot", type=int, required=True)
parser.add_argument("--bpf-program", nargs=2, action="append", default=[])
told = parser.parse_args()
programs = {Pubkey.from_string(key): pathlib.Path(path).read_bytes() for key, path in told.bpf_program}
async def main():
    slot_ms = told.ticks_per_slot * 6.25
    async with open_local_chain(host=told.bind_address, port=told.rpc_port, slot_ms=slot_ms, programs=programs):
        await trio.sleep_forever()
trio.run(main)
"""


def put_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    path = folder / VALIDATOR
    path.write_text(f"#!{sys.executable}\n{program}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


async def send(chain: RealChain, payer: Keypair, instructions: list[Instruction], *signers: Keypair) -> None:
    """Send a transaction until it is confirmed."""
    latest = await chain.call("getLatestBlockhash", {"commitment": "confirmed"})
    signed = sign(Hash.from_string(latest["value"]["blockhash"]), payer, instructions, *signers)
    options = {"encoding": "base64", "preflightCommitment": "confirmed"}
    signature = await chain.call("sendTransaction", encode(signed), options)
    with trio.fail_after(60):
        while True:
            (status,) = (await chain.call("getSignatureStatuses", [signature]))["value"]
            if status and status["confirmationStatus"] != "processed":
                assert status["err"] is None
                return
            await trio.sleep(0.1)


async def play(chain: RealChain) -> None:
    """A run is begun, resumed and joined."""
    owner, user, p2p, account = Keypair(), Keypair(), Keypair(), Keypair()
    for wallet in (owner, user):
        await chain.fund(str(wallet.pubkey()), 10 * SOL)
    key, run = owner.pubkey(), ChainRun.find("real", account.pubkey())
    deposit = await chain.call("getMinimumBalanceForRentExemption", STATE_BYTES)
    for instructions, signers in list_steps(key, "real", run, account, deposit):
        await send(chain, owner, instructions, *signers)
    grant = get_authorization_address(key, EVERYBODY)
    await send(chain, user, [build_join_run(run, user.pubkey(), p2p.pubkey(), grant, 0)], p2p)
    found = await chain.call("getAccountInfo", str(run.account), {"encoding": "base64", "commitment": "confirmed"})
    state = decode_state(base64.b64decode(found["value"]["data"][0]))
    assert found["value"]["owner"] == str(COORDINATOR)
    assert [slot.signer for slot in state.registry.slots] == [bytes(user.pubkey())]


@pytest.fixture
def tool() -> str:
    try:
        return find_tool()[0]
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.mark.e2e
async def test_a_run_begins_on_a_real_validator(tool: str) -> None:
    async with open_real_chain(slot_ms=100) as chain:
        assert chain.tool == tool
        await play(chain)


@pytest.mark.whole
async def test_the_validator_is_started_with_the_programs_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(tmp_path, monkeypatch, STAND_IN)
    async with open_real_chain(slot_ms=50) as chain:
        assert chain.tool == VALIDATOR
        await play(chain)
    with pytest.raises(OSError, match="all attempts"):
        await trio.open_tcp_stream("127.0.0.1", int(chain.http.rpartition(":")[2]))


async def test_one_that_does_not_start_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(tmp_path, monkeypatch, "import sys; sys.exit('no room for a ledger')")
    with pytest.raises(ConfigError, match=r"(?s)ended with 1.*no room for a ledger"):
        async with open_real_chain(slot_ms=400):
            pass


async def test_without_one_on_the_path_the_way_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="leave --validator out"):
        async with open_real_chain(slot_ms=400):
            pass
