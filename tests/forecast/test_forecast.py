"""What a simulated run tells its owner: times, losses, who was dropped, what would be better."""

import copy
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from forecast.calibration import compare_sets, compare_times, compute_spread, measure_machines
from forecast_kit import build_machines, build_question, read_log
from kits.tier import few

from psyche.analysis.accounts import What
from psyche.analysis.summary import COLUMN_NAMES
from psyche.analysis.tally import DIED
from psyche.core.encoding.plan import compute_plan, get_payload_bytes
from psyche.core.state.state import RunState
from psyche.errors import ConfigError
from psyche.forecast.backends import ForecastBackend
from psyche.forecast.inputs import find_scenario, load_faults
from psyche.forecast.play import Forecast, build_log, play
from psyche.forecast.question import build_limits, draw_failures
from psyche.forecast.recorder import BODY_BYTES, PARTS, build_sizes
from psyche.forecast.report import (
    build_json,
    count_bounds,
    format_classes,
    format_defects,
    format_forecast,
    format_question,
    format_size,
)
from psyche.network.blobs.messages import REPLY_HEAD_BYTES
from psyche.sim.faults import Hang, Kill
from psyche.sim.invariants.checker import Violation
from psyche.sim.payloads import SHAPE, TENSOR, WEIGHTS
from psyche.sim.scenarios.scenario import build_small_model
from psyche.telemetry.text import format_seconds

ROUNDS = 4


def test_all_rounds_are_played_and_nothing_is_lost(even: Forecast) -> None:
    accounts = even.accounts
    assert even.outcome.violations == []
    assert len(accounts.data_rounds) == ROUNDS
    assert (even.lost_samples, even.samples, even.cut_offs, even.exits) == (0, 4 * ROUNDS, 0, [])
    assert not even.stood_still
    for node in accounts.nodes.values():
        assert node.times[What.TRAIN] == pytest.approx(ROUNDS * 1.0, rel=0.05)
    assert accounts.tokens == 4 * ROUNDS * 16
    assert sum(accounts.shares.values()) == pytest.approx(1)
    assert 0 < accounts.whole_training_share < accounts.shares[What.TRAIN] < 1


def test_the_time_of_the_rounds_is_told_apart_from_start_and_warmup(even: Forecast) -> None:
    accounts, phases = even.accounts, even.accounts.phases
    assert accounts.rounds_s == pytest.approx(sum(one.seconds for one in accounts.data_rounds))
    assert accounts.before_s == pytest.approx(accounts.rounds[0].start - accounts.started)
    assert format_forecast(even).splitlines()[0] == (
        f"4 rounds in {format_seconds(accounts.rounds_s)}, 1 epoch; "
        f"after {format_seconds(accounts.before_s)} of start-up and Warmup"
    )
    assert build_json(even)["rounds_s"] == accounts.rounds_s
    trained = sum(span.end - span.start for node in accounts.nodes.values() for span in node.spans[What.TRAIN])
    seconds = sum(phases[name] for name in ("warmup", "round_train", "round_witness", "cooldown"))
    assert phases["warmup"] > 0.5
    assert accounts.whole_training_share == pytest.approx(trained / (4 * seconds), rel=1e-3)


def test_every_member_sends_its_payload_to_each_other_once(even: Forecast) -> None:
    wanted = ROUNDS * 3 * even.question.workload.payload_bytes
    assert sum(one.sent for one in even.carried.values()) == pytest.approx(4 * wanted, rel=0.05)
    for one in even.carried.values():
        assert one.received == pytest.approx(wanted, rel=0.05)


@pytest.mark.whole
def test_weights_that_somebody_fetches_have_the_models_size_and_count_apart() -> None:
    """Two fetch at once, for 34 s; half of `warmup_time` is more than that, and Warmup lasts as long (T8)."""
    fault = Kill(who=("client-1",), at_s=12.5, for_s=1.0)
    parameters = 10**8
    question = build_question(
        (build_machines(), 4), parameters=parameters, rounds=12, rounds_per_epoch=4, init_min_clients=3,
        warmup_time=120, faults=(fault,),
    )  # fmt: skip
    forecast = play(question)
    one = forecast.carried["client-1"]
    assert one.weights_received == pytest.approx(4 * parameters, rel=0.01), "once, whoever sends them"
    assert sum(c.weights_sent for c in forecast.carried.values()) == pytest.approx(
        sum(c.weights_received for c in forecast.carried.values())
    )
    rounds = len(forecast.accounts.data_rounds)
    assert one.received < 1.1 * rounds * 3 * question.workload.payload_bytes, "no more than all payloads of others"


@pytest.mark.whole
@pytest.mark.parametrize(
    ("parameters", "stands_still"), few([(10**9, False), (8 * 10**9, False), (10**9, True)]),
    ids=lambda value: f"{value}",
)  # fmt: skip
def test_weights_come_once_from_all_who_have_them_as_fast_as_the_line_takes_them(
    parameters: int, stands_still: bool
) -> None:
    """One source alone would send 32 GB for two hours; one that stands still keeps them from nobody."""
    home = build_machines(up_mbit_s=40.0, down_mbit_s=200.0)
    late = build_machines("late", up_mbit_s=40.0, down_mbit_s=200.0, joins_after_min=0.5)
    still = (Hang(at_s=80.0, who=("client-0",), for_s=2_000.0),) if stands_still else ()
    forecast = play(
        build_question((home, 6), (late, 1), parameters=parameters, rounds=20, rounds_per_epoch=12, init_min_clients=6,
                       warmup_time=3_600, max_round_train_time=600, faults=still)
    )  # fmt: skip
    on_the_line_s = 4 * parameters / (200e6 / 8)
    received = forecast.carried["client-6"].weights_received
    assert received == pytest.approx(4 * parameters, rel=0.1 if stands_still else 0.01)
    assert on_the_line_s < forecast.accounts.phases["warmup"] < (2 if stands_still else 1.5) * on_the_line_s + 60


def test_the_sizes_of_the_small_models_blobs_are_known(even: Forecast) -> None:
    optimizer = build_small_model().optimizer
    plan = compute_plan(
        {TENSOR: SHAPE}, optimizer.compression_chunk, optimizer.compression_topk, one_bit=optimizer.quantize_1bit
    )
    assert get_payload_bytes(plan) == BODY_BYTES
    assert set(build_sizes(even.question.workload)) == {
        REPLY_HEAD_BYTES + BODY_BYTES,
        REPLY_HEAD_BYTES + 4 * WEIGHTS // PARTS,
    }


def test_the_same_seed_gives_the_same_run_and_another_one_another(even: Forecast) -> None:
    again = play(even.question)
    assert again.outcome.digest == even.outcome.digest
    assert build_json(again) == build_json(even)
    assert play(replace(even.question, seed=1)).outcome.digest != even.outcome.digest


@pytest.mark.whole
def test_slow_lines_show_in_the_time_for_payloads_and_in_what_rounds_wait_for(even: Forecast) -> None:
    slow = play(build_question((build_machines(up_mbit_s=5.0), 4), rounds=ROUNDS))
    plain = play(build_question((build_machines(), 4), rounds=ROUNDS, overlap=False))
    assert plain.accounts.shares[What.TRANSFER] > even.accounts.shares[What.TRANSFER], "in its own round"
    assert plain.accounts.tokens == even.accounts.tokens
    # a payload goes to three others over one line: 2.7 MB x 3 at 5 Mbit/s
    assert slow.accounts.shares[What.TRANSFER] > 0.5 > even.accounts.shares[What.TRANSFER]
    (kind, who), rounds = count_bounds(slow)[0]
    assert (kind, who) == ("transfer", "home")
    assert rounds >= ROUNDS - 1, "in the first round nothing is due yet"


def test_payloads_that_never_arrive_are_what_rounds_wait_for_and_the_answer_says_that_nothing_is_learned() -> None:
    home = build_machines(up_mbit_s=1.0)
    stuck = play(build_question((home, 4), parameters=70 * 10**9, rounds=2))
    assert stuck.came_to_nothing
    assert stuck.accounts.shares[What.TRANSFER] > 0.5
    second = stuck.accounts.rounds[1]
    assert (second.bound.kind, second.is_void) == ("transfer", True)
    text = format_forecast(stuck)
    assert text.startswith("THE RUN LEARNS NOTHING: 0 tokens per second")
    assert "void rounds            2 (no result of them was applied: height 0, 1)" in text
    found = build_json(stuck)
    assert found["came_to_nothing"]
    assert [one["void"] for one in found["rounds"]][:2] == [True, True]


def test_who_is_too_slow_is_cut_off_and_dropped_and_the_reason_is_told(uneven: Forecast) -> None:
    assert len(uneven.accounts.nodes["client-3"].cut_off) == len(
        uneven.accounts.nodes["client-3"].present - {(0, 4), (0, 5)}
    )
    assert uneven.lost_samples > 0
    assert [(one.name, one.why) for one in uneven.exits] == [("client-3", "was late in 3 rounds")]
    assert uneven.accounts.nodes["client-3"].times[What.VAIN] > 0
    assert count_bounds(uneven)[0][0] == ("limit", "slow")
    found = json.loads(json.dumps(build_json(uneven)))
    assert (found["classes"], found["samples_lost"]) == ({"home": 3, "slow": 1}, 4)
    assert len([one for one in found["rounds"] if not one["drain"]]) == ROUNDS
    assert {one["class"] for one in found["members"]} == {"home", "slow"}


def test_the_answer_says_all_of_it(uneven: Forecast) -> None:
    text = format_forecast(uneven)
    for part in (
        "4 rounds in", "time per round", "(median; shortest", "on average", ", of which", "training in vain",
        "tokens per second", "samples lost           4 of 16",
        "max_round_train_time, 5 s (slow missing)", "client-3 (slow)", "was late in 3 rounds", "sent/round",
    ):  # fmt: skip
        assert part in text
    asked = format_question(uneven.question)
    for part in (
        "4 clients (3 home, 1 slow), seed 0",
        "model of 1.0 billion parameters",
        "payloads of 2.7 MB",
        "overlap on",
    ):
        assert part in asked


def test_the_parts_of_a_round_and_of_a_class_add_up_to_the_whole(uneven: Forecast) -> None:
    lines = format_forecast(uneven).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("on average"))
    mean, *parts = (float(re.findall(r"([\d.]+) s\b", line)[0]) for line in lines[at : at + len(What) + 1])
    assert sum(parts) == pytest.approx(mean, abs=0.05)
    times = [one.seconds for one in uneven.accounts.data_rounds]
    assert mean == pytest.approx(sum(times) / len(times), abs=0.01)
    head, *rows = (re.split(r"  +", line) for line in format_classes(uneven).partition("\n\n")[0].splitlines())
    assert head[1:9] == list(COLUMN_NAMES)
    shares = {name: [float(share.removesuffix(" %")) for share in row[:8]] for name, *row in rows}
    assert [sum(one) for one in shares.values()] == pytest.approx([100, 100], abs=0.4)
    vain = head.index("in vain") - 1
    assert shares["home"][vain] == 0.0
    assert shares["slow"][vain] > 50


def test_sizes_of_models_are_said_in_words() -> None:
    assert [format_size(n) for n in (12, 919_000, 10**9, 70 * 10**9, 405 * 10**9, 10**13)] == [
        "12", "919 thousand", "1.0 billion", "70.0 billion", "405 billion", "10.0 trillion",
    ]  # fmt: skip


def test_the_log_of_a_simulated_run_gives_the_same_figures_as_the_simulation(uneven: Forecast) -> None:
    accounts = read_log(build_log(uneven))
    told = uneven.accounts
    assert not accounts.is_stand_in
    assert (accounts.tokens, accounts.bounds, accounts.get_sets()) == (told.tokens, told.bounds, told.get_sets())
    assert accounts.tokens_per_s == pytest.approx(told.tokens_per_s)
    for name, node in accounts.nodes.items():
        assert (node.tokens, node.cut_off) == (told.nodes[name].tokens, told.nodes[name].cut_off)
        assert node.bytes_sent == pytest.approx(uneven.carried[name].sent, abs=1)
        assert node.bytes_received == pytest.approx(uneven.carried[name].received, abs=1)
        assert node.times == pytest.approx(told.nodes[name].times, abs=1e-3)


def test_a_defect_is_told_with_what_is_needed_to_play_it_again(even: Forecast) -> None:
    assert format_defects(even) == ""
    stuck = Violation("I5", "a step", "none for 60 s", "epoch 0")
    wrong = Violation("I1", "equal weights", "two", "epoch 0")
    outcome = replace(even.outcome, state=replace(even.outcome.state, run_state=RunState.ROUND_TRAIN))
    assert format_defects(replace(even, outcome=replace(outcome, violations=[stuck]))) == ""
    text = format_defects(replace(even, outcome=replace(outcome, violations=[stuck, wrong])))
    head, *events, violated = text.splitlines()
    for part in ("run.toml", "profile", "plan", "seed 0"):
        assert part in head
    assert violated == "violated I1 at epoch 0: expected equal weights; found two"
    assert events == even.outcome.last
    assert "soak" not in text, "another scenario would be played there"


# --- who is a member ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowded() -> Forecast:
    return play(build_question((build_machines(), 8), rounds=ROUNDS, init_min_clients=3), keep_lines=True)


def test_who_comes_after_the_epoch_has_formed_is_no_member_of_its_rounds(crowded: Forecast) -> None:
    accounts = crowded.accounts
    assert len(crowded.members) == 3
    assert crowded.cut_offs == 0
    assert sum(accounts.shares.values()) == pytest.approx(1)
    assert accounts.shares[What.TRAIN] > 0.5
    assert all(not node.times[What.WAIT] for node in accounts.nodes.values() if node not in crowded.members)
    assert "3 of 8 clients are members; the others came after the epoch had formed (init_min_clients 3)" in (
        format_forecast(crowded)
    )
    found = build_json(crowded)
    assert found["members_of_rounds"] == 3
    assert sum(one["rounds_as_member"] > 0 for one in found["members"]) == 3


def test_means_of_a_class_are_over_its_members(crowded: Forecast) -> None:
    assert re.search(r"\nclass  members .*\nhome    3 of 8 ", format_classes(crowded))
    each = ROUNDS * 2 * crowded.question.workload.payload_bytes
    assert [crowded.carried[node.name].sent for node in crowded.members] == pytest.approx([each] * 3, rel=0.05)


def test_who_dies_is_cut_off_only_in_the_rounds_that_gave_it_work() -> None:
    fault = Kill(who=("client-1",), at_s=15.0, for_s=20.0)
    forecast = play(
        build_question((build_machines(tokens_per_s=4.0), 4), rounds=8, init_min_clients=3, faults=(fault,)),
        keep_lines=True,
    )
    node = forecast.accounts.nodes["client-1"]
    assert DIED in [one.what for one in node.notices]
    assert sum(span.end - span.start for span in node.spans[What.AWAY]) == pytest.approx(20, abs=1)
    sets = [one for one in forecast.accounts.rounds if one.place in node.present]
    assert len(node.cut_off) == sum(
        "client-1" not in one.members for one in sets if one.is_decided and not one.is_drain
    )
    assert all(one.start < 15 + 15 + 1 for one in sets), "the server waits 15 s for a lost connection"
    assert forecast.cut_offs == len(node.cut_off)
    again = read_log(build_log(forecast))
    assert {name: one.present for name, one in again.nodes.items()} == {
        name: one.present for name, one in forecast.accounts.nodes.items()
    }
    assert again.lost_tokens == forecast.accounts.lost_tokens


# --- what is asked ------------------------------------------------------------------------------------


def test_more_members_than_there_are_clients_are_refused() -> None:
    question = build_question((build_machines(), 4), init_min_clients=5)
    with pytest.raises(ConfigError, match=r"config.init_min_clients is 5, but only 4 clients"):
        play(question)


def test_failures_are_drawn_for_each_machine_on_its_own() -> None:
    weak = build_machines("weak", fails_every_h=1.0, back_after_min=5.0)
    one = draw_failures(build_question((weak, 4)), 36_000)
    more = draw_failures(build_question((weak, 4), (build_machines("strong"), 4)), 36_000)
    assert one == more, "others change nothing for them"
    assert 20 < len(one) < 60, "about ten hours of four machines"
    assert {fault.for_s for fault in one} == {300.0}
    for_good = draw_failures(build_question((build_machines(fails_every_h=1.0), 4)), 360_000)
    assert [fault.for_s for fault in for_good] == [0.0] * 4, "who never comes back fails once"


def test_limits_of_nodes_have_patience_for_what_payloads_stand_for() -> None:
    limits = build_limits(build_question((build_machines(), 2), parameters=8 * 10**9).workload, 1e6)
    size = 8e9 / 4096 * 89 / 8
    assert limits.slowest_rate_bytes_s * size / 8 == pytest.approx(64 << 10, rel=0.01)
    assert limits.min_progress_s == pytest.approx(size / (64 << 10), rel=0.01)
    assert limits.file_progress_s == pytest.approx(4 * 8e9 / PARTS / (64 << 10), rel=0.01)
    assert limits.take_over_s == pytest.approx(3 * 4 * 8e9 / PARTS / 1e6, rel=0.01)


def test_plans_of_faults_and_scenarios_are_read_from_files(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('[[fault]]\nkind = "kill"\nwho = ["client-1", "random:2"]\nat_s = 40.0\nfor_s = 12.0\n')
    assert load_faults(path, 4, ForecastBackend()) == (Kill(who=("client-1", "random:2"), at_s=40.0, for_s=12.0),)
    (tmp_path / "s.toml").write_text("seed = 3\n[[class]]\ncount = 2\n")
    scenario = find_scenario(str(tmp_path / "s.toml"))
    assert (scenario.seed, scenario.clients) == (3, 2)
    assert find_scenario("17") == find_scenario("17") != find_scenario("18")
    with pytest.raises(ConfigError, match="must be a seed"):
        find_scenario("seven")
    path.write_text('[[fault]]\nkind = "hang"\nwho = ["witnesses"]\nat_s = 1\nfor_s = 2\n')
    assert load_faults(path, 4, ForecastBackend()) == (Hang(who=("witnesses",), at_s=1, for_s=2),)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[fault", "is not TOML"),
        ("[fault]\nkind = 'kill'", "fault: a plan of faults contains only"),
        ("x = 1", "x: a plan of faults contains only"),
        ("x = " + "[" * 3_000, "is not TOML: maximum recursion depth"),
        ("x = 1" + "0" * 5_000, "is not TOML: it has a number of over 4,300 digits"),
        ("fault = [3]", "fault: a plan of faults contains only"),
        ('[[fault]]\nkind = "flood"', r"fault\[0\]: kind 'flood' is unknown; known are kill"),
        (
            '[[fault]]\nkind = "kill"\nwho = ["client-4"]',
            r"'client-4' is not a machine; write server, client-0 to client-3",
        ),
        ('[[fault]]\nwho = ["server"]', r"plan.toml: fault\[0\]: kind is missing; known are kill"),
        ('[[fault]]\nkind = "kill"\nwho = ["random:5"]', "who: 'random:5' asks for too many: there are only 4"),
    ],
)
def test_a_plan_that_is_wrong_is_told_with_file_table_and_rule(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told) as found:
        load_faults(path, 4, ForecastBackend())
    assert str(found.value).startswith(str(path))


# --- both ways ----------------------------------------------------------------------------------------


def test_machines_measured_in_a_log_play_the_same_run(even: Forecast) -> None:
    assert compute_spread([[1.0, 1.0], [2.0, 2.0], [1.0], []]) == 0, "what members have in common is no difference"
    assert compute_spread([[0.9, 1.0, 1.1]]) == pytest.approx(0.2)
    measured = measure_machines(replace(even.question.run, config=even.question.config), even.accounts, 4)
    assert measured.tokens_per_s == pytest.approx(16, rel=0.05)
    assert measured.apply_s == pytest.approx(0.05, rel=0.2)
    assert measured.spread_percent == pytest.approx(5, abs=4)
    again = play(replace(even.question, classes=(build_machines(**measured.model_dump(exclude={"name"})),)))
    assert compare_sets(even.accounts, again.accounts) == []
    real_s, simulated_s = compare_times(even.accounts, again.accounts)
    assert simulated_s == pytest.approx(real_s, rel=0.2)


def test_sets_of_one_size_with_other_members_are_told(even: Forecast) -> None:
    without = [copy.deepcopy(even.accounts) for _ in range(2)]
    for accounts, name in zip(without, ("client-1", "client-2"), strict=True):
        first = accounts.rounds[0]
        first.members = tuple(member for member in first.members if member != name)
    assert compare_sets(*without) == ["real: ((0, 0), [0, 2, 3]), simulated: ((0, 0), [0, 1, 3])"]
