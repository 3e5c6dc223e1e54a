"""The tutorial and the pages about chains, as they stand: every command run, in a fresh folder."""

from pathlib import Path

import pytest
import trio
from kits.reader import DEADLINE_S, Block, Reader, open_reader, read_blocks
from kits.run_files import choose_neighbours

from psyche.testnet.free_port import choose_port

DOCS = Path(__file__).resolve().parents[2] / "docs"
WORDS = ("psyche init", "run pause", "run resume", "kill -9", "client train")


def test_every_command_of_the_tutorial_is_one_line_and_it_shows_pause_kill_and_resume() -> None:
    commands = [block.text for block in read_blocks(DOCS / "tutorial.md") if block.language == "bash"]
    assert all(text.count("\n") == 1 for text in commands)
    assert all(word in "".join(commands) for word in WORDS)


async def test_a_reader_stops_at_the_line_of_a_block_that_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="No such file"):
        await Reader(tmp_path, {}).follow(Block("bash", {}, "ls missing\necho goes on\n"))


async def follow(reader: Reader, blocks: list[Block]) -> None:
    for block in blocks:
        with trio.fail_after(DEADLINE_S):
            await reader.follow(block)


@pytest.mark.e2e
@pytest.mark.whole
async def test_the_tutorial_works_as_it_stands(tmp_path: Path) -> None:
    async with open_reader(tmp_path / "reader", {"19400": str(choose_neighbours())}, first=("ada", "ben")) as reader:
        await follow(reader, read_blocks(DOCS / "tutorial.md"))
    assert {name: child.returncode for name, child in reader.terminals.items()} == {"server": 0, "ada": 130, "ben": 130}


@pytest.mark.e2e
@pytest.mark.whole
async def test_the_page_about_a_run_on_a_chain_works_as_it_stands(tmp_path: Path) -> None:
    here = {"8899": str(choose_neighbours()), "4001": str(choose_port()), "192.0.2.7": "127.0.0.1"}
    async with open_reader(tmp_path / "reader", here) as reader:
        await follow(reader, read_blocks(DOCS / "chain.md"))
        with trio.fail_after(DEADLINE_S):
            assert [await reader.terminals[name].wait() for name in ("ada", "ben")] == [0, 0]


@pytest.mark.e2e
@pytest.mark.whole
async def test_the_page_about_a_public_chain_works_as_it_stands(tmp_path: Path) -> None:
    """On a chain of this machine: deployment and end included."""
    port = choose_neighbours()
    command = f"psyche dev validator --port {port} --slot-ms 50 --wallet any.json"
    async with open_reader(tmp_path / "reader", {"devnet": f"http://127.0.0.1:{port}"}) as reader:
        blocks = [block for block in read_blocks(DOCS / "public-chain.md") if block.language == "bash"]
        assert any("dev deploy --close" in block.text for block in blocks)
        with trio.fail_after(DEADLINE_S):
            await reader.follow(Block("bash", {"terminal": "chain"}, command))
            while not any("genesis hash" in line for line in reader.terminals["chain"].get_last_lines(30)):
                await trio.sleep(0.1)
        await follow(reader, blocks)
        with trio.fail_after(DEADLINE_S):
            assert await reader.terminals["ada"].wait() == 0
        said = "\n".join(reader.terminals["ada"].get_last_lines(1_000))
        assert "can change coordinator, authorizer, treasurer" in said
