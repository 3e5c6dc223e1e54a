"""The state machine of this client's weights; only `Weights` changes the state (S1 to S9, C6).

| from | transition | to |
|---|---|---|
| any | `forget`: a new epoch begins | Absent |
| Absent | `begin`: the weights that the epoch starts from are loaded (S8, S9) | Following |
| any | `lose`: the trainer was lost, the client gave up, or the epoch is over | Absent |
| Following | `follow`: a digest is not the agreed one (S4) | Diverged |
| Diverged | `follow`: two digests in a row are the agreed ones (S7) | Following |
| Diverged | `begin_replay` (S7) | Replaying |
| Replaying | `end_replay`: the trainer has the replayed weights | Diverged; Following if two of their digests agree |
| Replaying | `begin_comparison`: the replay cannot be done | Comparing |
| Comparing | `hold` a round's weights, `release` them, `fetch` the agreed ones | Comparing |
| Comparing | `end_comparison`: the trainer has the agreed weights | Following |

Sets are applied while Following, while Diverged, and while Comparing with its own weights and no round held
(`can_apply`). The digests by height are kept until the next epoch, even if the weights are lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from psyche.client.engine.actions import Apply, Healed
from psyche.client.engine.context import EngineContext
from psyche.core.state.state import ZERO32, Round, RoundFlag
from psyche.telemetry import types
from psyche.wire.crypto import compute_chain_digest, compute_state_digest
from psyche.wire.trainer import ApplyReply

AGREEING_TO_HEAL: Final = 2  # digests in a row (S7)


@dataclass(frozen=True, slots=True)
class Divergence:
    """How the weights compare with the record since it first contradicted them."""

    since: int  # the first height at which the digests differ
    is_contradicted: bool = True  # a digest differed, and no replay has begun since
    is_replayed: bool = False  # since the first replay: its digests decide (S7)
    agreeing: int = 0  # digests in a row that were the agreed ones
    contradictions: int = 0  # digests of replayed weights that were not the agreed ones

    def note(self, *, agrees: bool) -> "Divergence":
        if agrees:
            return replace(self, agreeing=self.agreeing + 1)
        counted = self.contradictions + self.is_replayed  # S7: only replayed digests count
        return replace(self, agreeing=0, is_contradicted=True, contradictions=counted)


@dataclass(frozen=True, slots=True)
class Held:
    """The trainer keeps one round's weights until they are compared with those of peers."""

    height: int
    until: float | None = None  # deadline of the transfer from peers; None before it begins


@dataclass(frozen=True, slots=True)
class Absent:
    """The trainer does not have this epoch's weights."""

    was_diverged: bool = False  # the digests kept from those weights differ from the agreed ones


@dataclass(frozen=True, slots=True)
class Following:
    """The trainer has this epoch's weights, and no agreed digest contradicts them."""


@dataclass(frozen=True, slots=True)
class Diverged:
    """An agreed digest contradicts the weights, or they were replayed and are not yet confirmed (S4)."""

    divergence: Divergence


@dataclass(frozen=True, slots=True)
class Replaying:
    """The trainer applies the epoch's sets again, starting from the certified weights (S7)."""

    divergence: Divergence


@dataclass(frozen=True, slots=True)
class Comparing:
    """The replay failed: the weights of one round are compared with those of peers (S7)."""

    since: int  # as in `Divergence`
    weights_kept: bool  # the trainer still has its own, wrong weights
    held: Held | None = None


WeightsState = Absent | Following | Diverged | Replaying | Comparing


@dataclass(slots=True)
class Weights:
    context: EngineContext
    _state: WeightsState = field(default_factory=Absent)
    next_height: int = 0  # the next round to apply
    chain: bytes = ZERO32  # c of the last height (S1)
    digests: dict[int, bytes] = field(default_factory=dict)
    full: dict[int, bool] = field(default_factory=dict)  # whether the digest covers all weights (S2)
    chains: dict[int, bytes] = field(default_factory=dict)
    _checked: set[int] = field(default_factory=set)  # heights whose digests were compared

    # --- queries -----------------------------------------------------------------------------------

    @property
    def state(self) -> WeightsState:
        return self._state

    @property
    def is_loaded(self) -> bool:
        return not isinstance(self._state, Absent)

    @property
    def is_diverged(self) -> bool:
        """Whether the weights, or the digests kept of lost ones, contradict the record or await confirmation (S4)."""
        return self._state.was_diverged if isinstance(self._state, Absent) else not isinstance(self._state, Following)

    @property
    def is_healing(self) -> bool:
        """Whether healing has control of the trainer's weights, so that no set may be applied."""
        match self._state:
            case Replaying():
                return True
            case Comparing(weights_kept=kept, held=held):
                return held is not None or not kept
            case _:
                return False

    @property
    def is_fetching(self) -> bool:
        """Whether the agreed weights are being fetched: this round's batch may still be trained."""
        state = self._state
        return isinstance(state, Comparing) and state.held is not None and state.held.until is not None

    @property
    def can_apply(self) -> bool:
        return self.is_loaded and not self.is_healing

    def get_trusted_digest(self, height: int) -> bytes | None:
        """Own D of that height; None if it is not known, or not to be relied on."""
        return None if self.is_diverged else self.digests.get(height)

    def get_last_full_digest(self) -> bytes | None:
        last = max(self.digests, default=None)
        return self.digests[last] if last is not None and self.full.get(last, False) else None

    # --- loading and applying ----------------------------------------------------------------------

    def forget(self) -> None:
        self._state = Absent()
        self.next_height = 0
        for known in (self.digests, self.full, self.chains, self._checked):
            known.clear()

    def begin(self, certified: bytes) -> None:
        """The epoch's certified weights are loaded: c(-1) is their digest (S1). Rounds may have begun already."""
        assert isinstance(self._state, Absent), "weights are loaded once"
        self.forget()
        self.chain = certified
        self._state = Following()

    def lose(self) -> None:
        """The trainer's weights are no longer this epoch's, or this client gave up on the epoch."""
        # the digests stay until the next epoch and would still be compared and reported: so does their verdict
        self._state = Absent(self.is_diverged)

    def note_applied(self, done: Apply, reply: ApplyReply) -> None:
        """Note c and D after an apply (S1, S2)."""
        self.chain = compute_chain_digest(self.chain, done.epoch, done.height, done.step, done.lr_bits, done.applied)
        self.chains[done.height] = self.chain
        self.digests[done.height] = compute_state_digest(self.chain, reply.weight_part)
        self.full[done.height] = reply.is_full
        self.next_height = done.height + 1

    # --- agreement ---------------------------------------------------------------------------------

    def follow(self, rounds: Sequence[Round], height: int) -> None:
        """Compare own digests with the agreed ones of rounds up to `height` (S3, S4)."""
        for round_ in sorted(rounds, key=lambda r: r.height):
            own = self.digests.get(round_.height)
            known = round_.members and round_.flags & RoundFlag.DIGEST and round_.height not in self._checked
            if not known or own is None or round_.height > height:
                continue
            self._checked.add(round_.height)
            agrees = own == round_.agreed_digest
            self.context.log(types.Digest(height=round_.height, digest=own, agreed=agrees))
            self._note_compared(round_, own, agrees=agrees)
        if isinstance(self._state, Diverged) and self._state.divergence.agreeing >= AGREEING_TO_HEAL:
            self._settle()

    def _note_compared(self, round_: Round, own: bytes, *, agrees: bool) -> None:
        match self._state:
            case Diverged(divergence):
                self._state = Diverged(divergence.note(agrees=agrees))
            case Replaying(divergence):
                self._state = Replaying(divergence.note(agrees=agrees))
            case Following() if not agrees:
                self._state = Diverged(Divergence(round_.height))  # S4
                self._log_diverged(round_, own)
            case Absent(was_diverged=False) if not agrees:
                self._state = Absent(was_diverged=True)
                self._log_diverged(round_, own)
            case _:
                pass

    def _log_diverged(self, round_: Round, own: bytes) -> None:
        self.context.log(types.Diverged(height=round_.height, digest=own, agreed=round_.agreed_digest))

    def _settle(self) -> None:
        self._state = Following()
        self.context.log(types.Healed(height=self.next_height - 1))

    # --- healing (S7) ------------------------------------------------------------------------------

    def begin_replay(self) -> None:
        assert isinstance(self._state, Diverged), "only what diverged is replayed"
        self._state = Replaying(replace(self._state.divergence, is_contradicted=False, agreeing=0))

    def end_replay(self, event: Healed) -> None:
        """Replace the digests by those of the replay, and compare them with the agreed ones again."""
        assert isinstance(self._state, Replaying), "a replay was asked for"
        self._state = Diverged(replace(self._state.divergence, is_replayed=True, agreeing=0))
        self._replace_digests(event)

    def begin_comparison(self, *, weights_kept: bool) -> None:
        """The replay failed; `weights_kept`: the trainer still has its own weights."""
        assert isinstance(self._state, Replaying), "a comparison follows a replay that failed"
        self._state = Comparing(self._state.divergence.since, weights_kept)

    def hold(self, height: int) -> None:
        """Keep the trainer's weights at this round until they are compared."""
        assert isinstance(self._state, Comparing), "only a comparison holds weights"
        assert self._state.held is None, "one round is held at a time"
        self._state = replace(self._state, held=Held(height))

    def release(self) -> None:
        """The held round has no agreed digest over all weights: apply sets again."""
        assert isinstance(self._state, Comparing), "only a comparison holds weights"
        assert not self.is_fetching, "the trainer is asked to load others"
        self._state = replace(self._state, held=None)

    def fetch(self, until: float) -> None:
        """Peers have a copy of the held round's agreed weights: fetching starts and ends at `until` at the latest."""
        assert isinstance(self._state, Comparing), "only a comparison fetches the agreed weights"
        assert self._state.held is not None, "a round is held"
        self._state = replace(self._state, held=replace(self._state.held, until=until))

    def end_comparison(self, event: Healed) -> None:
        """The agreed weights are loaded and checked against the agreed digest: follow the record again."""
        assert self.is_fetching, "the agreed weights were asked for"
        self._replace_digests(event)
        self.context.end_wait("compare", types.WaitOutcome.AGREED_LOADED)
        self._settle()

    def _replace_digests(self, event: Healed) -> None:
        self.chain = event.chain
        self.chains[event.height] = event.chain
        self.next_height = event.height + 1
        self.digests.update(event.digests)
        self.full.update(event.is_full)
        self._checked.difference_update(event.digests)
        self.follow(self.context.state.rounds, self.context.height)
