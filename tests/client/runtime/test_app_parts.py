"""What `psyche client train` is put together from: key, lock, data, payload check (R4, I9)."""

import os
import signal
import stat
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import trio
from kits.power_loss import watch_disk

from psyche.backends.port import Backend
from psyche.client.runtime import app
from psyche.client.runtime.app import LazyData, PayloadCheck, get_client_name, load_identity, lock_data_dir
from psyche.client.runtime.settings import ClientSettings
from psyche.core.encoding.plan import compute_plan, encode_plan, get_payload_bytes
from psyche.core.state.state import Coordinator, DataLocation, DataLocationKind
from psyche.errors import BackendError, ConfigError, NetworkError, PsycheError, TrainerError, WireError
from psyche.telemetry.events import EventLog
from psyche.testing.builders import build_model
from psyche.wire.crypto import Identity
from psyche.wire.key_file import write_key_file

PLAN = compute_plan({"w": (64, 64)}, chunk=64, topk=8, one_bit=True)
SECRET = bytes(range(32))


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClientSettings:
    monkeypatch.delenv("RAW_IDENTITY_SECRET_KEY", raising=False)
    return ClientSettings(run_id="run", data_dir=tmp_path / "data", local_root=tmp_path)


# --- the key


def test_a_key_is_made_once_and_readable_by_its_owner_alone(settings: ClientSettings) -> None:
    first = load_identity(settings)
    assert load_identity(settings).public == first.public
    assert stat.S_IMODE((settings.data_dir / "identity.key").stat().st_mode) == 0o600


def test_clients_of_different_keys_have_different_names(settings: ClientSettings, tmp_path: Path) -> None:
    """Otherwise `psyche trace` takes the logs of two clients for those of one."""
    first = get_client_name(load_identity(settings))
    settings.data_dir = tmp_path / "other"
    assert get_client_name(load_identity(settings)) != first
    settings.data_dir = tmp_path / "data"
    assert get_client_name(load_identity(settings)) == first
    assert first == f"client-{load_identity(settings).public.hex()[:8]}"


def test_two_clients_that_start_at_once_in_one_folder_take_the_same_key(
    settings: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_late(path: Path, identity: Identity) -> None:
        write_key_file(path, Identity(SECRET))  # the other one was quicker
        write_key_file(path, identity)

    monkeypatch.setattr(app, "write_key_file", write_late)
    assert load_identity(settings).public == Identity(SECRET).public


def test_a_key_that_a_client_began_with_survives_a_power_cut(settings: ClientSettings, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    settings.data_dir = root / "psyche-data/run"
    with watch_disk(root) as watch:
        os.close(lock_data_dir(settings.data_dir))  # in the order of `run_client`
        key = load_identity(settings)
        watch.promise(key.public)
    for number, loss in enumerate(watch.losses):
        settings.data_dir = tmp_path / str(number) / "psyche-data/run"
        (tmp_path / str(number)).mkdir()
        loss.restore(tmp_path / str(number))
        assert not loss.promised or load_identity(settings).public == loss.promised, loss.moment


def test_a_key_file_is_taken_where_one_is_named(settings: ClientSettings, tmp_path: Path) -> None:
    settings.identity_path = tmp_path / "my.key"
    write_key_file(settings.identity_path, Identity(SECRET))
    assert load_identity(settings).seed == SECRET
    assert not (settings.data_dir / "identity.key").exists()


def test_a_named_key_file_that_is_missing_is_an_error_and_no_new_key(settings: ClientSettings, tmp_path: Path) -> None:
    settings.identity_path = tmp_path / "missing.key"
    with pytest.raises(ConfigError, match=r"missing\.key"):
        load_identity(settings)


def test_a_key_from_the_environment_is_taken(settings: ClientSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAW_IDENTITY_SECRET_KEY", SECRET.hex())
    assert load_identity(settings).seed == SECRET


@pytest.mark.parametrize("text", ["not hex", "00" * 31, "00" * 33])
def test_a_key_from_the_environment_that_is_none_is_an_error(
    settings: ClientSettings, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("RAW_IDENTITY_SECRET_KEY", text)
    with pytest.raises(ConfigError):
        load_identity(settings)


def test_two_sources_of_a_key_are_an_error(
    settings: ClientSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.identity_path = tmp_path / "my.key"
    monkeypatch.setenv("RAW_IDENTITY_SECRET_KEY", SECRET.hex())
    with pytest.raises(ConfigError, match="not both"):
        load_identity(settings)


# --- the lock


def test_a_data_folder_belongs_to_one_client_at_a_time(tmp_path: Path) -> None:
    """M9: two processes with one key would sign two results of one round."""
    folder = tmp_path / "data"
    handle = lock_data_dir(folder)
    with pytest.raises(ConfigError, match="another client is using it"):
        lock_data_dir(folder)
    os.close(handle)
    os.close(lock_data_dir(folder))


# --- R4


def test_nothing_is_checked_before_the_plan_is_known() -> None:
    with pytest.raises(WireError, match="plan is not known"):
        PayloadCheck()(b"anything")


def test_a_body_is_checked_against_the_plan_of_the_loaded_model() -> None:
    """R4: length first, then ranges."""
    check = PayloadCheck()
    check.set_plan(encode_plan(PLAN))
    size = get_payload_bytes(PLAN)
    for body in (b"", bytes(size + 1), b"\xff" * size):
        with pytest.raises(WireError):
            check(body)


# --- data


@pytest.fixture
async def lazy(settings: ClientSettings) -> AsyncIterator[tuple[LazyData, Coordinator]]:
    state = Coordinator(model=build_model(data_location=DataLocation(DataLocationKind.DUMMY)))
    data = LazyData(lambda: state, Identity(SECRET), settings)
    data.vocab_size = 100
    yield data, state
    await data.aclose()


async def test_p9_data_is_opened_again_where_the_owner_has_changed_what_it_is(
    lazy: tuple[LazyData, Coordinator],
) -> None:
    """F22: and where it is missing, it is looked for each time that it is asked for."""
    data, state = lazy
    short = await data.get(0, 1)
    assert len(short) == 2 * state.model.max_seq_len * 4
    assert await data.get(0, 1) == short
    state.model = replace(state.model, max_seq_len=2 * state.model.max_seq_len)
    assert len(await data.get(0, 1)) == 2 * len(short)
    assert data.sequence_length == state.model.max_seq_len
    data.vocab_size = 2
    assert max(memoryview(await data.get(0, 9)).cast("I")) < 2
    state.model = replace(state.model, data_location=DataLocation(DataLocationKind.LOCAL, address="missing"))
    for _ in range(2):
        with pytest.raises(PsycheError, match="missing"):
            await data.get(0, 1)


async def test_two_batches_asked_for_at_once_open_the_data_once(
    lazy: tuple[LazyData, Coordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, _ = lazy
    opened: list[int] = []
    really_open = data._open
    monkeypatch.setattr(data, "_open", lambda: opened.append(1) or really_open())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(data.get, 0, 1)
        nursery.start_soon(data.get, 2, 3)
    assert opened == [1]


# --- signals


@pytest.fixture
def unstarted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ClientSettings:
    """A client that never comes up; where that is cut short, something half-begun complains."""

    async def come_up(*_args: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await trio.sleep_forever()
        except trio.Cancelled as error:
            raise NetworkError("libp2p ended") from error

    monkeypatch.setattr(app, "_run", come_up)
    return ClientSettings(run_id="r", data_dir=tmp_path, local_root=tmp_path)


async def test_ctrl_c_while_a_client_comes_up_is_no_error_of_what_it_interrupts(unstarted: ClientSettings) -> None:
    assert await app.run_client(unstarted, EventLog(None, node="n"), open_nothing) == 130


class StandIn:
    """A shell that ends when it is stopped, or is finished already."""

    def __init__(self, *, is_finished: bool) -> None:
        self.is_stopped = False
        self._is_finished = is_finished
        self._ended = trio.Event()

    async def run(self) -> int:
        await self._ended.wait()
        return 0

    def stop(self, _reason: str) -> None:
        self.is_stopped = not self._is_finished
        self._ended.set()


@pytest.mark.parametrize(
    ("number", "is_finished", "code"),
    [(signal.SIGINT, False, 130), (signal.SIGTERM, False, 0), (signal.SIGINT, True, 0)],
    ids=["ctrl-c", "sigterm", "ctrl-c after the end of the run"],
)
async def test_a_client_that_ctrl_c_stops_says_so_with_130(
    settings: ClientSettings, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, is_finished: bool, code: int
) -> None:
    shell = StandIn(is_finished=is_finished)

    async def take_part(_settings: object, _log: object, _backend: object, orders: app.Orders) -> None:
        monkeypatch.setattr(orders, "shell", shell)
        os.kill(os.getpid(), number)
        ended = await shell.run()
        orders.note_end(ended, is_stopped=shell.is_stopped)

    monkeypatch.setattr(app, "_run", take_part)
    assert await app.run_client(settings, EventLog(None, node="n"), open_nothing) == code


async def test_what_keeps_a_client_from_coming_up_is_told(
    unstarted: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_args: object) -> None:
        await trio.lowlevel.checkpoint()
        raise NetworkError("the port is taken")

    monkeypatch.setattr(app, "_run", fail)
    with pytest.raises(NetworkError, match="the port is taken"):
        await app.run_client(unstarted, EventLog(None, node="n"), open_nothing)


async def test_a_client_finds_its_backend_before_it_starts_a_trainer(
    settings: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_in_vain(_settings: ClientSettings, _identity: Identity) -> AbstractAsyncContextManager[Backend]:
        raise BackendError("it is not there")

    class NoTrainer(StandIn):
        async def start(self) -> None:
            raise AssertionError("torch is loaded for nothing")

    monkeypatch.setattr(app, "TrainerProcess", lambda **_how: NoTrainer(is_finished=True))
    with pytest.raises(BackendError, match="it is not there"):
        await app.run_client(settings, EventLog(None, node="n"), look_in_vain)


async def test_what_a_killed_client_has_half_written_is_removed_and_what_it_was_replacing_restored(
    settings: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoTrainer(StandIn):
        async def start(self) -> None:
            raise TrainerError("it does not start")

    async def stop(_trainer: NoTrainer) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(app, "TrainerProcess", lambda **_how: NoTrainer(is_finished=True))
    monkeypatch.setattr(app, "_stop_trainer", stop)
    for root in ("resume", "models"):
        for left in ("kept", ".run-step9.tmp-77-abcd", ".run-step5.old-77-abcd"):
            (settings.data_dir / root / left).mkdir(parents=True)
    with pytest.raises(TrainerError, match="it does not start"):
        await app.run_client(settings, EventLog(None, node="n"), open_stand_in)
    for root in ("resume", "models"):
        assert {path.name for path in (settings.data_dir / root).iterdir()} == {"kept", "run-step5"}


def open_stand_in(_settings: ClientSettings, _identity: Identity) -> AbstractAsyncContextManager[Backend]:
    return nullcontext(cast("Backend", None))


def open_nothing(_settings: ClientSettings, _identity: Identity) -> AbstractAsyncContextManager[Backend]:
    raise AssertionError("it never gets so far")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_a_stop_before_the_shell_exists_ends_at_once_with_the_signal_s_code(number: int, code: int) -> None:
    async def signals() -> AsyncIterator[int]:
        yield number

    orders = app.Orders(stop_grace_s=1.0)
    with orders.scope:
        await orders.obey(signals())
        await trio.sleep_forever()
    assert (orders.code, orders.is_asked) == (code, True)
