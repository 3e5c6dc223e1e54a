"""Whole runs of real clients and the real server in simulated time, and that they repeat byte for byte."""

import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from kits.tier import few
from scenarios.base import get_events
from sim_kit import build, play
from simulate_child import build_outvoted, build_repeated, build_scenario, play_digest

from psyche.core.state.state import RunState
from psyche.network.blobs.store import run_inline
from psyche.network.limits import NetworkLimits
from psyche.sim import runtime
from psyche.sim.runtime import LOOK_AT_ALL_EVERY_RUNS, free_former_world, simulated_time
from psyche.sim.world import Outcome, World, simulate
from psyche.telemetry import types
from psyche.wire.nursery import open_plain_nursery

CHILD = Path(__file__).with_name("simulate_child.py")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return simulate(build_scenario(5))


def test_a_run_without_faults_finishes_and_violates_nothing(outcome: Outcome) -> None:
    assert outcome.violations == [], outcome.describe()
    assert outcome.state.run_state is RunState.FINISHED
    assert outcome.codes == (0, 0, 0, 0)


def test_every_step_of_a_quiet_run_is_trained_and_applied(outcome: Outcome) -> None:
    events = (seen.event for seen in get_events(outcome, types.Applied))
    applied = {(one.epoch, one.height): one.members for one in events if one.update}
    assert len(applied) == 9, "steps 1 to 9"
    assert all(applied.values()), "no set is empty"


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("clients", few([1, 3, 2, 5], 2))
def test_a_quiet_run_of_any_size_trains_every_step_and_waits_for_no_time_limit(clients: int, overlap: int) -> None:
    batch = {"global_batch_size_start": 2 * clients, "global_batch_size_end": 2 * clients}
    times = {"total_steps": 7, "rounds_per_epoch": 3, "max_round_train_time": 60}
    outcome = play(build(clients=clients, min_clients=1, overlap=overlap, **times, **batch))
    applied = [one.event for one in get_events(outcome, types.Applied, "client-0") if one.event.update]
    assert [sorted(one.members) for one in applied] == [list(range(clients))] * 6
    seen = get_events(outcome, types.StateChanged, "server")
    training = [b.t - a.t for a, b in pairwise(seen) if a.event.run_state is RunState.ROUND_TRAIN]
    assert 0 < max(training) < 10


def test_a_slow_member_of_a_crowd_counts_as_absent_nowhere() -> None:
    """S6, R2: there Ready rides in Finished."""
    crowd = build(clients=8, total_steps=8, rounds_per_epoch=7)
    (fast,) = crowd.classes
    slow = replace(fast, count=1, machine=replace(fast.machine, step_s=1.5))
    outcome = play(replace(crowd, classes=(replace(fast, count=7), slow)))
    assert not get_events(outcome, types.Dropped)
    assert {client.missed for client in outcome.state.clients} == {0}


def test_every_wait_that_is_named_is_ended_by_its_name(outcome: Outcome) -> None:
    waiting: set[tuple[str, str, types.Wait]] = set()
    for entry in outcome.entries:
        match entry.event:
            case types.WaitStarted(what=what, wait=wait):
                waiting.add((entry.node, what, wait))
            case types.WaitEnded(what=what, wait=wait):
                waiting.remove((entry.node, what, wait))
            case types.Finished():
                assert not [one for one in waiting if one[0] == entry.node]
            case _:
                pass


def test_members_hear_each_other_where_they_are_too_many_for_streams_to_everybody() -> None:
    """The twin has no mesh; without it results would only come when asked for, and every forecast would be late."""
    few = simulate(replace(build_scenario(5), limits=NetworkLimits(direct_peers=1)))
    assert few.violations == []
    heard = {e.node: e.event.gossip_received for e in get_events(few, types.Network)}
    assert min(heard.values()) > 0


def test_all_members_end_with_the_certified_weights(outcome: Outcome) -> None:
    ended = get_events(outcome, types.Finished)
    assert [e.event.held for e in ended] == [True] * 4
    assert {e.event.digest for e in ended} == {outcome.state.certified.digest}


def test_a_newcomer_without_the_model_is_given_it_by_its_peers(outcome: Outcome) -> None:
    loaded = [e for e in get_events(outcome, types.ModelLoaded) if e.node == "client-3"]
    assert loaded[0].event.source is types.WeightSource.PEERS


@pytest.mark.whole
def test_a_client_that_writes_its_evidence_does_so_in_its_turn() -> None:
    """In a thread of its own it would be done at any moment of simulated time, and no log would be like another."""
    before = set(threading.enumerate())
    first, second = (simulate(build_outvoted()) for _ in range(2))
    assert get_events(first, types.Evidence), "else nothing was written"
    assert first.entries == second.entries
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("start", ["path", "thread", "pool"])
def test_whoever_starts_a_thread_in_simulated_time_is_told_what_to_use(start: str, tmp_path: Path) -> None:
    starts: dict[str, Callable[[], Awaitable[object]]] = {
        "path": trio.Path(tmp_path).exists, "thread": _start_thread, "pool": _start_pool,
    }  # fmt: skip
    with pytest.raises(RuntimeError, match=re.escape("use trio.to_thread.run_sync")):
        runtime.run(starts[start], 1, run_inline)
    trio.run(starts[start])  # outside it works as ever


async def _start_thread() -> object:
    await trio.lowlevel.checkpoint()
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    return thread


async def _start_pool() -> object:
    await trio.lowlevel.checkpoint()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(int).result()


def test_threads_of_others_go_on_in_simulated_time() -> None:
    """Whatever else a process does, it may do beside a simulation."""
    begun, ended = threading.Event(), threading.Event()

    def start_another() -> None:
        begun.wait()
        threading.Thread(target=ended.set).start()

    threading.Thread(target=start_another).start()
    with simulated_time(2, _run_nothing):
        begun.set()
        assert ended.wait(300)


def test_ctrl_c_ends_a_simulation_though_the_task_that_it_meets_swallows_all_errors() -> None:
    async def swallow() -> None:
        with suppress(BaseException):
            signal.raise_signal(signal.SIGINT)

    async def main() -> None:
        async with open_plain_nursery() as nursery:
            nursery.start_soon(swallow)
            await trio.sleep(3600)

    with pytest.raises(KeyboardInterrupt):
        runtime.run(main, 0, run_inline)


def test_what_a_simulation_leaves_behind_is_gone_when_the_next_one_begins() -> None:
    """Else an hour of seeds would fill the memory."""
    former: list[weakref.ref[World]] = []
    gc.disable()  # so that no chance frees it
    try:
        scenario = replace(build_scenario(1), config={"total_steps": 2})
        simulate(scenario, keep_lines=False, prepare=lambda world: former.append(weakref.ref(world)))
        assert former[0]() is not None, "a world is full of cycles"
        left: list[World | None] = []
        simulate(scenario, keep_lines=False, prepare=lambda _: left.append(former[0]()))
        assert left == [None]
    finally:
        gc.enable()


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_what_was_there_before_a_simulation_and_is_garbage_now_is_freed_by_a_later_one() -> None:
    """What is never looked at would fill the memory."""
    kept = Cycle()
    former = weakref.ref(kept)
    free_former_world()
    del kept
    for _ in range(LOOK_AT_ALL_EVERY_RUNS):
        free_former_world()
    assert former() is None


async def _run_nothing(_function: object, *_args: object) -> None: ...


@pytest.fixture(scope="module")
def interpreters() -> list[str]:
    """This Python, and others on this machine that have what the simulator needs.

    Not looked for while tests are collected: all workers of a test run must collect the same.
    """
    found = [sys.executable]
    names = os.environ.get("PSYCHE_TEST_PYTHONS", "python3.11:python3.12:python3.13").split(":")
    for name in filter(shutil.which, names):
        probe = [name, "-c", "import trio, msgspec, blake3, cryptography, zstandard, numpy, structlog"]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            found.append(name)
    return found


@pytest.fixture(scope="module")
def digests() -> list[str]:
    return [f"{name} {play_digest(scenario)}" for name, scenario in build_repeated().items()]


@pytest.mark.whole
@pytest.mark.parametrize("hash_seed", ["4242", "0"])
def test_a_scenario_gives_the_same_log_whatever_the_interpreter(
    hash_seed: str, interpreters: list[str], digests: list[str]
) -> None:
    env = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    for python in interpreters:
        done = subprocess.run([python, str(CHILD)], env=env, capture_output=True, text=True, check=False)
        assert done.stdout.splitlines() == digests, f"{python}\n{done.stderr}"
