"""Follows who was there when each seed was armed: nobody who acts later changes from whom the seed draws (E1, M10)."""

from collections import Counter
from typing import Final

from psyche.core.state.bits import compute_bits
from psyche.core.state.state import ZERO32, ClientFlag, ClientState, Coordinator, RunState
from psyche.sim.invariants.views import Check

_CANDIDATE: Final = ClientFlag.CANDIDATE_LOW | ClientFlag.CANDIDATE_HIGH


class Draws:
    """Keeps the members and electors of the moment in which the seed of the next round was armed.

    Args:
        check: notes a violation if the condition does not hold.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._was_armed = False
        self._drawn = (0, 0)

    def take(self, state: Coordinator) -> None:
        armed = state.run_state is RunState.ROUND_WITNESS or (
            state.run_state is RunState.WARMUP and bool(state.current.entropy_slot)
        )
        if armed and not self._was_armed:
            members = _list_drawn(state)
            known = compute_bits(m for m in members if not state.clients[m].flags & ClientFlag.PROBATION)
            self._drawn = compute_bits(members), known or compute_bits(members)
        self._was_armed = armed

    def check_new_round(self, state: Coordinator) -> None:
        """E1: the round's members and electors are those of the moment in which its seed was armed."""
        found = state.current.members, state.current.electors
        for name, wanted, got in zip(("members", "electors"), self._drawn, found, strict=True):
            self._check(wanted == got, "E1", f"{name} {wanted:#x}, as when the seed was armed", f"{got:#x}")


def _list_drawn(state: Coordinator) -> list[int]:
    healthy = [m for m, client in enumerate(state.clients) if client.state is ClientState.HEALTHY]
    if state.run_state is not RunState.WARMUP:
        return [m for m in healthy if state.current.members >> m & 1]
    votes = {m: state.clients[m].flags & _CANDIDATE for m in healthy if state.clients[m].flags & ClientFlag.READY}
    if state.certified.digest != ZERO32:
        return [*votes]
    winner = Counter(votes.values()).most_common(1)[0][0]  # a start is armed for the weights of a quorum (S8)
    return [m for m, vote in votes.items() if vote == winner]
