"""Why a member's results of the last rounds counted or did not, read from the record."""

from collections.abc import Iterator

from psyche.core.committee.elections import is_witness
from psyche.core.state.enums import ClientState
from psyche.core.state.roster import is_in_epoch
from psyche.core.state.state import Coordinator, Round, RoundFlag
from psyche.core.state.timeline import get_attested_height, get_round, is_drain
from psyche.errors import ConfigError


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
