"""validate-config: exit 1 for what is wrong, warnings for what is seldom meant, names for what is not built."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from psyche.config.load import LoadedRun, load_run
from psyche.config.rewrite import set_values
from psyche.config.rules import find_unsupported, find_warnings
from psyche.config.validate import print_report, validate_config
from psyche.config.values import get_variant_name
from psyche.core.state.state import (
    Checkpoint,
    CheckpointKind,
    DataLocation,
    DataLocationKind,
    DataType,
    InnerOptimizer,
    Lookahead,
    Optimizer,
    OptimizerKind,
)

CONFIG = Path(__file__).parents[2] / "config"
DEMO = (CONFIG / "demo" / "run.toml").read_text(encoding="utf-8")
DEMO_DATA = (CONFIG / "demo" / "data.toml").read_text(encoding="utf-8")


def make_demo(folder: Path) -> tuple[Path, Path]:
    """A run that is ready: model and data are there."""
    (folder / "model").mkdir()
    (folder / "standard-library").mkdir(parents=True)
    (folder / "standard-library" / "tokens.bin").write_bytes(bytes(512))
    (folder / "run.toml").write_text(DEMO)
    (folder / "data.toml").write_text(DEMO_DATA)
    return folder, folder / "data.toml"


def show(state: Path, data: Path | None = None) -> tuple[int, list[str]]:
    lines: list[str] = []
    code = print_report(validate_config(state, data), lines.append)
    return code, lines


def test_a_run_that_is_ready_is_fine(tmp_path: Path) -> None:
    assert show(*make_demo(tmp_path)) == (0, [f"{tmp_path / 'run.toml'}: fine, run 'demo'"])


def test_what_is_wrong_ends_with_exit_code_1(tmp_path: Path) -> None:
    state, data = make_demo(tmp_path)
    (state / "run.toml").write_text(set_values(DEMO, {("config", "min_clients"): 0}))
    code, lines = show(state, data)
    assert code == 1
    assert lines[0].startswith(f"error: {state / 'run.toml'}:")
    assert "config.min_clients: must not be zero -> above 0" in lines[0]
    assert lines[-1] == "1 problem; nothing can run with this"


def test_run_and_data_must_agree(tmp_path: Path) -> None:
    state, data = make_demo(tmp_path)
    data.write_text(set_values(DEMO_DATA, {("seq_len",): 64}))
    for given in (data, None):  # the one beside the run's file is taken by itself
        code, lines = show(state, given)
        assert code == 1
        assert "data.toml:5: seq_len: is 64, model.LLM.max_seq_len of run.toml is 128 -> seq_len = 128" in lines[0]


def test_problems_of_both_files_are_told_together(tmp_path: Path) -> None:
    state, data = make_demo(tmp_path)
    (state / "run.toml").write_text(set_values(DEMO, {("config", "min_clients"): "x"}))
    data.write_text("seq_len = 0\n")
    _, lines = show(state, data)
    assert [line.split(": ")[2] for line in lines[:-1]] == [
        "config.min_clients", "dir", "token_size", "seq_len",
    ]  # fmt: skip


def test_missing_pieces_around_the_files_are_told_and_a_run_without_its_data_is_not_fine(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(DEMO)
    code, lines = show(tmp_path)
    assert code == 0
    assert f"the server needs a data.toml, in {tmp_path} or named with --data-config" in lines[0]
    assert lines[-1].endswith("run.toml: valid, but its data is not there yet, run 'demo'")
    assert "psyche model init" in lines[1]
    (tmp_path / "data.toml").write_text(DEMO_DATA)
    code, lines = show(tmp_path)
    assert code == 0
    assert lines[0].startswith("not yet (`server run` refuses it)")
    assert "psyche data tokenize" in lines[0]
    (tmp_path / "standard-library").symlink_to("standard-library")
    assert "psyche data tokenize" in show(tmp_path)[1][0]
    (tmp_path / "run.toml").write_text(DEMO.replace("Server = ", "Local = "))
    assert "--data-config is not used" in show(tmp_path, tmp_path)[1][0]


@pytest.mark.parametrize("number", ["9" * 4_400, "0x" + "f" * 4_400], ids=["decimal", "hexadecimal"])
def test_a_number_of_thousands_of_digits_is_named_and_no_crash(tmp_path: Path, number: str) -> None:
    state, data = make_demo(tmp_path)
    (state / "run.toml").write_text(re.sub(r"(?m)^total_steps = .*", f"total_steps = {number}", DEMO))
    code, lines = show(state, data)
    assert code == 1
    assert "a number of over 4,300 digits" in lines[0]


def test_of_a_missing_model_the_owner_is_told_the_command_that_makes_it(tmp_path: Path) -> None:
    state, _ = make_demo(tmp_path)
    (tmp_path / "model").rmdir()
    assert f"`psyche model init --config FILE --output {tmp_path / 'model'}` makes one" in show(state)[1][0]
    (tmp_path / "model.toml").touch()
    code, lines = show(state)
    assert f"`psyche model init --config {tmp_path / 'model.toml'} --output {tmp_path / 'model'}`" in lines[0]
    assert (code, lines[-1]) == (0, f"{tmp_path / 'run.toml'}: fine, but see the 1 warning, run 'demo'")


def test_what_cannot_run_yet_is_told_and_is_no_error(tmp_path: Path) -> None:
    state, _ = make_demo(tmp_path)
    (state / "run.toml").write_text(DEMO.replace("[config]", "[config]\nreveal_gate = true", 1))
    code, lines = show(state)
    assert code == 0
    (told,) = [line for line in lines if line.startswith("not yet (`server run` refuses it)")]
    assert "reveal_gate" in told
    assert lines[-1].endswith("run.toml: valid, but this version cannot run it, run 'demo'")


@pytest.mark.parametrize(
    ("nodes", "words"),
    [(0, None), (1, "people who trust"), (2, "tolerates no silent witness; use 0 (everybody), 1 or at least 3"),
     (3, "use at least 16, better 32"), (15, "people who trust"), (16, None), (32, None)],
)  # fmt: skip
def test_the_number_of_witnesses_is_warned_about_as_section_9_says(nodes: int, words: str | None) -> None:
    run = load_run(CONFIG / "demo")
    run.config.witness_nodes = nodes
    warnings = find_warnings(run.config, run.model)
    assert (words is None) == (warnings == [])
    assert all(words in warning for warning in warnings if words)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"max_round_train_time": (1 << 32) - 1}, "max_round_train_time 4294967295 s is more than a day"),
        ({"cooldown_time": 86_401}, "cooldown_time 86401 s is more than a day"),
        ({"warmup_time": 0}, "warmup_time 0 s: members that have not loaded the weights by then are dropped"),
        ({"round_witness_time": 31}, "round_witness_time 31 s is more than max_round_train_time 30 s"),
    ],
)
def test_times_with_which_a_run_would_stand_still_are_warned_about(
    values: dict[str, int], words: str, tmp_path: Path
) -> None:
    state, data = make_demo(tmp_path)
    (state / "run.toml").write_text(set_values(DEMO, {("config", key): value for key, value in values.items()}))
    code, lines = show(state, data)
    assert code == 0
    (line,) = [line for line in lines if line.startswith("warning: ")]
    assert words in line


@pytest.mark.parametrize("name", ["demo", "demo-kill", "dummy", "llama-20m", "sample"])
def test_the_times_of_shipped_configurations_are_not_warned_about(name: str) -> None:
    warnings = load_run(CONFIG / name).warnings
    assert not any("_time" in warning for warning in warnings)
    assert any("'Dummy' names no weights" in warning for warning in warnings) == (name == "dummy")


def test_other_settings_that_are_seldom_meant_are_warned_about() -> None:
    run = load_run(CONFIG / "sample")
    run.config.entropy_delay = 4
    run.config.init_min_clients = 9
    run.model.lr_schedule.total_steps = 100
    run.model.data_location = DataLocation(DataLocationKind.WEIGHTED_HTTP, "https://example.org/mix.json")
    words = (
        "witness_nodes",
        "#sha256=",
        "entropy_delay",
        "nothing to train",
        "reaches final_lr",
    )
    warnings = find_warnings(run.config, run.model)
    assert len(warnings) == len(words)
    assert all(word in warning for word, warning in zip(words, warnings, strict=True))


def test_remote_data_that_no_manifest_pins_is_warned_about() -> None:
    run = load_run(CONFIG / "sample")
    assert any("config.data_root is not set" in warning for warning in run.warnings)
    run.config.data_root = b"r" * 32
    assert any("the manifest that it stands for is not here" in text for text in find_warnings(run.config, run.model))
    assert not any("data_root" in text for text in find_warnings(run.config, run.model, has_manifest=True))
    run.model.data_location = DataLocation(DataLocationKind.WEIGHTED_HTTP, "https://example.org/mix.json#sha256=0")
    assert any("data_root must not be set" in text for text in find_unsupported(run.model, run.config))
    run.model.data_location = DataLocation(DataLocationKind.PREPROCESSED, "owner/rows")
    assert not any("data_" in text for text in find_unsupported(run.model, run.config))
    assert not any("data_" in warning for warning in find_warnings(run.config, run.model))
    run.config.data_root = bytes(32)
    assert any("put @ and the commit behind its name" in warning for warning in find_warnings(run.config, run.model))


def test_everything_that_is_not_built_is_refused_by_name() -> None:
    run = load_run(CONFIG / "demo")
    assert find_unsupported(run.model, run.config) == []
    run.model.checkpoint = Checkpoint(CheckpointKind.P2P_GCS, "b")
    run.model.data_type, run.model.data_location.kind = DataType.FINETUNING, DataLocationKind.HTTP
    run.model.optimizer.kind = OptimizerKind.ADAMW
    run.config.reveal_gate, run.config.canary_permille, run.config.min_stake = True, 1, 1
    names = (
        "P2PGcs",
        "Finetuning",
        "AdamW",
        "reveal_gate",
        "canary_permille",
        "min_stake",
    )
    found = find_unsupported(run.model, run.config)
    assert len(found) == len(names)
    assert all(name in text for name, text in zip(names, found, strict=True))


def test_an_optimizer_that_cannot_train_in_a_run_is_refused_by_name() -> None:
    model = load_run(CONFIG / "demo").model
    for kind in OptimizerKind:
        model.optimizer.kind = kind
        runs = kind is not OptimizerKind.ADAMW
        told = f"model.LLM.optimizer {get_variant_name(kind)!r}"
        assert [text.startswith(told) for text in find_unsupported(model)] == [True] * (not runs)


def load_local(**changes: object) -> LoadedRun:
    """The demo with local steps of 16 weights in chunks of 256, in 241 rounds."""
    run = load_run(CONFIG / "demo")
    run.model.optimizer = replace(
        Optimizer(OptimizerKind.LOCAL_STEPS, compression_topk=16, compression_chunk=16, inner_steps=4), **changes
    )
    return run


@pytest.mark.parametrize("kind", list(InnerOptimizer))
def test_verification_asks_local_steps_for_inner_state_that_begins_anew(kind: InnerOptimizer) -> None:
    run = load_local(inner_optimizer=kind)
    assert find_unsupported(run.model, run.config) == []
    run.config.verification_percent = 5
    found = find_unsupported(run.model, run.config)
    is_kept = kind in (InnerOptimizer.ADAMW, InnerOptimizer.MUON)
    assert [f"inner_optimizer {get_variant_name(kind)!r}" in text for text in found] == [True] * is_kept
    assert all("'AdamWAnew'" in text for text in found)


@pytest.mark.parametrize("lookahead", list(Lookahead))
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("percent", [0, 5])
def test_v4_verification_with_overlap_asks_for_a_look_ahead_that_verifiers_can_take_too(
    lookahead: Lookahead, overlap: bool, percent: int
) -> None:
    run = load_run(CONFIG / "demo")
    run.config.overlap, run.config.verification_percent = overlap, percent
    run.model.optimizer.lookahead = lookahead
    is_refused = lookahead is Lookahead.MOMENTUM and overlap and percent > 0
    assert ['lookahead = "Own"' in text for text in find_unsupported(run.model, run.config)] == [True] * is_refused


def test_v14_a_run_convicts_only_where_weights_are_equal() -> None:
    run = load_run(CONFIG / "demo")
    run.config.convict = True
    assert find_unsupported(run.model, run.config) == []
    run.model.optimizer.quantize_1bit = False
    assert ["convict cannot be true" in text for text in find_unsupported(run.model, run.config)] == [True]


def test_all_shipped_configurations_can_run() -> None:
    for path in sorted({file.parent for file in CONFIG.glob("*/run.toml")}):
        run = load_run(path)
        assert find_unsupported(run.model, run.config) == [], path.name


def test_commands_that_are_told_can_be_pasted_whatever_the_folder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "it's a run"
    folder.mkdir()
    (folder / "run.toml").write_text(DEMO)
    (folder / "data.toml").write_text(DEMO_DATA)
    (folder / "model.toml").touch()
    told = re.findall(r"`(psyche (?:data|model) .*?)`", "\n".join(show(folder)[1]))
    commands = {words[2]: words for words in map(shlex.split, told)}
    assert commands["tokenize"][-1] == str(folder / "standard-library" / "train.bin")
    assert commands["init"][-3:] == [str(folder / "model.toml"), "--output", str(folder / "model")]


def test_fine_tuning_needs_data_with_labels() -> None:
    model = load_run(CONFIG / "demo").model
    model.data_type = DataType.FINETUNING
    for kind in DataLocationKind:
        model.data_location = DataLocation(kind, "rows")
        has_labels = kind in (DataLocationKind.PREPROCESSED, DataLocationKind.SERVER)
        assert ["needs data with labels" in text for text in find_unsupported(model)] == [True] * (not has_labels)


def test_a_data_set_of_the_hub_without_its_commit_is_warned_about() -> None:
    run = load_run(CONFIG / "demo")
    for address, warns in (("owner/rows", True), ("owner/rows@3f1c", False), ("rows", False)):
        run.model.data_location = DataLocation(DataLocationKind.PREPROCESSED, address)
        assert any("data set of the Hub" in text for text in find_warnings(run.config, run.model)) is warns


@pytest.mark.parametrize(("topk", "rounds", "is_warned"), [(16, 4_095, True), (16, 4_096, False), (256, 255, True)])
def test_local_steps_that_send_each_weight_too_seldom_are_warned_about(topk: int, rounds: int, is_warned: bool) -> None:
    run = load_run(CONFIG / "demo" / "run.toml")
    optimizer = Optimizer(OptimizerKind.LOCAL_STEPS, compression_topk=topk, compression_chunk=64)
    found = find_warnings(replace(run.config, total_steps=rounds + 1), replace(run.model, optimizer=optimizer))
    about = [text for text in found if f"compression_topk {topk} of 4096 sends each weight" in text]
    assert bool(about) == is_warned
