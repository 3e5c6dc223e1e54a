"""Prepares a run's folder: configuration with free ports, weights, tokens.

Weights and tokens, which are slow to make, are made once and shared between runs.
"""

import fcntl
import functools
import hashlib
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import trio

from psyche.client.runtime.settings import KEY_NAME
from psyche.config.load import MAX_FILE_BYTES, LoadedRun, find_run_file, load_data, load_run
from psyche.config.problems import ConfigProblems
from psyche.config.rewrite import add_table, set_values, set_variant
from psyche.core.state.state import Checkpoint, CheckpointKind, DataLocationKind
from psyche.data.corpus import build_demo_corpus
from psyche.durable import read_file, write_file
from psyche.errors import ConfigError, PsycheError, StorageRefused
from psyche.server.preflight import MODEL_CONFIGS, find_file_problems
from psyche.storage.hub import open_hub
from psyche.testnet.backends import HOST, Prepared, Say, build_backend
from psyche.testnet.free_port import choose_port
from psyche.testnet.process import Child
from psyche.testnet.scratch import hold_folder
from psyche.testnet.settings import Layout, TestnetSettings
from psyche.wire.key_file import make_identity, write_key_file

DATA_FILE: Final = "data.toml"
TOKEN_SUFFIXES: Final = (".bin", ".npy", ".ds")
MODEL_TIMEOUT_S: Final = 600.0  # enough for a large model on a slow disk; the demo takes 8 s, most of it imports
CORPUS_NAME: Final = "standard-library"  # of the one data folder that a testnet makes by itself: the demo's
LOCK_POLL_S: Final = 0.2


def make_layout(settings: TestnetSettings, name: str) -> Layout:
    root = settings.run_dir
    if root is None:
        root = _make_dated_folder(Path("runs"), name)
    hold_folder(root)
    if any(root.iterdir()):
        raise ConfigError(f"--run-dir {root}: is not empty; choose another: each run needs a folder of its own")
    root = root.absolute()
    events = settings.events_dir.absolute() if settings.events_dir is not None else root / "events"
    return Layout(root, events)


def _make_dated_folder(parent: Path, name: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{number}" for number in range(2, 100))):
        folder = parent / f"{name}-{stamp}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise PsycheError(f"{parent}: a hundred runs started in this second; try again")


async def prepare(settings: TestnetSettings, say: Say) -> Prepared:
    """Check the settings, then create everything that the run needs."""
    settings.check()
    backend = build_backend(settings)
    source = find_run_file(settings.config_path)
    run = _choose_model(load_run(source), settings)
    backend.check_validator()
    # A chain's record names addresses of clients, which have none yet.
    fitted = backend.traits.fit_file(replace(run, bootstrap=run.bootstrap or (HOST,)))
    if run.config.init_min_clients > settings.num_clients and not settings.wait_for_all:
        raise ConfigError(
            f"{run.path}: init_min_clients is {run.config.init_min_clients}, with --num-clients {settings.num_clients} "
            "the run would wait for ever; --wait-for-all sets it to the number of clients"
        )
    find_data(run)  # before anything is made
    await trio.to_thread.run_sync(_check_files, run)
    for warning in fitted.warnings:
        say(f"note: {warning}")
    layout = make_layout(settings, run.run_id)
    hold_folder(settings.cache_dir)
    try:
        layout.config.mkdir()
        layout.events.mkdir(parents=True, exist_ok=True)
        keys = _make_keys(settings, layout)
        _write_run_file(run, settings, layout)
        copy = load_run(layout.config / source.name)
        await _prepare_model(run, copy, settings, layout, say)
        held_out = await _prepare_data(run, copy, settings, layout, say)
        port = choose_port(wanted=settings.server_port)
        copy, p2p_ports = backend.prepare(copy, keys, layout)
    except BaseException:
        shutil.rmtree(layout.root, ignore_errors=True)
        raise
    is_served = run.model.data_location.kind is DataLocationKind.SERVER
    return Prepared(layout, copy, port, layout.config / DATA_FILE if is_served else None, held_out, keys, p2p_ports)


def _choose_model(run: LoadedRun, settings: TestnetSettings) -> LoadedRun:
    if settings.first_client_checkpoint is None:
        return run
    name, _, revision = settings.first_client_checkpoint.partition("@")
    try:
        open_hub(name, revision or None, settings.storage)  # judges the name
    except StorageRefused as error:
        raise ConfigError(f"--first-client-checkpoint: {error}; name OWNER/NAME or OWNER/NAME@REVISION") from error
    return replace(run, model=replace(run.model, checkpoint=Checkpoint(CheckpointKind.HUB, name, revision or None)))


def _check_files(run: LoadedRun) -> None:
    is_served = run.model.data_location.kind is DataLocationKind.SERVER
    if problems := find_file_problems(run, load_data(run.folder / DATA_FILE) if is_served else None):
        raise ConfigProblems(problems)


def _make_keys(settings: TestnetSettings, layout: Layout) -> tuple[bytes, ...]:
    """Create the clients' keys before they start, so that the server can allow them (M12)."""
    keys: list[bytes] = []
    for number in range(1, settings.num_clients + 1):
        layout.client(number).mkdir()
        identity = make_identity()
        write_key_file(layout.client(number) / KEY_NAME, identity)
        keys.append(identity.public)
    return tuple(keys)


def _write_run_file(run: LoadedRun, settings: TestnetSettings, layout: Layout) -> None:
    values: dict[tuple[str | int, ...], str | int | float | bool] = {("run_id",): run.run_id}  # may be its name
    location = run.model.data_location
    if location.kind is DataLocationKind.SERVER:
        host = location.address.rpartition(":")[0]
        values["model", "LLM", "data_location", "Server"] = f"{host}:{choose_port()}"
    if settings.wait_for_all:
        values["config", "init_min_clients"] = settings.num_clients
        values["config", "min_clients"] = min(run.config.min_clients, settings.num_clients)
    text = read_file(run.path, MAX_FILE_BYTES).decode()
    if settings.open_joins:
        values["access", "open"] = True
        text = add_table(text, "access")
    text = set_values(text, values)
    if settings.first_client_checkpoint is not None:
        source = run.model.checkpoint
        revision = {} if source.revision is None else {"revision": source.revision}
        text = set_variant(text, ("model", "LLM", "checkpoint"), "Hub", {"repo_id": source.name, **revision})
    write_file(layout.config / run.path.name, text.encode())


async def _prepare_model(run: LoadedRun, copy: LoadedRun, settings: TestnetSettings, layout: Layout, say: Say) -> None:
    if run.model.checkpoint.kind is not CheckpointKind.LOCAL:
        return
    name = run.model.checkpoint.name
    weights = run.resolve(name)
    if not weights.exists():
        weights = await _make_model(run, settings, layout, say)
    _link(copy.resolve(name), weights, layout)


async def _make_model(run: LoadedRun, settings: TestnetSettings, layout: Layout, say: Say) -> Path:
    config = next((run.folder / name for name in MODEL_CONFIGS if (run.folder / name).is_file()), None)
    if config is None:
        wanted = run.resolve(run.model.checkpoint.name)
        raise ConfigError(f"{run.path}: no weights at {wanted}; make them with `psyche model init`")
    key = hashlib.sha256(read_file(config, MAX_FILE_BYTES) + str(settings.seed).encode()).hexdigest()[:12]
    target = settings.cache_dir.absolute() / f"model-{key}"
    async with hold_lock(settings.cache_dir / ".lock"):
        if not target.exists():
            say(f"making first weights from {config} (about 10 s, once)")
            await _run_model_init(config, target, settings.seed, layout.logs / "model-init.log")
    return target


async def _run_model_init(config: Path, target: Path, seed: int, output: Path) -> None:
    argv = [sys.executable, "-m", "psyche", "model", "init", "--config", str(config), "--output", str(target)]
    child = Child("model init", [*argv, "--seed", str(seed)], output=output)
    try:
        with trio.fail_after(MODEL_TIMEOUT_S):
            code = await child.wait()
    except trio.TooSlowError:
        raise PsycheError(f"making first weights took more than {MODEL_TIMEOUT_S:.0f} s; see {output}") from None
    finally:
        await child.end()
    if code != 0:
        reason = " ".join(child.get_last_lines(1)) or "no reason given"
        raise PsycheError(f"making first weights failed: {reason} (see {output})")


def find_data(run: LoadedRun) -> Path | None:
    location = run.model.data_location
    if location.kind in (DataLocationKind.DUMMY, DataLocationKind.HTTP, DataLocationKind.WEIGHTED_HTTP):
        return None
    if location.kind is DataLocationKind.PREPROCESSED and not run.resolve(location.address).exists():
        return None  # a data set of the Hub
    description = _find_description(run)
    named_in = description or run.path
    wanted = load_data(description).folder if description else run.resolve(location.address)
    if not has_tokens(wanted) and wanted.name != CORPUS_NAME:
        file = wanted if wanted.suffix in TOKEN_SUFFIXES else wanted / "train.bin"
        raise ConfigError(
            f"{named_in}: no tokens at {wanted}; make them from your text: `psyche data tokenize TEXT --output {file}`"
        )
    return wanted


def _find_description(run: LoadedRun) -> Path | None:
    """The data.toml that describes the run's tokens; None: its data location names them."""
    location = run.model.data_location
    if location.kind is DataLocationKind.SERVER:
        return run.folder / DATA_FILE
    return run.resolve(location.address) if location.address.endswith(".toml") else None


async def _prepare_data(
    run: LoadedRun, copy: LoadedRun, settings: TestnetSettings, layout: Layout, say: Say
) -> Path | None:
    wanted = find_data(run)
    if wanted is None:
        return None
    source, target = _find_description(run), _find_description(copy)
    if source is not None and target is not None:
        shutil.copyfile(source, target)
        link = load_data(target).folder
    else:
        link = copy.resolve(run.model.data_location.address)
    if has_tokens(wanted):
        _link(link, wanted, layout)
        return None
    cache = settings.cache_dir.absolute() / CORPUS_NAME
    if not cache.exists():
        say("writing tokens of Python's standard library (about 30 MB, a few seconds, once)")
    async with hold_lock(settings.cache_dir / ".lock"):
        # Files are written atomically, so an abandoned thread leaves no partial file.
        build = functools.partial(build_demo_corpus, cache)
        corpus = await trio.to_thread.run_sync(build, abandon_on_cancel=True)  # pyright: ignore[reportCallIssue]  # old stubs
    _link(link, corpus.train_folder, layout)
    return corpus.held_out


def has_tokens(path: Path) -> bool:
    if path.is_file():
        return True
    return path.is_dir() and any(file.suffix in (*TOKEN_SUFFIXES, ".parquet") for file in path.rglob("*"))


def _link(link: Path, target: Path, layout: Layout) -> None:
    """Link a path that the configuration names into the folder of its copy; absolute paths need no link."""
    if link == target:
        return
    if not link.is_relative_to(layout.root):
        raise ConfigError(f"{target}: lies outside the configuration's folder; name it by its absolute path")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target.resolve())


@asynccontextmanager
async def hold_lock(path: Path) -> AsyncIterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await trio.sleep(LOCK_POLL_S)
        yield
