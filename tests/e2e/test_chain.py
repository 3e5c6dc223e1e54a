"""A run on the chain in a box with real clients, from its first token to its last lamport; and a testnet on one."""

import io
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from kits.chain.owner import RunOwner, run_command
from kits.leftovers import assert_none_of, assert_nothing_left, get_allowed_s, get_hosted_trainers
from kits.run_files import MakeRun
from kits.testnet import CalledTestnet, call_testnet
from solders.pubkey import Pubkey

from psyche.backends.kinds import BackendKind
from psyche.backends.solana.cluster import parse_endpoint
from psyche.backends.solana.rpc.client import open_rpc
from psyche.backends.solana.wallet import Wallet, read_wallet, write_wallet
from psyche.core.state.state import ClientState, RunState
from psyche.telemetry.console import Console
from psyche.telemetry.events import Line, read_lines
from psyche.testnet import supervisor
from psyche.testnet.backends import ChainBackend, Prepared, get_rpc_url
from psyche.testnet.prepare import prepare
from psyche.testnet.process import Child
from psyche.testnet.settings import TestnetSettings
from psyche.testnet.supervisor import Testnet, get_client_argv, open_testnet

pytestmark = pytest.mark.e2e

DEADLINE_S = 300.0  # only a broken run reaches it
POLL_S = 0.1
ROUNDS = 4
SHORT = {"rounds_per_epoch": ROUNDS, "total_steps": 2 * ROUNDS + 4, "entropy_delay": 4}
EXIT_INTERRUPTED = 130
SOL = 10**9
RATE = 1_000_003  # base units of the token for the members of an epoch together: no number of credits divides it
TOKENS = 20_000_000
ABSENT_ROUND_S = 12  # that a round waits for a member that was killed


class PaidRun:
    """A run whose members are paid: its clients' processes, and its owner's commands."""

    def __init__(self, testnet: Testnet, owner: RunOwner, lead: Path) -> None:
        self.testnet, self.owner, self.lead = testnet, owner, lead
        self.layout = testnet.prepared.layout

    def read(self, number: int, kind: str) -> list[Line]:
        events = read_lines(self.layout.events_of(f"client-{number}"))
        return [line for line in events if line["kind"] == kind]

    def get_key(self, number: int) -> Pubkey:
        return read_wallet(self.layout.wallet(number)).pubkey()

    async def until(self, number: int, kind: str, **fields: Any) -> None:
        with trio.fail_after(DEADLINE_S):
            while not any(fields.items() <= line.items() for line in self.read(number, kind)):
                await trio.sleep(POLL_S)

    async def found(self) -> None:
        """Create a run that pays; one client may join by its own wallet, one as a delegate, the third not yet."""
        owner, file = self.owner, self.layout.config / "run.toml"
        known = [*self.testnet.prepared.run.bootstrap]
        file.write_text(f"bootstrap = {json.dumps(known)}\n{file.read_text()}")  # no server keeps a book
        await owner.call("run", "create", "--state", file, "--treasurer-collateral-mint", owner.mint.pubkey())
        for key in (self.get_key(1), read_wallet(self.lead).pubkey()):
            await owner.call("auth", "create", "--authorizer", key)
        added = ("--delegates-added", self.get_key(2))
        await owner.call("auth", "delegate", "--join-authority", owner.key, *added, wallet=self.lead)
        rate = f"{RATE / 10**6:.6f}"
        await self.command("set-future-epoch-rates", "--earning-rate-total-shared", rate)
        await owner.call("rewards", "top-up", "--run-id", owner.run_id, "--collateral-amount", "10")
        await self.command("resume")

    async def command(self, name: str, *words: object) -> str:
        return await self.owner.call("run", name, "--run-id", self.owner.run_id, *words)

    async def refuse_a_stranger(self) -> None:
        """Before a trainer starts: the third client's wallet, which nobody has let in."""
        output = self.layout.logs / "refused.log"
        child = Child("refused", get_client_argv(self.testnet.prepared, self.testnet.settings, 3), output=output)
        with trio.fail_after(DEADLINE_S):
            assert await child.wait() == 1, output.read_text()
        assert f"wallet {self.get_key(3)} may not join run 'e2e'" in output.read_text()
        assert "psyche auth create --authorizer" in output.read_text()

    async def pause_and_resume(self) -> None:
        """In the middle of an epoch, which ends early."""
        await self.until(1, "round_started", epoch=0, height=1)
        await self.command("pause")
        await self.until(2, "state_changed", run_state="paused")
        state = await self.owner.read()
        assert state.run_state is RunState.PAUSED
        assert state.progress.step < 1 + ROUNDS
        await self.command("resume")

    async def kill_for_good(self) -> None:
        """The third client dies in the middle of an epoch; it is out of the record before it comes back."""
        await self.until(3, "round_started", epoch=1, height=1)
        self.testnet.kill_client(3, restart=False)
        with trio.fail_after(DEADLINE_S):
            while not await self._is_out(bytes(self.get_key(3))):
                await trio.sleep(POLL_S)

    async def _is_out(self, signer: bytes) -> bool:
        members = {client.signer: client.state for client in (await self.owner.read()).clients}
        return members.get(signer) is ClientState.DROPPED

    async def until_all_have_ended(self) -> None:
        with trio.fail_after(DEADLINE_S):
            while set(self.testnet.exits.values()) != {0}:
                assert 1 not in self.testnet.exits.values(), self.testnet.exits
                await trio.sleep(POLL_S)

    def check_logs(self) -> None:
        """Equal weights, peers found without a book, known balances."""
        assert len({self.read(number, "finished")[-1]["digest"] for number in (1, 2, 3)}) == 1
        for number in (1, 2, 3):
            assert max(line["peers"] for line in self.read(number, "network")) == 2
            assert {line["epoch"] for line in self.read(number, "wallet_balance")} >= {0, 1, 2}
        assert len(self.read(3, "client_started")) == 2

    async def check_claims(self) -> None:
        """Each member gets what the record says, to the last unit, and the record gives all that was to be earned."""
        state = await self.owner.read()
        assert state.run_state is RunState.FINISHED
        earned = {slot.signer: slot.earned for slot in state.registry.slots}
        assert all(earned.values())
        assert (sum(earned.values()) + state.registry.carry) % RATE == 0, "epochs pay all or carry it over"
        for number in (1, 2, 3):
            wallet = self.layout.wallet(number)
            await self.owner.call("rewards", "claim", "--run-id", self.owner.run_id, wallet=wallet)
            assert await self.owner.get_tokens(self.get_key(number)) == earned.pop(bytes(self.get_key(number)))
        assert not earned

    async def check_replay(self) -> None:
        """Every account along the run is what core makes of the chain's instructions, one by one."""
        nonce = (await self.owner.read()).nonce
        done = await run_command("dev", "replay", str(self.layout.chain_record))
        assert f"nonces 0 to {nonce}:" in done, done
        for name in ("join_run", "warmup_witness", "witness", "tick", "set_paused", "update", "collect"):
            assert f" {name} " in done, done
        assert "the accounts equal what core makes of them after each of" in done

    async def close(self) -> None:
        """Everything that the owner has made is given back."""
        for key in (self.get_key(1), read_wallet(self.lead).pubkey(), "everybody"):
            if key == read_wallet(self.lead).pubkey():
                clear = ("auth", "delegate", "--join-authority", self.owner.key, "--delegates-clear")
                await self.owner.call(*clear, wallet=self.lead)
            await self.owner.call("auth", "delete", "--authorizer", key)
        assert "came back to" in await self.command("close")


def test_three_clients_train_on_a_chain_and_are_paid(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member of its own, a delegate, and one that joins when everybody may; a pause, a kill, claims, the end."""
    config = write_local_run(make_run, min_clients=3, max_round_train_time=ABSENT_ROUND_S)
    settings = TestnetSettings(
        num_clients=3, config_path=config, run_dir=tmp_path / "run", cache_dir=tmp_path / "cache", sample=False,
        backend=BackendKind.solana, slot_ms=40, device="cpu", threads=1, keep=True,
    )  # fmt: skip

    async def play() -> None:
        prepared = await prepare(settings, print)
        async with open_paid_run(prepared, settings, tmp_path, monkeypatch) as run, trio.open_nursery() as nursery:
            owner = run.owner
            before, known = await owner.rpc.get_balance(owner.key), await owner.list_signatures()
            await run.found()
            await run.refuse_a_stranger()
            await owner.call("auth", "create", "--authorizer", "everybody")
            nursery.start_soon(run.testnet.run_clients)
            await run.pause_and_resume()
            await run.kill_for_good()
            nursery.start_soon(run.testnet.run_client, 3)
            await run.until_all_have_ended()
            run.check_logs()
            await run.check_claims()
            await run.check_replay()
            paid = TOKENS - sum([await owner.get_tokens(run.get_key(number)) for number in (1, 2, 3)])
            await run.close()
            assert await owner.get_tokens(owner.key) == paid
            fees = await owner.compute_fees(await owner.list_signatures() - known)
            assert before - await owner.rpc.get_balance(owner.key) == fees, "all deposits are back, to the lamport"

    trio.run(play)


@asynccontextmanager
async def open_paid_run(
    prepared: Prepared, settings: TestnetSettings, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PaidRun]:
    """A testnet whose run is not created yet, and whose second client joins in the name of another wallet."""
    lead = folder / "lead.json"
    write_wallet(lead, Wallet())

    async def create_nothing(*_args: object) -> None:
        pass

    def get_argv(prepared: Prepared, settings: TestnetSettings, number: int) -> list[str]:
        argv = get_client_argv(prepared, settings, number)
        return [*argv, "--authorizer", str(read_wallet(lead).pubkey())] if number == 2 else argv

    monkeypatch.setattr(ChainBackend, "create_run", create_nothing)
    monkeypatch.setattr(supervisor, "get_client_argv", get_argv)
    async with (
        open_testnet(prepared, settings, Console(io.StringIO(), live=False)) as testnet,
        open_rpc([parse_endpoint(get_rpc_url(prepared.server_port))]) as rpc,
    ):
        owner = RunOwner(rpc, prepared.layout.owner_wallet, prepared.run.run_id)
        run = PaidRun(testnet, owner, lead)
        for wallet in (read_wallet(lead).pubkey(), *(run.get_key(number) for number in (1, 2, 3))):
            await owner.fund(wallet, SOL)
        await owner.make_token(TOKENS)
        yield run


@pytest.mark.whole
def test_a_testnet_on_a_chain_kills_at_random_and_leaves_nothing_at_ctrl_c(make_run: MakeRun, tmp_path: Path) -> None:
    """The command as a person calls it, on a run that everybody may join."""
    config = write_local_run(make_run, total_steps=10_000, init_min_clients=1, round_witness_time=12)
    options = ["--num-clients", "2", "--backend", "solana", "--slot-ms", "40", "--open-joins", "--threads", "1"]
    options += ["--random-kill-num", "1", "--random-kill-interval", "8", "--allowed-to-kill", "2"]
    with call_testnet(tmp_path / "testnet", config, *options, has_own_host=False) as testnet:
        testnet.wait_for("a kill and a new start", lambda: count_starts(testnet, "client-2") >= 2)
        testnet.wait_for("training", lambda: any(one["kind"] == "trained" for one in testnet.read("client-1")))
        allowed_s, since = get_allowed_s(), time.monotonic()
        testnet.process.send_signal(signal.SIGINT)
        assert testnet.wait() == EXIT_INTERRUPTED, testnet.describe()
        assert time.monotonic() - since <= max(allowed_s, get_allowed_s()), testnet.describe()
        trio.run(assert_nothing_left, testnet.token)
        trio.run(assert_none_of, get_hosted_trainers())
    assert "everybody may join it" in testnet.output.read_text()
    assert "client-2 is killed (SIGKILL) and started again" in testnet.output.read_text()


def count_starts(testnet: CalledTestnet, name: str) -> int:
    return sum(one["kind"] == "process_started" and one["name"] == name for one in testnet.read("testnet"))


def write_local_run(make_run: MakeRun, **changes: object) -> Path:
    """A run whose clients read the data themselves: a chain serves none."""
    config = make_run(**{**SHORT, **changes})
    file = config / "run.toml"
    lines = ['Local = "data"' if line.startswith("Server = ") else line for line in file.read_text().splitlines()]
    file.write_text("\n".join(lines))
    return config
