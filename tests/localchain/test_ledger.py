"""A chain that is kept on disk goes on where it was."""

from pathlib import Path

import pytest
import trio
from box import NOW, make_bank, open_box, pay
from kits.chain.chain_run import SOL, fund, sign
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.backends.solana.interface.coordinator import Authorities, build_init
from psyche.core.state.limits import STATE_BYTES
from psyche.errors import ConfigError
from psyche.localchain import chain as chain_module
from psyche.localchain.bank import UPGRADEABLE
from psyche.localchain.ledger import FILE, ChainFile


async def test_a_chain_goes_on_where_it_was(tmp_path: Path) -> None:
    to = Keypair().pubkey()
    async with open_box(state=tmp_path) as (chain, _):
        genesis = chain.bank.genesis
        paying = pay(chain.bank, fund(chain.bank), to)
        chain.bank.execute(paying)
        late = pay(chain.bank, fund(chain.bank), to)
        for _ in range(5):
            chain.bank.advance(NOW)
        slot = chain.bank.slot
    async with open_box(state=tmp_path) as (chain, _):
        assert chain.bank.genesis == genesis
        assert chain.bank.slot == slot + 1
        assert chain.bank.get_lamports(to) == SOL
        assert chain.bank.execute(paying) == "AlreadyProcessed"
        assert chain.bank.execute(late) is None


async def test_slots_pass_while_nobody_runs_it(tmp_path: Path) -> None:
    async with open_box(state=tmp_path) as (chain, _):
        slot, height = chain.bank.slot, chain.bank.height
    async with open_box(state=tmp_path, slot_ms=400, unix_time=lambda: NOW + 60) as (chain, _):
        assert chain.bank.slot == slot + 151
        assert chain.bank.height == height + 151


async def test_two_chains_do_not_share_a_folder(tmp_path: Path) -> None:
    async with open_box(state=tmp_path):
        with pytest.raises(ConfigError, match="in use by another chain"):
            async with open_box(state=tmp_path):
                pass


@pytest.mark.parametrize("at", [0, 20, -1])
async def test_a_damaged_file_is_refused_with_the_way_out(tmp_path: Path, at: int) -> None:
    async with open_box(state=tmp_path):
        pass
    raw = bytearray((tmp_path / FILE).read_bytes())
    raw[at] ^= 1
    (tmp_path / FILE).write_bytes(raw)
    with pytest.raises(ConfigError, match="--reset"):
        async with open_box(state=tmp_path):
            pass


async def test_what_has_landed_is_on_disk_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_module, "SAVE_EVERY_S", 0.02)
    key, crashed = Keypair().pubkey(), tmp_path / "crashed"
    async with open_box(state=tmp_path / "chain") as (chain, _):
        chain.bank.airdrop(key, SOL)
        with trio.fail_after(120):
            while not (tmp_path / "chain" / FILE).exists():
                await trio.sleep(0.01)
        crashed.mkdir()  # what a crash at this moment leaves
        (crashed / FILE).write_bytes((tmp_path / "chain" / FILE).read_bytes())
    async with open_box(state=crashed) as (chain, _):
        assert chain.bank.get_lamports(key) == SOL


def test_programs_that_were_deployed_later_are_kept(tmp_path: Path) -> None:
    former = make_bank()
    for key in (COORDINATOR, find_code_address(COORDINATOR)):
        account = former.get_account(key)
        assert account is not None
        former.put_account(key, account)  # as a deployment writes them
    ChainFile(tmp_path).save(former)
    later = ChainFile(tmp_path).load({}, NOW, 0)  # a chain without programs of its own
    assert later is not None
    owner, account = fund(later), Keypair()
    authorities = Authorities(owner.pubkey(), owner.pubkey())
    deposit = later.machine.get_deposit(STATE_BYTES)
    begin = build_init(owner.pubkey(), "kept", account.pubkey(), authorities, "", deposit)
    assert later.execute(sign(later.newest_hash, owner, begin, account)) is None


def find_code_address(program: Pubkey) -> Pubkey:
    return Pubkey.find_program_address([bytes(program)], UPGRADEABLE)[0]
