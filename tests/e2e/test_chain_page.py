"""docs/chain.md, as it stands on the page: every command run, in a fresh folder."""

from pathlib import Path

import pytest
import trio
from kits.reader import DEADLINE_S, open_reader, read_blocks
from kits.run_files import choose_neighbours

from psyche.testnet.free_port import choose_port

PAGE = Path(__file__).resolve().parents[2] / "docs" / "chain.md"


@pytest.mark.e2e
@pytest.mark.whole
async def test_the_page_about_a_run_on_a_chain_works_as_it_stands(tmp_path: Path) -> None:
    here = {"8899": str(choose_neighbours()), "4001": str(choose_port()), "192.0.2.7": "127.0.0.1"}
    async with open_reader(tmp_path / "reader", here) as reader:
        for block in read_blocks(PAGE):
            with trio.fail_after(DEADLINE_S):
                await reader.follow(block)
        with trio.fail_after(DEADLINE_S):
            assert [await reader.terminals[name].wait() for name in ("ada", "ben")] == [0, 0]
