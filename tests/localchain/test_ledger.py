"""A chain that is kept on disk goes on where it was."""

from pathlib import Path

import pytest
from box import NOW, SOL, fund, open_box, pay
from solders.keypair import Keypair

from psyche.errors import ConfigError
from psyche.localchain.ledger import FILE


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
