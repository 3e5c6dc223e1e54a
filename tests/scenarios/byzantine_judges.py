"""Judges of the scenarios about members that misbehave: what it must come to, beside the invariants."""

from collections import Counter
from collections.abc import Iterable

from psyche.core.state.limits import LATE_LIMIT_ROUNDS
from psyche.core.state.state import SlotState
from psyche.sim.world import Outcome
from psyche.telemetry import types
from scenarios.base import Judge, Judgement, Size, get_byzantine, get_events, get_ledger
from scenarios.judges import judge_nobody_dropped
from scenarios.ledger import RoundFacts


def judge_told(outcome: Outcome, size: Size) -> Judgement:
    told = outcome.facts["told"]
    return Judgement(f"{sum(told.values())} lies of {len(told)}", bool(told) and all(told.values()))


def judge_lies(outcome: Outcome, size: Size) -> Judgement:
    """They lied, and no honest member was dropped or ejected for it."""
    told, other = judge_told(outcome, size), judge_nobody_dropped(outcome, size)
    return Judgement(f"{told.seen}, honest ones {other.seen}", told.holds and other.holds)


def judge_banned(outcome: Outcome, size: Size) -> Judgement:
    """B6: banned, and without credit."""
    banned = sum(slot.state is SlotState.BANNED for slot in outcome.state.registry.slots)
    liars, credits_ = get_byzantine(outcome), get_ledger(outcome).credits
    paid = sum(credits_.get(name, 0) for name in liars)
    return Judgement(f"banned {banned} of {len(liars)}, {paid} credits", banned == len(liars) and not paid)


def judge_nobody_ejected(outcome: Outcome, size: Size) -> Judgement:
    """B18: not one, in however many rounds."""
    ejected = outcome.facts["ejected"]
    return Judgement(f"{ejected} ejected in {outcome.rounds} rounds", not ejected)


def judge_unpaid(most_credits: int) -> Judge:
    """F10, B7, B2: who never delivers is out after three rounds of an epoch, without credit."""

    def judge(outcome: Outcome, size: Size) -> Judgement:
        ledger, liars = get_ledger(outcome), get_byzantine(outcome)
        trained = Counter(
            (one.epoch, name)
            for one in ledger.data_rounds
            for name in ledger.find_names(one.epoch, one.members) & liars
        )
        most, paid = max(trained.values(), default=0), max(ledger.credits.get(name, 0) for name in liars)
        # a round is under way when the third lateness is on record, and one is drawn before its close (E1)
        late = LATE_LIMIT_ROUNDS + outcome.state.config.overlap + 1
        seen = f"in at most {most} rounds of an epoch, at most {paid} credits"
        return Judgement(seen, 0 < most <= late + most_credits and paid <= most_credits)

    return judge


def judge_inclusion(outcome: Outcome, size: Size) -> Judgement:
    """B8, B10: what honest members sent is in the sets, and nothing that nobody sent."""
    ledger, liars = get_ledger(outcome), get_byzantine(outcome)
    rounds = ledger.data_rounds
    wrong = _count_wrong(rounds)
    included = sum(one.applied.bit_count() for one in rounds)
    left = sum(len(ledger.find_names(one.epoch, one.sent & ~one.applied) - liars) for one in rounds)
    seen = f"{wrong} of {included} wrongly included, {left} honest ones left out"
    return Judgement(seen, included > 0 and not wrong and not left)


def _count_wrong(rounds: Iterable[RoundFacts]) -> int:
    return sum(((one.applied | one.agreed) & ~one.sent).bit_count() for one in rounds)


def judge_blooms(outcome: Outcome, size: Size) -> Judgement:
    """B10: blooms let results in, and ruled others out that a quorum says it holds; all decided just so (I4)."""
    found = outcome.facts["by_slots"].values()
    rounds = get_ledger(outcome).data_rounds
    wrong, kept, ruled_out = _count_wrong(rounds), sum(one for one, _ in found), sum(one for _, one in found)
    seen = f"{len(found)} of {len(rounds)} rounds decided by slots: {kept} let in, {ruled_out} ruled out by blooms"
    return Judgement(f"{seen}, {wrong} wrongly included", kept > 0 and ruled_out > 0 and not wrong)


def judge_refused_results(outcome: Outcome, size: Size) -> Judgement:
    """B2: receivers refused."""
    refused = sum(e.node not in get_byzantine(outcome) for e in get_events(outcome, types.Refused))
    return Judgement(f"refused {refused} times", refused > 0)


def judge_refused_joins(outcome: Outcome, size: Size) -> Judgement:
    """B12: no slot too many, and no key twice."""
    keys = [slot.p2p for slot in outcome.state.registry.slots if slot.state is not SlotState.FREE]
    refused = sum(outcome.facts["lies_refused"].values())
    seen = f"{refused} refused, {len(keys)} slots"
    return Judgement(seen, refused > 0 and len(keys) == len(set(keys)) == outcome.scenario.clients)


def judge_certified(outcome: Outcome, size: Size) -> Judgement:
    """B20: each epoch's weights are certified, and the last ones can be had from a checkpoint on record."""
    state, epochs = outcome.state, get_ledger(outcome).epochs
    certified = sum(one.is_certified for one in epochs)
    named = state.checkpoint.digest == state.certified.digest
    seen = f"{certified} of {len(epochs)} epochs certified, checkpoint on record: {'yes' if named else 'no'}"
    return Judgement(seen, 0 < certified == len(epochs) and named)


def judge_refused_gossip(outcome: Outcome, size: Size) -> Judgement:
    """B11: every honest client refuses what its member did not sign."""
    liars = get_byzantine(outcome)
    unsigned = Counter(e.node for e in get_events(outcome, types.Refused) if e.event.what is types.Refusable.UNSIGNED)
    deaf = sorted(name for name in outcome.scenario.names if name not in liars and not unsigned[name])
    seen = f"{sum(unsigned.values())} unsigned messages refused, none by: {', '.join(deaf) or 'nobody'}"
    return Judgement(seen, bool(unsigned) and not deaf)


def judge_refused_blobs(outcome: Outcome, size: Size) -> Judgement:
    """B17: who was there from the start was served other bytes by each liar, and takes nothing more of it."""
    liars, first = get_byzantine(outcome), get_ledger(outcome).formations[0].names
    found = outcome.facts["banned_sources"]
    trusting = sorted(name for name in first if name not in liars and not liars <= set(found[name]))
    wronged = sorted({one for banned in found.values() for one in banned} - liars)
    seen = f"still trusted by: {', '.join(trusting) or 'nobody'}; honest sources banned: {', '.join(wronged) or 'none'}"
    return Judgement(seen, bool(liars) and not trusting and not wronged)


def judge_refused_files(outcome: Outcome, size: Size) -> Judgement:
    """B25: each lie is refused at once, by each client that fetched its model, in the liar's name alone."""
    ledger, liars = get_ledger(outcome), get_byzantine(outcome)
    told = sum(outcome.facts["told"].values())
    fetched = {e.node for e in get_events(outcome, types.ModelLoaded) if e.event.source is types.WeightSource.PEERS}
    refused = [(e.node, ledger.names[e.event.peer]) for e in get_events(outcome, types.SourceRefused)]
    trusting = sorted(fetched - {node for node, _ in refused})
    wronged = sorted({peer for _, peer in refused} - liars)
    seen = f"{len(refused)} of {told} refused, trusted by: {', '.join(trusting) or 'nobody'}"
    holds = bool(fetched) and not trusting and not wronged and told == len(refused)
    return Judgement(f"{seen}; honest ones refused: {', '.join(wronged) or 'none'}", holds)


def judge_unharmed(outcome: Outcome, size: Size) -> Judgement:
    """B11, B12, B17, B25: every honest client has its slot, and a credit for each round that it was a member of.

    There is one at least: a newcomer that is never a member has come to nothing.
    """
    ledger, liars = get_ledger(outcome), get_byzantine(outcome)
    keys = {key: name for key, name in ledger.names.items() if name not in liars}
    slots = [slot for slot in outcome.state.registry.slots if slot.p2p in keys and slot.state is SlotState.JOINED]
    due = Counter(name for one in ledger.data_rounds for name in ledger.find_names(one.epoch, one.members))
    short = sorted(name for name in keys.values() if not ledger.credits.get(name, 0) == due[name] > 0)
    seen = f"{len(slots)} of {len(keys)} honest slots, short of credits: {', '.join(short) or 'nobody'}"
    return Judgement(seen, len(slots) == len(keys) and not short)
