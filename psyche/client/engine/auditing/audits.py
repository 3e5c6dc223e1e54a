"""All that a member does to verify others, as the engine's other parts see it."""

from dataclasses import dataclass, field

from psyche.client.engine.actions import Audited, OpeningArrived
from psyche.client.engine.announcements import Announcements
from psyche.client.engine.auditing.desk import Desk
from psyche.client.engine.auditing.jury import Jury
from psyche.client.engine.auditing.tolerances import Tolerances
from psyche.client.engine.auditing.verifier import Verifier
from psyche.client.engine.auditing.works import is_verified
from psyche.client.engine.context import EngineContext
from psyche.client.engine.records import RoundRecord
from psyche.client.engine.weights import Weights


@dataclass(slots=True)
class Audits:
    context: EngineContext
    announcements: Announcements
    weights: Weights
    desk: Desk = field(init=False)
    tolerances: Tolerances = field(init=False)
    verifier: Verifier = field(init=False)
    jury: Jury = field(init=False)

    def __post_init__(self) -> None:
        self.desk = Desk(self.context)
        self.tolerances = Tolerances(self.context, self.desk)
        self.verifier = Verifier(self.context, self.announcements, self.weights, self.desk, self.tolerances)
        self.jury = Jury(self.context, self.weights, self.desk, self.tolerances)

    def clear(self) -> None:
        """A new epoch begins. What the jury has found about the epoch before still counts (V15)."""
        self.verifier.clear()
        self.tolerances.clear()

    def enter_round(self, record: RoundRecord | None) -> None:
        self.verifier.enter_round(record)

    def act(self, record: RoundRecord, now: float, *, is_idle: bool, is_time_up: bool) -> None:
        """`is_idle`: this client's training of the round is done; `is_time_up`: others wait for it."""
        if not is_verified(self.context.state):
            return
        self.tolerances.calibrate(record)
        self.verifier.follow()
        self.verifier.act(record, now, is_idle=is_idle, is_time_up=is_time_up)
        self.jury.act(is_idle=is_idle and not self.is_verifying(record.height))

    def find_reason_to_leave(self) -> str:
        """Why this client's machine must not take part in this epoch (V6); empty if it may."""
        if not is_verified(self.context.state):
            return ""
        self.tolerances.follow()
        return self.tolerances.find_reason_to_leave()

    def finish_epoch(self) -> None:
        if is_verified(self.context.state):
            self.jury.prepare()

    def is_verifying(self, height: int) -> bool:
        """Whether this member is a verifier of the round and has not reported yet."""
        return self.verifier.is_at_work(height)

    @property
    def holds_training(self) -> bool:
        """Whether a juror's piece goes before the own training: its last round to judge has come."""
        return self.jury.is_urgent()

    def on_audited(self, event: Audited) -> None:
        self.desk.on_audited(event)

    def on_opening(self, event: OpeningArrived) -> None:
        self.verifier.on_opening(event)
        self.jury.on_opening(event)

    def get_deadline(self) -> float | None:
        return self.verifier.get_deadline()
