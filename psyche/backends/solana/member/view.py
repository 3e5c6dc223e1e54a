"""The newest record that a client may act on, out of the readings of endpoints that may be slow, stale or wrong.

No I/O and no clock.
"""

import pickle
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from typing import Final

from psyche.backends.solana.member.link import Reading
from psyche.core.encoding.account import decode_state
from psyche.core.state.state import Coordinator, RunState
from psyche.errors import WireError

KEPT_STATES: Final = 8
SILENT_SLOTS: Final = 75  # about 30 s: endpoints are asked every few seconds
_IN_ROUNDS = frozenset({RunState.ROUND_TRAIN, RunState.ROUND_WITNESS})


@lru_cache(maxsize=KEPT_STATES)
def read_record(raw: bytes) -> Coordinator:
    """Decode a record; of the same bytes it is the same object, which nobody may change.

    Endpoints show one record several times, and the clients of one process (a simulation's) follow one run.
    """
    return decode_state(raw)


@lru_cache(maxsize=KEPT_STATES)
def _pack_record(raw: bytes) -> bytes:
    return pickle.dumps(read_record(raw))


def copy_record(raw: bytes) -> Coordinator:
    """A copy of a record, to try messages on: made in a third of the time that decoding and checking it takes."""
    return pickle.loads(_pack_record(raw))  # noqa: S301 - packed above


class Choice(Enum):
    """What became of a reading: the choice among what endpoints show, which may be forks of a chain."""

    NEW = auto()
    KNOWN = auto()
    OLD = auto()  # of a lower nonce, or older than the client's start (M9)
    FORKED = auto()  # other bytes under the nonce that is known, or at a newer slot an older record, or none
    UNSUPPORTED = auto()  # newer, but of an endpoint that was wrong, and no other one shows it yet
    AGREED = auto()  # the endpoints that contradicted the record show it now
    UNREADABLE = auto()
    OTHER_RUN = auto()  # the account was closed, and made again for another run


@dataclass(slots=True)
class RecordView:
    """The newest record that any endpoint has shown.

    Args:
        min_slot: readings of earlier slots may be older than this process: acting on one of them, a restarted member
            could sign a second result for a round (M9).
    """

    min_slot: int
    raw: bytes = b""
    nonce: int = -1
    slot: int = 0  # of the reading that showed it first
    run_uid: bytes = b""
    version: int = 0  # counts the records that were taken: after the chain went back the nonce is a lower one
    problem: str = ""  # of the last reading that could not be used
    _shown: dict[str, Reading] = field(default_factory=dict)  # what each endpoint shows since this record is known
    _seen_slot: int = 0  # the newest at which this record was shown
    _distrusted: set[str] = field(default_factory=set)  # endpoints that contradicted the others for long
    _trusted_slot: int = 0  # the newest that another one has shown

    @property
    def is_contradicted(self) -> bool:
        """Whether an endpoint shows what cannot be, if this record is the newest."""
        return any(one.raw != self.raw for name, one in self._shown.items() if name not in self._distrusted)

    @property
    def is_usable(self) -> bool:
        """Whether there is a record, and no endpoint contradicts it: else nothing is shown and nothing sent."""
        return self.nonce >= 0 and not self.is_contradicted

    def choose_fork(self) -> str:
        """Take the record that most endpoints show, of several the one shown first; return how it went, in words.

        If no endpoint gave way for long, waiting on would end the run for everybody who asks the same endpoints. The
        others count again once they show the same record; until then a new one is believed only of somebody else,
        unless the rest shows nothing for `SILENT_SLOTS`. If there are no others, the chain itself has gone back. The
        record is empty if the run was closed.
        """
        counts = Counter(one.raw for one in self._shown.values())
        raw = max(counts, key=lambda raw: (counts[raw], raw == self.raw))
        agreeing = [one for one in self._shown.values() if one.raw == raw]
        names = ", ".join(sorted(one.endpoint for one in agreeing))
        self._distrusted = self._shown.keys() - {one.endpoint for one in agreeing}
        former, self.raw = self.nonce, raw
        if raw:
            self.nonce, self.slot, self.version = self.state.nonce, agreeing[-1].slot, self.version + 1
            self._seen_slot = max(one.slot for one in agreeing)
        if self._distrusted:
            wrong = ", ".join(sorted(self._distrusted))
            return f"the record of {names} is taken; remove the endpoint that is wrong: {wrong}"
        return (
            f"the chain at {names} went back: it shows the run with nonce {self.nonce} again, after {former}. This "
            "client goes on from there; what came later is lost"
        )

    def take(self, reading: Reading) -> Choice:
        if reading.slot < self.min_slot:
            return Choice.OLD
        if reading.raw == self.raw:
            return self._take_again(reading)
        if not reading.raw:
            return Choice.OLD if reading.slot <= self._seen_slot else self._note_fork(reading, "no record")
        try:
            state = read_record(reading.raw)
        except WireError as error:
            self.problem = str(error)
            return Choice.UNREADABLE
        if self.run_uid not in (b"", state.run_uid):
            self.problem = (
                f"{reading.endpoint} shows another run under this run's address: it was created again while this "
                "client took part in the old one, or the endpoint belongs to another cluster; check --rpc, and start "
                "this client again"
            )
            return Choice.OTHER_RUN
        return self._merge(state, reading)

    def _take_again(self, reading: Reading) -> Choice:
        was_usable, self._shown[reading.endpoint] = self.is_usable, reading
        self._distrusted.discard(reading.endpoint)
        self._trusted_slot = max(self._trusted_slot, reading.slot)
        self._seen_slot = max(self._seen_slot, reading.slot)
        return Choice.AGREED if self.is_usable and not was_usable else Choice.KNOWN

    def _merge(self, state: Coordinator, reading: Reading) -> Choice:
        is_unsupported = reading.endpoint in self._distrusted and reading.slot <= self._trusted_slot + SILENT_SLOTS
        if reading.endpoint not in self._distrusted:
            self._trusted_slot = max(self._trusted_slot, reading.slot)
        if state.nonce < self.nonce and reading.slot <= self._seen_slot:
            return Choice.OLD
        if state.nonce <= self.nonce:
            return self._note_fork(reading, f"a record with nonce {state.nonce}")
        if is_unsupported:
            return Choice.UNSUPPORTED
        self._distrusted.discard(reading.endpoint)
        self.raw, self.nonce, self.slot, self.run_uid = reading.raw, state.nonce, reading.slot, state.run_uid
        self._shown, self._seen_slot, self.version = {reading.endpoint: reading}, reading.slot, self.version + 1
        return Choice.NEW

    def _note_fork(self, reading: Reading, what: str) -> Choice:
        """Note what an endpoint shows that cannot be, if the record is the newest."""
        if self.state.run_state is RunState.FINISHED and not reading.raw:
            return Choice.KNOWN  # its owner closes it in the end
        self._shown[reading.endpoint] = reading
        others = [name for name, one in self._shown.items() if one.raw == self.raw]
        known = f"one with nonce {self.nonce}"
        if others:
            self.problem = f"two endpoints show different records: {others[0]} shows {known}, this one {what}"
        else:
            self.problem = f"it shows {what}, and has shown {known}"
        return Choice.FORKED

    @property
    def state(self) -> Coordinator:
        return read_record(self.raw)

    def copy_state(self) -> Coordinator:
        return copy_record(self.raw)


def get_kept_phase(state: Coordinator) -> tuple[bytes, int, RunState]:
    """What a floor keeps apart: a restarted client may be shown an earlier round of an epoch, but not its Warmup."""
    run_state = RunState.ROUND_TRAIN if state.run_state in _IN_ROUNDS else state.run_state
    return state.run_uid, state.progress.epoch, run_state
