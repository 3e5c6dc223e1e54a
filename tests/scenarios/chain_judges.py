"""Judges of the rows on a chain: how fast clients get around bad endpoints, and that nothing takes effect twice."""

from typing import Final

from psyche.core.state.state import SlotState
from psyche.sim.chain.facts import ChainFacts
from psyche.sim.world import Outcome
from psyche.telemetry import kinds
from scenarios.row import Judgement, Size, get_events

FAILOVER_S: Final = 5.0
LANDING_S: Final = 2.0  # slots until a transaction is in a block, skipped ones too


def get_chain_facts(outcome: Outcome) -> ChainFacts:
    """What happened on the chain."""
    found = outcome.facts["chain"]
    assert isinstance(found, ChainFacts), "every run on a chain has them"
    return found


def judge_failover(outcome: Outcome, size: Size) -> Judgement:
    """F12: whoever has an endpoint that answers knows the record and lands its messages within 5 s."""
    del size
    facts = get_chain_facts(outcome)
    behind_s = max(facts.behind_s.values(), default=0.0)
    forks = len(get_events(outcome, kinds.StateMismatch))
    seen = f"behind by {behind_s:.1f} s at most, {facts.sending_s:.1f} s to land, {forks} forked answers noticed"
    holds = 0 < behind_s <= FAILOVER_S + outcome.scenario.chain.lag_most_s and forks > 0
    return Judgement(seen, holds and 0 < facts.sending_s <= FAILOVER_S + LANDING_S)


def judge_exactly_once(outcome: Outcome, size: Size) -> Judgement:
    """F12, F13: transactions were sent again, some landed without their sender, and each message has one effect."""
    del size
    facts = get_chain_facts(outcome)
    slots = sum(slot.state is not SlotState.FREE for slot in outcome.state.registry.slots)
    counts = f"{facts.landed} landed, {facts.resent} sent again, {facts.orphans} without their sender"
    holds = facts.effects and facts.resent and not facts.twice and slots == outcome.scenario.clients
    return Judgement(f"{counts}; {facts.twice} had effect twice, {slots} slots", bool(holds))


def judge_orphans(outcome: Outcome, size: Size) -> Judgement:
    """F13: some transactions landed after their senders had died."""
    del size
    return Judgement("", get_chain_facts(outcome).orphans > 0)
