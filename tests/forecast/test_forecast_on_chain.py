"""What a forecast tells of a run on a chain: what the chain adds to rounds, and what members pay."""

from dataclasses import replace
from pathlib import Path

import pytest
from forecast_kit import build_machines, build_question

from psyche.config.profile import ChainTable
from psyche.core.state.state import DataLocation, DataLocationKind, RunState
from psyche.errors import ConfigError
from psyche.forecast.backends import ForecastBackend, play_on_chain
from psyche.forecast.chain_costs import ChainCosts, build_server_question, compute_costs, count_rounds, format_costs
from psyche.forecast.inputs import load_faults
from psyche.forecast.play import Forecast, play
from psyche.forecast.question import Question, build_scenario, check_question, compute_patience_s_of
from psyche.forecast.report import build_json, describe_bound, format_forecast, format_question
from psyche.forecast.suggestions import find_ideas
from psyche.sim.faults import ChainHalt, EndpointFault, Kill, OwnerPause
from psyche.sim.scenarios.scenario import ChainConditions
from psyche.telemetry import types

ROUNDS = 3
PRIORITY = 100
CHAIN = ChainTable(priority_lamports=PRIORITY)
ON_CHAIN = play_on_chain(CHAIN)


def build_chain_question(**changes: object) -> Question:
    question = build_question((build_machines(), 3), rounds=ROUNDS, round_witness_time=8, total_steps=61)
    return replace(question, backend=ON_CHAIN, **changes)


@pytest.fixture(scope="module")
def forecast() -> Forecast:
    return play(build_chain_question(), keep_lines=True)


@pytest.fixture(scope="module")
def with_server(forecast: Forecast) -> Forecast:
    return play(build_server_question(forecast.question))


@pytest.fixture(scope="module")
def costs(forecast: Forecast, with_server: Forecast) -> ChainCosts:
    found = compute_costs(forecast, with_server)
    assert found is not None
    return found


def test_a_run_on_a_chain_is_played_to_its_end_and_loses_nothing(forecast: Forecast) -> None:
    assert forecast.outcome.violations == []
    assert len(forecast.accounts.data_rounds) == ROUNDS
    assert (forecast.lost_samples, forecast.cut_offs, forecast.exits) == (0, 0, [])
    assert "nobody was dropped" in format_forecast(forecast)
    assert forecast.outcome.state.config.entropy_delay == 4, "as `run create` would write it"
    assert play_on_chain(ChainTable()).conditions == ChainConditions(lost=0.05), "the simulator's, but for losses"


def test_what_a_chain_adds_to_a_round_is_what_a_server_does_not_need(costs: ChainCosts, with_server: Forecast) -> None:
    assert with_server.question.backend == ForecastBackend()
    kill = Kill(who=("client-0",), at_s=1.0)
    planned = build_chain_question(faults=(kill, ChainHalt(at_s=1.0, for_s=2.0)))
    assert build_server_question(planned).faults == (kill,), "a server has no faults of a chain"
    assert costs.of_chain_s == costs.round_s - costs.server_round_s
    assert costs.round_s > 2 * CHAIN.lag_max_s > costs.server_round_s > 0


def test_a_member_pays_for_signatures_and_for_being_early(costs: ChainCosts, forecast: Forecast) -> None:
    one = costs.per_round
    assert one.signatures >= 1, "a report of each round"
    assert one.lamports == pytest.approx(5_000 * one.signatures + PRIORITY * one.transactions)
    rounds, epochs = count_rounds(forecast)
    assert (rounds, epochs) == (20 + 2, 3), "epochs of full length, with two rounds without data"
    around = costs.per_epoch.signatures - rounds * one.signatures
    assert around >= 3, "a join signed by two keys, and a word on the weights"
    assert costs.whole.lamports == pytest.approx(epochs * costs.per_epoch.lamports)


def test_all_that_landed_was_paid_by_somebody(forecast: Forecast) -> None:
    facts = forecast.outcome.facts["chain"]
    paid = [*facts.in_rounds.values(), *facts.outside.values()]
    assert sum(one.transactions for one in paid) == facts.landed
    assert sum(one.signatures for one in paid) == facts.landed + 3, "three joins have two signatures"


def test_the_answer_says_what_the_chain_costs(costs: ChainCosts, forecast: Forecast, with_server: Forecast) -> None:
    text = format_costs(costs, forecast.question)
    assert "100,000 lamports a transaction, unless its members say another --max-priority-fee" in text
    for part in ("are the chain's: with a server it is", "landed; sent again", "a member pays for", "\na round "):
        assert part in text
    assert "on a chain: slots of 400 ms, 5 % without a block; clients see a block after 0.4 to 3 s; 5 % of" in (
        format_question(forecast.question)
    )
    found = build_json(forecast, with_server)
    assert (found["backend"], found["chain"]["of_chain_s"]) == ("solana", costs.of_chain_s)
    assert found["chain"]["assumed"]["priority_lamports"] == PRIORITY
    plain = build_json(with_server)
    assert (plain["backend"], plain["chain"]) == ("tcp", None)
    assert describe_bound(forecast, "limit", "").endswith(" s (all had trained, reports were on their way)")


@pytest.mark.whole
@pytest.mark.parametrize(("slot_ms", "round_s"), [(100.0, 1.2), (400.0, 3.4)])
def test_a_forecast_gives_the_times_and_fees_that_a_local_chain_was_measured_with(
    slot_ms: float, round_s: float
) -> None:
    """`benchmarks/backend_overhead.py`: two clients that train for 0.2 s, 16,250 lamports a round of 40.

    With slots of 400 ms it measured 3.2 s when clients asked for the chain's time; now they carry it on themselves.
    """
    machines = build_machines(tokens_per_s=5 * 16.0, up_mbit_s=8_000.0, down_mbit_s=8_000.0, latency_ms=0.2)
    chain = ChainTable(
        slot_ms=slot_ms, skipped_percent=0.0, lag_min_s=0.0, lag_max_s=0.1, answer_ms=2.0, clock_lag_s=1.0,
        lost_percent=0.0, endpoints=1,
    )  # fmt: skip
    question = build_question((machines, 2), rounds=10, rounds_per_epoch=40, total_steps=41, round_witness_time=10)
    found = compute_costs(play(replace(question, backend=play_on_chain(chain))))
    assert found is not None
    assert found.round_s == pytest.approx(round_s, abs=0.15)
    assert found.whole.lamports / 40 == pytest.approx(16_250, rel=0.05)


def test_patience_is_longer_where_each_change_of_the_record_takes_time() -> None:
    question = build_chain_question()
    patience_s = compute_patience_s_of(question)
    assert patience_s > compute_patience_s_of(build_server_question(question)) + 60
    slow = replace(question, backend=play_on_chain(ChainTable(lag_max_s=6.0)))
    assert compute_patience_s_of(slow) > patience_s
    assert build_scenario(slow).limit_s > build_scenario(question).limit_s


def test_data_from_a_server_is_refused_with_a_reason() -> None:
    question = build_chain_question()
    model = replace(question.run.model, data_location=DataLocation(DataLocationKind.SERVER, "host:1"))
    question = replace(question, run=replace(question.run, model=model))
    with pytest.raises(ConfigError, match=r"run.toml: model.LLM.data_location 'Server': a chain serves no data"):
        check_question(question)
    check_question(build_server_question(question))


def test_an_owner_is_warned_as_when_the_run_is_created() -> None:
    question = build_chain_question()
    short = replace(question, changes={**question.changes, "round_witness_time": 3})
    assert [text.partition(":")[0] for text in question.cautions] == ["bootstrap"]
    assert [text.partition(" ")[0] for text in short.cautions] == ["config.round_witness_time", "bootstrap:"]
    assert build_server_question(short).cautions == []


def test_time_for_three_confirmations_is_proposed(forecast: Forecast) -> None:
    tried = [idea.text for idea in find_ideas(forecast)]
    assert tried[0] == "round_witness_time = 9 instead of 8"
    enough = {**forecast.question.changes, "round_witness_time": 9}
    again = find_ideas(replace(forecast, question=replace(forecast.question, changes=enough)))
    assert not any(idea.text.startswith("round_witness_time") for idea in again)


# --- plans of faults ---------------------------------------------------------------------------------------------

ENDPOINT = '[[fault]]\nkind = "endpoint"\nwho = ["all"]\nendpoint = 1\nis_down = true\nat_s = 9.0\nfor_s = 30.0\n'


def test_faults_of_endpoints_can_be_planned_on_a_chain(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(ENDPOINT)
    faults = load_faults(path, 3, ON_CHAIN)
    assert faults == (EndpointFault(who=("all",), endpoint=1, is_down=True, at_s=9.0, for_s=30.0),)
    forecast = play(build_chain_question(faults=faults))
    assert (forecast.outcome.violations, forecast.missed, forecast.exits) == ([], (), [])


def test_members_that_a_pause_in_warmup_sends_away_did_not_leave_by_themselves() -> None:
    pause = OwnerPause(at_epoch=0, at_s=9.0, for_s=20.0)
    forecast = play(build_chain_question(faults=(pause,)), keep_lines=True)
    states = [one.event.run_state for one in forecast.outcome.entries if isinstance(one.event, types.StateChanged)]
    assert states.index(RunState.PAUSED) < states.index(RunState.ROUND_TRAIN), "the pause came in Warmup"
    assert (forecast.outcome.violations, forecast.exits) == ([], [])
    assert len(forecast.accounts.data_rounds) == ROUNDS


@pytest.mark.parametrize(
    ("text", "backend", "told"),
    [
        ('[[fault]]\nkind = "kill"\nwho = ["server"]', ON_CHAIN, r"fault\[0\]: kill: a run on a chain has no server"),
        ('[[fault]]\nkind = "torn_write"', ON_CHAIN, r"fault\[0\]: torn_write: a run on a chain has no server"),
        (ENDPOINT.replace("endpoint = 1", "endpoint = 3"), ON_CHAIN, "endpoint is 3, must be 1 to 2, or 0 for all"),
        (ENDPOINT, ForecastBackend(), r"fault\[0\]: endpoint: needs a run on a chain, this one is on a server"),
    ],
)
def test_a_fault_that_the_backend_cannot_have_is_refused(
    text: str, backend: ForecastBackend, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        load_faults(path, 3, backend)
