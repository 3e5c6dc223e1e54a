"""Judges of the scenarios on a chain: how fast clients get around bad endpoints, and that nothing happens twice."""

from typing import Final

from psyche.backends.solana.member.following import FORK_S
from psyche.core.state.state import SlotState
from psyche.sim.chain.facts import ChainFacts
from psyche.sim.world import Outcome
from psyche.telemetry import types
from scenarios.base import Judgement, Size, get_events

FAILOVER_S: Final = 5.0
LANDING_S: Final = 2.0  # slots until a transaction is in a block, skipped ones too


def get_chain_facts(outcome: Outcome) -> ChainFacts:
    found = outcome.facts["chain"]
    assert isinstance(found, ChainFacts), "every run on a chain has them"
    return found


def judge_failover(outcome: Outcome, size: Size) -> Judgement:
    """F12: whoever has an endpoint that answers knows the record and lands its messages within 5 s."""
    facts = get_chain_facts(outcome)
    behind_s = max(facts.behind_s.values(), default=0.0)
    forks = len(get_events(outcome, types.StateMismatch))
    seen = f"behind by {behind_s:.1f} s at most, {facts.sending_s:.1f} s to land, {forks} forked answers noticed"
    holds = 0 < behind_s <= FAILOVER_S + outcome.scenario.chain.lag_most_s and forks > 0
    return Judgement(seen, holds and 0 < facts.sending_s <= FAILOVER_S + LANDING_S)


def judge_doubt(outcome: Outcome, size: Size) -> Judgement:
    """F12: each client doubts until it goes on with what most of its endpoints show, once, and names the other one."""
    doubts = {name: _find_doubts(outcome, name) for name in outcome.scenario.names}
    longest_s = max((one for found in doubts.values() for one in found), default=0.0)
    holds = all(len(found) == 1 for found in doubts.values()) and longest_s <= FORK_S + 1
    return Judgement(f"{sum(map(len, doubts.values()))} settled, after {longest_s:.1f} s at most", holds)


def _find_doubts(outcome: Outcome, name: str) -> list[float]:
    """How long the doubts of a client lasted that it settled; the last word of other mismatches is the nonce."""
    begun: dict[str, float] = {}
    last, found = "", list[float]()
    for one in get_events(outcome, types.StateMismatch, name):
        if f"endpoint that is wrong: {name}-endpoint-3" in one.event.reason:
            found.append(one.t - begun[last])
        else:
            last = one.event.reason.rsplit(maxsplit=1)[-1]
            begun.setdefault(last, one.t)
    return found


def judge_exactly_once(outcome: Outcome, size: Size) -> Judgement:
    """F12, F13: transactions were sent again, some landed without their sender, and each message has one effect."""
    facts = get_chain_facts(outcome)
    slots = sum(slot.state is not SlotState.FREE for slot in outcome.state.registry.slots)
    counts = f"{facts.landed} landed, {facts.resent} sent again, {facts.orphans} without their sender"
    is_lossy = outcome.scenario.chain.lost > 0  # else a client sees what landed before it would send it again
    holds = facts.effects and (facts.resent or not is_lossy) and not facts.twice and slots == outcome.scenario.clients
    return Judgement(f"{counts}; {facts.twice} had effect twice, {slots} slots", bool(holds))


def judge_orphans(outcome: Outcome, size: Size) -> Judgement:
    """F13: some transactions landed after their senders had died."""
    return Judgement("", get_chain_facts(outcome).orphans > 0)
