"""Judges of the named scenarios: whether a run reached the figure that it must reach, beside the invariants."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from psyche.core.committee.elections import compute_quorum
from psyche.core.state.limits import MAX_CLIENTS
from psyche.core.state.state import RunState, SlotState
from psyche.server.connections.limits import TICK_S
from psyche.sim.invariants.recovery import MAX_SNAPSHOT_BYTES
from psyche.sim.trace import EVENT_DIGITS
from psyche.sim.world import Outcome
from psyche.telemetry import types
from psyche.telemetry.types import Wait, WaitOutcome
from scenarios.base import (
    GRAIN_S,
    Judge,
    Judgement,
    Size,
    compute_applied_share,
    compute_median,
    compute_round_limit_s,
    get_byzantine,
    get_durations,
    get_events,
    get_ledger,
    is_finished,
)
from scenarios.builders import build_without_slow, get_halves, get_slow
from scenarios.ledger import Phase, RoundFacts, play
from scenarios.trend import compute_trends

SLACK_S: Final = 0.2  # a few crossings of a line, and the journal's disk
ANSWER_S: Final = 0.2
LARGEST_ERROR: Final = 0.01
LARGEST_SLOPE: Final = 0.01  # per simulated hour
CHANCE: Final = 4.0  # standard errors: of twenty things one is beyond two of them in every third run
LEAST_HOURS: Final = 2.0
SLOWDOWN: Final = 1.1


def judge_end(outcome: Outcome, size: Size) -> Judgement:
    rounds, wanted = outcome.state.progress.step - 1, outcome.state.config.total_steps - 1
    seen = f"{rounds} steps, {outcome.rounds} rounds, {outcome.simulated_s:.0f} s"
    return Judgement(seen, is_finished(outcome) and rounds >= wanted)


def judge_nobody_dropped(outcome: Outcome, size: Size) -> Judgement:
    lost = sorted(name for name in outcome.facts["dropped"] if name not in get_byzantine(outcome))
    return Judgement(f"dropped: {', '.join(lost) or 'nobody'}", not lost)


def judge_share(outcome: Outcome, size: Size) -> Judgement:
    """F1: of the batches of members that lived through their round, 95 % are applied."""
    share = compute_applied_share(outcome)
    return Judgement(f"{share:.1%} of the batches applied", share >= 0.95)


def judge_witnesses_replaced(outcome: Outcome, size: Size) -> Judgement:
    """F3: the round without witnesses ends by its time, the next one has others, at most one step is lost."""
    ledger = get_ledger(outcome)
    kills = get_events(outcome, types.Killed)
    killed, at_s = {e.event.who for e in kills}, min((e.t for e in kills), default=0.0)
    silent = [
        one
        for one in ledger.data_rounds
        if round(one.start_s, EVENT_DIGITS) <= at_s < one.end_s
        and ledger.find_names(one.epoch, one.witnesses) == killed
    ]
    following = [ledger.rounds.get((one.epoch, one.height + 1)) for one in silent]
    others = [one is not None and not killed & ledger.find_names(one.epoch, one.witnesses) for one in following]
    lost = max(((e.event.was or 0) - e.event.step for e in get_events(outcome, types.Rollback, "server")), default=0)
    by_time = [one.is_by_timeout for one in silent]
    seen = f"closed by time: {all(by_time)}, others elected: {all(others)}, {lost} steps lost"
    return Judgement(seen, bool(silent) and all(by_time) and all(others) and lost <= 1)


def judge_halves(bridge: bool) -> Judge:
    """F6, F7: while they are apart at most one side advances without the other; then all are in the next epoch."""

    def judge(outcome: Outcome, size: Size) -> Judgement:
        ledger, sides = get_ledger(outcome), [set(side) for side in get_halves(size, bridge=bridge)]
        cut_s = get_events(outcome, types.Fault)[0].t
        healed_s = max((e.t for e in get_events(outcome, types.FaultOver)), default=outcome.simulated_s)
        apart = [one for one in ledger.data_rounds if one.start_s >= cut_s and one.end_s <= healed_s]
        sets = [ledger.find_names(one.epoch, one.applied) for one in apart if 0 < one.decided_s <= healed_s]
        alone = sum(any(one & sides[n] and not one & sides[1 - n] for one in sets) for n in (0, 1))
        after = [one for one in ledger.formations if one.at_s >= healed_s] or ledger.formations[-1:]
        missing = {name for one in after for name in set(outcome.scenario.names) - set(one.names)}
        together = sum(bool(one & sides[0] and one & sides[1]) for one in sets)
        seen = f"{len(apart)} rounds apart, {together} of them together, {alone} sides alone"
        return Judgement(f"{seen}, then missing: {missing or 'nobody'}", bool(apart) and alone <= 1 and not missing)

    return judge


def judge_limits(outcome: Outcome, size: Size) -> Judgement:
    """No round lasts longer than its two limits together."""
    longest = max(get_durations(get_ledger(outcome).data_rounds), default=0.0)
    return Judgement(f"longest round {longest:.1f} s", 0 < longest <= compute_round_limit_s(outcome.state.config))


def _find_finish_times(outcome: Outcome, ends: Mapping[Wait, WaitOutcome]) -> dict[int, list[float]]:
    """When members ended these waits, the last of them, by the round's height."""
    found: dict[int, dict[tuple[str, float], float]] = {}
    since: dict[tuple[str, int], float] = {}
    for seen in get_events(outcome, types.WaitEnded):
        ended, height = seen.event, seen.event.height
        if height is not None and ends.get(ended.wait) is ended.outcome:
            if ended.wait is Wait.OWN_WORK:
                since[seen.node, height] = seen.t
            found.setdefault(height, {})[seen.node, since.get((seen.node, height), seen.t)] = seen.t
    return {height: list(times.values()) for height, times in found.items()}


def judge_prompt(outcome: Outcome, size: Size) -> Judgement:
    """B7: what never comes is waited for twice at most: before Finished is said, and by those who wait for it (A3)."""
    done, late = _find_finish_times(outcome, {Wait.OWN_WORK: WaitOutcome.DONE}), list[float]()
    rounds = get_ledger(outcome).data_rounds
    for one in rounds:
        times = sorted(t - one.start_s for t in done.get(one.height, ()) if one.start_s <= t <= one.end_s)
        work_s = times[min(len(times), compute_quorum(one.members.bit_count())) - 1] if times else 0.0
        bound_s = 2 * max(1.5 * work_s, work_s + 2) + SLACK_S
        late += [one.end_s - one.start_s] if one.end_s - one.start_s > bound_s else []
    longest = max(get_durations(rounds), default=0.0)
    return Judgement(f"longest round {longest:.1f} s, {len(late)} too long", bool(rounds) and not late)


def judge_pace(outcome: Outcome, size: Size) -> Judgement:
    """F9: with slow members rounds are within A3's bound; without them as short as if there were none."""
    ledger, slow = get_ledger(outcome), set(get_slow(size))
    ends = {Wait.OWN_WORK: WaitOutcome.DONE, Wait.OWN_WORK_AND_PAYLOADS: WaitOutcome.SENT}  # A2
    done = _find_finish_times(outcome, ends)
    over, judged, alone = 0, 0, list[RoundFacts]()
    for one in ledger.data_rounds:
        fast = ledger.find_names(one.epoch, one.witnesses) - slow
        if not ledger.find_names(one.epoch, one.members) & slow:
            alone.append(one)
        elif len(fast) >= one.quorum and one.height:
            times = sorted(t - one.start_s for t in done.get(one.height, ()) if one.start_s <= t <= one.end_s)
            q = compute_quorum(one.members.bit_count())
            if len(times) >= q:
                bound_s = max(1.5 * times[q - 1], times[q - 1] + 2) + SLACK_S
                judged, over = judged + 1, over + (one.closing_s - one.start_s > bound_s)
    quiet = compute_median(get_durations(get_ledger(play(build_without_slow(size))).data_rounds))
    lonely = compute_median(get_durations(alone))
    seen = f"{over} of {judged} rounds over A3's bound; without them {lonely:.2f} s, never there {quiet:.2f} s"
    return Judgement(seen, bool(judged and alone) and not over and lonely <= SLOWDOWN * quiet)


def judge_clocks(outcome: Outcome, size: Size) -> Judgement:
    """F11: what a time-out ends lasts as long as it should, what is complete not longer; by a second and a tick."""
    config = outcome.state.config
    limits = {
        RunState.WAITING_FOR_MEMBERS: config.waiting_for_members_extra_time, RunState.WARMUP: config.warmup_time,
        RunState.ROUND_TRAIN: config.max_round_train_time, RunState.ROUND_WITNESS: config.round_witness_time,
        RunState.COOLDOWN: config.cooldown_time,
    }  # fmt: skip
    timed = {RunState.WAITING_FOR_MEMBERS, RunState.COOLDOWN}  # nothing else can end these
    wrong = [
        f"{phase.run_state.name} {phase.end_s - phase.start_s:.1f} s"
        for phase in get_ledger(outcome).phases
        if phase.run_state in limits and phase.end_s
        and _is_untimely(phase, limits[phase.run_state], is_timed=phase.run_state in timed or not phase.is_complete)
    ]  # fmt: skip
    jumps = len(get_events(outcome, types.Fault))
    return Judgement(f"{jumps} clocks set, untimely: {', '.join(wrong) or 'nothing'}", not wrong and jumps > 0)


def _is_untimely(phase: Phase, limit_s: float, *, is_timed: bool) -> bool:
    due_s = max(phase.start_s + limit_s, phase.enough_s)
    early = is_timed and phase.end_s < due_s - GRAIN_S
    return early or phase.end_s > due_s + GRAIN_S + TICK_S + SLACK_S


def judge_once(outcome: Outcome, size: Size) -> Judgement:
    """F13: of each kind some requests landed, lost their answer and landed again; each has one effect."""
    names = ("join", "warmup_witness", "witness")
    lost = Counter(e.event.what for e in get_events(outcome, types.AnswerLost))
    repeats = Counter(e.event.request for e in get_events(outcome, types.RequestRepeated))
    landed = all(0 < lost[name] <= repeats[name] for name in names)
    twice = len(get_events(outcome, types.RecordedTwice))
    breaks = len(get_events(outcome, types.BackendLost))
    slots = sum(slot.state is not SlotState.FREE for slot in outcome.state.registry.slots)
    told = ", ".join(f"{name} {lost[name]} and {repeats[name]}" for name in names)
    seen = f"{breaks} connections lost; answers lost and repeats: {told}; {twice} recorded twice, {slots} slots"
    return Judgement(seen, landed and not twice and slots == outcome.scenario.clients)


def judge_admitted(outcome: Outcome, size: Size) -> Judgement:
    """F17, F18: everybody is a member, or was told why not yet; members are at most 256."""
    ledger = get_ledger(outcome)
    members = {name for one in ledger.formations for name in one.names}
    told = {e.node for e in get_events(outcome, types.RefusedByCoordinator) if e.event.code and e.event.reason}
    told |= {e.node for e in get_events(outcome, types.WaitStarted) if e.event.wait is Wait.NEXT_EPOCH}
    silent = set(outcome.scenario.names) - members - told
    most = max((len(one.names) for one in ledger.formations), default=0)
    seen = f"{len(members)} members, at most {most} at once, {len(told)} told to wait, told nothing: {len(silent)}"
    return Judgement(seen, not silent and 0 < most <= MAX_CLIENTS)


def judge_answers(outcome: Outcome, size: Size) -> Judgement:
    """F17: from its connection to its answered join, 99 of 100 clients take less than 0.2 s."""
    since = {e.node: e.t for e in reversed(get_events(outcome, types.BackendConnected))}
    joined = {e.node: e.t for e in reversed(get_events(outcome, types.Joined))}
    times = sorted(joined[name] - since[name] for name in joined)
    p99 = times[min(len(times) - 1, len(times) * 99 // 100)] if times else 0.0
    seen = f"joins answered in {p99:.3f} s (p99)"
    return Judgement(seen, len(times) == outcome.scenario.clients and p99 < ANSWER_S)


def judge_records(outcome: Outcome, size: Size) -> Judgement:
    """F18: at most one in a hundred of the witnesses' bits is wrong; the coordinator's snapshot is below 1 MB."""
    rounds = get_ledger(outcome).data_rounds
    bits, wrong = sum(one.bits for one in rounds), sum(one.wrong_bits for one in rounds)
    error, snapshot = wrong / bits if bits else 1.0, outcome.facts["maxima"].get("bytes of a snapshot", 0)
    seen = f"witness error {error:.3%}, snapshot {snapshot} bytes"
    return Judgement(seen, error <= LARGEST_ERROR and 0 < snapshot <= MAX_SNAPSHOT_BYTES)


def judge_flat(outcome: Outcome, size: Size) -> Judgement:
    """F24: over hours, nothing that is kept grows by one in a hundred an hour, beyond what chance explains."""
    ledger = get_ledger(outcome)
    killed = sum(one.lost.bit_count() > 0 for one in ledger.data_rounds)
    trends = compute_trends(ledger.samples)
    hours = outcome.simulated_s / 3_600
    if hours < LEAST_HOURS or not trends:
        return Judgement(f"{hours:.1f} h: too short for a slope, {killed} rounds with a loss", killed > 0)
    worst = max(trends, key=lambda one: one.slope - CHANCE * one.error)
    holds = killed > 0 and worst.slope - CHANCE * worst.error < LARGEST_SLOPE
    seen = f"{hours:.1f} h, of {len(trends)} things kept {worst.what} grows most: "
    return Judgement(f"{seen}{worst.slope:+.2%} ± {CHANCE * worst.error:.2%} an hour", holds)


def judge_classes(outcome: Outcome, size: Size) -> Judgement:
    """F25: results of both kinds of machines count."""
    credits_ = get_ledger(outcome).credits
    first = [f"client-{n}" for n in range(size.clients - size.clients // 2)]
    second = [name for name in outcome.scenario.names if name not in first]
    least = min(sum(credits_.get(name, 0) for name in half) for half in (first, second))
    return Judgement(f"each kind credited {least} times or more", least > 0)
