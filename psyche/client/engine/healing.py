"""Healing of a diverged client: by replay, else by comparing weights with peers; else it leaves (S4, S7)."""

from dataclasses import dataclass, field
from typing import Final

from psyche.client.engine.actions import AskWeights, Compare, Heal, Healed, HealFailed, WeightsPromised
from psyche.client.engine.chain import Chain
from psyche.client.engine.context import EngineContext
from psyche.client.engine.membership import Membership
from psyche.client.engine.records import RoundRecord
from psyche.client.engine.training import Training
from psyche.client.engine.weights import Comparing, Diverged, Following, Held, Replaying, Weights, WeightsState
from psyche.core.state.bits import get_members
from psyche.core.state.limits import FULL_DIGEST_MAX_PARAMETERS
from psyche.core.state.state import ZERO32, Round, RoundFlag, RunState
from psyche.core.state.timeline import get_round, is_full_digest_height
from psyche.telemetry import types
from psyche.telemetry.types import LeaveCause, Wait, WaitOutcome

# S7: of digests after a replay. Arithmetic is exact, so a third replay would give the same bits again
MAX_REPLAY_CONTRADICTIONS: Final = 2
HELPERS: Final = 2  # members asked to keep a copy for a comparison; what they send is checked
HELP_EVERY_HEIGHTS: Final = 16  # a copy costs the trainer time, so members may not ask for one every round
ASK_AGAIN_S: Final = 1.0


@dataclass(slots=True)
class HelperSearch:
    ask_at: float  # on the caller's clock
    helpers: dict[int, bytes] = field(default_factory=dict)  # member -> key: they keep a copy
    asked: set[int] = field(default_factory=set)


class Healing:
    def __init__(
        self, context: EngineContext, weights: Weights, chain: Chain, training: Training, membership: Membership
    ) -> None:
        self._x = context
        self._weights = weights
        self._chain = chain
        self._training = training
        self._membership = membership
        self._search = HelperSearch(0.0)
        self._compared: int | None = None  # the epoch of the last comparison: one per epoch
        self._helped: tuple[int, int] | None = None  # epoch and height of the last copy kept for others

    def get_deadline(self) -> float | None:
        match self._weights.state:
            case Comparing(held=Held(until=None)):
                return self._search.ask_at
            case _:
                return None

    def act(self, now: float) -> None:
        if self._x.member is None or not self._x.state.in_round:
            return
        match self._weights.state:
            case Comparing():
                self._compare(now)
            # not while an apply is under way: a replay ends at the last applied height, which must stand still
            case Diverged(divergence) if self._chain.applying is None:
                if divergence.contradictions >= MAX_REPLAY_CONTRADICTIONS:
                    self._leave_with_evidence("this client's replay contradicts the agreed digests a second time")
                elif divergence.is_contradicted:
                    self._replay("this client's digest differs from the agreed one")

    def give_up(self, cause: LeaveCause, reason: str) -> None:
        self._x.end_wait("compare", WaitOutcome.GIVEN_UP)
        self._membership.withdraw(cause, reason)
        self._weights.lose()

    def _leave_with_evidence(self, reason: str) -> None:
        """Leave rather than adopt weights that contradict this client's own replay (section 9, last table)."""
        self._x.log(types.Evidence(digests=dict(self._weights.digests), reason=reason))
        self.give_up(LeaveCause.CONTRADICTED, reason)

    # --- (1) replay -------------------------------------------------------------------------------

    def _replay(self, reason: str) -> None:
        x, weights = self._x, self._weights
        certified = x.state.certified.digest
        # no weights to start from (S8), no set to replay, or sets still on their way: it could not end agreed
        if certified == ZERO32 or weights.next_height == 0 or self._chain.behind_rounds:
            self.give_up(LeaveCause.WRONG_WEIGHTS, f"cannot heal: {reason}")
            return
        if self._training.in_flight is not None:
            self._training.cancel()  # S4: at once; healing starts when the training has ended
            return
        weights.begin_replay()
        x.log(types.Healing(reason=reason, height=weights.next_height - 1))
        x.do(Heal(x.epoch, certified, weights.next_height - 1))

    def on_healed(self, event: Healed) -> None:
        if event.epoch != self._x.epoch or not self._is_at_work():
            return
        # the momentum is that of the epoch's start, or zero: it includes no result sent since (R8)
        self._chain.own.clear()
        if self._weights.is_fetching:
            self._weights.end_comparison(event)
        else:
            self._weights.end_replay(event)

    def _is_at_work(self) -> bool:
        """Whether the trainer is healing; if not, its weights were lost meanwhile and its answer is stale."""
        return isinstance(self._weights.state, Replaying) or self._weights.is_fetching

    def on_failed(self, event: HealFailed) -> None:
        x, weights = self._x, self._weights
        if event.epoch != x.epoch:
            return
        if not self._is_at_work():
            x.end_wait("compare", WaitOutcome.GIVEN_UP)  # the weights were lost during the comparison
        # the agreed weights follow from other sets than this client read (S7): a copy of them would settle nothing
        elif event.contradicts:
            self._leave_with_evidence(event.reason)
        elif isinstance(weights.state, Comparing) or not self._can_compare(weights.state):
            self.give_up(LeaveCause.WRONG_WEIGHTS, f"cannot heal: {event.reason}")
        else:
            x.log(types.Healing(reason=f"comparing weights with peers: {event.reason}", height=x.height))
            self._compared = x.epoch
            weights.begin_comparison(weights_kept=event.weights_kept)

    # --- (2) comparison ---------------------------------------------------------------------------

    def _can_compare(self, state: WeightsState) -> bool:
        """Whether a digest over all weights comes soon enough. Full-value weights never agree bit for bit (S2)."""
        x = self._x
        if not isinstance(state, Replaying) or x.member is None or not x.state.in_round or self._compared == x.epoch:
            return False
        # one comparison an epoch: each costs two members a copy of their weights
        heights = range(x.height, self._get_last_height(state.divergence.since))
        return x.state.model.optimizer.is_exact and any(map(self._is_full, heights))

    def _get_last_height(self, diverged_at: int) -> int:
        """The last round in which healing helps: a late result in the next one would be one too many (H2, H5)."""
        return diverged_at + self._x.state.config.late_limit - 1

    def _is_too_late(self, diverged_at: int) -> bool:
        """Whether staying would get this client dropped for lateness, with a strike; leaving costs none."""
        x, last = self._x, self._get_last_height(diverged_at)
        # without overlap the running round decides its own results: what is not out by RoundWitness is late already
        at_the_end = not x.state.config.overlap and x.state.run_state is RunState.ROUND_WITNESS
        return x.height > last or (x.height == last and at_the_end)

    def _is_full(self, height: int) -> bool:
        x = self._x
        is_small = x.facts.parameters <= FULL_DIGEST_MAX_PARAMETERS
        return is_small or is_full_digest_height(x.state.config, x.state.epoch, height)

    def _compare(self, now: float) -> None:
        state = self._weights.state
        assert isinstance(state, Comparing), "checked by act"
        if self._is_too_late(state.since):
            self.give_up(LeaveCause.WRONG_WEIGHTS, "cannot heal: no peer showed the agreed weights in time")
            return
        if state.held is not None and state.held.until is not None:
            self._name_wait(state.held.height, state.held.until)
            return
        # before `_hold`: a round that closed without a full digest is released, and the running one is held instead
        if state.held is not None:
            self._follow_record(state.held.height, weights_kept=state.weights_kept, now=now)
        self._hold(now)
        self._ask_helpers(now)

    def _hold(self, now: float) -> None:
        x, weights = self._x, self._weights
        # with the last drain round the epoch is over, and Warmup loads the certified weights anyway
        if not self._is_full(x.height) or x.is_last_drain(x.height):
            return
        there = self._chain.applying is None and weights.next_height == x.height + 1
        # own weights are of use only at the height that is compared; once they are lost, every tensor is fetched
        match weights.state:
            case Comparing(weights_kept=kept, held=None) if there or not kept:
                self._search = HelperSearch(now)
                weights.hold(x.height)

    def _ask_helpers(self, now: float) -> None:
        record, search = self._x.current, self._search
        match self._weights.state:
            case Comparing(held=Held(height, None)) if record is not None and height == record.height:
                missing = HELPERS - len(search.helpers)
                if missing > 0 and now >= search.ask_at:
                    search.ask_at = now + ASK_AGAIN_S
                    self._ask(record, missing)

    def _ask(self, record: RoundRecord, missing: int) -> None:
        x, search = self._x, self._search
        able = [m for m in get_members(record.members) if m != x.member and x.is_healthy(m)]
        # who says that it is behind or has diverged has no copy of the agreed weights
        able = [m for m in able if m not in record.ready or not record.ready[m].flags]
        fresh = [m for m in able if m not in search.asked]
        if not fresh:
            search.asked.clear()  # they may not have had the weights of the round yet
            fresh = [m for m in able if m not in search.helpers]
        own = x.member or 0
        for member in sorted(fresh, key=lambda m: (m < own, m))[:missing]:  # spreads healing clients over helpers
            search.asked.add(member)
            x.do(AskWeights(record.epoch, record.height, member, x.get_key(member)))

    def on_promised(self, event: WeightsPromised) -> None:
        match self._weights.state:
            case Comparing(held=Held(height)) if (event.epoch, event.height) == (self._x.epoch, height):
                self._search.helpers[event.member] = self._x.get_key(event.member)

    def _follow_record(self, height: int, *, weights_kept: bool, now: float) -> None:
        """Fetch the held round's weights once its full digest is agreed; release the round if it closed without one."""
        round_ = get_round(self._x.state, height)
        wanted = RoundFlag.DIGEST | RoundFlag.FULL
        if round_ is not None and round_.flags & wanted == wanted and self._search.helpers:
            self._run(round_, weights_kept=weights_kept, now=now)
        elif round_ is None or round_.flags & RoundFlag.CLOSED:
            self._weights.release()

    def _run(self, round_: Round, *, weights_kept: bool, now: float) -> None:
        x, weights = self._x, self._weights
        until = now + x.round_limit_s
        weights.fetch(until)
        own = weights.digests.get(round_.height, ZERO32) if weights_kept else ZERO32
        self._name_wait(round_.height, until)
        known = weights.chains.get(round_.height, ZERO32)
        helpers = tuple(self._search.helpers.values())
        x.do(Compare(x.epoch, round_.height, round_.agreed_digest, own, known, helpers, until))

    def _name_wait(self, height: int, until: float) -> None:
        what = f"tensors of the agreed weights of round {height} that differ from this client's"
        self._x.wait("compare", Wait.AGREED_TENSORS, what, until=until, then="leave the epoch", height=height)

    # --- helping others ---------------------------------------------------------------------------

    def help(self, key: bytes, epoch: int, height: int) -> bool:
        """Keep a copy of the running round's weights for a member that heals; return whether there will be one."""
        x, weights = self._x, self._weights
        record = x.current
        if record is None or x.member is None or (epoch, height) != (record.epoch, record.height):
            return False
        asking = any(x.get_key(m) == key and x.is_healthy(m) for m in get_members(record.members))
        if not asking or x.is_last_drain(height):
            return False
        if self._helped == (epoch, height):
            return True
        # S7: else members that heal, or say so, could keep each other's trainers writing
        recent = self._helped is not None and self._helped[0] == epoch and height - self._helped[1] < HELP_EVERY_HEIGHTS
        # the trainer must be at exactly this round, and right: what it writes later is of other weights
        moved = self._chain.applying is not None or weights.next_height != height + 1
        wrong = not isinstance(weights.state, Following)
        if recent or moved or wrong or not weights.full.get(height, False):
            return False
        self._helped = (epoch, height)
        self._x.do(self._training.make_snapshot(record))
        return True
