"""docs/chain.md, as it stands on the page: every command run, in a fresh folder."""

from pathlib import Path

import pytest
import trio
from kits.reader import DEADLINE_S, Reader, read_blocks
from kits.run_files import choose_neighbours

from psyche.testnet.process import stop_all

PAGE = Path(__file__).resolve().parents[2] / "docs" / "chain.md"


@pytest.mark.e2e
@pytest.mark.slow
async def test_the_page_about_a_run_on_a_chain_works_as_it_stands(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "reader", {"8899": str(choose_neighbours())})
    reader.folder.mkdir()
    try:
        for block in read_blocks(PAGE):
            with trio.fail_after(DEADLINE_S):
                await reader.follow(block)
        with trio.fail_after(DEADLINE_S):
            assert await reader.terminals["ada"].wait() == 0
    except BaseException:
        for name, child in reader.terminals.items():
            print(f"--- {name}", *child.get_last_lines(30), sep="\n")
        raise
    finally:
        with trio.move_on_after(60) as scope:
            scope.shield = True
            await stop_all(list(reader.terminals.values()), 10)
