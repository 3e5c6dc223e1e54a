"""`psyche client train --rpc`: what is found before a trainer starts."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from kits.chain.box import SOL, ChainBox
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche.backends.solana.cluster import parse_endpoint
from psyche.backends.solana.interface.accounts import InstanceData
from psyche.backends.solana.interface.addresses import EVERYBODY, get_authorization_address, get_instance_address
from psyche.backends.solana.interface.failures import WalletEmpty
from psyche.backends.solana.member.entry import Entry, estimate_epoch_lamports, find_entry
from psyche.backends.solana.rpc.client import open_rpc
from psyche.backends.solana.session import ChainSession
from psyche.backends.solana.wallet import read_wallet
from psyche.core.encoding.account import decode_state
from psyche.core.state.state import Config, Coordinator, DataLocation, DataLocationKind, RunState
from psyche.errors import ConfigError

DEMO = Path(__file__).parents[3] / "config" / "demo-solana" / "run.toml"


def create(box: ChainBox, run_id: str) -> Keypair:
    owner = box.fund(run_id)
    box.call("run", "create", "--state", str(DEMO), "-r", run_id, wallet=run_id)
    return owner


def enter(box: ChainBox, name: str, run_id: str, authorizer: Pubkey | None = None) -> Entry:
    async def find() -> Entry:
        async with open_rpc([parse_endpoint(box.chain.http)]) as rpc:
            session = ChainSession(rpc, read_wallet(box.get_path(name)), lambda _quote: None)
            return await find_entry(session, run_id, authorizer)

    return trio.run(find)


def change_state(box: ChainBox, run_id: str, **changes: object) -> None:
    account = InstanceData.read(box.get_data(get_instance_address(run_id))).coordinator_account
    box.write_state(account, replace(decode_state(box.get_data(account)), **changes))


def test_a_wallet_that_nobody_lets_in_is_told_whom_to_ask(box: ChainBox) -> None:
    owner, stranger = create(box, "closed").pubkey(), box.fund("stranger").pubkey()
    said = box.refuse("client", "train", "--run-id", "closed", wallet="stranger")
    assert f"wallet {stranger} may not join run 'closed': {owner} must run `psyche auth create" in said
    box.call("auth", "create", "--authorizer", str(stranger), wallet="closed")
    found = enter(box, "stranger", "closed")
    assert found.authorization == get_authorization_address(owner, stranger)
    assert found.notes == ()


def test_a_delegate_joins_by_the_authorization_that_it_names(box: ChainBox) -> None:
    owner, main, machine = create(box, "shared").pubkey(), box.fund("main").pubkey(), box.fund("machine").pubkey()
    box.call("auth", "create", "--authorizer", str(main), wallet="shared")
    with pytest.raises(ConfigError, match="that wallet must name yours as its delegate"):
        enter(box, "machine", "shared", main)
    box.call("auth", "delegate", "--join-authority", str(owner), "--delegates-added", str(machine), wallet="main")
    assert enter(box, "machine", "shared", main).authorization == get_authorization_address(owner, main)
    with pytest.raises(ConfigError, match="name that one with --authorizer"):
        enter(box, "machine", "shared")


def test_everybody_joins_an_open_run_that_has_the_lamports_for_an_epoch(box: ChainBox) -> None:
    owner = create(box, "open").pubkey()
    box.fund("empty", 0)
    box.fund("poor", SOL // 1_000)
    box.call("auth", "create", "--authorizer", "everybody", wallet="open")
    with pytest.raises(
        WalletEmpty, match=r"has 0 SOL; an epoch costs about 0\.000855 SOL, and 0\.00089088 SOL must stay in it"
    ):
        enter(box, "empty", "open")
    found = enter(box, "poor", "open")
    assert found.authorization == get_authorization_address(owner, EVERYBODY)
    assert "has 0.001 SOL; an epoch costs about" in found.notes[-1]


def test_who_takes_part_with_a_wrong_clock_is_told_so_and_by_how_much(
    box: ChainBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(box, "timely")
    key = box.fund("late").pubkey()
    box.call("auth", "create", "--authorizer", str(key), wallet="timely")
    right = time.time
    monkeypatch.setattr("psyche.backends.solana.member.entry.time.time", lambda: right() - 7_230)
    found = enter(box, "late", "timely")
    assert found.notes[0].startswith("this machine's clock is 2 h 00 min behind the chain's: set the one that is wrong")


def test_what_cannot_be_trained_on_a_chain_and_what_is_not_there_is_said_at_once(box: ChainBox) -> None:
    create(box, "served")
    box.fund("ada")
    said = box.refuse("client", "train", "--run-id", "nowhere", wallet="ada")
    assert "there is no run 'nowhere' on the chain at 127.0.0.1" in said
    account = InstanceData.read(box.get_data(get_instance_address("served"))).coordinator_account
    model = decode_state(box.get_data(account)).model
    served = replace(model, data_location=DataLocation(DataLocationKind.SERVER, "127.0.0.1:20001"))
    change_state(box, "served", model=served)
    with pytest.raises(ConfigError, match="a chain serves no data"):
        enter(box, "ada", "served")
    change_state(box, "served", run_state=RunState.FINISHED)
    assert enter(box, "ada", "served").notes == ()  # the client says so itself, and ends with 0
    both = box.refuse("client", "train", "--run-id", "served", "--server-addr", "127.0.0.1:1", wallet="ada")
    assert "a run has one backend" in both


def test_an_epoch_is_estimated_by_its_rounds_or_by_its_time() -> None:
    by_rounds = Coordinator(config=Config(rounds_per_epoch=100, min_clients=6))
    assert estimate_epoch_lamports(by_rounds) == 5_000 * (11 + 100 * 2)
    by_time = Coordinator(config=Config(epoch_time=300, min_clients=1))
    assert estimate_epoch_lamports(by_time) == 5_000 * (11 + 100 * 4)
