"""Production code is broken on purpose, and a simulated run says by which promise it shows."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio
from sim_kit import build

from psyche.backends.tcp.backend import TcpBackend
from psyche.client.engine.chain import Chain, OwnResults
from psyche.client.engine.records import KnownResult
from psyche.client.runtime.shell import Shell
from psyche.core.committee.elections import compute_quorum
from psyche.core.rules import health, phases, rounds, tally, witnessing
from psyche.core.state.bits import get_members
from psyche.core.state.messages import Message, WitnessMessage
from psyche.core.state.roster import get_healthy
from psyche.core.state.state import Coordinator, Round, WitnessRecord
from psyche.server.connections.hub import Connection
from psyche.server.server import _Server
from psyche.sim.byzantine.programs import ByzantineMember
from psyche.sim.invariants.agreement import count_needed
from psyche.sim.scenarios.scenario import Scenario
from psyche.sim.world import World, simulate
from psyche.wire.ports import Proof
from psyche.wire.trainer import SentResult


def get_names(scenario: Scenario, prepare: Callable[[World], None] | None = None) -> set[str]:
    return {violation.name for violation in simulate(scenario, prepare=prepare).violations}


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_decided_result_that_everybody_leaves_out_is_reported(monkeypatch: pytest.MonkeyPatch, overlap: int) -> None:
    collect: Any = Chain._collect

    def collect_some(chain: Chain, decided: int, height: int, now: float) -> list[tuple[int, KnownResult]] | None:
        found = collect(chain, decided, height, now)
        return found[:-1] if found else found

    monkeypatch.setattr(Chain, "_collect", collect_some)
    assert get_names(build(overlap=overlap)) == {"I4"}


def test_a_listed_result_that_everybody_forgets_when_it_decides_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chain, "is_newcomer", lambda _chain, member, height: member == 1 and height == 1)
    assert get_names(build()) == {"I4"}


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_fate_that_is_told_the_wrong_way_round_is_reported(monkeypatch: pytest.MonkeyPatch, overlap: int) -> None:
    decide: Any = OwnResults.decide

    def decide_wrongly(own: OwnResults, height: int, chosen: Any, member: int | None) -> None:
        before = len(own.outcomes)
        decide(own, height, chosen, member)
        for index in range(before, len(own.outcomes)):
            one = own.outcomes[index]
            own.outcomes[index] = SentResult(height=one.height, applied=not one.applied)

    monkeypatch.setattr(OwnResults, "decide", decide_wrongly)
    assert get_names(build(overlap=overlap)) == {"R8"}


def test_answers_before_the_disk_has_the_record_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    take: Any = Connection.take_answer
    monkeypatch.setattr(Connection, "take_answer", lambda connection, _durable: take(connection, 1 << 40))
    assert get_names(replace(build(), sync_s=0.02)) == {"K1"}


def test_states_that_are_pushed_before_the_disk_has_them_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    flush: Any = _Server._flush

    async def flush_late(server: _Server) -> None:
        server._durable = server._handler.version
        server._news.set()
        await flush(server)

    monkeypatch.setattr(_Server, "_flush", flush_late)
    assert get_names(replace(build(), sync_s=0.02)) == {"K1"}


@pytest.mark.parametrize(("clients", "too_few"), [(3, 1), (4, 2), (6, 4)])
def test_a_quorum_that_is_too_small_by_one_is_reported(
    monkeypatch: pytest.MonkeyPatch, clients: int, too_few: int
) -> None:
    monkeypatch.setattr(rounds, "compute_quorum", lambda n: too_few if n == clients else compute_quorum(n))
    assert "I4" in get_names(build(clients=clients))


def test_agreement_that_too_few_records_have_is_reported_whatever_the_round_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process: Any = tally.process_agreement

    def agree_early(round_: Round, record: WitnessRecord) -> None:
        quorum, round_.quorum = round_.quorum, round_.quorum - 1
        process(round_, record)
        round_.quorum = quorum

    monkeypatch.setattr(witnessing, "process_agreement", agree_early)
    assert get_names(build()) == {"I4"}


def test_a_round_without_a_member_that_was_there_when_its_seed_was_armed_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start: Any = phases.process_next_round

    def start_without(state: Coordinator, now: int, entropy: bytes, _draw: rounds.Draw) -> None:
        there = get_healthy(state)  # after the close, which has dropped the one that withholds
        start(state, now, entropy, rounds.Draw(there, there))

    monkeypatch.setattr(phases, "process_next_round", start_without)
    assert get_names(build(byzantine=(ByzantineMember(who=3, kind="withhold"),))) == {"E1"}


def test_the_quorums_are_those_of_the_rule() -> None:
    table = {1: 1, 2: 2, 3: 2, 4: 3, 5: 4, 6: 5, 7: 5, 8: 6, 9: 7, 10: 7, 16: 11, 32: 22}
    assert {n: count_needed(n) for n in table} == table
    assert all(2 * count_needed(n) > n for n in range(33))


def test_a_second_record_of_a_member_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    process: Any = tally.process_agreement

    def count_twice(round_: Round, record: WitnessRecord) -> None:
        process(round_, record)
        if record.member == 1 and len(round_.witnesses) < round_.witnesses_expected:
            round_.witnesses.append(record)

    monkeypatch.setattr(witnessing, "process_agreement", count_twice)
    assert "W4" in get_names(build())


def test_a_record_that_names_who_took_no_part_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    submit: Any = TcpBackend.submit

    async def claim_more(backend: TcpBackend, message: Message, proof: Proof = None) -> None:
        if isinstance(message, WitnessMessage):
            message = replace(message, heard=message.heard | 1 << 200)
        await submit(backend, message, proof)

    monkeypatch.setattr(TcpBackend, "submit", claim_more)
    monkeypatch.setattr(witnessing, "_check_bitmaps", lambda _state, _message: None)
    assert "W4" in get_names(build())


def test_clients_that_never_end_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run_on(_shell: Shell) -> int:
        await run(_shell)
        await trio.sleep_forever()
        return 0

    run: Any = Shell.run
    monkeypatch.setattr(Shell, "run", run_on)
    violations = simulate(build()).violations
    assert {(one.name, one.found) for one in violations} == {("I5", "it runs on")}
    assert len(violations) == 4


def test_a_close_that_drops_more_than_half_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    process: Any = health.process_health

    def drop_three(state: Coordinator) -> bool:
        if state.current.height != 2:
            return process(state)
        for member in get_members(get_healthy(state))[1:]:
            health.process_drop(state, member, strike=False)
        return False

    monkeypatch.setattr(phases, "process_health", drop_three)
    assert "H3" in get_names(build())
