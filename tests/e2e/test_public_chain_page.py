"""docs/public-chain.md, as it stands on the page, on a chain of this machine: deployment and end included."""

from pathlib import Path

import pytest
import trio
from kits.reader import DEADLINE_S, Block, open_reader, read_blocks
from kits.run_files import choose_neighbours

PAGE = Path(__file__).resolve().parents[2] / "docs" / "public-chain.md"


@pytest.mark.e2e
@pytest.mark.whole
async def test_the_page_about_a_public_chain_works_as_it_stands(tmp_path: Path) -> None:
    port = choose_neighbours()
    http = f"http://127.0.0.1:{port}"
    command = f"psyche dev validator --port {port} --slot-ms 50 --wallet any.json"
    async with open_reader(tmp_path / "reader", {"devnet": http}) as reader:
        blocks = [block for block in read_blocks(PAGE) if block.language == "bash"]
        assert any("dev deploy --close" in block.text for block in blocks)
        with trio.fail_after(DEADLINE_S):
            await reader.follow(Block("bash", {"terminal": "chain"}, command))
            while not any("genesis hash" in line for line in reader.terminals["chain"].get_last_lines(30)):
                await trio.sleep(0.1)
        for block in blocks:
            with trio.fail_after(DEADLINE_S):
                await reader.follow(block)
        with trio.fail_after(DEADLINE_S):
            assert await reader.terminals["ada"].wait() == 0
        said = "\n".join(reader.terminals["ada"].get_last_lines(1_000))
        assert "can change coordinator, authorizer, treasurer" in said
