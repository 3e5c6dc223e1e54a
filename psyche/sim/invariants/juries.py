"""Nobody is put out by an accusation without a quorum of a jury that the seed drew after it (V12).

Jury and quorum are counted here anew: votes from the messages on record, q from the page.
"""

from collections import defaultdict
from collections.abc import Mapping

from psyche.core.committee.elections import get_witnesses
from psyche.core.state.messages import JudgeChallenge
from psyche.core.state.state import Challenge, ChallengeState, Coordinator, SlotState
from psyche.core.state.timeline import get_round
from psyche.server.journal.changes import Change
from psyche.sim.invariants.agreement import count_needed
from psyche.sim.invariants.views import Check, ClientView

_Key = tuple[int, int, int]  # epoch, height and slot of the accused work


class Juries:
    def __init__(self, hosts: Mapping[bytes, ClientView], check: Check) -> None:
        self._hosts = hosts
        self._check = check
        self._guilty: dict[_Key, set[bytes]] = defaultdict(set)  # keys of the jurors that voted so
        self._open: dict[int, tuple[_Key, Challenge]] = {}  # by number, before the record's newest message
        self._out: set[int] = set()  # slots banned by then, for whatever
        self.excused: set[bytes] = set()  # put out although honest, by more than (n-1)/3 liars of a jury

    def check_record(self, state: Coordinator, change: Change) -> None:
        message = change.message
        if isinstance(message, JudgeChallenge) and message.challenge in self._open:
            self._check_vote(state, message)
        opened = {n: c for n, c in enumerate(state.challenges) if c.state is ChallengeState.OPEN}
        self._out = {n for n, slot in enumerate(state.registry.slots) if slot.state is SlotState.BANNED}
        self._open = {n: ((c.epoch, c.height, c.target), c) for n, c in opened.items()}

    def _check_vote(self, state: Coordinator, message: JudgeChallenge) -> None:
        key, challenge = self._open[message.challenge]
        parties = {challenge.target, challenge.verifier}
        elected = challenge.deadline_height - 1
        round_ = get_round(state, elected)
        witnesses = [] if round_ is None else get_witnesses(round_)
        jury = [state.clients[m].p2p for m in witnesses if state.clients[m].slot not in parties]
        juror = state.clients[message.member].p2p
        self._check(juror in jury, "V12", "a vote of the jury", f"one of member {message.member}")
        is_later = challenge.epoch < state.progress.epoch or elected > challenge.opened_height
        self._check(is_later, "V12", "a jury drawn after the accusation", f"one of round {elected}")
        if message.guilty:
            self._guilty[key].add(juror)
        target = state.registry.slots[challenge.target]
        if target.state is SlotState.BANNED and challenge.target not in self._out:
            needed = count_needed(len(jury))
            votes = len(self._guilty[key] & set(jury))
            self._check(votes >= needed, "V12", f"{needed} votes of the jury of {len(jury)}", votes)
            liars = sum(not self._hosts[one].is_honest for one in jury if one in self._hosts)
            if liars > (len(jury) - 1) // 3:
                self.excused.add(target.p2p)
