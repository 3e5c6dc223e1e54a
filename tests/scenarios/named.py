"""Named scenarios: what a run must survive, each with the figure that it must reach.

The letters F (faults) and B (members that misbehave) name the same things everywhere. Each is a scenario for any
number of clients and rounds (`builders`) and a judge (`judges`), so that the same scenario is a test of
seconds or a table of hours (`scripts/named_scenarios.py`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from psyche.sim.world import Outcome, World
from scenarios import builders, judges
from scenarios import byzantine_judges as lying
from scenarios import chain_judges as on_chain
from scenarios.base import Judge, Judgement, Named, Size, judge_all
from scenarios.builders import build_lying
from scenarios.byzantine_judges import judge_lies
from scenarios.crash_judge import judge_crash_points
from scenarios.judges import judge_end, judge_nobody_dropped
from scenarios.ledger import play

LONG: Final = Size(rounds=100, hours=3.0)
LARGEST: Final = Size(clients=256, rounds=50)


def _lies(*others: Judge) -> Judge:
    return judge_all(judge_end, judge_lies, *others)


def _split(bridge: bool) -> Named:
    return Named(
        "F7" if bridge else "F6", "two halves part, one client sees both" if bridge else "two halves part",
        "at most one side advances, all are in the next epoch",
        lambda size: builders.build_split(size, bridge=bridge), judge_all(judge_end, judges.judge_halves(bridge)),
    )  # fmt: skip


FAULTS: Final = (
    Named("F1", "30 % killed in every epoch", "the end; 95 % of the batches of the living applied",
          builders.build_churn, judge_all(judge_end, judges.judge_share)),
    Named("F2", "one killed at each point where it waits", "no stall beyond a deadline, equal digests",
          builders.build_quiet, judge_crash_points, full=Size(clients=4, rounds=5)),
    Named("F3", "all witnesses of a round killed", "closed by time, others elected, at most one step lost",
          builders.build_all_witnesses, judge_all(judge_end, judges.judge_witnesses_replaced)),
    _split(bridge=False),
    _split(bridge=True),
    Named("F8", "20 % lost, reordered, 10 % twice", "the end, nobody dropped",
          builders.build_lossy, judge_all(judge_end, judge_nobody_dropped)),
    Named("F9", "a quarter far away and narrow, later gone", "rounds within A3's bound; then at most 1.1 times as long",
          builders.build_slow_quarter, judge_all(judge_end, judges.judge_limits, judges.judge_pace)),
    Named("F10", "there, but never delivers", "out in three rounds, no credit",
          build_lying("withhold"), _lies(lying.judge_unpaid(0))),
    Named("F11", "clocks off and jumping", "nothing early or late, nobody dropped",
          builders.build_clocks, judge_all(judge_end, judge_nobody_dropped, judges.judge_clocks)),
    Named("F12", "endpoints dead, behind, forked, refusing", "around them in 5 s; nothing stale, nothing twice",
          builders.build_bad_endpoints, judge_all(judge_end, judge_nobody_dropped, on_chain.judge_failover,
                                                  on_chain.judge_exactly_once)),
    Named("F12w", "one endpoint of all shows another record", "named after 15 s and left; nobody dropped",
          builders.build_wrong_endpoint, judge_all(judge_end, judge_nobody_dropped, on_chain.judge_doubt)),
    Named("F12l", "a chain that is seen late, skips and loses", "nobody dropped, nothing twice",
          builders.build_lags, judge_all(judge_end, judge_nobody_dropped, on_chain.judge_exactly_once),
          full=Size(clients=5, rounds=1_000), keep_lines=False),
    Named("F13", "requests land after their repeat", "once each, nobody dropped",
          builders.build_late_answers, judge_all(judge_end, judge_nobody_dropped, judges.judge_once)),
    Named("F13c", "transactions land after their sender died", "once each",
          builders.build_late_transactions, judge_all(judge_end, on_chain.judge_exactly_once, on_chain.judge_orphans)),
    Named("F17", "everybody joins at once", "all members, or told why not; joins answered in 0.2 s",
          builders.build_storm, judge_all(judge_end, judges.judge_admitted, judges.judge_answers), full=LARGEST),
    Named("F18", "as many as there may be, and more", "the end; witness error <= 1 %, snapshot <= 1 MB",
          builders.build_large, judge_all(judge_end, judges.judge_admitted, judges.judge_records), full=LARGEST),
    Named("F24", "one in ten killed in every round", "what is kept grows by less than 1 % an hour",
          builders.build_daily, judge_all(judge_end, judges.judge_flat), full=LONG, keep_lines=False),
    Named("F25", "two classes of arithmetic", "equal digests, nobody dropped",
          builders.build_mixed, judge_all(judge_end, judge_nobody_dropped, judges.judge_classes)),
)  # fmt: skip

MISBEHAVIOURS: Final = (
    Named("B2", "old results again", "refused, no credit but for the first",
          build_lying("replay"), _lies(lying.judge_refused_results, lying.judge_unpaid(1))),
    Named("B6", "two results for one round", "banned, no credit; what was decided stays",
          build_lying("equivocate"), _lies(lying.judge_banned)),
    Named("B7", "announced and withheld [33 %]", "rounds in time, no credit",
          build_lying("withhold", share=0.34), _lies(judges.judge_prompt, lying.judge_unpaid(0))),
    Named("B8", "witnesses claim all", "the sets stay right",
          build_lying("claim_all", "full_bloom", share=0.34), _lies(lying.judge_inclusion)),
    Named("B8n", "witnesses claim none", "the sets stay right",
          build_lying("claim_none", share=0.34), _lies(lying.judge_inclusion)),
    Named("B10", "blooms that lie, where no root is agreed", "in is what a quorum's blooms hold, and nothing else",
          builders.build_blooms, judge_all(judge_end, lying.judge_told, lying.judge_blooms)),  # who hangs is dropped
    Named("B11", "others' names, and what they signed, changed", "refused by all, nobody harmed",
          build_lying("impersonate"), _lies(lying.judge_refused_gossip, lying.judge_unharmed)),
    Named("B12", "connections and requests in others' names", "refused, slots and credits as they are",
          build_lying("forge"), _lies(lying.judge_refused_joins, lying.judge_unharmed)),
    Named("B17", "other bytes than asked for", "refused chunk by chunk, no source any more, no credit",
          builders.build_swapping, _lies(lying.judge_refused_blobs, lying.judge_unharmed, lying.judge_unpaid(0))),
    Named("B18", "false accusations", "nobody ejected or dropped",
          build_lying("accuse"), _lies(lying.judge_nobody_ejected)),
    Named("B20", "no record at an epoch's end", "each epoch certified, any honest checkpoint accepted",
          builders.build_no_end, _lies(lying.judge_certified)),
    Named("B25", "other model files beside the right weights", "refused by name before they are fetched, nobody harmed",
          builders.build_other_files, _lies(lying.judge_refused_files, lying.judge_unharmed)),
)  # fmt: skip

SCENARIOS: Final[dict[str, Named]] = {one.name: one for one in (*FAULTS, *MISBEHAVIOURS)}


def get_command(name: str, size: Size) -> str:
    command = f"python scripts/named_scenarios.py --names {name}"
    command += f" --clients {size.clients} --rounds {size.rounds} --seeds {size.seed}"
    for option in ("hours", "points"):
        if getattr(size, option) != getattr(SCENARIOS[name].full, option):  # else it is played so without being told
            command += f" --{option} {getattr(size, option):g}"
    return command


def play_named(
    name: str, size: Size, *, prepare: Callable[[World], None] = lambda _world: None
) -> tuple[Outcome, Judgement]:
    """Play a scenario and judge it; what is violated does not hold either. `prepare` as of `play`."""
    named = SCENARIOS[name]
    scenario = replace(named.build(size), name=name).with_origin(get_command(name, size))
    outcome = play(scenario, keep_lines=named.keep_lines, prepare=prepare)
    if outcome.violations:
        return outcome, Judgement(f"violated {outcome.violations[0]}", holds=False)
    return outcome, named.judge(outcome, size)
