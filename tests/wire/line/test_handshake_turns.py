"""Turns of handshakes: one for each pass of the scheduler, and each address in its turn."""

import trio

from psyche.wire.line.pace import HostTurns


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_addresses_take_turns_whoever_sends_most() -> None:
    pace, order = HostTurns(), list[str]()

    async def shake(host: str) -> None:
        await pace.wait(host)
        order.append(host)

    async with trio.open_nursery() as nursery:
        await pace.wait("first")
        for host in ["greedy"] * 20 + ["honest"] * 2 + ["other"]:
            nursery.start_soon(shake, host)
        await settle()
    assert len(order) == 23
    assert set(order[:4]) == {"greedy", "honest", "other"}
    assert "greedy" in order[-12:]
    assert order[8:] == ["greedy"] * 15, "the others are through"


async def test_between_two_turns_everybody_else_runs_once() -> None:
    pace, turns, passes = HostTurns(), list[int](), 0

    async def serve() -> None:
        nonlocal passes
        while True:
            passes += 1
            await trio.lowlevel.checkpoint()

    async def shake() -> None:
        await pace.wait("host")
        turns.append(passes)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with trio.open_nursery() as flood:
            for _ in range(50):
                flood.start_soon(shake)
        nursery.cancel_scope.cancel()
    assert len(set(turns)) >= len(turns) // 2, "at most two turns between two runs: a pass runs its tasks in any order"
    assert max(turns) - min(turns) >= 48


async def test_a_handshake_that_is_given_up_holds_up_nobody() -> None:
    pace, done = HostTurns(), list[str]()

    async def shake(host: str, scope: trio.CancelScope) -> None:
        with scope:
            await pace.wait(host)
            done.append(host)

    async with trio.open_nursery() as nursery:
        scopes = [trio.CancelScope() for _ in range(6)]
        for number, scope in enumerate(scopes):
            nursery.start_soon(shake, f"host {number % 2}", scope)
        await trio.lowlevel.checkpoint()
        for scope in scopes[:3]:
            scope.cancel()
        await settle()
        assert len(done) >= 3
        with trio.fail_after(120):
            await pace.wait("later")
    assert pace._waiting == {}
    assert not pace._is_running
