"""`psyche data prepare` as its users run it: what it makes of chats and texts, who can read it, and what it refuses."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import trio
from kits.commands import call, refuse
from kits.storage.hub import TOKEN, HubDouble, open_hub_double
from pyarrow import parquet

from psyche.core.state.state import DataLocation, DataLocationKind
from psyche.data.bytes_tokenizer import write_tokenizer
from psyche.data.prepared.rows import open_rows
from psyche.data.provider import open_provider
from psyche.storage.port import StorageOptions
from psyche.testing.builders import build_identity

LENGTH = 96
TEMPLATE = (
    "{%- for message in messages %}<{{ message.role }}>{{ message.content }}</>\n{% endfor %}"
    "{%- if add_generation_prompt %}<assistant>{% endif %}"
)
FORGETFUL = (
    "{%- for message in messages %}{% if loop.last %}!{% endif %}<{{ message.role }}>{{ message.content }}{% endfor %}"
)
Chat = list[dict[str, Any]]


def say(*turns: str) -> Chat:
    roles = ("user", "assistant")
    return [{"role": roles[number % 2], "content": text} for number, text in enumerate(turns)]


CHATS = [say(f"What is {n}?", f"{n} it is") for n in range(12)] + [say("Hi", "Hello", "And ö?", "Ö!"), say("Hi")]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def write_lines(path: Path, records: Sequence[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records))
    return path


def write_chats(folder: Path) -> Path:
    return write_lines(folder / "chats.jsonl", [{"messages": chat} for chat in CHATS])


def build(dataset: object, tokenizer: object, *words: object) -> list[object]:
    length = [] if "--pad-to-and-drop-larger-than" in words else ["--pack-to-sequence-length", LENGTH]
    return ["data", "prepare", "--dataset", dataset, "--tokenizer", tokenizer, *length, *words]


def prepare(dataset: object, tokenizer: object, output: Path, *words: object) -> list[dict[str, list[int]]]:
    call(*build(dataset, tokenizer, "--save-to-disk", output, *words))
    return read(output)


def read(folder: Path) -> list[dict[str, list[int]]]:
    return [row for path in sorted(folder.iterdir()) for row in parquet.read_table(path).to_pylist()]


def split(row: dict[str, list[int]]) -> list[tuple[str, str]]:
    """The sequences of a row as text: all of each, and what counts of it."""
    found: list[tuple[str, str]] = []
    start = 0
    for length in row["sequence_lengths"]:
        ids, labels = row["inputs"][start : start + length], row["labels"][start : start + length]
        assert row["position_ids"][start : start + length] == list(range(length))
        assert all(label in (-100, token) for label, token in zip(labels, ids, strict=True))
        found.append((bytes(ids).decode(), bytes(label for label in labels if label >= 0).decode()))
        start += length
    assert start == LENGTH == len(row["inputs"])
    return found


@pytest.mark.parametrize("mode", ["ffd", "random_fit"])
def test_only_what_the_assistant_says_counts_and_each_chat_is_in_one_row_whole(
    tokenizer: Path, tmp_path: Path, mode: str
) -> None:
    rows = prepare(write_chats(tmp_path), tokenizer, tmp_path / "rows", "--chat", "--packing-mode", mode)
    found = sorted(pair for row in rows for pair in split(row) if pair[0].strip("\0"))
    wanted = [(f"<user>What is {n}?</>\n<assistant>{n} it is</>\n", f"{n} it is</>\n") for n in range(12)]
    both = "<user>Hi</>\n<assistant>Hello</>\n<user>And ö?</>\n<assistant>Ö!</>\n", "Hello</>\nÖ!</>\n"
    assert found == sorted([*wanted, both])
    assert len(rows) == 7


def test_the_command_says_what_it_made_what_it_left_out_and_shows_the_first_row(
    tokenizer: Path, tmp_path: Path
) -> None:
    words = ["--chat", "--save-to-disk", tmp_path / "rows", "--show-example", "--limit", 14]
    told = call(*build(write_chats(tmp_path), tokenizer, *words)).output
    assert "tokens from 13 samples" in told
    assert "left out: 1 sample with nothing that counts" in told
    assert "  context  '<user>" in told
    assert "  counted  '" in told
    few = call(*build(tmp_path / "chats.jsonl", tokenizer, "--chat", "--multiturn-only", "--show-example")).output
    assert "1 row of 96 tokens from 1 sample," in few
    assert "left out: 13 samples of three messages or fewer" in few


@pytest.mark.whole
def test_both_forms_of_chats_lines_and_parquet_and_another_time_make_the_same_rows(
    tokenizer: Path, tmp_path: Path
) -> None:
    names = {"user": "human", "assistant": "gpt"}
    other = [{"conversations": [{"from": names[m["role"]], "value": m["content"]} for m in chat]} for chat in CHATS]
    chats = write_chats(tmp_path)
    wanted = prepare(chats, tokenizer, tmp_path / "rows", "--chat")
    assert prepare(write_lines(tmp_path / "b.jsonl", other), tokenizer, tmp_path / "b", "--chat") == wanted
    parquet.write_table(pa.table({"id": range(14), "messages": CHATS}), tmp_path / "c.parquet")
    assert prepare(tmp_path / "c.parquet", tokenizer, tmp_path / "c", "--chat") == wanted
    assert prepare(chats, tokenizer, tmp_path / "d", "--chat", "--seed", 7) != wanted
    (file,), (again,) = (list((tmp_path / name).iterdir()) for name in ("rows", "b"))
    assert file.read_bytes() == again.read_bytes()


@pytest.mark.whole
def test_of_a_folder_subset_and_split_choose_the_files(tokenizer: Path, tmp_path: Path) -> None:
    for place, chat in (("en/train-0", CHATS[0]), ("en/test-0", CHATS[1]), ("de/train-0", CHATS[2])):
        write_lines(tmp_path / "set" / f"{place}.jsonl", [{"messages": chat}])
    for number, (words, wanted) in enumerate(
        ((["--subset", "en"], [0]), (["--split", "test"], [1]), (["--subset", "de"], [2]), ([], [0, 2]))
    ):
        rows = prepare(tmp_path / "set", tokenizer, tmp_path / f"{number}", "--chat", *words)
        text = "".join(pair[0] for row in rows for pair in split(row))
        assert [n for n in range(3) if f"What is {n}?" in text] == wanted
    refused = refuse(*build(tmp_path / "set", tokenizer, "--chat", "--split", "dev", "--show-example")).stderr
    assert "with a name that begins with 'dev'" in refused
    assert "en/test-0.jsonl" in refused


@pytest.mark.whole
def test_each_epoch_has_all_samples_and_a_row_of_its_own_for_each_drops_the_longer_ones(
    tokenizer: Path, tmp_path: Path
) -> None:
    words = ["--chat", "--pad-to-and-drop-larger-than", LENGTH, "--epochs", 2]
    rows = prepare(write_chats(tmp_path), tokenizer, tmp_path / "rows", *words)
    texts = [split(row)[0][0] for row in rows]
    assert len(texts) == 26
    assert sorted(texts[:13]) == sorted(texts[13:])
    assert texts[:13] != texts[13:]
    few = call(
        *build(tmp_path / "chats.jsonl", tokenizer, "--chat", "--pad-to-and-drop-larger-than", 50, "--show-example")
    )
    assert "left out: 1 sample too long for a row" in few.output


@pytest.mark.whole
def test_texts_are_cut_at_the_ends_of_rows_and_all_of_them_counts(tokenizer: Path, tmp_path: Path) -> None:
    texts = write_lines(tmp_path / "texts.jsonl", [{"text": "a" * 100}, {"text": "b" * 50}])
    rows = prepare(texts, tokenizer, tmp_path / "rows")
    assert "".join(pair[0] for row in rows for pair in split(row)).rstrip("\0") in (
        f"{'a' * 100}\0{'b' * 50}", f"{'b' * 50}\0{'a' * 100}",
    )  # fmt: skip
    assert sum(label >= 0 for row in rows for label in row["labels"]) == 152


def test_what_was_written_is_read_by_datasets_and_is_what_a_run_trains_on(tokenizer: Path, tmp_path: Path) -> None:
    import datasets

    rows = prepare(write_chats(tmp_path), tokenizer, tmp_path / "rows", "--chat")
    loaded = datasets.load_dataset(str(tmp_path / "rows"), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded.to_list() == rows
    assert str(loaded.features["inputs"]) == "LargeList(Value('int32'))"
    trained = open_rows(tmp_path / "rows", LENGTH, has_labels=True, vocab_size=256).samples(0, len(rows) - 1)
    assert trained.reshape(-1, LENGTH, 3)[..., 1].astype(np.int32).tolist() == [row["labels"] for row in rows]


@pytest.mark.whole
async def test_a_data_set_of_the_hub_becomes_one_that_a_run_names_by_its_commit(
    tokenizer: Path, tmp_path: Path
) -> None:
    raw = write_chats(tmp_path).read_bytes()
    wanted = prepare(tmp_path / "chats.jsonl", tokenizer, tmp_path / "rows", "--chat")
    async with open_hub_double() as hub:
        hub.add("owner/chats", {"data/train.jsonl": raw, "data/test.jsonl": b"no JSON"}, kind="dataset")
        words = build("owner/chats", tokenizer, "--chat", "--push-to-hub", "owner/rows")
        told = await ask(hub, *words)
        assert hub.repos["datasets/owner/rows"].is_private
        name = told.rpartition('Preprocessed = "')[2].partition('"')[0]
        assert await read_back(hub, name, tmp_path) == [row["inputs"] for row in wanted]
        lost = await ask(hub, *build("owner/none", tokenizer, "--chat", "--show-example"), code=1)
        assert "datasets/owner/none" in lost
        assert TOKEN not in told + lost


async def ask(hub: HubDouble, *words: object, code: int = 0) -> str:
    """Run a command beside this process, which serves the Hub; what it prints."""
    done = await trio.run_process(
        [sys.executable, "-m", "psyche", *map(str, words), "--allow-private-hosts"], capture_stdout=True,
        stderr=subprocess.STDOUT, check=False, env=os.environ | {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN},
    )  # fmt: skip
    assert done.returncode == code, done.stdout.decode()
    return done.stdout.decode()


async def read_back(hub: HubDouble, name: str, folder: Path) -> list[list[int]]:
    options = StorageOptions(hub_endpoint=hub.address, hub_token=TOKEN, allow_private_hosts=True)
    provider = open_provider(
        DataLocation(DataLocationKind.PREPROCESSED, name), sequence_length=LENGTH, vocab_size=256,
        folder=folder, identity=build_identity("alice"), storage=options,
    )  # fmt: skip
    count = len(read(folder / "rows"))
    found = np.frombuffer(await provider.get(0, count - 1), "<u4").reshape(count, LENGTH)
    await provider.aclose()
    return found.tolist()


MESSAGE = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("records", "text"),
    [
        ([{"text": "no chat"}], "line 1: has no field 'conversations' or 'messages' (there are: 'text')"),
        ([{"messages": CHATS[0]}, {"messages": "Hi"}], "line 2: messages is str, must be a list of messages"),
        ([{"messages": []}], "line 1: messages is an empty list, must be a list"),
        ([{"messages": [MESSAGE, "Hi"]}], "line 1: messages[1]: is str, must be a message"),
        ([{"messages": [MESSAGE | {"content": 3}]}], "line 1: messages[0]: content is int, must be text"),
        ([{"conversations": [{"from": "gpt"}]}], "conversations[0]: content is nothing, must be text"),
        ([{"messages": [MESSAGE]}], "nothing to train on: 0 samples have more than 96 tokens, 1 have nothing"),
        ([[1]], "line 1: is not an object"),
    ],
)
def test_what_is_no_chat_is_refused_by_line_and_field_and_nothing_is_left(
    tokenizer: Path, tmp_path: Path, records: list[object], text: str
) -> None:
    path = write_lines(tmp_path / "chats.jsonl", records)
    assert text in refuse(*build(path, tokenizer, "--chat", "--save-to-disk", tmp_path / "rows")).stderr
    assert [one.name for one in tmp_path.iterdir()] == ["chats.jsonl"]


@pytest.mark.whole
def test_a_template_that_changes_earlier_turns_or_is_missing_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    chats = write_chats(tmp_path)
    write_tokenizer(tmp_path / "t")
    words = build(chats, tmp_path / "t", "--chat", "--show-example")
    assert "has no chat template" in refuse(*words).stderr
    (tmp_path / "t" / "chat_template.jinja").write_text(FORGETFUL)
    assert "line 1: messages[1]: the chat template writes the turns up to this one" in refuse(*words).stderr
    (tmp_path / "t" / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    assert "line 1: messages: the chat template refuses it: roles must alternate" in refuse(*words).stderr
    assert "transformers cannot load it" in refuse(*build(chats, tmp_path / "none", "--show-example")).stderr


def test_options_that_do_not_go_together_are_refused_before_anything_is_read(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for words, text in (
        (["--save-to-disk", tmp_path / "full"], "has files; name a new folder"),
        (["--multiturn-only", "--show-example"], "--multiturn-only has no effect without --chat"),
        (["--pad-to-and-drop-larger-than", 9, "--pack-to-sequence-length", 9], "name either --pack-to-sequence-length"),
        ([], "nothing to do: name --save-to-disk"),
        (["--push-to-hub", "no name"], "--push-to-hub 'no name': is no name of a repository"),
    ):
        assert text in refuse(*build(tmp_path / "chats.jsonl", tokenizer, *words)).stderr


@pytest.mark.whole
def test_ctrl_c_leaves_nothing_behind(tokenizer: Path, tmp_path: Path) -> None:
    chats = write_lines(tmp_path / "chats.jsonl", [{"messages": CHATS[0]}] * 300_000)
    words = build(chats, tokenizer, "--chat", "--save-to-disk", tmp_path / "rows")
    command = [sys.executable, "-m", "psyche", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        while not list(tmp_path.glob(".rows.part/samples")):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert [one.name for one in tmp_path.iterdir()] == ["chats.jsonl"]
