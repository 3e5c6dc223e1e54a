"""`psyche init`: a valid run from a few answers, asked, given or by default; nothing is overwritten."""

import itertools
import json
import re
import shlex
import tomllib
from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import typer.main
from kits.commands import call, refuse, run
from kits.models import write_header
from kits.tier import few
from pyarrow import parquet
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from psyche.backends.port import Fitted, TargetOptions
from psyche.backends.solana.target import SolanaTarget
from psyche.cli.app import app
from psyche.cli.helpers import interview
from psyche.config.load import find_local_data, load_data, load_run
from psyche.config.schema import ConfigTable, DataFile
from psyche.config.table import describe_key
from psyche.core.committee.schedule import compute_learning_rate
from psyche.core.encoding.plan import compute_plan
from psyche.core.state.state import DataLocation, DataLocationKind, DataType
from psyche.data.bytes_tokenizer import write_tokenizer
from psyche.data.local import TokenRows
from psyche.data.provider import open_local
from psyche.data.tokenize import tokenize
from psyche.drafting.model_choice import SIZES
from psyche.forecast.workload import count_elements, read_shapes
from psyche.modeling.model_config import read_model_fields
from psyche.server.preflight import validate_run
from psyche.testnet.backends import get_bootstrap_address

pytestmark = pytest.mark.usefixtures("trainer_host")
TEXT = "def answer(question: str) -> int:\n    return 42\n" * 200
PARAMETERS = {"1m": (0.8e6, 1.1e6), "20m": (13e6, 30e6), "124m": (80e6, 130e6), "1b": (0.9e9, 1.3e9)}
SETTINGS = {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32, "eos_token_id": 0,
}  # fmt: skip


def make_text(folder: Path) -> Path:
    (folder / "book.txt").write_text(TEXT)
    return folder / "book.txt"


def make_texts(folder: Path) -> Path:
    (folder / "books").mkdir()
    make_text(folder / "books")
    return folder / "books"


def make_tokens(folder: Path) -> Path:
    tokenize([make_text(folder)], folder / "tokens" / "train.bin")
    return folder / "tokens" / "train.bin"


def make_bare_tokens(folder: Path) -> Path:
    """Files without a description."""
    (folder / "bare").mkdir()
    np.save(folder / "bare" / "a.npy", np.arange(4_096, dtype=np.uint16) % 250)
    (folder / "bare" / "b.npy").write_bytes((folder / "bare" / "a.npy").read_bytes())
    return folder / "bare"


def make_described_folder(folder: Path) -> Path:
    """A data.toml, as that of another run, with ids of four bytes."""
    (folder / "described" / "files").mkdir(parents=True)
    (folder / "described" / "files" / "t.bin").write_bytes(array("I", [7] * 4_096).tobytes())
    (folder / "described" / "data.toml").write_text('dir = "files"\ntoken_size = "FourBytes"\nseq_len = 9\n')
    return folder / "described"


def make_model(folder: Path) -> Path:
    """A model with a tokenizer, without torch."""
    at = folder / "their-model"
    write_tokenizer(at)
    (at / "config.json").write_text(json.dumps(SETTINGS))
    write_header(at / "model.safetensors", SETTINGS)
    (at / "training_args.bin").write_bytes(b"code")
    return at


KINDS: list[Callable[[Path], Path]] = [make_text, make_texts, make_tokens, make_bare_tokens, make_described_folder]


def assert_valid(folder: Path) -> None:
    report = validate_run(folder)
    assert (report.problems, report.unsupported) == ((), ())
    assert report.run is not None
    assert report.data is not None
    assert report.run.warnings == ()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("size", few([*SIZES]))
def test_a_run_of_every_size_on_every_kind_of_data_is_valid_at_once(
    size: str, kind: Callable[[Path], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "own-run"
    call("init", folder, "--model", size, "--data", kind(tmp_path), "--no-prepare", "--yes")
    assert_valid(folder)
    settings = read_model_fields(folder / "model.toml")
    shapes = read_shapes(folder / "model.toml")
    least, most = PARAMETERS[size]
    assert least < count_elements(shapes) < most
    assert settings["hidden_size"] % settings["num_attention_heads"] == 0
    assert settings["num_attention_heads"] % settings["num_key_value_heads"] == 0
    optimizer = load_run(folder).model.optimizer
    plan = compute_plan(shapes, optimizer.compression_chunk, optimizer.compression_topk, one_bit=True)
    assert {edge for tensor in plan.tensors if len(tensor.dims) == 2 for edge in tensor.edges} == {
        optimizer.compression_chunk
    }, "no tensor is cut into slivers"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_model_that_is_there_is_copied_and_trained_on_every_kind_of_data(
    kind: Callable[[Path], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "own-run"
    call("init", folder, "--model", make_model(tmp_path), "--data", kind(tmp_path), "--yes")
    assert_valid(folder)
    files = {path.name for path in (folder / "model").iterdir()}
    assert files == {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}, "and no code"
    assert not (folder / "model.toml").exists()
    data = load_data(folder)
    assert data.sequence_length == SETTINGS["max_position_embeddings"]
    rows = TokenRows([data.folder], data.token_size_bytes, data.sequence_length, data.shuffle_seed, 256)
    assert rows.num_sequences > 100


@pytest.mark.parametrize("named", ["bytes", "theirs"])
def test_the_tokenizer_that_is_named_lies_beside_the_model(named: str, tmp_path: Path) -> None:
    model, other = make_model(tmp_path), tmp_path / "theirs"
    (model / "tokenizer.json").unlink()
    (model / "tokenizer.model").write_bytes(b"sentencepiece")
    write_tokenizer(other)
    (other / "added_tokens.json").write_text("{}")
    tokenizer = "bytes" if named == "bytes" else other
    words = ("--data", make_text(tmp_path), "--tokenizer", tokenizer, "--yes")
    call("init", tmp_path / "r", "--model", model, *words)
    files = {path.name for path in (tmp_path / "r" / "model").iterdir()}
    others = {"added_tokens.json"} if named == "theirs" else set[str]()
    assert files == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} | others
    (tmp_path / "here").mkdir()
    model = model.rename(tmp_path / "here" / "model")
    result = run("init", tmp_path / "here", "--model", model, *words)
    assert f"{model / 'tokenizer.model'}: is there already" in result.output, "nothing of a model's is replaced unasked"
    call("init", tmp_path / "here", "--model", model, *words, "--force")
    assert {path.name for path in model.iterdir()} == files | {"training_args.bin"}


def test_the_answers_are_in_the_files_and_what_follows_from_them_is_computed(tmp_path: Path) -> None:
    folder = tmp_path / "My run!"
    flags = ("--members", 5, "--min-members", 3, "--steps", 2_000, "--server-addr", "192.0.2.7:4000")
    call("init", folder, "--data", make_text(tmp_path), *flags, "--no-prepare", "--yes")
    loaded = load_run(folder)
    config, model = loaded.config, loaded.model
    assert loaded.run_id == "My-run"
    assert (config.init_min_clients, config.min_clients, config.total_steps) == (5, 3, 2_001)
    assert config.global_batch_size_start == config.global_batch_size_end == 40
    assert model.data_location.address == "192.0.2.7:4001"
    rates = [compute_learning_rate(model.lr_schedule, step) for step in (1, 100, 2_000)]
    assert rates[0] < rates[1] == pytest.approx(1e-3)
    assert rates[2] == pytest.approx(1e-4, rel=0.01), "the schedule ends with the run"


@pytest.mark.whole
def test_a_larger_model_gets_more_time(tmp_path: Path) -> None:
    text = make_text(tmp_path)
    times: list[tuple[int, int, int]] = []
    for size in SIZES:
        run("init", tmp_path / size, "--model", size, "--data", text, "--no-prepare", "--yes")
        config = load_run(tmp_path / size).config
        times.append((config.warmup_time, config.cooldown_time, config.max_round_train_time))
    assert times == sorted(times)
    assert len({one[0] for one in times}) == len(SIZES)


def test_every_key_stands_below_what_the_schema_says_of_it(tmp_path: Path) -> None:
    run("init", tmp_path / "r", "--data", make_text(tmp_path), "--no-prepare", "--yes")
    for name, table in (("run.toml", ConfigTable), ("data.toml", DataFile)):
        text = (tmp_path / "r" / name).read_text()
        told = " ".join(re.sub(r"(?m)^# ?", "", text).split()).lower()
        content = tomllib.loads(text)
        for key in content.get("config", content):
            assert describe_key(table.model_fields[key]).lower() in told, key
    for name in ("run.toml", "data.toml", "model.toml"):
        lines = (tmp_path / "r" / name).read_text().splitlines()
        bare = [line for above, line in itertools.pairwise(lines)
                if " = " in line and not line.startswith("#") and not above.startswith("#")]  # fmt: skip
        assert bare == []


def test_a_person_is_asked_what_no_flag_says_and_asked_again_after_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interview, "is_terminal", lambda: True)
    typed = ["nowhere", "1m", "", str(tmp_path / "missing"), str(make_text(tmp_path)), "0", "4", "9", "", "100", "x:0",
             "", "maybe", "no"]  # fmt: skip
    result = call("init", tmp_path / "r", typed="\n".join(typed) + "\n")
    for mistake in ("neither a size", "no such file", "--members 0: must be", "--min-members 9: must be a whole number",
                    "--server-addr 'x:0'", "'maybe': must be yes or no"):  # fmt: skip
        assert mistake in result.output
    config = load_run(tmp_path / "r").config
    assert (config.init_min_clients, config.min_clients, config.total_steps) == (4, 2, 101)
    asked = result.output.count("]:")
    again = call(
        "init", tmp_path / "r2", "--model", "1m", "--data", make_text(tmp_path), "--steps", 5, typed="\n\n\n\nno\n"
    )
    assert again.output.count("]:") == 5 < asked, "tokenizer, members, least members, address, prepare"


def test_a_person_learns_first_that_a_folder_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interview, "is_terminal", lambda: True)
    (tmp_path / "run.toml").touch()
    flags = ("--model", "1m", "--tokenizer", "bytes", "--data", make_text(tmp_path), "--members", 2, "--min-members", 1,
             "--steps", 9, "--server-addr", "127.0.0.1:19400", "--no-prepare")  # fmt: skip
    result = call("init", *flags, typed=f"{tmp_path}\n{tmp_path / 'free'}\n")
    assert f"{tmp_path / 'run.toml'}: is there already" in result.output
    assert_valid(tmp_path / "free")


def make_tokenizer(folder: Path) -> Path:
    """A tokenizer of 1,000 words; the last one ends a text."""
    at = folder / "their tokenizer"
    at.mkdir()
    words = {f"w{number}": number for number in range(999)} | {"</s>": 999}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.save(str(at / "tokenizer.json"))
    return at


def test_a_model_has_the_vocabulary_and_the_end_token_of_its_tokenizer(tmp_path: Path) -> None:
    folder, tokenizer, text = tmp_path / "r", make_tokenizer(tmp_path), tmp_path / "words.txt"
    text.write_text("w7 w8 w9 " * 500)
    result = call("init", folder, "--tokenizer", tokenizer, "--data", text, "--no-prepare", "--yes")
    settings = read_model_fields(folder / "model.toml")
    assert (settings["vocab_size"], settings["eos_token_id"]) == (1_024, 999), "rounded up to whole chunks"
    assert result.output.count(f"--tokenizer '{tokenizer}'") == 2, "for the tokens and for the weights"
    assert f"--tokenizer '{tokenizer}'" in (folder / "model.toml").read_text()
    assert_valid(folder)


def test_off_a_terminal_every_flag_that_is_missing_is_named(tmp_path: Path) -> None:
    result = refuse("init", tmp_path / "r", "--model", "1m", "--steps", 9)
    assert "--tokenizer, --data, --members, --min-members, --server-addr, --prepare or --no-prepare" in result.output
    assert "--yes" in result.output
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--model", "7b"), "--model 7b: neither a size (1m, 20m, 124m, 1b) nor a model's folder"),
        (("--model", "."), "no config.json there"),
        (("--data", "missing.txt"), "--data missing.txt: there is no such file or folder"),
        (("--tokenizer", "missing"), "missing: no such tokenizer file"),
        (("--members", "257"), "--members 257: must be a whole number from 1 to 256"),
        (("--members", "2", "--min-members", "3"), "--min-members 3: must be a whole number from 1 to 2"),
        (("--steps", "0"), "--steps 0: must be a whole number from 1 to 4,294,967,294"),
        (("--server-addr", "host:65535"), "must be host:port with a port from 1 to 65534"),
    ],
)
def test_an_impossible_answer_is_told_and_nothing_is_written(
    arguments: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = () if "--data" in arguments else ("--data", make_text(tmp_path))
    assert told in refuse("init", "r", *arguments, *data, "--yes", "--no-prepare").output
    assert not (tmp_path / "r").exists()


def read_all(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_nothing_is_overwritten_without_force_and_nothing_else_is_touched_with_it(tmp_path: Path) -> None:
    folder, text, model = tmp_path / "r", make_text(tmp_path), make_model(tmp_path)
    call("init", folder, "--model", model, "--data", text, "--yes")
    (folder / "notes.txt").write_text("mine")
    before = read_all(folder)
    refused = refuse("init", folder, "--model", model, "--data", text, "--steps", 7, "--yes")
    assert f"{folder / 'run.toml'}: is there already" in refused.output
    assert "--force" in refused.output
    assert read_all(folder) == before
    call("init", folder, "--model", model, "--data", text, "--steps", 7, "--yes", "--force")
    after = read_all(folder)
    assert load_run(folder).config.total_steps == 8
    assert set(after) == set(before), "no rests of the making"
    assert after["notes.txt"] == b"mine"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("state.toml", "would be read besides run.toml"),
        ("data/older.bin", "would be trained on too"),
        ("model/notes.txt", "is no model's folder"),
    ],
)
def test_what_is_not_of_a_run_stays_also_with_force(name: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "r" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"1234")
    result = refuse("init", tmp_path / "r", "--data", make_text(tmp_path), "--yes", "--force", "--no-prepare")
    assert told in result.output
    assert read_all(tmp_path / "r") == {name: b"1234"}


def test_weights_and_tokens_that_lie_in_the_folder_stay_where_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    make_model(tmp_path).rename(folder / "model")
    make_tokens(tmp_path).parent.rename(folder / "tokens")
    before = read_all(folder)
    call("init", folder, "--model", folder / "model", "--data", folder / "tokens", "--yes")
    assert_valid(folder)
    after = read_all(folder)
    assert {name: content for name, content in after.items() if name in before} == before
    assert set(after) - set(before) == {"run.toml", "data.toml"}
    assert load_data(folder).folder == folder / "tokens"
    assert 'dir = "tokens"' in (folder / "data.toml").read_text(), "so that the folder can be moved"


def test_tokens_below_another_folder_of_the_run_stay_with_all_that_lies_beside_them(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    tokens = folder / "corpus" / "tokens"
    tokens.mkdir(parents=True)
    make_tokens(tmp_path).rename(tokens / "train.bin")
    (folder / "corpus" / "notes.md").write_text("precious")
    call("init", folder, "--model", make_model(tmp_path), "--data", tokens, "--yes")
    assert (folder / "corpus" / "notes.md").read_text() == "precious"
    assert load_data(folder).folder == tokens
    assert_valid(folder)


def test_prepared_rows_that_lie_in_the_folder_are_trained_on_with_their_labels(tmp_path: Path) -> None:
    folder, lists = tmp_path / "r", pa.array([[7] * 16] * 3)
    (folder / "rows").mkdir(parents=True)
    parquet.write_table(pa.table({"inputs": lists, "labels": lists}), folder / "rows" / "train.parquet")
    said = call("init", folder, "--model", make_model(tmp_path), "--data", folder / "rows", "--yes").output
    assert "3 samples" in said
    report = validate_run(folder)
    assert (report.problems, report.unsupported) == ((), ())
    assert report.run is not None
    model = report.run.model
    assert model.data_location == DataLocation(DataLocationKind.PREPROCESSED, "rows")
    assert (model.data_type, model.max_seq_len) == (DataType.FINETUNING, 16)
    assert not (folder / "data.toml").exists()


def test_with_force_nothing_of_the_former_run_passes_for_what_is_still_to_be_made(tmp_path: Path) -> None:
    folder, text = tmp_path / "r", make_text(tmp_path)
    call("init", folder, "--model", make_model(tmp_path), "--data", text, "--yes")
    call("init", folder, "--model", "20m", "--data", text, "--yes", "--force", "--no-prepare")
    assert not (folder / "model").exists(), "the weights of another model"
    assert not (folder / "data" / "train.bin").exists()


@pytest.mark.parametrize("flag", ["--model", "--data", "--tokenizer"])
def test_a_folder_that_force_would_replace_is_no_source_for_what_replaces_it(flag: str, tmp_path: Path) -> None:
    folder, text = tmp_path / "r", make_text(tmp_path)
    call("init", folder, "--model", make_model(tmp_path), "--data", text, "--yes")
    inside = folder / "model" / "inside"
    source = make_tokens(tmp_path).parent if flag == "--data" else tmp_path / "their-model"
    source.rename(inside)
    flags = {"--model": "1m", "--data": str(text), flag: str(inside)}
    result = refuse(
        "init", folder, *(word for pair in flags.items() for word in pair), "--yes", "--force", "--no-prepare"
    )
    assert f"{inside}: lies in {folder / 'model'}, which --force replaces; move it away" in result.output
    assert inside.is_dir()


def test_a_folder_may_have_the_longest_name_that_a_disk_takes(tmp_path: Path) -> None:
    folder = tmp_path / ("n" * 255)
    for force in ((), ("--force",)):
        call("init", folder, "--yes", "--members", 1, "--no-prepare", *force)
    assert load_run(folder).run_id == "n" * 32
    assert list(tmp_path.iterdir()) == [folder]


def make_unread_tokenizer(folder: Path) -> tuple[object, ...]:
    """It is not taken for bytes."""
    model = make_model(folder)
    (model / "tokenizer.json").rename(model / "tokenizer.model")
    return "--model", model, "--data", make_text(folder), "--prepare"


def make_empty_text(folder: Path) -> tuple[object, ...]:
    (folder / "empty.txt").touch()
    return "--data", folder / "empty.txt", "--prepare"


def make_large_vocabulary(folder: Path) -> tuple[object, ...]:
    tokens = make_tokens(folder)
    sidecar = tokens.with_suffix(".json")
    sidecar.write_text(sidecar.read_text().replace('"vocab_size": 256', '"vocab_size": 32000'))
    return "--data", tokens


def make_large_ids(folder: Path) -> tuple[object, ...]:
    """They are found also without a description."""
    (folder / "ids").mkdir()
    np.save(folder / "ids" / "a.npy", np.arange(4_096, dtype=np.uint16))
    return "--data", folder / "ids"


def make_one_of_several(folder: Path) -> tuple[object, ...]:
    """All of them would be trained on."""
    return "--data", make_bare_tokens(folder) / "a.npy"


def make_wrong_model(folder: Path, **changes: object) -> tuple[object, ...]:
    model = make_model(folder)
    (model / "config.json").write_text(json.dumps(SETTINGS | changes))
    return "--model", model, "--data", make_text(folder), "--prepare"


def make_small_vocabulary(folder: Path) -> tuple[object, ...]:
    """The tokenizer has more ids than the model."""
    words = make_wrong_model(folder, vocab_size=100)
    write_header(folder / "their-model" / "model.safetensors", SETTINGS | {"vocab_size": 100})
    return words


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (make_unread_tokenizer, "{}/their-model/tokenizer.json"),
        (make_empty_text, "{}/"),
        (make_large_vocabulary, "vocabulary of 32000"),
        (make_large_ids, "{}/ids/a.npy: token 256 at position 256"),
        (make_one_of_several, "other files of tokens (b.npy)"),
        # The owner's folder is named, not the copy that is gone.
        (partial(make_wrong_model, model_type="gpt_2"), "model_type 'gpt_2'"),
        (partial(make_wrong_model, vocab_size=4_000), "{}/their-model: AR4: lm_head.weight is 256 x 32"),
        (make_small_vocabulary, "--tokenizer {}/their-model"),
    ],
)
def test_what_cannot_be_trained_is_told_and_nothing_is_left(
    make: Callable[[Path], tuple[object, ...]], told: str, tmp_path: Path
) -> None:
    words = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert told.format(tmp_path) in refuse("init", tmp_path / "r", "--yes", "--no-prepare", *words).output
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("prepare", ["--prepare", "--no-prepare"])
def test_the_commands_that_come_next_are_commands(prepare: str, tmp_path: Path) -> None:
    folder = tmp_path / "with blanks"
    model = ("--model", make_model(tmp_path)) if prepare == "--prepare" else ()  # whose weights are there
    result = run("init", folder, "--data", make_text(tmp_path), *model, prepare, "--members", 3, "--yes")
    lines = [line.strip() for line in result.output.splitlines() if line.startswith("  psyche ")]
    names = [" ".join(itertools.takewhile(is_name, shlex.split(line)[1:3])) for line in lines]
    made = [] if prepare == "--prepare" else ["data tokenize", "model init"]
    assert names == ["simulate", *made, "local-testnet start", "server run", "client train", "run allow"]
    for line in lines:
        assert_parses(shlex.split(line)[1:])


def fit_to_chain(folder: Path) -> Fitted:
    return SolanaTarget(TargetOptions(rpc="localhost")).fit(load_run(folder))


def test_a_run_on_a_chain_is_valid_there_at_once_and_says_how_to_create_it(tmp_path: Path) -> None:
    folder = tmp_path / "on-chain"
    words = ("--data", make_tokens(tmp_path), "--model", make_model(tmp_path), "--yes")
    result = run("init", folder, *words, "--rpc", "localhost")
    loaded = fit_to_chain(folder).file
    assert load_run(folder).warnings == ()
    assert "access" not in (folder / "run.toml").read_text()
    found = find_local_data(loaded.resolve(loaded.model.data_location.address))
    assert found is not None
    assert open_local(loaded.model.data_location, found, folder, found.sequence_length, 256).check_vocabulary() is None
    lines = [line.strip() for line in result.output.splitlines() if line.startswith("  psyche ")]
    assert [shlex.split(line)[1:3] for line in lines] == [
        ["simulate", "--state"],
        ["local-testnet", "start"],
        ["run", "create"],
    ]
    for line in lines:
        assert_parses(shlex.split(line)[1:])
    call("init", tmp_path / "later", "--data", make_text(tmp_path), "--no-prepare", "--yes", "--rpc", "localhost")
    both = run("init", tmp_path / "both", *words, "--rpc", "localhost", "--server-addr", "127.0.0.1:1")
    assert "a run has one backend" in both.output


def test_a_run_of_several_clients_on_a_chain_needs_an_address_on_record(tmp_path: Path) -> None:
    folder = tmp_path / "on-chain"
    run("init", folder, "--data", make_tokens(tmp_path), "--model", make_model(tmp_path), "--yes", "--rpc", "localhost")
    assert any("bootstrap: no address is on record" in one for one in fit_to_chain(folder).file.warnings)
    text = (folder / "run.toml").read_text()
    (folder / "run.toml").write_text(f'bootstrap = ["{get_bootstrap_address(19_500, bytes(32))}"]\n{text}')
    assert not any("bootstrap" in one for one in fit_to_chain(folder).file.warnings)


def test_an_owner_is_told_how_long_the_run_takes_and_what_it_sends(tmp_path: Path) -> None:
    words = ("--model", "1b", "--data", make_text(tmp_path), "--members", 4, "--no-prepare", "--yes")
    output = run("init", tmp_path / "r", *words).output
    (line,) = [line for line in output.splitlines() if "it takes" in line]
    batch = 64 * 2_048
    days = (50_000 * (batch / 4 / SIZES["1b"].recipe.tokens_per_s + 0.5) + 250 * 175) / 86_400
    assert f"it takes             {int(days)} days " in line
    assert "for 6.6G tokens" in line
    assert "if each member trains 3,000 tokens/s of this model" in output
    assert " GB a day, 397 GB in all" in output, "payloads of 2.6 MB to 3 others, 50,000 times"


def test_a_run_of_one_is_described_as_one_and_two_clients_of_one_machine_do_not_collide(tmp_path: Path) -> None:
    words = ("--data", make_text(tmp_path), "--no-prepare", "--yes", "--members")
    call("init", tmp_path / "one", *words, 1)
    text = (tmp_path / "one" / "run.toml").read_text()
    assert "A run of 1 member that trains a model" in " ".join(text.replace("#", " ").split())
    assert "1 members" not in text
    output = call("init", tmp_path / "two", *words, 2).output
    (client,) = [line for line in output.splitlines() if line.startswith("  psyche client train")]
    assert client.endswith(" --data-dir client-1")
    (told,) = [line for line in output.splitlines() if line.startswith("  # several clients on one machine")]
    assert "--data-dir" in told
    assert "--threads" in told


def is_name(word: str) -> bool:
    return not word.startswith("-")


def assert_parses(arguments: list[str]) -> None:
    """Raises click's UsageError for an unknown option or a missing one."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    command.make_context("psyche", arguments)


def test_records_give_the_field_that_is_named(tmp_path: Path) -> None:
    rows = tmp_path / "posts.jsonl"
    rows.write_text(json.dumps({"body": TEXT}) + "\n")
    flags = ("--model", make_model(tmp_path), "--data", rows, "--yes")
    refused = run("init", tmp_path / "r", *flags)
    assert "has no field 'text'; name one with --field (there are: 'body')" in refused.output
    call("init", tmp_path / "r", *flags, "--field", "body")
    assert np.fromfile(tmp_path / "r/data/train.bin", dtype="<u2").tolist() == [*TEXT.encode(), 0]
    left_out = run("init", tmp_path / "later", "--model", "1m", *flags[2:], "--field", "body", "--no-prepare")
    assert f"tokenize {rows} --field body" in left_out.output.replace("\n", " ")
