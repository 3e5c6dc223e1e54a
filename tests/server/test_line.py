"""Somebody on the line, in sessions whose server key is known: it can end them, and nothing else."""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trio
from kits.clocks import SteadyClock
from kits.log import Log
from kits.middle import Middle, Session, open_middle
from kits.runs import Run
from kits.server import CLIENTS, build_record
from live_kit import RATE, SERVER, Script, Server, build_file, follow_all, is_training, open_scripts, open_server

from psyche.backends.tcp.backend import open_backend
from psyche.backends.tcp.push import read_full
from psyche.core.encoding.account import encode_state
from psyche.core.state.messages import LeaveRun, Pause, SetRates, Withdraw
from psyche.core.state.state import Coordinator
from psyche.errors import WireError
from psyche.telemetry import types
from psyche.wire import backend as wire
from psyche.wire.line.tls import make_server_context

VICTIM = CLIENTS[0]


@dataclass
class Tapped:
    """A run in training; the victim's connection goes through somebody's hands, the observer's does not."""

    server: Server
    middle: Middle
    victim: Script
    observer: Script
    sink: Log

    @property
    def state(self) -> Coordinator:
        assert self.observer.state is not None
        return self.observer.state

    async def ask(self) -> None:
        """Have the victim ask for something, and be answered."""
        await self.victim.backend.announce(build_record(VICTIM, expires_unix=4_000_000_000))

    async def until_back(self) -> None:
        """Until the victim is connected again, or the others see that something has changed."""
        with trio.fail_after(60 * RATE):
            before = self.state.nonce
            while len(self.sink.get(types.BackendConnected)) < 2 and self.state.nonce == before:
                with trio.move_on_after(0.2):
                    await self.observer.follow(lambda state: state.nonce > before)


def frame(raw: bytes) -> bytes:
    return struct.pack("<I", len(raw)) + raw


@asynccontextmanager
async def open_tapped(tmp_path: Path) -> AsyncIterator[Tapped]:
    sink = Log()
    owners = frozenset({VICTIM.public})
    async with (
        open_server(tmp_path, build_file(max_round_train_time=3_600), owners=owners) as server,
        open_middle(server.port) as middle,
        open_scripts(server, 4) as scripts,
        open_backend(replace(server.address, port=middle.port), VICTIM, sink=sink) as backend,
    ):
        victim = Script(backend, VICTIM)
        await follow_all([victim, *scripts[1:3]], is_training)
        await scripts[3].follow(is_training)
        yield Tapped(server, middle, victim, scripts[3], sink)


def build_request(what: str, tapped: Tapped) -> wire.RequestBody:
    """A request in the victim's name, as far as the server can tell."""
    member = tapped.victim.get_member(tapped.state)
    assert member is not None
    return {
        "pause": wire.build_submit(Pause(), op_id=bytes(16)),
        "rates": wire.build_submit(SetRates(7, 7), op_id=bytes(16)),
        "leave": wire.build_submit(LeaveRun()),
        "withdraw": wire.build_submit(Withdraw(tapped.state.progress.epoch, member)),
        "witness": wire.build_submit(Run(tapped.state).build_witness(member)),  # the victim has sent none
    }[what]


async def add(what: str, tapped: Tapped, session: Session) -> None:
    if what == "goodbye":
        await session.client.send_all(frame(wire.encode_message(wire.Goodbye("Replaced", "another process"))))
    elif what == "the same bytes again":
        await session.server.send_all(bytes(session.to_server[-30:]))
    else:
        await session.server.send_all(frame(wire.encode_message(wire.Request(4_711, build_request(what, tapped)))))


@pytest.mark.parametrize("what", ["pause", "rates", "leave", "withdraw", "witness", "goodbye", "the same bytes again"])
async def test_what_somebody_on_the_line_adds_or_changes_only_ends_the_connection(
    what: str, tmp_path: Path, clock: SteadyClock
) -> None:
    async with open_tapped(tmp_path) as tapped:
        before = encode_state(tapped.state)
        (session,) = tapped.middle.sessions
        await add(what, tapped, session)
        await tapped.until_back()
        assert encode_state(tapped.state) == before
        await tapped.ask()  # and the victim goes on
        assert session.ended.is_set()
        if what != "goodbye":
            assert "TLS" in tapped.server.sink.get(types.ConnectionClosed)[-1].reason
        second = tapped.middle.sessions[-1]
        second.change_to_client = lambda data: data[:-1] + bytes([data[-1] ^ 1])
        await tapped.ask()
        assert "changed on their way" in tapped.sink.get(types.BackendLost)[-1].reason
        assert encode_state(tapped.state) == before
        assert tapped.sink.get(types.BackendGivenUp) == []


async def answer_with_another_key(stream: trio.SocketStream) -> None:
    line = trio.SSLStream(stream, make_server_context(CLIENTS[7]), server_side=True, https_compatible=True)
    with suppress(trio.BrokenResourceError):
        await line.do_handshake()
        assert await line.receive_some() == b"", "the client says nothing to a stranger"
    await line.aclose()


@pytest.mark.parametrize("expects_key", [True, False])
async def test_somebody_who_answers_with_another_key_ends_no_client_that_has_met_the_server(
    expects_key: bool, tmp_path: Path, clock: SteadyClock
) -> None:
    sink = Log()
    async with open_server(tmp_path) as server, open_middle(server.port) as middle:
        address = replace(server.address, port=middle.port, key=SERVER.public if expects_key else None)
        async with open_backend(address, VICTIM, sink=sink) as backend:
            await backend.announce(build_record(VICTIM, expires_unix=4_000_000_000))
            middle.instead = answer_with_another_key
            await middle.sessions[0].hang_up()
            with trio.fail_after(60 * RATE):
                while not any("another server answers" in lost.reason for lost in sink.get(types.BackendLost)):
                    await trio.sleep(0.1)
                middle.instead = None
                await backend.announce(build_record(VICTIM, expires_unix=4_000_000_001))
            assert sink.get(types.BackendGivenUp) == []
            assert backend.address.key == SERVER.public


async def test_neither_the_state_nor_the_address_book_can_be_read_on_the_line(
    tmp_path: Path, clock: SteadyClock
) -> None:
    async with open_tapped(tmp_path) as tapped:
        await tapped.victim.backend.announce(build_record(VICTIM, port=4_444, expires_unix=4_000_000_000))
        (session,) = tapped.middle.sessions
        seen = bytes(session.to_client + session.to_server)
        assert b"/ip4/127.0.0.1/tcp/" not in seen
        assert CLIENTS[1].public not in seen
        assert VICTIM.public not in seen, "not even who it is"
        assert SERVER.public not in bytes(session.to_server)
        assert find_states(bytes(session.to_client)) == []


def find_states(raw: bytes) -> list[bytes]:
    """Every whole state that stands in the bytes as a frame."""
    found: list[bytes] = []
    while len(raw) > 4:
        (size,) = struct.unpack_from("<I", raw)
        with suppress(WireError):
            message = wire.decode_server_message(raw[4 : 4 + size])
            found += [read_full(message)] if isinstance(message, wire.FullState) else []
        raw = raw[4 + size :]
    return found
