"""The page about serving as it stands: each command run, and its program in Python."""

import sys
from pathlib import Path

import pytest
import trio
from kits.reader import DEADLINE_S, DOCS, open_reader, read_blocks
from serving.letters import make_letters_model

from psyche.testnet.free_port import choose_port


@pytest.mark.e2e
@pytest.mark.whole
async def test_the_page_about_serving_works_as_it_stands(tmp_path: Path) -> None:
    blocks = read_blocks(DOCS / "serve.md")
    port = str(choose_port())
    async with open_reader(tmp_path / "reader", {"8000": port}) as reader:
        make_letters_model(reader.folder / "my-run" / "model", 0)
        for block in [block for block in blocks if block.language == "bash"]:
            with trio.fail_after(DEADLINE_S):
                await reader.follow(block)
        (program,) = [block.text.replace("8000", port) for block in blocks if block.language == "python"]
        with trio.fail_after(DEADLINE_S):
            await trio.run_process([sys.executable, "-c", program])
        assert any("answers now" in line for line in reader.terminals["server"].get_last_lines(20))
