"""What the rounds of a run came to, as the server tells it: in its log, in answers to `history`, and of each member."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from msgspec.structs import replace

from psyche.analysis.series import Series, make_point
from psyche.backends.summary import get_learning_rate
from psyche.core.rules.rounds import get_next_data_index
from psyche.core.state.bits import compute_at_least, get_members
from psyche.core.state.messages import WitnessMessage
from psyche.core.state.state import Coordinator, Round, RoundFlag
from psyche.core.state.timeline import is_drain
from psyche.telemetry import types
from psyche.telemetry.challenges import UNDECIDED
from psyche.wire.history import Claim, HistoryPoint, read_claim, summarize_claims
from psyche.wire.report import Accusation, Verification

Past: TypeAlias = types.RoundOver | types.ChallengeEnded  # events of a log that are told again
MAX_VERDICTS: Final = 16  # of juries, that are told
LAST_ROUNDS: Final = 50  # of which it is told who was waited for last
MAX_NAMED: Final = 3  # members in one round's event


@dataclass(slots=True)
class RoundHistory:
    """Takes the claims of witnesses, and makes a point of each round with data that closes."""

    points: Series[HistoryPoint] = field(default_factory=Series[HistoryPoint])
    verdicts: deque[types.ChallengeEnded] = field(default_factory=lambda: deque(maxlen=MAX_VERDICTS))
    _waited: deque[tuple[bytes, ...]] = field(default_factory=lambda: deque(maxlen=LAST_ROUNDS))
    _claims: dict[int, Claim] = field(default_factory=dict[int, Claim])  # of the running round, by member
    _place: tuple[int, int] = (-1, -1)

    def restore(self, events: Iterable[Past]) -> None:
        """Go on from the log of a former process."""
        for event in events:
            if isinstance(event, types.RoundOver):
                self._keep(event)
            else:
                self.verdicts.append(event)

    def take_witness(self, message: WitnessMessage) -> None:
        place = (message.epoch, message.height)
        if place != self._place:
            self._place, self._claims = place, {}
        if (claim := read_claim(message.metadata)) is not None:
            self._claims[message.member] = claim

    def close(self, round_: Round, state: Coordinator, now: int) -> types.RoundOver | None:
        """Sum up a round that `state` has just closed; None for one without data."""
        place = (state.progress.epoch, round_.height)
        claims = list(self._claims.values()) if place == self._place else []
        if not round_.flags & RoundFlag.CLOSED or is_drain(round_):
            return None
        members = round_.members.bit_count()
        event = types.RoundOver(
            epoch=place[0], height=place[1], step=state.progress.step, total_steps=state.config.total_steps,
            seconds=float(now - round_.started_unix), members=members, results=round_.agreed_held.bit_count(),
            unix=now, tokens=get_next_data_index(round_) * state.model.max_seq_len,
            waited_for=_find_awaited(round_, state), learning_rate=get_learning_rate(state, state.progress.step - 1),
            **summarize_claims(claims, members)._asdict(),
        )  # fmt: skip
        self._keep(event)
        return event

    def take_challenge(self, event: types.Challenged | types.ChallengeEnded) -> None:
        if isinstance(event, types.ChallengeEnded):
            self.verdicts.append(event)

    def add_verdicts(self, status: Verification) -> Verification:
        """Add the challenges that have ended to those on record."""
        ended = (
            Accusation(
                one.epoch, one.height, bytes.fromhex(one.target), bytes.fromhex(one.accuser), one.reason, one.guilty,
                one.innocent, one.outcome,
            )
            for one in self.verdicts if one.outcome != UNDECIDED
        )  # fmt: skip
        return replace(status, challenges=(*ended, *status.challenges))

    def count_waits(self) -> Counter[bytes]:
        """In how many of the last rounds each key was waited for last."""
        return Counter(key for keys in self._waited for key in keys)

    def _keep(self, event: types.RoundOver) -> None:
        self.points.add(make_point(event))
        self._waited.append(event.waited_for)


def _find_awaited(round_: Round, state: Coordinator) -> tuple[bytes, ...]:
    """Whom the round waited for last: those whom a quorum of its witnesses did not hear, else its last witness."""
    silent = compute_at_least((~record.heard for record in round_.witnesses), round_.quorum, round_.members)
    last = [record.member for record in round_.witnesses[-1:]]
    return tuple(state.clients[member].p2p for member in [*get_members(silent)][:MAX_NAMED] or last)
