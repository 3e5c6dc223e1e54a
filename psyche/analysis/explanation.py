"""Why a member's results counted or did not: in the rounds on record, or in all of which event logs tell."""

from collections.abc import Iterator

from psyche.analysis.accounts import Accounts
from psyche.analysis.members import MAX_TEXT_BYTES, clean_name
from psyche.analysis.tally import RoundAccount, sort_nodes
from psyche.core.committee.elections import is_witness
from psyche.core.state.enums import ClientState
from psyche.core.state.roster import is_in_epoch
from psyche.core.state.state import Coordinator, Round, RoundFlag
from psyche.core.state.timeline import get_attested_height, get_round, is_drain
from psyche.errors import ConfigError
from psyche.telemetry.text import format_number
from psyche.wire.report import clean_text

MAX_NAMED = 8  # clients, where a name means none


def find_member(state: Coordinator, named: str, key_texts: list[str]) -> int:
    """The index of the member that a person names: by index, or by the start of its key, as `key_texts` has them.

    Raises:
        ConfigError: it names none, or several.
    """
    if not state.clients:
        raise ConfigError("the run has had no epoch yet, so no member has done anything")
    if named.isdecimal() and int(named) < len(state.clients):
        return int(named)
    found = [index for index, text in enumerate(key_texts) if named and text.startswith(named)]
    if len(found) != 1:
        why = "is the start of several keys" if found else "is no member"
        raise ConfigError(
            f"{named[:64]!r} {why}: name an index from 0 to {len(state.clients) - 1}, or a key of the epoch's members"
        )
    return found[0]


def explain_member(state: Coordinator, member: int) -> Iterator[str]:
    """One line on the member, and one for each round that is still on record, the oldest first."""
    client = state.clients[member]
    of = "the running epoch" if is_in_epoch(state) else "the last epoch"
    yield f"member {member} of {of}: {client.state.name.lower()}, {client.credits} results counted"
    if client.state is not ClientState.HEALTHY:
        yield f"it is in no round after {max(0, client.exited_height - 1)}"
    limits = (("not heard", client.missed, state.config.evict_after), ("late", client.late, state.config.late_limit))
    for what, count, limit in limits:
        if count:
            yield f"{what} {count} times in a row; at {limit} it is dropped"
    height = state.current.height
    rounds = [get_round(state, one) for one in range(max(0, height + 1 - len(state.rounds)), height + 1)]
    for round_ in filter(None, rounds):
        if round_.members >> member & 1:
            yield f"round {round_.height}: {_explain_round(state, round_, member)}"
        else:
            yield f"round {round_.height}: it was no member of it"


def _explain_round(state: Coordinator, round_: Round, member: int) -> str:
    reports, quorum = len(round_.witnesses), round_.quorum
    heard = sum(record.heard >> member & 1 for record in round_.witnesses)
    parts = [f"heard by {heard} of {reports} witnesses"]
    attested = get_attested_height(state.config, state.epoch, round_.height)
    due = None if attested is None else get_round(state, attested)
    if not round_.flags & RoundFlag.CLOSED:
        parts = ["it is running"]
    elif due is not None and due.members >> member & 1:
        held = sum(record.held >> member & 1 for record in round_.witnesses)
        verdict = "counts" if round_.agreed_held >> member & 1 else "does not count"
        parts.append(f"its result of round {attested} {verdict}: {held} of them held it, {quorum} are needed")
    elif is_drain(round_):
        parts.append("no result was due")
    if is_witness(round_, member):
        own = next((record for record in round_.witnesses if record.member == member), None)
        yet = "" if round_.flags & RoundFlag.CLOSED else " yet"
        said = f"sent no report{yet}" if own is None else f"reported after {own.at_s} s"
        parts.append(f"as a witness it {said}")
    if round_.flags & RoundFlag.BY_TIMEOUT:
        parts.append("the round ended because its time was up")
    return "; ".join(parts)


def explain_node(accounts: Accounts, named: str) -> Iterator[str]:
    """As `explain_member`, of every round in the logs; a client is named as there, by index, or by its key's start.

    Raises:
        ConfigError: the logs have no such client.
    """
    names = accounts.get_names(accounts.rounds[-1].epoch) if accounts.rounds else {}
    keys = [key for key in accounts.keys if named and key.hex().startswith(named.lower())]
    by_key = accounts.find_node(keys[0]) if len(keys) == 1 else ""
    name = named if named in accounts.nodes else names.get(int(named) if named.isdecimal() else -1, by_key)
    if not name:
        known = ", ".join([clean_name(one.name) for one in sort_nodes(accounts.nodes.values())][:MAX_NAMED]) or "nobody"
        raise ConfigError(f"{named[:64]!r}: these logs have no such client, or several; they tell of {known}")
    rounds = [one for one in accounts.rounds if one.place in accounts.nodes[name].present]
    due = [name in one.members for one in rounds if not one.is_drain]
    yield f"{clean_name(name)}: its result counted in {sum(due)} of {format_number(len(due), 'round')} with data"
    for one in rounds:
        waited = f"; waited for last: {clean_text(one.bound.text, MAX_TEXT_BYTES)}" if one.bound.kind != "none" else ""
        yield f"round {one.epoch}.{one.height}, step {one.step}: {explain_credit(one, name)}{waited}"


def explain_credit(one: RoundAccount, name: str) -> str:
    """Why a round counts for a member, or does not."""
    if one.is_drain:
        return "none was to be had: the round had no data"
    if one.is_void:
        return "no: the round is void, so nobody's result counts"
    if not one.is_decided:
        return "not decided yet"
    if name in one.members:
        return "yes: its result is in the set"
    trained = "it trained, but its result came too late" if name in one.trained else "it did not finish its training"
    return f"no: {trained} for the set of {len(one.members)}"
