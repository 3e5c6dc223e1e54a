"""What the checks read of a client comes from its own statistics, which say what there is and change nothing."""

import trio
from sim_kit import build

from psyche.sim.invariants.views import ClientStatistics
from psyche.sim.world import World, simulate
from psyche.telemetry import types


def play_watched(seed: int) -> tuple[list[ClientStatistics], str]:
    found: list[ClientStatistics] = []

    def prepare(world: World) -> None:
        async def watch() -> None:
            while True:
                await trio.sleep(0.1)
                held = world.clients[1].get_statistics()
                if held is not None:
                    found.append(held)

        world.companions.append(watch)

    outcome = simulate(build(seed, clients=3, total_steps=4, rounds_per_epoch=4), prepare=prepare)
    assert not outcome.violations, outcome.describe()
    return found, outcome.digest


def test_a_client_tells_what_it_holds() -> None:
    found, _ = play_watched(1)
    assert max(held.members for held in found) == 3
    assert max(held.engine.rounds for held in found) >= 2, "rounds are remembered"
    assert max(held.shell.payloads for held in found) >= 3, "of each member one"
    assert max(held.shell.trainer_requests for held in found) >= 1
    assert max(held.network.blobs_offered for held in found) >= 1
    assert max(held.network.blob_memory_bytes for held in found) > 0
    assert max(held.network.streams_per_peer for held in found) >= 1
    assert max(held.connection_streams for held in found) >= 1
    assert {held.backend is not None for held in found} == {True}
    assert min(held.shell.trainer_requests for held in found) == 0, "a request that is done counts no more"


def test_reading_statistics_changes_nothing() -> None:
    def prepare(world: World) -> None:
        def read(_node: str, _event: types.Event) -> None:
            for host in world.clients:
                host.get_statistics()

        world.trace.listeners.append(read)

    scenario = build(2, clients=3, total_steps=4, rounds_per_epoch=4)
    assert simulate(scenario, prepare=prepare).digest == simulate(scenario).digest
