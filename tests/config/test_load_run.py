"""Run configurations: the original's sample loads as it stands, and mistakes are told so that one can mend them."""

import struct
import tomllib
from pathlib import Path

import pytest

from psyche.config.load import HARMLESS, MAX_FILE_BYTES, find_local_data, find_run_file, load_data, load_run
from psyche.config.problems import ConfigProblems
from psyche.config.rewrite import Value, set_values, set_variant
from psyche.config.scanner import KeyPath
from psyche.core.state.state import (
    Architecture,
    Checkpoint,
    CheckpointKind,
    DataLocation,
    DataLocationKind,
    DataType,
    HttpLocation,
    HttpLocationKind,
    InnerOptimizer,
    LrSchedule,
    Metadata,
    Optimizer,
    OptimizerKind,
    Progress,
    ScheduleKind,
    TokenSize,
)

CONFIG = Path(__file__).parents[2] / "config"
SAMPLE = CONFIG / "sample" / "run.toml"
TEXT = SAMPLE.read_text(encoding="utf-8")
SEED = ", ".join(["7"] * 32)
CHECKPOINT = '[model.LLM.checkpoint.Hub]\nrepo_id = "emozilla/llama2-20m-init"\n'
DATA = TEXT[TEXT.index("[model.LLM.data_location.Http]") : TEXT.index("[model.LLM.lr_schedule")]
SCHEDULE = TEXT[TEXT.index("[model.LLM.lr_schedule") : TEXT.index("[model.LLM.optimizer")]
OPTIMIZER = TEXT[TEXT.index("[model.LLM.optimizer") :]


def write(folder: Path, text: str, name: str = "run.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def fail(folder: Path, text: str) -> list[str]:
    """All problems of a text, as they are shown, less the file's name."""
    path = write(folder, text)
    with pytest.raises(ConfigProblems) as caught:
        load_run(path)
    assert str(caught.value) == "\n".join(str(problem) for problem in caught.value.problems)
    return [str(problem).removeprefix(str(path)) for problem in caught.value.problems]


def change(**values: Value) -> str:
    return set_values(TEXT, {("config", name): value for name, value in values.items()})


def test_the_sample_of_the_original_documentation_loads_unchanged() -> None:
    run = load_run(SAMPLE)
    assert run.run_id == "sample"
    config = run.config
    assert (config.warmup_time, config.cooldown_time, config.rounds_per_epoch) == (30, 30, 20)
    assert (config.max_round_train_time, config.round_witness_time) == (30, 1)
    assert (config.min_clients, config.init_min_clients, config.witness_nodes) == (1, 1, 1)
    assert (config.global_batch_size_start, config.global_batch_size_end, config.total_steps) == (8, 8, 25_000)
    model = run.model
    assert (model.architecture, model.data_type, model.max_seq_len) == (
        Architecture.HF_LLAMA, DataType.PRETRAINING, 2_048,
    )  # fmt: skip
    assert model.checkpoint == Checkpoint(CheckpointKind.HUB, "emozilla/llama2-20m-init")
    gcp = HttpLocation(HttpLocationKind.GCP, "nous-pretraining-public-us", "fineweb-edu-tokenized-llama2")
    assert model.data_location == DataLocation(DataLocationKind.HTTP, http=gcp)
    assert model.lr_schedule == LrSchedule(
        ScheduleKind.COSINE, base_lr=4e-4, warmup_steps=250, total_steps=25_000, final_lr=4e-5
    )
    decay = struct.unpack("<f", struct.pack("<f", 0.999))[0]
    assert model.optimizer == Optimizer(
        OptimizerKind.DISTRO, clip_grad_norm=1.0, compression_decay=decay, compression_chunk=64, compression_topk=8,
        quantize_1bit=True,
    )  # fmt: skip
    assert decay != 0.999


def test_what_the_sample_leaves_out_has_the_documented_defaults() -> None:
    run = load_run(SAMPLE)
    config = run.config
    assert (config.epoch_time, config.waiting_for_members_extra_time, run.model.cold_start_warmup_steps) == (0, 10, 0)
    assert (config.overlap, config.straggler_percent, config.evict_after, config.late_limit) == (True, 150, 2, 3)
    assert (config.entropy_delay, config.convict, config.reveal_gate, config.min_stake) == (0, False, False, 0)
    assert (run.metadata, run.progress, run.pending_pause) == (Metadata(), Progress(), False)


def test_the_demo_has_the_numbers_that_were_measured() -> None:
    run = load_run(CONFIG / "demo")
    assert (run.config.rounds_per_epoch, run.config.global_batch_size_start, run.model.max_seq_len) == (80, 24, 128)
    assert run.config.total_steps == 1 + 3 * run.config.rounds_per_epoch  # steps 1 to 240 are trained
    schedule = run.model.lr_schedule
    assert schedule.warmup_steps + schedule.stable_steps + schedule.linear_decay_steps == 240
    kill = load_run(CONFIG / "demo-kill").config
    assert (kill.witness_nodes, kill.min_clients, kill.init_min_clients, kill.rounds_per_epoch) == (0, 2, 2, 8)
    assert (kill.warmup_time, kill.cooldown_time, kill.waiting_for_members_extra_time) == (20, 2, 2)
    assert (kill.max_round_train_time, kill.round_witness_time) == (10, 2)


def test_a_folder_names_its_file_and_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "my-run"
    folder.mkdir()
    with pytest.raises(ConfigProblems, match=r"no run configuration -> one of state\.toml, run\.toml, config\.toml"):
        load_run(folder)
    for name in ("config.toml", "run.toml", "state.toml"):
        write(folder, TEXT, name)
        assert find_run_file(folder) == folder / name
    assert load_run(folder).run_id == "my-run"
    write(folder, 'run_id = "another"\n' + TEXT, "state.toml")
    assert load_run(folder).run_id == "another"


def test_a_state_file_of_the_original_loads(tmp_path: Path) -> None:
    head = 'run_id = "r"\nrun_state = "WaitingForMembers"\nrun_state_start_unix_timestamp = 0\npending_pause = true\n'
    progress = "[progress]\nepoch = 3\nstep = 60\nepoch_start_data_index = 480\n"
    run = load_run(write(tmp_path, head + TEXT + progress + '[metadata]\nname = "n"\nvocab_size = 256\n', "state.toml"))
    assert run.progress == Progress(3, 60, 480)
    assert run.pending_pause
    (problem,) = fail(tmp_path, TEXT + "[progress]\nstep = 0\n")
    assert problem == ":47: progress.step: must not be zero -> above 0"
    assert run.metadata == Metadata(name="n", vocab_size=256)


PEER_ID = "12D3KooWPjceQrSwdWXPyLLeABRXmuqt69Rg3sBYbU1Nft9HyQ6X"


def test_what_the_owner_says_of_data_sources_and_nodes_is_read_and_checked(tmp_path: Path) -> None:
    addresses = f'["/ip4/192.0.2.1/tcp/4001/p2p/{PEER_ID}", "/dns4/a.example/tcp/4001/p2p/{"0f" * 32}"]'
    config, model = f'[config]\ndata_root = "{"Ab" * 32}"\n', "[model.LLM]\ncooldown_sources = 2\n"
    text = TEXT.replace("[config]\n", config, 1).replace("[model.LLM]\n", model, 1)
    run = load_run(write(tmp_path, f"bootstrap = {addresses}\n{text}"))
    assert (run.config.data_root, run.model.cooldown_sources) == (b"\xab" * 32, 2)
    assert run.bootstrap == (f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER_ID}", f"/dns4/a.example/tcp/4001/p2p/{'0f' * 32}")
    (problem,) = fail(tmp_path, text.replace("Ab" * 32, "Ab" * 31 + "xy"))
    assert "config.data_root: must be 64 hex digits in quotes" in problem
    (problem,) = fail(tmp_path, text.replace("cooldown_sources = 2", "cooldown_sources = 5"))
    assert "model.LLM.cooldown_sources: 5 is more than the 4 sources that the record keeps" in problem
    (problem,) = fail(tmp_path, 'bootstrap = ["example.org:4001"]\n' + text)
    assert "bootstrap: 'example.org:4001' is no multiaddr" in problem
    (problem,) = fail(tmp_path, 'bootstrap = ["/ip4/192.0.2.1/tcp/4001"]\n' + text)
    assert "bootstrap: '/ip4/192.0.2.1/tcp/4001': names no key: must end with /p2p/KEY" in problem


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    text = TEXT.replace(CHECKPOINT, '[model.LLM.checkpoint.Local]\npath = "weights"\n')
    run = load_run(write(tmp_path, text))
    assert run.model.checkpoint == Checkpoint(CheckpointKind.LOCAL, "weights")
    assert run.resolve(run.model.checkpoint.name) == tmp_path / "weights"
    assert run.resolve("/elsewhere") == Path("/elsewhere")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (CHECKPOINT, '[model.LLM.checkpoint.Dummy]\nrepo_id = "x"\n', Checkpoint(CheckpointKind.DUMMY, "x")),
        (CHECKPOINT, '[model.LLM.checkpoint.Hub]\nrepo_id = "a/b"\nrevision = "c"\n',
         Checkpoint(CheckpointKind.HUB, "a/b", "c")),
        (CHECKPOINT, '[model.LLM.checkpoint.Gcs]\nbucket = "b"\nprefix = "p"\n',
         Checkpoint(CheckpointKind.GCS, "b", "p")),
        (DATA, 'data_location = "Dummy"\n', DataLocation()),
        (DATA, '[model.LLM.data_location]\nServer = "[::1]:20001"\n',
         DataLocation(DataLocationKind.SERVER, "[::1]:20001")),
        (DATA, 'data_location = { Local = "data" }\n', DataLocation(DataLocationKind.LOCAL, "data")),
        (DATA, 'data_location = { WeightedHttp = "https://x" }\n',
         DataLocation(DataLocationKind.WEIGHTED_HTTP, "https://x")),
        (DATA, 'data_location = { Preprocessed = "org/set" }\n',
         DataLocation(DataLocationKind.PREPROCESSED, "org/set")),
        (DATA, ('[model.LLM.data_location.Http]\ntoken_size_in_bytes = "FourBytes"\n'
               f'shuffle = {{ Seeded = [{SEED}] }}\nlocation = {{ SingleUrl = "https://x" }}\n'),
         DataLocation(DataLocationKind.HTTP, http=HttpLocation(HttpLocationKind.SINGLE_URL, "https://x"),
                      token_size=TokenSize.FOUR_BYTES, shuffle_seed=bytes([7] * 32))),
        (DATA, ('[model.LLM.data_location.Http]\ntoken_size_in_bytes = "TwoBytes"\nshuffle = "DontShuffle"\n'
               '[model.LLM.data_location.Http.location.NumberedFiles]\nurl_template = "https://x/{}.bin"\n'
               "start_index = 1\nn_left_pad_zeros = 3\nnum_files = 9\n"),
         DataLocation(DataLocationKind.HTTP, http=HttpLocation(
             HttpLocationKind.NUMBERED_FILES, "https://x/{}.bin", "", 1, 3, 9))),
        (SCHEDULE, "[model.LLM.lr_schedule.Constant]\nbase_lr = 1\nwarmup_steps = 2\nwarmup_init_lr = 0.5\n",
         LrSchedule(ScheduleKind.CONSTANT, base_lr=1.0, warmup_steps=2, warmup_init_lr=0.5)),
        (SCHEDULE, ("[model.LLM.lr_schedule.Linear]\nbase_lr = 1.0\nwarmup_steps = 2\nwarmup_init_lr = 0.5\n"
                   "total_steps = 9\nfinal_lr = 0.1\n"),
         LrSchedule(ScheduleKind.LINEAR, 1.0, 0.5, 2, 9, 0.1)),
        (SCHEDULE, ("[model.LLM.lr_schedule.WarmupStableDecay]\nbase_lr = 1.0\nwarmup_steps = 2\nwarmup_init_lr = 0.5\n"
                   "stable_steps = 3\ncosine_decay_steps = 4\ncosine_decay_final_lr = 0.5\nlinear_decay_steps = 5\n"
                   "linear_decay_final_lr = 0.25\n"),
         LrSchedule(ScheduleKind.WARMUP_STABLE_DECAY, 1.0, 0.5, 2, 0, 0.0, 3, 4, 0.5, 5, 0.25)),
        (OPTIMIZER, '[model.LLM]\noptimizer = "Dummy"\n'.replace("[model.LLM]\n", ""), Optimizer()),
        (OPTIMIZER, "[model.LLM.optimizer.AdamW]\nbetas = [0.5, 0.25]\nweight_decay = 0.5\neps = 0.125\n",
         Optimizer(OptimizerKind.ADAMW, weight_decay=0.5, betas=(0.5, 0.25), eps=0.125)),
        (OPTIMIZER, ('[model.LLM.optimizer.LocalSteps]\ninner_optimizer = "AdamWAnew"\ninner_steps = 8\n'
                     "merge_step = 2\ncompression_topk = 64\ncompression_chunk = 32\nvalue_bits = 2\n"
                     "error_decay = 0.5\nouter_rate = 0.25\n"),
         Optimizer(OptimizerKind.LOCAL_STEPS, compression_topk=64, compression_chunk=32, inner_steps=8, merge_step=2,
                   inner_optimizer=InnerOptimizer.ADAMW_ANEW, value_bits=2, error_decay=0.5, outer_rate=0.25)),
    ],
)  # fmt: skip
def test_every_variant_of_every_enum_loads(tmp_path: Path, old: str, new: str, expected: object) -> None:
    if not new.startswith("["):  # a plain key of [model.LLM] must stand before the tables below it
        text = TEXT.replace(old, "").replace("max_seq_len = 2048\n", "max_seq_len = 2048\n" + new)
    else:
        text = TEXT.replace(old, new)
    model = load_run(write(tmp_path, text)).model
    assert expected in (model.checkpoint, model.data_location, model.lr_schedule, model.optimizer)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("config", "min_clients"), "1", ":8: config.min_clients: must be a whole number, is '1'"),
        (("config", "min_clients"), 1.5, ":8: config.min_clients: must be a whole number, is 1.5"),
        (("config", "min_clients"), True, ":8: config.min_clients: must be a whole number, is true"),
        (("config", "min_clients"), -1, ":8: config.min_clients: is -1, at least 0"),
        (("config", "min_clients"), 65_536, ":8: config.min_clients: is 65536, at most 65535"),
        (("config", "total_steps"), 1 << 70, ":15: config.total_steps: is 1180591620717411303424, at most 4294967295"),
        (("model", "LLM", "architecture"), "HfLama", ":18: model.LLM.architecture: 'HfLama' is unknown -> one of"),
        (("model", "LLM", "checkpoint", "Hub", "repo_id"), "r" * 65,
         ":23: model.LLM.checkpoint.Hub.repo_id: has 65 bytes, at most 64"),
        (("model", "LLM", "checkpoint", "Hub", "repo_id"), "é" * 33,
         ":23: model.LLM.checkpoint.Hub.repo_id: has 66 bytes, at most 64"),
        (("model", "LLM", "checkpoint", "Hub", "repo_id"), "a\0",
         ":23: model.LLM.checkpoint.Hub.repo_id: must not contain a zero byte"),
        (("model", "LLM", "optimizer", "Distro", "clip_grad_norm"), 1e39,
         ":41: model.LLM.optimizer.Distro.clip_grad_norm: is too large for a float32"),
        (("model", "LLM", "optimizer", "Distro", "quantize_1bit"), 1,
         ":45: model.LLM.optimizer.Distro.quantize_1bit: must be true or false, is 1"),
        (("model", "LLM", "lr_schedule", "Cosine", "base_lr"), "fast",
         ":34: model.LLM.lr_schedule.Cosine.base_lr: must be a number, is 'fast'"),
        (("model", "LLM", "data_location", "Http", "shuffle"), "Shuffle",
         ":27: model.LLM.data_location.Http.shuffle: 'Shuffle' is unknown -> did you mean DontShuffle?"),
        (("run_id",), "r" * 33, ":1: run_id: has 33 bytes, at most 32 -> name of the run, of letters, digits"),
        (("run_id",), "", ":1: run_id: is empty -> name of the run"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_told_with_line_key_rule_and_what_would_be_right(
    tmp_path: Path, path: KeyPath, value: Value, expected: str
) -> None:
    (problem,) = fail(tmp_path, set_values(TEXT, {path: value}))
    assert problem.startswith(expected)
    assert " -> " in problem


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (".checkpoint.Hub]", ".checkpoint.Hbu]", ":22: model.LLM.checkpoint: 'Hbu' is unknown -> did you mean Hub?"),
        (CHECKPOINT, "", ":17: model.LLM.checkpoint: is missing -> add it: where the weights come from, as in { Local"),
        (DATA, "[model.LLM.data_location]\n",
         ":25: model.LLM.data_location: must name exactly one variant -> one of Http, Local, Preprocessed, Server"),
        (DATA, '[model.LLM.data_location]\nServer = "nowhere"\n',
         ':26: model.LLM.data_location.Server: must be "host:port" with a port from 1 to 65535'),
        (DATA, '[model.LLM.data_location]\nServer = "host:0"\n', ":26: model.LLM.data_location.Server: must be"),
        (DATA, '[model.LLM.data_location]\nLocal = ""\n', ":26: model.LLM.data_location.Local: is empty -> folder,"),
        ('shuffle = "DontShuffle"', "shuffle = { Seeded = [1, 2] }",
         ":27: model.LLM.data_location.Http.shuffle.Seeded: must be 32 numbers from 0 to 255, or 64 hex digits"),
        (OPTIMIZER, "[model.LLM.optimizer.Dummy]\n",
         ":40: model.LLM.optimizer.Dummy: takes no table: write it as a plain string"),
        (OPTIMIZER, "[model.LLM.optimizer.AdamW]\nbetas = [0.9]\nweight_decay = 0.0\neps = 1e-8\n",
         ":41: model.LLM.optimizer.AdamW.betas: list should have at least 2 items"),
        # that an epoch would now never end is left unsaid: the half with the unknown key is not judged
        ("rounds_per_epoch", "round_per_epoch",
         ":5: config.round_per_epoch: unknown key -> did you mean rounds_per_epoch?"),
        ("[config]\n", "[config]\nzzz = 1\n",
         ":3: config.zzz: unknown key -> known here: canary_permille, convict, cooldown_time,"),
        ("filter_dir", "filterdir", (":31: model.LLM.data_location.Http.location.Gcp.filterdirectory: unknown key -> "
         "did you mean filter_directory?")),
        ("cooldown_time = 30\n", "", (":2: config.cooldown_time: is missing -> add it: length of the pause after an "
         "epoch, in which members save (seconds, 1 to 2^32 - 1)")),
        (OPTIMIZER, "", ":17: model.LLM.optimizer: is missing -> add it: the optimizer, as a table [model.LLM.optimi"),
    ],
)  # fmt: skip
def test_a_wrong_key_or_variant_is_told_with_the_right_ones(tmp_path: Path, old: str, new: str, expected: str) -> None:
    (problem,) = fail(tmp_path, TEXT.replace(old, new))
    assert problem.startswith(expected)


def test_a_variant_with_content_written_as_a_string_shows_its_table(tmp_path: Path) -> None:
    text = TEXT.replace(CHECKPOINT, "").replace("max_seq_len", 'checkpoint = "Hub"\nmax_seq_len')
    (problem,) = fail(tmp_path, text)
    assert problem == (
        ":20: model.LLM.checkpoint: 'Hub' has content of its own -> a table [model.LLM.checkpoint.Hub] with repo_id, "
        "revision"
    )


def test_broken_rules_point_at_their_lines(tmp_path: Path) -> None:
    text = change(min_clients=5, global_batch_size_end=4, witness_nodes=33)
    text = set_values(text, {("model", "LLM", "lr_schedule", "Cosine", "total_steps"): 10,
                             ("model", "LLM", "optimizer", "Distro", "compression_topk"): 0})  # fmt: skip
    assert [p.split(" ")[0:2] for p in fail(tmp_path, text)] == [
        [":9:", "config.init_min_clients:"],
        [":11:", "config.witness_nodes:"],
        [":13:", "config.global_batch_size_end:"],
        [":37:", "model.LLM.lr_schedule.Cosine.total_steps:"],
        [":44:", "model.LLM.optimizer.Distro.compression_topk:"],
    ]


def test_all_problems_are_told_at_once_rules_of_the_readable_half_too(tmp_path: Path) -> None:
    text = change(cooldown_time=0).replace("quantize_1bit = true", "quantize_1bit = 2\nqantize = 1")
    text = text.replace('architecture = "HfLlama"', 'architecture = "Gpt"')
    problems = fail(tmp_path, text)
    assert [p.split(" ")[1] for p in problems] == [
        "config.cooldown_time:",
        "model.LLM.architecture:",
        "model.LLM.optimizer.Distro.quantize_1bit:",
        "model.LLM.optimizer.Distro.qantize:",
    ]


def test_a_broken_rule_is_told_beside_a_key_of_the_same_table_that_cannot_be_read(tmp_path: Path) -> None:
    text = change(max_round_train_time=0, witness_nodes=99)
    text = text.replace("[config]\n", '[config]\nepoch_time = "x"\n').replace("cooldown_time = 30\n", "")
    found = {problem.split(" ")[1].removeprefix("config.") for problem in fail(tmp_path, text)}
    assert found == {"max_round_train_time:", "witness_nodes:", "epoch_time:", "cooldown_time:"}


def test_a_key_that_cannot_be_read_breaks_no_other_rule(tmp_path: Path) -> None:
    for key in HARMLESS:
        text = change().replace(f"\n{key} = ", f'\n{key} = "x" # ', 1)
        assert [problem.split(" ")[1] for problem in fail(tmp_path, text)] == [f"config.{key}:"]


def test_what_is_no_toml_names_the_line_and_an_empty_file_its_tables(tmp_path: Path) -> None:
    assert [problem.split(":")[1].strip() for problem in fail(tmp_path, "")] == ["config", "model"]
    (problem,) = fail(tmp_path, "[config]\nx = \n")
    assert "is not TOML" in problem
    assert "line 2" in problem
    (problem,) = fail(tmp_path, "a = " + "[" * 100_000)
    assert "is not TOML" in problem


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigProblems, match=r"missing\.toml: cannot be read: No such file"):
        load_run(tmp_path / "missing.toml")
    path = tmp_path / "run.toml"
    path.write_bytes(b"x = '\xff'")
    with pytest.raises(ConfigProblems, match="is not TOML"):
        load_run(path)
    path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigProblems, match=f"has more than {MAX_FILE_BYTES:,} bytes"):
        load_run(path)


def test_a_folder_name_that_is_too_long_for_a_run_asks_for_a_run_id(tmp_path: Path) -> None:
    folder = tmp_path / ("f" * 33)
    folder.mkdir()
    (problem,) = fail(folder, TEXT)
    assert "run_id: the folder's name" in problem
    assert load_run(write(folder, 'run_id = "short"\n' + TEXT)).run_id == "short"


DATA_TOML = f'dir = "tokens"\ntoken_size = "FourBytes"\nseq_len = 16\nshuffle_seed = [{SEED}]\n'


def test_a_data_file_loads_relative_to_itself(tmp_path: Path) -> None:
    data = load_data(write(tmp_path, DATA_TOML, "data.toml"))
    assert (data.folder, data.token_size_bytes, data.sequence_length) == (tmp_path / "tokens", 4, 16)
    assert data.shuffle_seed == bytes([7] * 32)
    assert load_data(tmp_path) == data
    hex_seed = DATA_TOML.replace(f"[{SEED}]", '"' + "07" * 32 + '"')
    assert load_data(write(tmp_path, hex_seed, "data.toml")).shuffle_seed == data.shuffle_seed
    unshuffled = DATA_TOML[: DATA_TOML.index("shuffle_seed")]
    assert load_data(write(tmp_path, unshuffled, "data.toml")).shuffle_seed is None


def test_a_local_data_location_may_hold_a_data_file(tmp_path: Path) -> None:
    assert find_local_data(tmp_path) is None
    write(tmp_path, DATA_TOML, "data.toml")
    found = find_local_data(tmp_path)
    assert found == find_local_data(tmp_path / "data.toml") == load_data(tmp_path)


def test_a_wrong_data_file_names_its_lines(tmp_path: Path) -> None:
    path = write(tmp_path, 'dir = ""\ntoken_size = "Two"\nseq_length = 3\n', "data.toml")
    with pytest.raises(ConfigProblems) as caught:
        load_data(path)
    assert [(p.line, p.key) for p in caught.value.problems] == [
        (None, "seq_len"), (1, "dir"), (2, "token_size"), (3, "seq_length"),
    ]  # fmt: skip


@pytest.mark.parametrize("run_id", ["../../esc", "a b", "-x", "a\\n", "..", "über"])
def test_a_run_id_that_is_no_name_for_a_folder_is_refused(tmp_path: Path, run_id: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'run_id = "{run_id}"\n' + TEXT, encoding="utf-8")
    with pytest.raises(ConfigProblems) as refused:
        load_run(path)
    assert "not a valid name" in str(refused.value)


@pytest.mark.parametrize(
    "before",
    [
        'a = 1\ncheckpoint = { Local = { path = "model" } }  # here\nb = 2\n',
        'a = 1\nb = 2\n[checkpoint.Local]\npath = "model"\n',
        'a = 1\nb = 2\n# kept\n[checkpoint.Local]\npath = "model"\n\n[other]\nc = 3\n',
    ],
)
def test_a_key_of_several_forms_is_given_another_one(before: str) -> None:
    found = set_variant(before, ("checkpoint",), "Hub", {"repo_id": "owner/name"})
    wanted = tomllib.loads(before) | {"checkpoint": {"Hub": {"repo_id": "owner/name"}}}
    assert tomllib.loads(found) == wanted
    assert before.count("#") == found.count("#")
