"""`psyche dev deploy`, and what clients make of the programs that are on a chain."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from kits.chain.box import SOL, ChainBox
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from test_run_on_chain import create, put_file, read_state
from typer.testing import CliRunner

from psyche.backends.port import TargetOptions
from psyche.backends.solana.interface.addresses import SOURCE_IDS, ProgramIds, use_program_ids
from psyche.backends.solana.interface.idl import find_file
from psyche.backends.solana.programs import deployment
from psyche.backends.solana.programs.loader import DATA_HEADER_BYTES, UPGRADEABLE, find_data_address
from psyche.backends.solana.programs.vouching import read_program_ids, replace_ids
from psyche.backends.solana.target import SolanaTarget
from psyche.backends.solana.wallet import read_wallet
from psyche.cli.app import app
from psyche.core.state.state import RunState
from psyche.errors import BackendError

PRIORITY = 1_000_000  # lamports at most: on a slow machine hashes of these fast blocks expire, and parts are sent again


@pytest.fixture(autouse=True)
def _ids_of_the_sources_afterwards() -> Iterator[None]:
    yield
    use_program_ids(SOURCE_IDS)


@pytest.fixture(scope="module")
def said(box: ChainBox) -> str:
    """The programs on the chain of this file; returns what the command printed."""
    box.fund("deployer", 20 * SOL)
    return deploy(box, "programs", "deployer", "--sbpf-v3")


def deploy(box: ChainBox, keys: str, wallet: str, *more: str) -> str:
    return box.call("dev", "deploy", "--keys", str(box.folder / keys), *more, wallet=wallet)


def get_file(box: ChainBox) -> Path:
    return box.folder / "programs" / "program-ids.toml"


def get_ids(box: ChainBox, keys: str = "programs") -> ProgramIds:
    return ProgramIds(*(read_wallet(box.folder / keys / f"{name}.json").pubkey() for name in ProgramIds._fields))


def enter(box: ChainBox, run_id: str, wallet: str, file: Path | None) -> str:
    """What a client finds out of the programs before it starts a trainer."""
    options = TargetOptions(
        run_id=run_id, rpc=box.chain.http, wallet_private_key_path=box.get_path(wallet), program_ids=file
    )
    return trio.run(SolanaTarget(options).check).notes[-1]


@contextmanager
def changed_code(box: ChainBox, program: Pubkey, at: int, new: bytes) -> Iterator[None]:
    """Let the account with a program's bytes have others at a place."""
    key = find_data_address(program)
    data = box.get_data(key)
    box.put(key, UPGRADEABLE, data[:at] + new + data[at + len(new) :])
    yield
    box.put(key, UPGRADEABLE, data)


@pytest.mark.whole
def test_programs_get_their_own_addresses_for_the_price_that_was_named(box: ChainBox, said: str) -> None:
    wallet = read_wallet(box.get_path("deployer")).pubkey()
    fee, count, deposit = re.findall(r"costs ([\d.]+) SOL for (\d+) transactions, and a deposit of ([\d.]+) SOL", said)[
        0
    ]
    spent = 20 * SOL - box.get_lamports(wallet)
    assert 0 <= spent - round((float(fee) + float(deposit)) * SOL) <= PRIORITY
    assert int(count) > 900
    (cluster,) = read_program_ids(get_file(box))
    for name, address in get_ids(box)._asdict().items():
        source = find_file(f"v3/psyche_{name}.so").read_bytes()
        on_chain = box.get_data(find_data_address(address))[DATA_HEADER_BYTES:]
        assert on_chain == replace_ids(source, SOURCE_IDS, get_ids(box))
        found = cluster.programs[name]
        assert (found.address, found.size_bytes, found.upgrade_authority) == (str(address), len(source), str(wallet))
        assert f"{found.sha256}  v3/psyche_{name}.so" in find_file("SHA256SUMS").read_text()
        assert f"{address}  SHA-256 {found.sha256}" in said
        idl = json.loads(CliRunner().invoke(app, ["dev", "idl", name, "--program-ids", str(get_file(box))]).output)
        assert idl["address"] == str(address)
        assert (box.folder / "programs" / f"{name}.json").stat().st_mode & 0o777 == 0o600
    assert f"upgrade authority: {wallet} can change coordinator, authorizer, treasurer" in said


@pytest.mark.whole
def test_a_run_that_pays_lives_at_these_addresses_and_nowhere_else(
    box: ChainBox, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said
    monkeypatch.setenv("PSYCHE_PROGRAM_IDS", str(get_file(box)))
    create(box, "deployed", "--treasurer-collateral-mint", str(box.put_mint()))
    box.fund("ada")
    box.call("auth", "create", "--authorizer", "everybody", wallet="deployed")
    box.call("run", "resume", "-r", "deployed", wallet="deployed")
    assert read_state(box, "deployed").run_state is RunState.WAITING_FOR_MEMBERS
    assert "can change coordinator, authorizer, treasurer" in enter(box, "deployed", "ada", get_file(box))
    monkeypatch.delenv("PSYCHE_PROGRAM_IDS")
    assert "there is no run 'deployed'" in box.refuse("run", "info", "-r", "deployed")
    option = ("--program-ids", str(get_file(box)))
    box.call("run", "pause", "-r", "deployed", *option, wallet="deployed")
    assert "deployed" in box.call("run", "list", *option)
    elsewhere = box.refuse("client", "train", "--run-id", "nowhere", *option, wallet="ada")
    assert f"--program-ids {get_file(box)}` shows its runs" in elsewhere
    box.call("run", "close", "-r", "deployed", *option, wallet="deployed")


@pytest.mark.whole
def test_a_client_refuses_programs_that_the_owner_does_not_vouch_for(box: ChainBox, said: str) -> None:
    assert said
    box.fund("bea")
    coordinator = get_ids(box).coordinator
    authority, stranger = read_wallet(box.get_path("deployer")).pubkey(), Keypair().pubkey()
    has = rf"another coordinator at {coordinator}: the SHA-256 of its bytes is [0-9a-f]{{64}}, and .*program-ids.toml "
    for at, new in ((200_000, b"?"), (-1, b"?"), (DATA_HEADER_BYTES, bytes(SOURCE_IDS.coordinator))):
        with changed_code(box, coordinator, at, new), pytest.raises(BackendError, match=has) as refused:
            enter(box, "any", "bea", get_file(box))
        assert f"Its upgrade authority is {authority}" in str(refused.value)
    named = rf"upgrade authority of the coordinator at {coordinator} is {stranger}, and .* names {authority}"
    with changed_code(box, coordinator, 13, bytes(stranger)), pytest.raises(BackendError, match=named):
        enter(box, "any", "bea", get_file(box))
    assert "there is no run 'any'" in box.refuse("client", "train", "--run-id", "any", wallet="bea")


@pytest.mark.whole
def test_a_deployment_that_was_cut_off_goes_on_and_pays_nothing_twice(
    box: ChainBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    wallet = box.fund("careful", 20 * SOL).pubkey()
    write, written = deployment._write_parts, []

    async def write_some(*arguments: object) -> None:
        written.append(arguments)
        if len(written) == 3:
            raise BackendError("cut off")
        await write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(deployment, "_write_parts", write_some)
    assert "cut off" in box.refuse("dev", "deploy", "--keys", str(box.folder / "cut"), wallet="careful")
    again = deploy(box, "cut", "careful")
    assert int(re.findall(r"for (\d+) transactions", again)[0]) < 1_000
    parts = sum(
        -(-find_file(f"psyche_{name}.so").stat().st_size // deployment.PART_BYTES) for name in SOURCE_IDS._fields
    )
    sizes = [find_file(f"psyche_{name}.so").stat().st_size for name in SOURCE_IDS._fields]
    rent = sum((128 + DATA_HEADER_BYTES + size + 128 + 36) * 6_960 for size in sizes)
    parts = sum(-(-size // deployment.PART_BYTES) for size in sizes)
    assert 0 <= 20 * SOL - box.get_lamports(wallet) - rent - 5_000 * (parts + 3 * 4) <= PRIORITY
    assert "upgrade the coordinator" not in again
    box.call("dev", "deploy", "--keys", str(box.folder / "cut"), "--close", wallet="careful")
    assert box.get_lamports(wallet) > 20 * SOL - SOL // 100 - 3 * (128 + 36) * 6_960
    assert "was closed" in box.refuse("dev", "deploy", "--keys", str(box.folder / "cut"), wallet="careful")


@pytest.mark.whole
def test_a_newer_build_takes_the_place_of_a_shorter_one_until_nobody_may_change_it(box: ChainBox, said: str) -> None:
    assert said
    box.fund("other", 20 * SOL)
    owner = read_wallet(box.get_path("deployer")).pubkey()
    keys = ("--keys", str(box.folder / "programs"))
    assert f"{owner} may change it on this chain, not wallet" in box.refuse("dev", "deploy", *keys, wallet="other")
    before, had = read_program_ids(get_file(box))[0].programs, box.get_lamports(owner)
    price = re.findall(r"costs ([\d.]+) SOL for .* a deposit of ([\d.]+) SOL", deploy(box, "programs", "deployer"))[0]
    after = read_program_ids(get_file(box))[0].programs
    for name in SOURCE_IDS._fields:
        assert before[name].address == after[name].address
        assert f"{after[name].sha256}  psyche_{name}.so" in find_file("SHA256SUMS").read_text()
    assert SOL // 10 < had - box.get_lamports(owner) < sum(float(part) for part in price) * SOL
    assert "nobody can change coordinator" in deploy(box, "programs", "deployer", "--final")
    assert read_program_ids(get_file(box))[0].programs["coordinator"].upgrade_authority == "nobody"
    assert "nobody may change it on this chain" in box.refuse("dev", "deploy", *keys, "--sbpf-v3", wallet="deployer")
    assert "nobody may change it on this chain" in box.refuse("dev", "deploy", *keys, "--close", wallet="deployer")


def test_another_chains_file_and_wrong_options_are_refused_by_name(box: ChainBox, tmp_path: Path) -> None:
    put_file(tmp_path)
    file = tmp_path / "ids.toml"
    file.write_text('[[cluster]]\nname = "devnet"\ngenesis_hash = "G1"\n')
    said = box.refuse("run", "list", "--program-ids", str(file))
    assert f"--program-ids {file}: is for devnet (genesis hash G1), and this chain has the genesis hash" in said
    assert "missing.toml" in box.refuse("run", "list", "--program-ids", str(tmp_path / "missing.toml"))
