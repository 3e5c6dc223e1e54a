"""A run on the chain in a box, with three real clients: wallets that may join, a pause, a kill, and what is left."""

import io
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import trio
from kits.leftovers import assert_none_of, assert_nothing_left, get_allowed_s, get_hosted_trainers
from kits.run_files import MakeRun
from kits.testnet import call_testnet

from psyche.backends.solana.lookup import find_run
from psyche.backends.solana.rpc.client import open_rpc
from psyche.backends.solana.session import ChainSession
from psyche.chain.cluster import parse_endpoint
from psyche.chain.wallet import Wallet, read_wallet, write_wallet
from psyche.core.state.state import RunState
from psyche.telemetry.console import Console
from psyche.telemetry.events import Line, read_lines
from psyche.testnet.chain import get_rpc_url
from psyche.testnet.commands import get_client_argv, get_owner_argv
from psyche.testnet.prepare import prepare
from psyche.testnet.process import Child
from psyche.testnet.settings import HomeKind, TestnetSettings
from psyche.testnet.supervisor import Testnet, open_testnet

pytestmark = pytest.mark.e2e

DEADLINE_S = 300.0  # only a broken run reaches it
POLL_S = 0.1
ROUNDS = 5
SHORT = {"rounds_per_epoch": ROUNDS, "total_steps": 3 * ROUNDS + 1, "entropy_delay": 4}
EXIT_INTERRUPTED = 130


class ChainRun:
    """A testnet on a local chain, and what its owner and its clients do."""

    def __init__(self, testnet: Testnet) -> None:
        self.testnet = testnet
        self.url = get_rpc_url(testnet.prepared.server_port)
        self.layout = testnet.prepared.layout

    def read(self, number: int, kind: str) -> list[Line]:
        events = read_lines(self.layout.events_of(f"client-{number}"))
        return [line for line in events if line["kind"] == kind]

    async def until(self, number: int, kind: str, **fields: Any) -> None:
        """Until a client's log has such an event."""
        with trio.fail_after(DEADLINE_S):
            while not any(fields.items() <= line.items() for line in self.read(number, kind)):
                await trio.sleep(POLL_S)

    async def command(self, *words: str) -> str:
        """Run a command of the owner."""
        argv = [*get_owner_argv(self.testnet.prepared, self.testnet.settings, words[0]), *words[1:]]
        return await self.call(argv, 0)

    async def call(self, argv: list[str], code: int) -> str:
        output = self.layout.logs / "command.log"
        output.unlink(missing_ok=True)
        child = Child("command", argv, output=output)
        with trio.fail_after(DEADLINE_S):
            assert await child.wait() == code, output.read_text()
        return output.read_text()

    async def get_state(self) -> Any:
        async with open_rpc([parse_endpoint(self.url)]) as rpc:
            session = ChainSession(rpc, None, lambda _quote: None)
            return (await find_run(session, self.testnet.prepared.run.run_id)).state

    async def get_lamports(self, wallet: Wallet) -> int:
        async with open_rpc([parse_endpoint(self.url)]) as rpc:
            return await rpc.get_balance(wallet.pubkey())


def test_three_clients_train_on_a_chain_through_a_pause_and_a_kill(make_run: MakeRun, tmp_path: Path) -> None:
    config = write_local_run(make_run)
    settings = TestnetSettings(
        num_clients=3, config_path=config, run_dir=tmp_path / "run", cache_dir=tmp_path / "cache", sample=False,
        backend=HomeKind.solana, slot_ms=40, device="cpu", threads=1,
    )  # fmt: skip

    async def play() -> None:
        console = Console(io.StringIO(), live=False)
        prepared = await prepare(settings, console.print)
        async with open_testnet(prepared, settings, console) as testnet, trio.open_nursery() as nursery:
            run = ChainRun(testnet)
            await refuse_strangers(run, tmp_path)
            nursery.start_soon(testnet.run_clients)
            await run.until(1, "round_started", epoch=0, height=1)
            await run.command("pause")
            await run.until(2, "state_changed", run_state="paused")
            assert (await run.get_state()).run_state is RunState.PAUSED
            await run.command("resume")
            await run.until(3, "round_started", epoch=1, height=1)
            testnet.kill_client(3)
            with trio.fail_after(DEADLINE_S):
                while any(code is None for code in testnet.exits.values()):
                    await trio.sleep(POLL_S)
            assert testnet.exits == {1: 0, 2: 0, 3: 0}
            await check_the_end(run)

    trio.run(play)


def test_a_testnet_on_a_chain_kills_at_random_and_leaves_nothing_at_ctrl_c(make_run: MakeRun, tmp_path: Path) -> None:
    """The command as a person calls it, on a run that everybody may join."""
    config = write_local_run(make_run, total_steps=10_000, init_min_clients=1, round_witness_time=12)
    options = ["--num-clients", "2", "--backend", "solana", "--slot-ms", "40", "--open-joins", "--threads", "1"]
    options += ["--random-kill-num", "1", "--random-kill-interval", "8", "--allowed-to-kill", "2"]
    with call_testnet(tmp_path / "testnet", config, *options, has_own_host=False) as testnet:
        testnet.wait_for("a kill", lambda: "client-2 is killed" in testnet.output.read_text())
        testnet.wait_for("training", lambda: any(one["kind"] == "trained" for one in testnet.read("client-1")))
        allowed_s, since = get_allowed_s(), time.monotonic()
        testnet.process.send_signal(signal.SIGINT)
        assert testnet.wait() == EXIT_INTERRUPTED, testnet.describe()
        assert time.monotonic() - since <= max(allowed_s, get_allowed_s()), testnet.describe()
        trio.run(assert_nothing_left, testnet.token)
        trio.run(assert_none_of, get_hosted_trainers())
    assert "everybody may join it" in testnet.output.read_text()
    starts = [one for one in testnet.read("testnet") if one["kind"] == "process_started" and one["name"] == "client-2"]
    assert len(starts) >= 2


def write_local_run(make_run: MakeRun, **changes: object) -> Path:
    """A run whose clients read the data themselves: a chain serves none."""
    config = make_run(**{**SHORT, **changes})
    file = config / "run.toml"
    lines = ['Local = "data"' if line.startswith("Server = ") else line for line in file.read_text().splitlines()]
    file.write_text("\n".join(lines))
    return config


async def refuse_strangers(run: ChainRun, folder: Path) -> None:
    """Before a trainer starts: a wallet that nobody has let in, and a run that is not there."""
    prepared, settings = run.testnet.prepared, run.testnet.settings
    argv = get_client_argv(prepared, settings, 1)
    stranger = folder / "stranger.json"
    write_wallet(stranger, Wallet())
    refused = await run.call([*argv, "--wallet-private-key-path", str(stranger)], 1)
    assert "may not join run 'e2e'" in refused
    assert "psyche auth create --authorizer" in refused
    missing = await run.call([*argv, "--run-id", "another"], 1)
    assert "there is no run 'another' on the chain at 127.0.0.1" in missing


async def check_the_end(run: ChainRun) -> None:
    """Equal weights, peers found without a book, known balances, and the deposits back with the owner."""
    digests = {run.read(number, "finished")[-1]["digest"] for number in (1, 2, 3)}
    assert len(digests) == 1
    for number in (1, 2, 3):
        assert max(line["peers"] for line in run.read(number, "network")) == 2
        assert {line["epoch"] for line in run.read(number, "wallet_balance")} >= {0, 1, 2}
    assert len(run.read(3, "client_started")) == 2
    state = await run.get_state()
    assert state.run_state is RunState.FINISHED
    owner = read_wallet(run.layout.owner_wallet)
    before = await run.get_lamports(owner)
    said = await run.command("close")
    assert "came back to" in said
    assert await run.get_lamports(owner) > before + 1_000_000_000  # what the record of 165,192 bytes deposits
