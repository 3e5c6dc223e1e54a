"""Named scenarios: what a run must survive, each with the figure that it must reach.

The letters F (faults) and B (members that misbehave) name the same things everywhere. Each builds its
scenario for any number of clients and rounds, so that the same row is a test of seconds or a table of hours.
"""

import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from psyche.core.state import RunState, SlotState
from psyche.network.links import LinkConditions
from psyche.simulator.faults import ClockJump, Degrade, Fault, Kill, Partition
from psyche.simulator.liars import Liar
from psyche.simulator.runtime import build_rng
from psyche.simulator.scenario import MachineClass, Scenario
from psyche.simulator.trainer import MachineModel
from psyche.simulator.world import Outcome

EPOCH_ROUNDS: Final = 20
Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Size:
    """How large a row is played."""

    seed: int = 1
    clients: int = 16
    rounds: int = 100


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was seen, and whether it is what was promised."""

    seen: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Named:
    """One row.

    `expected` says in words what `judge` checks beside the invariants, which hold in every scenario.
    """

    row: str
    title: str
    expected: str
    build: Callable[[Size], Scenario]
    judge: Callable[[Outcome, Size], Judgement]


# --- questions about an outcome --------------------------------------------------------------------------


def get_events(outcome: Outcome, kind: str, node: str = "") -> list[Event]:
    """Events of a kind, of one machine or of all."""
    mark = f'"kind":"{kind}"'.encode()
    events = (json.loads(line) for line in outcome.lines if mark in line)
    return [event for event in events if node in ("", event["node"])]


def is_finished(outcome: Outcome) -> bool:
    """Whether the run came to its end."""
    return outcome.state.run_state is RunState.FINISHED and not outcome.violations


def compute_applied_share(outcome: Outcome) -> float:
    """Of the results that were sent, how many were applied (of epochs that came to their end)."""
    indexes = {(e["node"], e["t"]): e["index"] for e in get_events(outcome, "member")}
    member_of: dict[str, list[tuple[float, int]]] = {}
    for (node, at_s), index in sorted(indexes.items()):
        member_of.setdefault(node, []).append((at_s, index))
    applied = {(e["epoch"], e["height"]): set(e["members"]) for e in get_events(outcome, "applied") if e["update"]}
    lag = 2 if outcome.state.config.overlap else 1
    sent = found = 0
    for event in get_events(outcome, "result_sent"):
        members = applied.get((event["epoch"], event["height"] + lag))
        if members is not None:
            index = [i for at_s, i in member_of[event["node"]] if at_s <= event["t"]][-1]
            sent, found = sent + 1, found + (index in members)
    return found / sent if sent else 0.0


def compute_round_times(outcome: Outcome) -> list[float]:
    """Seconds from each round's start to the next one's, within an epoch, as the server has them."""
    starts = [
        (e["t"], e["epoch"], e["height"])
        for e in get_events(outcome, "state_changed")
        if e["node"] == "server" and e["run_state"] == "round_train"
    ]
    return [b[0] - a[0] for a, b in itertools.pairwise(starts) if a[1] == b[1]]


def _judge_end(outcome: Outcome, size: Size) -> Judgement:
    rounds = outcome.state.progress.step - 1
    seen = f"{rounds} steps, {outcome.rounds} rounds, {outcome.simulated_s:.0f} s"
    return Judgement(seen, is_finished(outcome) and rounds >= size.rounds)


def _judge_share(outcome: Outcome, size: Size) -> Judgement:
    share, end = compute_applied_share(outcome), _judge_end(outcome, size)
    return Judgement(f"{end.seen}, {share:.1%} of the results applied", end.holds and share >= 0.95)


def _judge_no_drop(outcome: Outcome, size: Size) -> Judgement:
    end, dropped = _judge_end(outcome, size), outcome.facts["dropped"]
    return Judgement(f"{end.seen}, dropped {dropped or 'nobody'}", end.holds and not dropped)


def _judge_liars(outcome: Outcome, size: Size) -> Judgement:
    """The run ends, and no honest member was dropped or ejected."""
    liars = {f"client-{liar.who}" for liar in outcome.scenario.liars}
    lost = sorted(name for name in outcome.facts["dropped"] if name not in liars)
    end = _judge_end(outcome, size)
    return Judgement(f"{end.seen}, honest ones dropped: {lost or 'none'}", end.holds and not lost)


def _judge_banned(outcome: Outcome, size: Size) -> Judgement:
    banned = sum(slot.state is SlotState.BANNED for slot in outcome.state.registry.slots)
    liars, other = len(outcome.scenario.liars), _judge_liars(outcome, size)
    return Judgement(f"{other.seen}, banned {banned} of {liars}", other.holds and banned == liars)


def _judge_unpaid(outcome: Outcome, size: Size) -> Judgement:
    """Who never delivers trains at most three rounds of an epoch, and none of its results is applied."""
    names = {f"client-{liar.who}" for liar in outcome.scenario.liars}
    trained: dict[tuple[str, int], int] = {}
    for event in get_events(outcome, "trained"):
        if event["node"] in names:
            place = (event["node"], event["epoch"])
            trained[place] = trained.get(place, 0) + 1
    most, other = max(trained.values(), default=0), _judge_liars(outcome, size)
    lag = 2 if outcome.state.config.overlap else 1  # until its first lateness is on record
    return Judgement(f"{other.seen}, at most {most} batches of an epoch", other.holds and most <= 3 + lag)


# --- scenarios -----------------------------------------------------------------------------------------------


def _base(size: Size, *, classes: tuple[MachineClass, ...] = (), **config: int) -> Scenario:
    line = LinkConditions(latency_s=0.02)
    usual = (MachineClass(count=size.clients, uplink=line, machine=MachineModel(sample_s=0.25)),)
    values = {
        "total_steps": size.rounds + 1, "rounds_per_epoch": min(EPOCH_ROUNDS, size.rounds), "witness_nodes": 4,
        "waiting_for_members_extra_time": 8,  # so that everybody is there when the epoch forms
        "init_min_clients": max(2, size.clients // 2), "min_clients": max(2, size.clients // 4),
        "global_batch_size_start": 2 * size.clients, "global_batch_size_end": 2 * size.clients,
    }  # fmt: skip
    return Scenario(seed=size.seed, classes=classes or usual, config=values | config)


def _with(scenario: Scenario, *faults: Fault, liars: tuple[Liar, ...] = (), **changes: Any) -> Scenario:
    values: Mapping[str, Any] = {"faults": faults, "liars": liars} | changes
    return Scenario(
        **{name: getattr(scenario, name) for name in ("seed", "classes", "config", "respawn_s")} | dict(values)
    )


def _churn(size: Size) -> Scenario:
    """F1: in every epoch three of ten are killed, each at a moment of its own; they come back."""
    rng = build_rng(size.seed, "F1")
    epochs, per_epoch = math.ceil(size.rounds / EPOCH_ROUNDS), min(EPOCH_ROUNDS, size.rounds)
    kills = [
        Kill(at_epoch=epoch, at_height=rng.randrange(1, per_epoch), who=(f"client-{who}",), for_s=3)
        for epoch in range(epochs)
        for who in rng.sample(range(size.clients), round(0.3 * size.clients))
    ]
    return _with(_base(size), *kills)


def _all_witnesses(size: Size) -> Scenario:
    return _with(_base(size, witness_nodes=3), Kill(at_height=min(4, size.rounds - 2), who=("witnesses",), for_s=2.0))


def _halves(size: Size, *, bridge: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names = [f"client-{number}" for number in range(size.clients - bridge)]
    return tuple(names[: len(names) // 2]), tuple(names[len(names) // 2 :])


def _split(size: Size, *, bridge: bool) -> Scenario:
    cut = Partition(at_height=2, groups=_halves(size, bridge=bridge), for_s=40.0)
    return _with(_base(size, witness_nodes=0), cut)


def _lossy(size: Size) -> Scenario:
    line = LinkConditions(latency_s=0.02, jitter_s=0.3, loss=0.2, duplicate=0.1)
    cls = MachineClass(count=size.clients, uplink=line, machine=MachineModel(sample_s=0.25))
    return _with(_base(size, classes=(cls,)))


def _slow_quarter(size: Size) -> Scenario:
    worse = Degrade(
        who=tuple(f"client-{n}" for n in range(size.clients // 4)), latency_s=0.25, jitter_s=0.4,
        bandwidth_bytes_s=125_000.0, for_s=3_600.0,
    )  # fmt: skip
    return _with(_base(size), worse)


def _clocks(size: Size) -> Scenario:
    skews = tuple(
        ClockJump(who=(f"client-{n}",), offset_s=300.0 if n % 2 else -300.0) for n in range(0, size.clients, 2)
    )
    jumps = (
        ClockJump(at_s=10.0, who=("server",), offset_s=10.0, for_s=8.0),
        ClockJump(at_s=25.0, who=("server",), offset_s=-10.0, for_s=8.0),
    )
    return _with(_base(size), *skews, *jumps)


def _late_answers(size: Size) -> Scenario:
    """F13: connections to the server break and stall all the time: requests land after they were repeated."""
    cuts = tuple(
        Partition(at_s=4.0 + 3.1 * n, groups=(("server",), ("all",)), silent=n % 2 == 0, for_s=0.7) for n in range(12)
    )
    return _with(_base(size), *cuts)


def _storm(size: Size) -> Scenario:
    cls = MachineClass(count=size.clients, join_spread_s=10.0, machine=MachineModel(sample_s=0.25))
    return _with(_base(size, classes=(cls,), init_min_clients=size.clients, warmup_time=60))


def _mixed(size: Size) -> Scenario:
    half = size.clients // 2
    kinds = tuple(
        MachineClass(count=count, machine=MachineModel(sample_s=0.25, numeric_class=number))
        for number, count in ((0, size.clients - half), (1, half))
    )
    return _with(_base(size, classes=kinds))


def _daily(size: Size) -> Scenario:
    """F24: one of ten is killed in every round."""
    rng = build_rng(size.seed, "F24")
    kills = [
        Kill(at_s=5.0 + 4.0 * n, who=(f"client-{rng.randrange(size.clients)}",), for_s=2.0) for n in range(size.rounds)
    ]
    return _with(_base(size, rounds_per_epoch=5), *kills)


def _lying(kind: str, share: float = 0.2) -> Callable[[Size], Scenario]:
    def build(size: Size) -> Scenario:
        count = max(1, min(int(share * size.clients), (size.clients - 1) // 3))
        liars = tuple(Liar(who=number, kind=kind) for number in range(count))
        return _with(_base(size, witness_nodes=0), liars=liars)

    return build


def _judge_pace(outcome: Outcome, size: Size) -> Judgement:
    """No round lasts longer than its limits."""
    times = sorted(compute_round_times(outcome))
    median = times[len(times) // 2] if times else 0.0
    end = _judge_end(outcome, size)
    config = outcome.state.config
    is_in_time = max(times, default=0.0) <= config.max_round_train_time + config.round_witness_time + 1
    seen = f"{end.seen}, rounds of {median:.1f} s (median), {max(times, default=0.0):.1f} s (longest)"
    return Judgement(seen, end.holds and is_in_time)


def _judge_flat(outcome: Outcome, size: Size) -> Judgement:
    maxima, end = outcome.facts["maxima"], _judge_end(outcome, size)
    return Judgement(f"{end.seen}, at most {maxima}", end.holds)


ROWS: Final[dict[str, Named]] = {
    row.row: row
    for row in (
        Named("F1", "30 % killed in every epoch", "the end; 95 % of results applied", _churn, _judge_share),
        Named("F3", "all witnesses of a round killed", "the end", _all_witnesses, _judge_end),
        Named("F6", "two halves part", "the end", lambda s: _split(s, bridge=False), _judge_end),
        Named("F7", "two halves part, one sees both", "the end", lambda s: _split(s, bridge=True), _judge_end),
        Named("F8", "20 % lost, reordered, 10 % twice", "the end, nobody dropped", _lossy, _judge_no_drop),
        Named("F9", "a quarter far away and narrow", "the end; no round above its limits", _slow_quarter, _judge_pace),
        Named("F10", "talks, never delivers", "out in three rounds, no credit", _lying("withhold"), _judge_unpaid),
        Named("F11", "clocks off and jumping", "the end, nobody dropped", _clocks, _judge_no_drop),
        Named("F13", "requests land after their repeat", "the end, nobody dropped", _late_answers, _judge_no_drop),
        Named("F17", "everybody joins at once", "the end, nobody dropped", _storm, _judge_no_drop),
        Named("F24", "one killed in every round", "the end; what is kept stays within its limits", _daily, _judge_flat),
        Named("F25", "two classes of arithmetic", "equal digests, nobody dropped", _mixed, _judge_no_drop),
        Named("B2", "old results again", "refused, honest ones unharmed", _lying("replay"), _judge_liars),
        Named("B6", "two results for one round", "banned", _lying("equivocate"), _judge_banned),
        Named("B7", "announced and withheld [33 %]", "out, no credit", _lying("withhold", 0.34), _judge_unpaid),
        Named("B8", "witnesses claim all", "no effect", _lying("claim_all", 0.34), _judge_liars),
        Named("B8n", "witnesses claim none", "no effect", _lying("claim_none", 0.34), _judge_liars),
        Named("B10", "blooms that lie", "no effect", _lying("lie_bloom", 0.34), _judge_liars),
        Named("B12", "joins under others' keys", "refused", _lying("forge"), _judge_liars),
        Named("B18", "false accusations", "no effect", _lying("accuse"), _judge_liars),
        Named("B20", "no record at an epoch's end", "certified all the same", _lying("no_end", 0.34), _judge_liars),
    )
}
