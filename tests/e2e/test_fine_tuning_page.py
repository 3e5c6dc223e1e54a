"""The page about fine-tuning as it stands: its files and every command, from chats to a trained model."""

import json
from pathlib import Path

import pytest
import trio
from kits.reader import DEADLINE_S, DOCS, open_reader, read_blocks
from kits.run_files import choose_neighbours

NAMES = {"python": ("chats.py",), "jinja": ("chat_template.jinja",)}


@pytest.mark.whole
@pytest.mark.e2e
async def test_the_page_about_fine_tuning_works_as_it_stands(tmp_path: Path) -> None:
    blocks = read_blocks(DOCS / "fine-tuning.md")
    files = {name: block.text for block in blocks for name in NAMES.get(block.language, ())}
    async with open_reader(tmp_path / "reader", {"19400": str(choose_neighbours())}) as reader:
        for name, text in files.items():
            (reader.folder / name).write_text(text, encoding="utf-8")
        for block in [block for block in blocks if block.language == "bash"]:
            with trio.fail_after(DEADLINE_S):
                await reader.follow(block)
        path = reader.folder / "trained" / "events" / "client-1" / "events.jsonl"
        events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    trained = [event for event in events if event["kind"] == "trained"]
    assert len(trained) >= 30
    answers = trained[0]["tokens"] / 8
    assert answers < 32, "of 128 tokens of a row, only those of answers count"
