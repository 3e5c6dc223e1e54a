"""Credits of good rounds, and what they earn when the epoch ends (H2, M7)."""

from psyche.core.rules.health import process_strike_clearing
from psyche.core.rules.membership import process_vacancies
from psyche.core.rules.probation import process_fruitless_epoch, process_proof
from psyche.core.state.bits import get_members
from psyche.core.state.limits import U64_MAX
from psyche.core.state.roster import get_slot
from psyche.core.state.state import ClientState, Coordinator


def process_credits(state: Coordinator) -> None:
    """At close: one credit for each member of agreed_held, whoever has departed since included (H2).

    A round closes once, so a batch is credited once. The ejected get none (R7).
    """
    for member in get_members(state.current.agreed_held):
        client = state.clients[member]
        if client.state is not ClientState.EJECTED:
            client.credits += 1
            state.epoch.credit_total += 1
            process_proof(get_slot(state, client), client)


def process_settlement(state: Coordinator) -> None:
    """At the end of Cooldown: credits become earnings, a good epoch clears strikes, one that came to nothing makes
    a newcomer wait (M10), who left frees its slot.

    Everyone but the ejected earns (pool div credit_total) for each credit; the rest carries over (M7).
    """
    registry, epoch = state.registry, state.epoch
    pool = min(registry.current_earning_rate + registry.carry, U64_MAX)
    share = pool // max(1, epoch.credit_total)
    registry.carry = pool - share * epoch.credit_total
    for client in state.clients:
        slot = get_slot(state, client)
        if client.state is ClientState.EJECTED:
            slot.slashed = min(slot.slashed + registry.current_slashing_rate, U64_MAX)
            continue
        slot.earned = min(slot.earned + share * client.credits, U64_MAX)
        process_strike_clearing(slot, client)
        process_fruitless_epoch(slot, client, registry.next_active, is_credited=epoch.credit_total > 0)
    process_vacancies(state)
