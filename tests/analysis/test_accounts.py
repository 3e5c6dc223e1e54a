"""Where the time of a run went, told from its events."""

import itertools
import json
import random
from operator import itemgetter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.log import make

from psyche.analysis.accounts import Accounts, What, find_reference, is_overlapped, read_accounts
from psyche.analysis.summary import format_accounts
from psyche.analysis.tally import Notice, Span, take_out
from psyche.analysis.viewer import Filter, format_trace, read_trace
from psyche.core.state.enums import ClientState, RunState
from psyche.errors import ConfigError
from psyche.telemetry import types
from psyche.telemetry.events import Entry, Line, build_line


class Log:
    """Builds a log of a run in which rounds of ten seconds begin at 0, 10, 20."""

    def __init__(self) -> None:
        self.told: list[Entry] = []

    def add(self, t: float, node: str, event: types.Event) -> None:
        self.told.append(Entry(1_000.0 + t, node, event))

    @property
    def lines(self) -> list[Line]:
        return [*map(build_line, self.told)]

    def state(self, t: float, state: RunState, height: int, node: str = "server") -> None:
        self.add(t, node, make(types.StateChanged, run_state=state, height=height, step=height + 1))

    def join(self, *nodes: str) -> None:
        for index, node in enumerate(nodes):
            self.add(-1, node, make(types.Member, index=index))

    def begin(self, t: float, height: int, *nodes: str) -> None:
        self.state(t, RunState.ROUND_TRAIN, height)
        for node in nodes:
            self.state(t, RunState.ROUND_TRAIN, height, node)
            self.add(t, node, make(types.RoundStarted, height=height, step=height + 1))

    def train(self, t: float, node: str, height: int, seconds: float, tokens: int = 100) -> None:
        self.add(t, node, make(types.Trained, height=height, tokens=tokens, seconds=seconds))
        self.add(t, node, make(types.ResultSent, height=height, bytes=8))

    def close(self, t: float, height: int) -> None:
        self.state(t, RunState.ROUND_WITNESS, height)

    def read(self, **options: object) -> Accounts:
        accounts = Accounts(**options)  # pyright: ignore[reportArgumentType]
        for one in sorted(self.told, key=itemgetter(0)):
            accounts.take(*one)
        accounts.finish()
        return accounts


def build_log() -> Log:
    """Two clients; a trains 4 s and waits, b trains 6 s and has to wait for a's payload of the round before."""
    log = Log()
    log.join("a", "b")
    log.begin(0, 0, "a", "b")
    log.train(5, "a", 0, 4)
    log.train(7, "b", 0, 6)
    log.add(1, "a", make(types.Applied))
    log.add(1, "b", make(types.Applied))
    log.close(9, 0)
    log.begin(10, 1, "a", "b")
    log.add(10, "a", make(types.PayloadReceived, from_member=1, height=0))
    log.add(10.5, "a", make(types.Applied))
    log.train(15, "a", 1, 4)
    log.train(16, "b", 1, 6)
    log.add(18, "b", make(types.PayloadReceived, from_member=0, height=0))
    log.close(18, 1)
    log.state(20, RunState.COOLDOWN, 1)
    log.add(20, "a", make(types.Decided, height=0, members=(0, 1)))
    log.add(20, "b", make(types.Decided, height=0, members=(0, 1)))
    log.add(20, "a", make(types.Decided, height=1, members=(0,)))
    return log


def test_each_second_is_counted_for_the_first_thing_that_holds() -> None:
    accounts = build_log().read()
    a, b = accounts.nodes["a"], accounts.nodes["b"]
    assert [sum(node.times.values()) for node in (a, b)] == pytest.approx([20, 20])
    assert b.times[What.TRAIN] == pytest.approx(6 + 6)
    assert b.times[What.APPLY] == pytest.approx(1)
    assert b.times[What.TRANSFER] == pytest.approx(2), "while it trained the payload cost nobody anything"
    assert b.times[What.WITNESS] == pytest.approx(1 + 2)
    assert (b.times[What.SEND], b.times[What.WAIT]) == pytest.approx((2, 0))
    assert a.times[What.SEND] == pytest.approx(4 + 0.5 + 3), "its payload is on its way from 5 to 18, but it trains"
    first, second = accounts.rounds
    assert first.bound.text == "training of b", "nobody is missing, however long the messages took"
    assert second.bound.text == "payload of a on its way to b"
    assert [one.tokens for one in accounts.rounds] == [200, 100]
    assert [one.lost_tokens for one in accounts.rounds] == [0, 100], "work that is in no set is lost"
    assert (b.cut_off, b.tokens) == ([(0, 1)], 100)
    assert accounts.get_sets() == [((0, 0), ("a", "b")), ((0, 1), ("a",))]


def without_payloads(log: Log) -> Log:
    """The log, but none arrives at b."""
    log.told = [one for one in log.told if one[1] != "b" or not isinstance(one[2], types.PayloadReceived)]
    return log


def test_a_payload_that_is_on_its_way_when_a_round_closes_is_what_it_waited_for_unless_its_receiver_is_away() -> None:
    log = without_payloads(build_log())
    accounts = log.read()
    assert accounts.rounds[1].bound.text == "payload of a on its way to b"
    assert accounts.nodes["b"].times[What.TRANSFER] == pytest.approx(2)
    assert accounts.nodes["b"].times[What.WITNESS] == pytest.approx(1 + 2)
    assert accounts.nodes["a"].times[What.TRANSFER] == 0
    assert accounts.nodes["a"].times[What.SEND] == pytest.approx(4 + 0.5 + 3)
    log.add(9, "world", make(types.Killed, who="b"))
    assert log.read().nodes["a"].times[What.SEND] == 0


def test_a_payload_costs_time_only_once_it_is_due() -> None:
    log = build_log()
    log.add(9.5, "b", make(types.PayloadReceived, from_member=0, height=0))
    assert log.read(overlap=True).nodes["b"].times[What.TRANSFER] == pytest.approx(2)
    assert log.read(overlap=False).nodes["b"].times[What.TRANSFER] > 2


def test_a_round_that_nobody_works_in_any_more_waits_for_who_is_missing() -> None:
    log = Log()
    log.join("a", "b")
    log.begin(0, 0, "a", "b")
    log.train(5, "a", 0, 4)
    log.close(9, 0)
    log.state(10, RunState.COOLDOWN, 0)
    assert log.read().rounds[0].bound.text == "patience with b"
    assert log.read(limit_s=9).rounds[0].bound.text == "max_round_train_time, missing b"


def test_training_that_is_broken_off_is_in_vain() -> None:
    log = Log()
    log.join("a")
    log.begin(0, 0, "a")
    log.add(1, "a", make(types.Applied))
    log.add(8, "a", make(types.NotSent, height=0, reason="cancelled"))
    log.close(9, 0)
    log.state(10, RunState.COOLDOWN, 0)
    node = log.read().nodes["a"]
    assert (node.times[What.VAIN], node.times[What.TRAIN]) == (pytest.approx(7), 0)
    assert node.notices == [Notice(1_008.0, "not_sent", "cancelled")]


@pytest.mark.parametrize("told_by", ["world", "testnet"])
def test_a_process_that_dies_is_away_until_another_starts(told_by: str) -> None:
    log = Log()
    log.join("a")
    log.begin(0, 0, "a")
    if told_by == "world":
        log.add(2, told_by, make(types.Killed, who="a"))
        log.add(5, told_by, make(types.Started, who="a"))
    else:
        log.add(2, told_by, make(types.ProcessKilled, name="a"))
        log.add(5, "a", make(types.ClientStarted))
    log.close(9, 0)
    log.state(10, RunState.COOLDOWN, 0)
    assert log.read().nodes["a"].times[What.AWAY] == pytest.approx(3)


@pytest.mark.parametrize(
    ("t", "node", "event", "who", "present"),
    [
        (9, "b", make(types.Dropped, state=ClientState.DROPPED), "b", {(0, 0)}),
        (8, "server", make(types.ClientWithdrawn, key=b"b0b0", reason="connection lost"), "b", {(0, 0)}),
        (0, "c", make(types.RoundStarted, height=0, step=1), "c", set()),
    ],
    ids=["put out", "its connection was lost for too long", "never a member"],
)
def test_who_is_no_member_is_in_no_round_though_it_sees_them(
    t: float, node: str, event: types.Event, who: str, present: set[tuple[int, int]]
) -> None:
    log = build_log()
    log.add(-2, "b", make(types.ClientStarted, identity=b"b0b0"))
    log.add(t, node, event)
    found = log.read().nodes[who]
    assert (found.present, found.cut_off) == (present, [])


def test_a_member_that_is_silent_stays_one_until_the_record_has_fewer() -> None:
    log = Log()
    log.join("a", "b")
    log.begin(0, 0, "a", "b")
    log.close(9, 0)
    for height, members in ((1, 2), (2, 1)):
        state = make(types.StateChanged, run_state=RunState.ROUND_TRAIN, height=height, step=1, members=members)
        log.add(10.0 * height, "server", state)
        log.add(10.0 * height + 0.1, "a", make(types.RoundStarted, height=height, step=1))
        log.close(10.0 * height + 9, height)
    log.state(30, RunState.COOLDOWN, 2)
    accounts = log.read()
    assert accounts.nodes["b"].present == {(0, 0), (0, 1)}
    assert accounts.nodes["a"].present == {(0, 0), (0, 1), (0, 2)}


def test_the_records_own_word_goes_before_what_clients_tell() -> None:
    log = build_log()
    log.add(0, "world", make(types.RoundMembers, height=0, members=("a", "b"), tokens=300))
    log.add(10, "world", make(types.RoundMembers, height=1, members=("a",), tokens=100))
    accounts = log.read()
    assert accounts.nodes["b"].present == {(0, 0)}
    assert [one.lost_tokens for one in accounts.rounds] == [100, 100]


def test_clients_are_listed_in_the_order_of_their_numbers() -> None:
    log = Log()
    names = [f"client-{number}" for number in (10, 2, 0, 1)]
    log.join(*names)
    log.begin(0, 0, *names)
    log.close(9, 0)
    log.state(10, RunState.COOLDOWN, 0)
    shown = [line.split()[0] for line in format_accounts(log.read()).splitlines()[:-6] if line.startswith("client-")]
    assert shown == ["client-0", "client-1", "client-2", "client-10"]


def test_the_summary_says_how_long_the_run_was_in_no_round_and_why() -> None:
    log = Log()
    log.state(-7, RunState.WAITING_FOR_MEMBERS, 0)
    nothing = log.read()
    assert (nothing.tokens_per_s, nothing.whole_training_share, nothing.data_rounds) == (0.0, 0.0, [])
    log.state(-5, RunState.WARMUP, 0)
    log.join("a")
    log.begin(0, 0, "a")
    log.close(9, 0)
    log.state(10, RunState.COOLDOWN, 0)
    log.state(14, RunState.FINISHED, 0)
    line = "outside of rounds      11 s: waiting for members 2 s, warmup 5 s, cooldown 4 s"
    assert line in format_accounts(log.read()).splitlines()


def test_counters_of_a_process_that_started_anew_add_up() -> None:
    log = build_log()
    log.add(1, "a", make(types.Network, bytes_sent=10, bytes_received=20))
    log.add(2, "a", make(types.ClientStarted))
    log.add(3, "a", make(types.Network, bytes_sent=1, bytes_received=2))
    node = log.read().nodes["a"]
    assert (node.bytes_sent, node.bytes_received) == (11, 22)


def test_a_log_without_the_servers_is_read_from_the_client_that_tells_most() -> None:
    log = build_log()
    only = [one for one in log.told if one[1] == "a"]
    assert find_reference(log.told) == "server"
    assert find_reference(only) == "a"
    assert len(read_accounts(only).rounds) == 2


def test_a_log_says_what_it_stands_for_or_that_it_stands_for_nothing() -> None:
    log = build_log()
    assert not log.read().is_stand_in
    assert not read_accounts(log.told).is_stand_in
    log.add(9, "world", make(types.Fault, what="kill", for_s=0.0))
    assert read_accounts(log.told).is_stand_in
    assert "those of the small one" in format_accounts(read_accounts(log.told))
    log.add(-1, "world", make(types.Simulated, limit_s=9, overlap=True, sequence_tokens=2_000, played_tokens=8))
    log.add(30, "world", make(types.Carried, who="b", bytes_sent=7_000, bytes_received=8_000))
    accounts = read_accounts(log.told)
    assert not accounts.is_stand_in
    assert "those of the small one" not in format_accounts(accounts)
    assert accounts.tokens == 300 * 250
    assert (accounts.nodes["b"].bytes_sent, accounts.nodes["b"].bytes_received) == (7_000, 8_000)


@pytest.mark.parametrize(("decided", "overlap"), [(0, True), (1, False)])
def test_overlap_shows_in_when_sets_are_decided(decided: int, overlap: bool) -> None:
    log = Log()
    log.state(0, RunState.ROUND_TRAIN, 2, "a")
    log.add(1, "a", make(types.Decided, height=decided, members=()))
    assert is_overlapped(log.told) is overlap


stretches = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), max_size=6)


@given(stretches, stretches)
def test_what_is_taken_out_and_what_is_left_are_the_whole(
    left: list[tuple[int, int]], taken: list[tuple[int, int]]
) -> None:
    def spread(parts: list[tuple[int, int]], gap: int) -> list[Span]:
        spans: list[Span] = []
        at = 0.0
        for skip, length in parts:
            at += skip % gap
            spans.append(Span(at, at + length))
            at += length
        return spans

    free, used = spread(left, 4), spread(taken, 7)
    seconds, rest = take_out(free, used)
    assert seconds + sum(s.end - s.start for s in rest) == pytest.approx(sum(s.end - s.start for s in free))
    assert take_out(rest, used)[0] == 0


def test_spans_that_meet_become_one() -> None:
    rng = random.Random(1)
    node = build_log().read().nodes["a"]
    node.spans[What.TRANSFER].clear()
    points: set[int] = set()
    for end in sorted(rng.randrange(100) for _ in range(40)):
        start = max(0, end - rng.randrange(1, 6))
        node.add(What.TRANSFER, start, end)
        points.update(range(start, end))
    spans = node.spans[What.TRANSFER]
    assert sum(s.end - s.start for s in spans) == len(points)
    assert all(a.end < b.start for a, b in itertools.pairwise(spans))


# --- the viewer ---------------------------------------------------------------------------------------


def show(**wanted: object) -> list[str]:
    return list(format_trace(build_log().lines, Filter(**wanted)))  # pyright: ignore[reportArgumentType]


def test_a_trace_has_one_line_for_each_event_with_seconds_from_the_first() -> None:
    lines = show(all_kinds=True)
    assert len(lines) == len(build_log().lines)
    assert lines[0].split() == ["0.000", "a", "member", "index=0", "members=0"]


def test_kinds_that_fill_pages_are_left_out_unless_they_are_asked_for() -> None:
    assert not any("payload_received" in line for line in show())
    assert len(show(kinds=("payload_*",))) == 2


def test_nodes_kinds_times_and_rounds_narrow_a_trace() -> None:
    assert {line.split()[1] for line in show(nodes=("a", "serv*"))} == {"a", "server"}
    assert {line.split()[2] for line in show(kinds=("trained", "result_*"))} == {"trained", "result_sent"}
    assert all(5 <= float(line.split()[0]) <= 8 for line in show(from_s=5, to_s=8))
    assert len(show(from_s=5, to_s=8)) == 4
    assert all("height=1" in line for line in show(height=1))


def test_logs_of_several_folders_are_one_trace_and_a_log_counts_once(tmp_path: Path) -> None:
    """As a run's are by default: each client's beside its key, the server's with its journal."""
    wanted = [event for event in build_log().lines if event["node"] in ("a", "b")]
    for node in ("a", "b"):
        (tmp_path / node).mkdir()
        (tmp_path / node / "events.jsonl").write_text(
            "".join(json.dumps(event) + "\n" for event in wanted if event["node"] == node)
        )
    found = read_trace([tmp_path / "b", tmp_path / "a", tmp_path, tmp_path / "a" / "events.jsonl"])
    assert found == sorted(found, key=lambda event: event["t"])
    by_time = sorted(wanted, key=lambda event: event["t"])
    for node in ("a", "b"):
        assert [e for e in found if e["node"] == node] == [e for e in by_time if e["node"] == node]
    assert len(found) == len(wanted)


@pytest.mark.parametrize(("name", "told"), [("b", "b: there are no events"), ("missing", "no such file or folder")])
def test_each_named_folder_must_have_events(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "events.jsonl").write_text(json.dumps(build_log().lines[0]) + "\n")
    (tmp_path / "b").mkdir()
    with pytest.raises(ConfigError, match=told):
        read_trace([tmp_path / "a", tmp_path / name])
