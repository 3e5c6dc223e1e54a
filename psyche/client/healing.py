"""A client whose weights are not the agreed ones: it replays, else compares them with peers', else leaves (S4, S7)."""

from dataclasses import dataclass, field
from typing import Final

from psyche.client.actions import AskWeights, Compare, Heal, Healed, HealFailed, Snapshot, WeightsPromised
from psyche.client.chain import Chain
from psyche.client.context import Context
from psyche.client.duty import Duty
from psyche.client.membership import Membership
from psyche.client.records import RoundRecord
from psyche.core.bits import get_members
from psyche.core.limits import FULL_DIGEST_MAX_PARAMETERS
from psyche.core.state import ZERO32, Round, RoundFlag, RunState
from psyche.core.timeline import get_round, is_full_digest_height, is_last_drain

MAX_REPLAY_CONTRADICTIONS: Final = 2
HELPERS: Final = 2  # members that keep a copy for one that compares; what they say is checked
HELP_EVERY_HEIGHTS: Final = 16  # a copy costs a member's trainer a moment: nobody can ask for one every round
ASK_AGAIN_S: Final = 1.0


@dataclass(slots=True)
class Comparison:
    """The replay could not be done: the own weights of one round are compared with those of peers."""

    weights_kept: bool  # the trainer still has the own, wrong weights
    height: int | None = None  # whose weights are compared; the own ones stay there until it is done
    helpers: dict[int, bytes] = field(default_factory=dict)  # member -> key: they keep a copy
    asked: set[int] = field(default_factory=set)
    ask_at: float = 0.0
    running: bool = False
    until: float = 0.0  # on the caller's clock: when it ends at the latest


class Healing:
    """Back to the agreed weights, or out of the epoch."""

    def __init__(self, context: Context, chain: Chain, duty: Duty, membership: Membership) -> None:
        self._x = context
        self._chain = chain
        self._duty = duty
        self._membership = membership
        self._comparison: Comparison | None = None
        self._compared: int | None = None  # the epoch in which a comparison was made: one is enough
        self._helped: tuple[int, int] | None = None  # epoch and height of the last copy for others

    def begin_epoch(self) -> None:
        """Another epoch starts from other weights."""
        self._comparison = None

    def get_deadline(self) -> float | None:
        """When `act` next has something to do."""
        comparison = self._comparison
        waits = comparison is not None and comparison.height is not None and not comparison.running
        return comparison.ask_at if comparison is not None and waits else None

    def act(self, now: float) -> None:
        """Begin to heal where that is due, and go on with it."""
        chain = self._chain
        if self._x.member is None or not self._x.state.in_round:
            return
        if self._comparison is not None:
            self._compare(self._comparison, now)
        elif chain.diverged and chain.loaded and not chain.healing and chain.applying is None:
            if chain.contradictions >= MAX_REPLAY_CONTRADICTIONS:
                self._leave_with_evidence("own replay contradicts the agreed digests twice")
            elif chain.mismatch:
                self._replay("own digest differs from the agreed one")

    def give_up(self, reason: str) -> None:
        """This epoch goes on without this client."""
        self._comparison = None
        self._x.end_wait("compare", "given up")
        self._membership.withdraw(reason)
        self._chain.loaded = False

    def _leave_with_evidence(self, reason: str) -> None:
        """What contradicts the own replay is not adopted (section 9, last table)."""
        self._x.log("evidence", digests=dict(self._chain.digests), reason=reason)
        self.give_up(reason)

    # --- (1) replay -------------------------------------------------------------------------------

    def _replay(self, reason: str) -> None:
        x, chain = self._x, self._chain
        certified = x.state.certified.digest
        if certified == ZERO32 or chain.next_height == 0 or chain.behind_rounds:
            self.give_up(f"cannot heal: {reason}")
            return
        if self._duty.in_flight is not None:
            self._duty.cancel_training()  # S4: at once; the trainer heals when it has let go
            return
        chain.healing, chain.mismatch = True, False
        chain.agreeing = 0
        x.log("healing", reason=reason, height=chain.next_height - 1)
        x.do(Heal(x.epoch, certified, chain.next_height - 1))

    def on_healed(self, event: Healed) -> None:
        """The trainer has other weights now; whether they are right, the record says."""
        chain = self._chain
        if event.epoch != self._x.epoch or not chain.healing:
            return
        chain.on_healed(event)
        if self._comparison is not None:
            self._comparison = None
            self._x.end_wait("compare", "the agreed weights are loaded")
            chain.settle()  # not the own arithmetic gave them: they are the agreed ones

    def on_failed(self, event: HealFailed) -> None:
        """After a replay the comparison is left; after that nothing is."""
        x, chain = self._x, self._chain
        if event.epoch != x.epoch or not chain.healing:
            return
        chain.healing = chain.fetching = False
        if event.contradicts:
            self._leave_with_evidence(event.reason)
        elif self._comparison is not None or not self._can_compare():
            self.give_up(f"cannot heal: {event.reason}")
        else:
            x.log("healing", reason=f"comparing with peers, for {event.reason}", height=x.height)
            self._compared = x.epoch
            self._comparison = Comparison(event.weights_kept)
            chain.healing = not event.weights_kept  # without weights nothing can be applied

    # --- (2) comparison ---------------------------------------------------------------------------

    def _can_compare(self) -> bool:
        """Whether a digest over all weights comes soon enough; full values are never equal anyway (S2)."""
        x = self._x
        if x.member is None or not x.state.in_round or self._compared == x.epoch:
            return False
        heights = range(x.height, self._get_last_height())
        return x.state.model.optimizer.quantize_1bit and any(map(self._is_full, heights))

    def _get_last_height(self) -> int:
        """The last round in which healing helps: trained in the next, a result is the one too late (H2, H5)."""
        first = self._chain.diverged_at
        return (self._x.height if first is None else first) + self._x.state.config.late_limit - 1

    def _is_too_late(self) -> bool:
        """Whether lateness would put this client out with a strike, where leaving costs none."""
        x, last = self._x, self._get_last_height()
        at_the_end = not x.state.config.overlap and x.state.run_state is RunState.ROUND_WITNESS
        return x.height > last or (x.height == last and at_the_end)

    def _is_full(self, height: int) -> bool:
        """Whether the digest of a height covers all weights (S2)."""
        x = self._x
        is_small = x.facts.parameters <= FULL_DIGEST_MAX_PARAMETERS
        return is_small or is_full_digest_height(x.state.config, x.state.epoch, height)

    def _compare(self, comparison: Comparison, now: float) -> None:
        if self._is_too_late():
            self._chain.healing = self._chain.fetching = False
            self.give_up("cannot heal: no peer showed the agreed weights in time")
            return
        if comparison.running:
            self._name_wait(comparison)
            return
        if comparison.height is not None:
            self._follow_record(comparison, comparison.height, now)
        if comparison.height is None:
            self._hold(comparison, now)
        record = self._x.current
        if record is not None and comparison.height == record.height and not comparison.running:
            self._ask_helpers(comparison, record, now)

    def _hold(self, comparison: Comparison, now: float) -> None:
        """The own weights stay those of this round, if its digest is one over all of them."""
        x, chain = self._x, self._chain
        there = chain.applying is None and chain.next_height == x.height + 1
        if not self._is_full(x.height) or is_last_drain(x.state.config, x.state.epoch, x.height):
            return
        if there or not comparison.weights_kept:
            comparison.height, comparison.ask_at = x.height, now
            chain.healing = True

    def _ask_helpers(self, comparison: Comparison, record: RoundRecord, now: float) -> None:
        missing = HELPERS - len(comparison.helpers)
        if missing <= 0 or now < comparison.ask_at:
            return
        x = self._x
        comparison.ask_at = now + ASK_AGAIN_S
        able = [m for m in get_members(record.members) if m != x.member and x.is_healthy(m)]
        able = [m for m in able if m not in record.ready or not record.ready[m].flags]
        fresh = [m for m in able if m not in comparison.asked]
        if not fresh:
            comparison.asked.clear()  # they may not have had the round's weights yet
            fresh = [m for m in able if m not in comparison.helpers]
        own = x.member or 0
        for member in sorted(fresh, key=lambda m: (m < own, m))[:missing]:  # not all who heal ask the same
            comparison.asked.add(member)
            x.do(AskWeights(record.epoch, record.height, member, x.get_key(member)))

    def on_promised(self, event: WeightsPromised) -> None:
        """A member keeps the weights of the round that is compared."""
        comparison = self._comparison
        if comparison is not None and (event.epoch, event.height) == (self._x.epoch, comparison.height):
            comparison.helpers[event.member] = self._x.get_key(event.member)

    def _follow_record(self, comparison: Comparison, height: int, now: float) -> None:
        """The agreed digest over all weights is what a peer's must give; without one, a later round's."""
        x = self._x
        round_ = get_round(x.state, height)
        wanted = RoundFlag.DIGEST | RoundFlag.FULL
        if round_ is not None and round_.flags & wanted == wanted and comparison.helpers:
            self._run(comparison, round_, now)
        elif round_ is None or round_.flags & RoundFlag.CLOSED:
            comparison.height = None
            comparison.helpers.clear()
            comparison.asked.clear()
            self._chain.healing = not comparison.weights_kept

    def _run(self, comparison: Comparison, round_: Round, now: float) -> None:
        x, chain = self._x, self._chain
        comparison.running = chain.fetching = True
        chain.mismatch = False
        config = x.state.config
        comparison.until = now + config.max_round_train_time + config.round_witness_time
        own = chain.digests.get(round_.height, ZERO32) if comparison.weights_kept else ZERO32
        self._name_wait(comparison)
        known = chain.chains.get(round_.height, ZERO32)
        helpers = tuple(comparison.helpers.values())
        x.do(Compare(x.epoch, round_.height, round_.agreed_digest, own, known, helpers, comparison.until))

    def _name_wait(self, comparison: Comparison) -> None:
        what = f"tensors of the agreed weights of round {comparison.height} that differ from the own ones"
        self._x.wait("compare", what, comparison.until, "leave the epoch")

    # --- helping others ---------------------------------------------------------------------------

    def help(self, key: bytes, epoch: int, height: int) -> bool:
        """A member that compares asks for a copy of the weights of the running round: whether there will be one."""
        x, chain = self._x, self._chain
        record = x.current
        if record is None or x.member is None or (epoch, height) != (record.epoch, record.height):
            return False
        asking = any(x.get_key(m) == key and x.is_healthy(m) for m in get_members(record.members))
        if not asking or is_last_drain(x.state.config, x.state.epoch, height):
            return False
        if self._helped == (epoch, height):
            return True
        recent = self._helped is not None and self._helped[0] == epoch and height - self._helped[1] < HELP_EVERY_HEIGHTS
        moved = chain.applying is not None or chain.next_height != height + 1
        wrong = not chain.loaded or chain.diverged or chain.healing
        if recent or moved or wrong or not chain.full.get(height, False):
            return False
        self._helped = (epoch, height)
        self._keep_copy(record)
        return True

    def _keep_copy(self, record: RoundRecord) -> None:
        chain = self._chain
        self._x.do(
            Snapshot(
                epoch=record.epoch,
                height=record.height,
                step=record.step,
                data_index=record.data_index,
                chain=chain.chains[record.height],
                digest=chain.digests[record.height],
                prev_commitment=self._duty.prev_commitment,
                decided=tuple(chain.own_fates),
            )
        )
