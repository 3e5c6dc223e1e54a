"""The server and the client's side of it over real sockets: whole runs, restarts, resends, owners, the disk."""

import os
import ssl
import stat
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import trio
from kits.clocks import SteadyClock
from kits.log import Log
from kits.server import CLIENTS, OWNER, RunFile, build_record, recover_run
from live_kit import RATE, SERVER, Script, build_file, follow_all, is_finished, is_training, open_scripts, open_server

from psyche.backends.tcp.backend import BACK_OFF_S, Platform, TcpBackend, open_backend
from psyche.backends.tcp.dial import ServerAddress, ask, parse_server
from psyche.backends.tcp.owner import TcpAdministration
from psyche.core.encoding.account import encode_state
from psyche.core.state.messages import (
    Join,
    Withdraw,
)
from psyche.core.state.state import (
    ZERO32,
    DataLocation,
    DataLocationKind,
    RunState,
)
from psyche.errors import BackendError, ConfigError, HandshakeError
from psyche.server.journal import journal as j
from psyche.server.journal.disk import FolderDisk
from psyche.server.journal.recovery import OpenRun
from psyche.server.server import ServerSettings, run_server
from psyche.telemetry import types
from psyche.testing.builders import START_UNIX, build_model
from psyche.wire import backend as wire
from psyche.wire.address_record import AddressRecord, sign_address_record
from psyche.wire.crypto import blob_id_of
from psyche.wire.line.framing import FrameStream
from psyche.wire.line.handshake import client_handshake
from psyche.wire.line.tls import open_tls


def recover_folder(folder: Path) -> OpenRun:
    disk = FolderDisk(folder)
    try:
        return recover_run(disk)
    finally:
        disk.close()


async def test_three_clients_drive_a_whole_run_to_its_end(tmp_path: Path, clock: SteadyClock) -> None:
    shown: set[RunState] = set()
    async with (
        open_server(tmp_path, on_state=lambda state: shown.add(state.run_state)) as server,
        open_scripts(server) as scripts,
    ):
        await follow_all(scripts, is_finished)
        assert shown >= {run_state for run_state, _, _ in scripts[0].seen}, "and the state hook before them"
        finals = [encode_state(script.state) for script in scripts if script.state is not None]
        assert len(set(finals)) == 1, "all have seen the same state"
        state = scripts[0].state
        assert state is not None
        assert (state.progress.epoch, state.progress.step) == (2, 5)
        assert {epoch for _, epoch, _ in scripts[0].seen} == {0, 1, 2}
        for script in scripts:
            assert script.nonces == sorted(set(script.nonces)), "newest only, nonce rising"
            assert {record.p2p for record in script.backend.get_addresses()} == {i.public for i in CLIENTS[:3]}
        await server.stop()
        found = recover_folder(server.folder)
        assert encode_state(found.state) == finals[0], "the journal has it all"
        assert server.sink.get(types.ServerStopped)[0].seq == found.journal.last_seq


async def test_a_client_of_an_older_tls_is_told_which_one_by_an_alert_and_the_log_names_it(
    tmp_path: Path, clock: SteadyClock
) -> None:
    async with open_server(tmp_path) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        line = trio.SSLStream(await trio.open_tcp_stream("127.0.0.1", server.port), context)
        with pytest.raises(trio.BrokenResourceError) as caught:
            await line.do_handshake()
        assert isinstance(caught.value.__cause__, ssl.SSLError)
        assert caught.value.__cause__.reason == "TLSV1_ALERT_PROTOCOL_VERSION"
        with trio.fail_after(60):
            while not server.sink.get(types.ConnectionClosed):
                await trio.sleep(0.05)
        assert "the other side does not speak TLS 1.3" in server.sink.get(types.ConnectionClosed)[0].reason


async def test_the_manifest_of_the_run_s_data_is_given_in_parts_while_it_is_that_on_record(
    tmp_path: Path, clock: SteadyClock
) -> None:
    raw = os.urandom(wire.MAX_MANIFEST_PART_BYTES + 5)
    (tmp_path / "data.manifest").write_bytes(raw)
    for root, parts in ((blob_id_of(raw), [raw[:-5], raw[-5:], b""]), (ZERO32, [b""])):
        file = build_file(data_root=root)
        async with (
            open_server(tmp_path / root.hex()[:4], file, data_manifest=tmp_path / "data.manifest") as server,
            open_backend(server.address, CLIENTS[0]) as backend,
        ):
            start = 0
            for part in parts:
                assert await backend.ask_data_manifest(start) == (len(b"".join(parts)), part)
                start += len(part)


@pytest.mark.parametrize(
    ("ahead_s", "told"),
    [(7_230, "2 h 00 min ahead of"), (-93, "1 min 3"), (30, None)],
    ids=["ahead", "behind", "right"],
)
async def test_a_client_whose_clock_is_wrong_says_by_how_much_and_joins_all_the_same(
    tmp_path: Path, clock: SteadyClock, ahead_s: int, told: str | None
) -> None:
    sink = Log()
    platform = Platform(unix_time=lambda: START_UNIX + trio.current_time() + ahead_s)
    async with open_server(tmp_path) as server:
        async with open_backend(server.address, CLIENTS[0], sink=sink, platform=platform) as backend:
            await backend.submit(Join(CLIENTS[0].public), build_record(CLIENTS[0], expires_unix=4_000_000_000))
        found = [event.message for event in sink.get(types.ClockWrong)]
        assert len(found) == (told is not None)
        assert all(told in message and "the server 127.0.0.1:" in message for message in found if told)


async def test_a_command_to_a_server_that_is_away_gives_up_with_a_reason(clock: SteadyClock) -> None:
    address = ServerAddress(host="127.0.0.1", port=1)
    said: list[str] = []
    with pytest.raises(
        BackendError, match=r"^server 127.0.0.1:1: cannot be reached \(Connection refused\); gave up after 3 s$"
    ):
        await TcpAdministration(address, OWNER, timeout_s=3, say=said.append).get_status()
    (line,) = said  # once, and before it gives up
    assert line.startswith("server 127.0.0.1:1: cannot be reached")
    assert "trying for 3 s" in line


async def test_a_client_gives_up_on_another_server_another_run_and_another_version(
    tmp_path: Path, clock: SteadyClock
) -> None:
    async with open_server(tmp_path) as server:
        other_key = ServerAddress(host="127.0.0.1", port=server.port, key=OWNER.public)
        with pytest.raises(HandshakeError, match="another server"):
            await TcpBackend(other_key, CLIENTS[0]).run()
        other_run = ServerAddress(host="127.0.0.1", port=server.port, run_id="other")
        with pytest.raises(wire.WrongRun, match="not 'other'"):
            async with open_backend(other_run, CLIENTS[0]):
                await trio.sleep_forever()
        stream, channel = await open_tls("127.0.0.1", server.port)
        frames = FrameStream(stream, 1 << 20)
        await client_handshake(frames, CLIENTS[0], wire.PURPOSE, channel, SERVER.public, 60)
        with pytest.raises(wire.WrongVersion, match="update one"):
            await ask(frames, wire.Request(0, wire.HelloRequest(wire.VERSION + 1, "test-run", "newer")))
        await frames.aclose()


async def test_a_client_of_a_run_made_anew_under_its_old_name_gives_up(tmp_path: Path, clock: SteadyClock) -> None:
    async with open_server(tmp_path) as server, open_scripts(server, 1) as scripts:
        await scripts[0].follow(lambda _: True)
        await server.stop()
        server.folder = tmp_path / "elsewhere"
        server._options["unix_time"] = lambda: 2_000_000_000
        await server.start()
        with pytest.raises(BackendError, match="created again"):
            await scripts[0].follow(lambda _: False)


async def test_a_connection_taken_over_by_another_process_ends_the_first_client(
    tmp_path: Path, clock: SteadyClock
) -> None:
    async with open_server(tmp_path) as server, open_scripts(server, 1) as scripts:
        await scripts[0].follow(lambda _: True)
        async with open_backend(server.address, CLIENTS[0]):
            with pytest.raises(BackendError, match="same key"):
                await scripts[0].follow(lambda _: False)


async def test_a_hash_mismatch_is_healed_by_the_full_state(tmp_path: Path, clock: SteadyClock) -> None:
    sink, file = Log(), build_file(waiting_for_members_extra_time=255)
    async with open_server(tmp_path, file) as server, open_scripts(server, sink=sink) as scripts:
        await follow_all(scripts, lambda s: len(s.registry.slots) == 3)
        backend = scripts[0].backend
        damaged = bytearray(backend._raw)
        damaged[100_000] ^= 1
        backend._raw, nonce = bytes(damaged), backend._nonce
        await scripts[1].backend.submit(Withdraw(0, 0))
        with trio.fail_after(20 * RATE):
            while backend._nonce <= nonce:
                await trio.sleep(0.1)
        assert len(sink.get(types.StateMismatch)) == 1
        await follow_all(scripts, lambda s: s.nonce > nonce)
        assert len({encode_state(s.state) for s in scripts if s.state is not None}) == 1


async def test_a_server_restored_from_an_older_copy_is_not_followed(tmp_path: Path, clock: SteadyClock) -> None:
    backend = TcpBackend(ServerAddress(host="127.0.0.1", port=1), CLIENTS[0])
    backend._take_state(5, b"five")
    with pytest.raises(wire.WrongRun, match="went back from nonce 5 to 4"):
        backend._take_state(4, b"four")
    with pytest.raises(wire.WrongRun):
        backend._take_state(5, b"another five")


async def test_a_failing_disk_stops_the_server_and_its_journal_is_still_good(
    tmp_path: Path, clock: SteadyClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fdatasync
    failing = False

    def sync(fd: int) -> None:
        if failing and stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(5, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fdatasync", sync)
    scripts: list[Script] = []

    async def run() -> None:
        nonlocal failing
        async with open_server(tmp_path) as server, open_scripts(server) as scripts[:]:
            await follow_all(scripts, is_training)
            failing = True
            await follow_all(scripts, is_finished)

    with pytest.raises(BaseExceptionGroup) as group:
        await run()
    assert group.group_contains(j.JournalError, match=r"Input/output error.*start the server again")
    failing = False
    found = recover_folder(tmp_path / "state")
    assert len(scripts) == 3
    assert found.state.nonce >= max(max(s.nonces) for s in scripts), "nobody was shown what is not on disk"


async def test_an_address_that_is_taken_is_a_clear_error(tmp_path: Path, clock: SteadyClock) -> None:
    async with open_server(tmp_path) as server:
        settings = ServerSettings(run=build_file(), identity=SERVER, state_dir=tmp_path / "b", port=server.port)
        with pytest.raises(ConfigError, match=rf"cannot listen on 127.0.0.1:{server.port}"):
            await run_server(settings)


async def test_whoever_waits_for_a_backend_that_is_stopped_hears_of_it(clock: SteadyClock) -> None:
    backend = TcpBackend(ServerAddress(host="127.0.0.1", port=1), CLIENTS[0])
    reasons: list[str] = []

    async def wait(call: Callable[[], Any]) -> None:
        with pytest.raises(BackendError) as stopped:
            await call()
        reasons.append(str(stopped.value))

    async def take_state() -> None:
        async for _ in backend.states():
            raise AssertionError("there is no server")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, lambda: backend.submit(Withdraw(0, 0)))
        nursery.start_soon(wait, take_state)
        with trio.move_on_after(5):
            await backend.run()
    assert len(reasons) == 2
    assert all("was stopped" in reason for reason in reasons)


async def test_who_cannot_reach_the_server_waits_for_it_by_name_and_reason(tmp_path: Path, clock: SteadyClock) -> None:
    sink = Log()
    async with open_server(tmp_path) as server, trio.open_nursery() as nursery:
        await server.stop()
        backend = TcpBackend(server.address, CLIENTS[0], sink=sink)
        nursery.start_soon(backend.run)
        with trio.fail_after(20 * RATE):
            while not sink.get(types.WaitStarted):
                await trio.sleep(0.1)
        (wait,) = sink.get(types.WaitStarted)
        assert wait.wait is types.Wait.BACKEND
        assert wait.what == f"server 127.0.0.1:{server.port}: cannot be reached (Connection refused)"
        await trio.sleep(20)
        assert len(sink.get(types.WaitStarted)) == 1, "it is one wait, however often it tries"
        await server.start()
        with trio.fail_after(20 * RATE):
            while not sink.get(types.WaitEnded):
                await trio.sleep(0.1)
        (ended,) = sink.get(types.WaitEnded)
        assert (ended.what, ended.outcome) == (wait.what, types.WaitOutcome.CONNECTED)
        nursery.cancel_scope.cancel()


async def test_where_no_server_was_ever_found_the_client_says_what_to_check(clock: SteadyClock) -> None:
    sink = Log()
    backend = TcpBackend(ServerAddress(host="127.0.0.1", port=1), CLIENTS[0], sink=sink)
    with trio.move_on_after(20):
        await backend.run()
    told = [event.reason for event in sink.get(types.BackendLost)]
    assert set(told[:3]) == {"server 127.0.0.1:1: cannot be reached (Connection refused)"}
    assert "psyche server run --state FOLDER --server-port 1" in told[3]
    for part in ("host and port", "firewall"):
        assert part in told[3]
    assert len(sink.get(types.WaitStarted)) == 1, "the wait is the same as before"


async def test_a_client_that_only_looks_for_the_server_is_not_there_yet(tmp_path: Path, clock: SteadyClock) -> None:
    """H6: one that came back and still loads PyTorch must not keep its place among those that train."""
    async with (
        open_server(tmp_path) as server,
        open_backend(server.address, CLIENTS[0], follows_at_once=False) as backend,
    ):
        await backend.reach()
        assert (await TcpAdministration(server.address, OWNER).get_status()).connections == 0
        async with aclosing(backend.states()) as states:
            await anext(states)
        assert (await TcpAdministration(server.address, OWNER).get_status()).connections == 1


async def test_a_server_that_hangs_up_at_once_is_not_hammered(clock: SteadyClock) -> None:
    sink, accepted = Log(), 0

    async def hang_up(stream: trio.SocketStream) -> None:
        nonlocal accepted
        accepted += 1

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, hang_up, 0)
        port = listeners[0].socket.getsockname()[1]
        backend = TcpBackend(ServerAddress(host="127.0.0.1", port=port), CLIENTS[0], sink=sink)
        with trio.move_on_after(20):
            await backend.run()
        nursery.cancel_scope.cancel()
    tries = [event.tries for event in sink.get(types.BackendLost)]
    assert tries == list(range(len(tries))), "every failure makes it wait longer"
    assert accepted <= 12


async def test_news_of_a_later_round_hastens_one_try(clock: SteadyClock) -> None:
    """H1: short rounds go on without a client that waits five seconds before it connects again."""
    sink = Log()
    backend = TcpBackend(ServerAddress(host="127.0.0.1", port=1), CLIENTS[0], sink=sink)

    async def count_tries(longest_s: float) -> int:
        before = len(sink.get(types.BackendLost))
        await trio.sleep(longest_s)
        return len(sink.get(types.BackendLost)) - before

    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.run)
        while len(sink.get(types.BackendLost)) < 2 * len(BACK_OFF_S):
            await trio.sleep(0.1)
        backend.reconnect_soon()
        backend.reconnect_soon()
        assert await count_tries(2.0) == 1
        nursery.cancel_scope.cancel()


async def test_records_whose_signature_is_wrong_never_reach_the_address_book(clock: SteadyClock) -> None:
    backend = TcpBackend(ServerAddress(host="127.0.0.1", port=1), CLIENTS[0])
    good = sign_address_record(CLIENTS[1], ["/ip4/10.0.0.1/tcp/1"], 4_000_000_000)
    backend._take_book(wire.BookChange(True, (good,)))
    forged = AddressRecord(CLIENTS[2].public, good.addresses, good.expires_unix, good.signature)
    with pytest.raises(Exception, match="signature"):
        backend._take_book(wire.BookChange(False, (forged,)))
    assert list(backend.get_addresses()) == [good]
    backend._take_book(wire.BookChange(False, (), (CLIENTS[1].public,)))
    assert list(backend.get_addresses()) == []


def test_a_server_address_is_read_from_text() -> None:
    address = parse_server("[::1]:39405", run_id="run")
    assert (address.host, address.port, address.run_id) == ("::1", 39_405, "run")
    assert parse_server("host-2.example:19400").host == "host-2.example"
    for text in ("", "host", "host:", "host:0", "host:65536", ":5", "host:x", "host:٣", "http://host:5", "a b:5"):
        with pytest.raises(BackendError, match="must be HOST:PORT"):
            parse_server(text)


async def test_a_run_with_a_data_server_needs_to_be_told_its_data(tmp_path: Path, clock: SteadyClock) -> None:
    model = build_model(data_location=DataLocation(DataLocationKind.SERVER, "127.0.0.1:45111"))
    settings = ServerSettings(run=RunFile(model=model), identity=SERVER, state_dir=tmp_path)
    with pytest.raises(ConfigError, match="--data-config"):
        await run_server(settings)
