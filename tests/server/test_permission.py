"""Who is not allowed waits, by a real client's side over real sockets, and goes on by itself (M12)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from kits.clocks import SteadyClock
from kits.log import E, Log
from kits.server import CLIENTS, OWNER, build_record
from live_kit import open_server
from test_updates import command

from psyche.backends.tcp.backend import TcpBackend, open_backend
from psyche.backends.tcp.dial import ServerAddress
from psyche.backends.tcp.owner import TcpAdministration
from psyche.core.state.messages import Join
from psyche.telemetry import types
from psyche.wire import backend as wire
from psyche.wire.access import Access, Allow, Disallow
from psyche.wire.crypto import Identity

ADA, BEN = CLIENTS[:2]
TIMEOUT_S = 60.0


@asynccontextmanager
async def open_closed(tmp_path: Path) -> AsyncIterator[ServerAddress]:
    """A server that lets nobody join."""
    async with open_server(tmp_path, access=Access()) as server:
        yield server.address


async def until(sink: Log, kind: type[E]) -> E:
    with trio.fail_after(TIMEOUT_S):
        while not sink.get(kind):
            await trio.sleep(0.05)
    return sink.get(kind)[-1]


async def join_when_there(backend: TcpBackend, identity: Identity) -> None:
    async for _ in backend.states():
        await backend.submit(Join(identity.public), build_record(identity))
        return


async def test_a_client_that_is_not_allowed_sees_nothing_waits_by_name_and_comes_in_by_itself(
    tmp_path: Path, clock: SteadyClock
) -> None:
    sink = Log()
    async with open_closed(tmp_path) as server, open_backend(server, ADA, sink=sink) as backend:
        wait = await until(sink, types.WaitStarted)
        assert wait.wait is types.Wait.PERMISSION
        assert (wait.what, wait.then) == ("the owner to allow this client's key", "join")
        told = sink.get(types.NotAllowedYet)[0].message
        assert f"psyche run allow {ADA.public.hex()}" in told
        assert "joins by itself" in told
        await trio.sleep(60)
        assert len(sink.get(types.NotAllowedYet)) == 1, "once, although it asks again and again"
        with trio.move_on_after(5):
            async for _ in backend.states():
                raise AssertionError("a stranger was shown the state")
        assert backend.get_addresses() == ()
        status = await TcpAdministration(server, ADA).get_status()
        assert (status.run_id, status.allowed) == ("test-run", 0), "the public status is answered"
        status = await TcpAdministration(server, OWNER).command(Allow(ADA.public))
        assert status.allowed == 1
        with trio.fail_after(TIMEOUT_S):
            await join_when_there(backend, ADA)
        assert (await until(sink, types.WaitEnded)).outcome is types.WaitOutcome.ALLOWED
        assert len(sink.get(types.WaitStarted)) == 1
        await TcpAdministration(server, OWNER).command(Disallow(ADA.public))
        with trio.fail_after(TIMEOUT_S):
            while len(sink.get(types.NotAllowedYet)) < 2:
                await trio.sleep(0.05)
        assert "has disallowed this key" in sink.get(types.NotAllowedYet)[-1].message
        with pytest.raises(wire.NotAllowed):
            await backend.submit(Join(ADA.public), build_record(ADA))
        found = await TcpAdministration(server, OWNER).get_allowed()
        assert (found.authorizations, found.disallowed) == ((), (ADA.public,))
        assert not sink.get(types.BackendGivenUp), "it waits to be allowed again"


async def test_an_owner_sees_who_waits_and_lets_it_in_by_its_first_digits(tmp_path: Path, clock: SteadyClock) -> None:
    sink, ada = Log(), ADA.public.hex()
    async with open_server(tmp_path, access=Access()) as server:
        assert (await command(server, tmp_path, "allow", "--waiting"))[1].endswith("nobody waits to be allowed\n")
        async with open_backend(server.address, ADA, sink=sink) as backend:
            await until(sink, types.NotAllowedYet)
            code, said = await command(server, tmp_path, "allow", "--waiting")
            assert (code, f"waits {ada}, asked " in said) == (0, True)
            assert f"the first one is let in by `psyche run allow {ada[:8]} --server-addr 127.0.0.1" in said
            assert f"waits {ada}, asked " in (await command(server, tmp_path, "allowed"))[1]
            for digits, count in (("0" * 9, "0 known keys begin so"), (ada[:7], "1 known key begins so")):
                code, said = await command(server, tmp_path, "allow", digits)
                assert (code, f"{count}; write at least 8 of its digits" in said) == (1, True)
            code, said = await command(server, tmp_path, "allow", ada[:8])
            assert (code, "1 key on the allow list" in said, "its digits" in said) == (0, True, False)
            with trio.fail_after(TIMEOUT_S):
                await join_when_there(backend, ADA)
        for word, key, told in (
            ("allow", BEN, "nobody has asked to join with this key yet"),
            ("disallow", BEN, "1 key on the allow list"),
            ("disallow", CLIENTS[3], "nobody with this key is here, was allowed or has asked to join"),
        ):
            code, said = await command(server, tmp_path, word, key.public.hex())
            assert (code, told in said) == (0, True)
        code, said = await command(server, tmp_path, "disallow", ada[:8])
        assert (code, "0 keys on the allow list" in said, "its digits" in said) == (0, True, False)
