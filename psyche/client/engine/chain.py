"""The chain of applied sets: what is decided, fetched and applied, height by height (C1 to C6)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from psyche.client.engine.actions import Applied, Apply
from psyche.client.engine.announcements import Announcements, compute_step_lr
from psyche.client.engine.context import EngineContext, describe_awaited
from psyche.client.engine.records import KnownResult, PayloadStatus, RoundRecord
from psyche.client.engine.tables import Tables
from psyche.client.engine.weights import Weights
from psyche.core.committee import decision
from psyche.core.committee.schedule import get_lr_bits
from psyche.core.state import timeline
from psyche.core.state.limits import BEHIND_LIMIT_ROUNDS
from psyche.core.state.state import ClientFlag, Coordinator, OptimizerKind, Round, RoundFlag, RunState
from psyche.telemetry import types
from psyche.wire.gossip import decode_gossip
from psyche.wire.trainer import SentResult

EVIDENCE_WITNESSES = 2  # lists to read for a second signature (R7) when none is needed to decide
APPLY_STATES = (RunState.ROUND_TRAIN, RunState.ROUND_WITNESS, RunState.COOLDOWN)


@dataclass(slots=True)
class OwnResults:
    """This client's results until the record has decided them; the trainer is told each outcome once (R8, P3)."""

    outcomes: list[SentResult] = field(default_factory=list)  # decided, but not yet told to the trainer
    _sent: dict[int, bytes] = field(default_factory=dict)  # height -> own commitment, undecided

    def note_sent(self, height: int, commitment: bytes) -> None:
        self._sent[height] = commitment

    def note_unsent(self, height: int) -> None:
        """A result was trained but never announced: it counts as not applied."""
        self.outcomes.append(SentResult(height=height, applied=False))

    def decide(self, height: int, chosen: Mapping[int, bytes], member: int | None) -> None:
        """The set of a round is decided; `chosen` has its commitments by member."""
        own = self._sent.pop(height, None)
        if own is not None:
            applied = member is not None and chosen.get(member) == own
            self.outcomes.append(SentResult(height=height, applied=applied))

    def end_epoch(self) -> None:
        """The epoch is over: results that its drain rounds did not decide were never applied (P3)."""
        for height in self._sent:
            self.note_unsent(height)
        self._sent.clear()

    def take(self) -> tuple[SentResult, ...]:
        taken, self.outcomes = tuple(self.outcomes), []
        return taken

    def put_back(self, taken: tuple[SentResult, ...]) -> None:
        """Return outcomes of a training that changed nothing: the next one passes them again."""
        self.outcomes[:0] = taken

    def clear(self) -> None:
        """Forget everything: other weights were loaded, and their momentum includes none of these results."""
        self.outcomes.clear()
        self._sent.clear()


@dataclass(slots=True)
class ApplyInputs:
    """What an apply needs to know of its round; kept after the round has left the ring."""

    step: int
    random_seed: int
    is_full: bool
    applied_height: int | None


@dataclass(slots=True)
class Chain:
    """The decided sets of one epoch, up to the one the trainer is applying."""

    context: EngineContext
    announcements: Announcements
    tables: Tables
    weights: Weights
    own: OwnResults = field(default_factory=OwnResults)
    applying: Apply | None = None  # the set that the trainer is applying
    behind_rounds: int = 0
    _decisions: dict[int, dict[int, bytes]] = field(default_factory=dict)  # height -> member -> commitment
    # by height of the results: what keeps a closed round undecided, and how much was known at the last try
    _open: dict[int, tuple[decision.Undecided, int]] = field(default_factory=dict)
    _inputs: dict[int, ApplyInputs] = field(default_factory=dict)

    def clear(self) -> None:
        self._start_anew()
        self.weights.forget()
        for known in (self._decisions, self._open, self._inputs, self.tables):
            known.clear()
        self.own.end_epoch()

    def go_back(self) -> None:
        """Decide again what the record, which has gone back, has not decided yet."""
        state = self.context.state
        # A decision stands if the round that made it has left the ring: nobody can decide it again. What the ring still
        # has may come out otherwise on the other fork, so it is decided anew.
        past = {h: decision.get_deciding_height(state.config, h) for h in self._decisions}
        kept = {h for h, by in past.items() if by <= state.current.height and timeline.get_round(state, by) is None}
        self._decisions = {h: d for h, d in self._decisions.items() if h in kept}
        self._inputs = {h: f for h, f in self._inputs.items() if h <= state.current.height}
        self._open.clear()

    def begin(self, certified: bytes) -> None:
        self._start_anew()
        self.weights.begin(certified)

    def _start_anew(self) -> None:
        self.applying = None
        self.behind_rounds = 0

    @property
    def needed_height(self) -> int | None:
        """The first round whose results may still have to be applied; None if this client applies nothing."""
        if self.context.member is None:
            return None
        # a set is applied two rounds after its results with overlap, else in the next round
        return self.weights.next_height - (2 if self.context.state.config.overlap else 1)

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def follow(self, now: float) -> None:
        """Take in a new state: remember what its applies need, decide closed rounds, compare digests."""
        state = self.context.state
        # the ring keeps four rounds; an apply may come later, so what it needs is noted now
        for round_ in state.rounds:
            if round_.members and round_.height <= state.current.height:
                self._remember(state, round_)
        self.decide(now)
        self.weights.follow(state.rounds, state.current.height)

    def _remember(self, state: Coordinator, round_: Round) -> None:
        self._inputs[round_.height] = ApplyInputs(
            step=round_.step,
            random_seed=round_.random_seed,
            is_full=timeline.is_full_digest_height(state.config, state.epoch, round_.height),
            applied_height=timeline.get_applied_height(state.config, state.epoch, round_.height),
        )

    # --- decisions -------------------------------------------------------------------------------

    def decide(self, now: float) -> None:
        """Decide the rounds that have closed; a client that takes no part in the epoch decides nothing."""
        if self.context.member is None:
            self._open.clear()
            return
        for height in sorted(self._inputs):
            applied = self._inputs[height].applied_height
            if applied is not None and applied not in self._decisions and height >= self.weights.next_height:
                self._try_decide(applied, now)

    def _get_deciding(self, height: int) -> Round | None:
        state = self.context.state
        return timeline.get_round(state, decision.get_deciding_height(state.config, height))

    def _try_decide(self, height: int, now: float) -> None:
        x = self.context
        record, deciding = x.book.get(height), self._get_deciding(height)
        if record is None or deciding is None or not deciding.flags & RoundFlag.CLOSED:
            return
        assert x.get_attested(deciding.height) is record, "the round decides it"
        # a decision without a root searches all tables (C2): only again when more results or tables are known
        knowledge = record.count_known()
        known = self._open.get(height)
        if known is None or known[1] != knowledge:
            view = self._make_view(record, deciding)
            outcome = decision.decide(view)
            if not isinstance(outcome, decision.Undecided):
                self._open.pop(height, None)
                x.end_wait(f"decide {height}", types.WaitOutcome.DECIDED)
                if isinstance(outcome, decision.Decided):
                    # C3: decided all the same, but these tables show what else a member has signed (R7)
                    contradictors = decision.find_contradictors(view, outcome, record.signed)
                    self.tables.ask(record, deciding, contradictors[:EVIDENCE_WITNESSES], now)
                self._settle(record, outcome, now)
                return
            # count again: tables that `decide` built from known results are not new knowledge
            known = self._open[height] = (outcome, record.count_known())
        self._ask(record, deciding, known[0], now)

    def _make_view(self, record: RoundRecord, deciding: Round) -> decision.DecisionView:
        return decision.DecisionView(
            members=record.members,
            owed=sum(1 << m for m in record.assignments),
            seed=deciding.seed,
            n=deciding.witnesses_expected,
            q=deciding.quorum,
            agreed_root=deciding.agreed_root if deciding.flags & RoundFlag.ROOT else None,
            agreed_held=deciding.agreed_held,
            records=tuple(deciding.witnesses),
            tables=self.tables.find_all(record, deciding),
        )

    def _settle(self, record: RoundRecord, outcome: decision.Decided | decision.Void, now: float) -> None:
        x = self.context
        listed = dict(outcome.commitments) if isinstance(outcome, decision.Decided) else {}
        for member, commitment in listed.items():
            self._adopt(record, member, commitment, now)
        chosen = {m: c for m, c in listed.items() if not self.is_newcomer(m, record.height)}
        self._decisions[record.height] = chosen
        record.applied, record.is_decided = frozenset(chosen.values()), True
        # R8: the trainer takes its values out for good, or puts them back
        self.own.decide(record.height, chosen, x.member)
        is_void = isinstance(outcome, decision.Void)
        x.log(types.Decided(height=record.height, members=tuple(sorted(chosen)), void=is_void))

    def _adopt(self, record: RoundRecord, member: int, commitment: bytes, now: float) -> None:
        """Start fetching a decided result that was deferred or that gossip dropped."""
        if commitment in record.results.get(member, {}):
            return
        raw = record.find_signed(member, commitment)
        assert raw is not None, "what is decided stands in a shown table"
        self.announcements.take_listed(decode_gossip(raw), record, now=now)

    def _ask(self, record: RoundRecord, deciding: Round, outcome: decision.Undecided, now: float) -> None:
        x = self.context
        x.wait(
            f"decide {record.height}", types.Wait.WITNESS_LISTS, f"the witnesses' lists of round {record.height}",
            until=record.started_at + 2 * x.round_limit_s, then="fall behind", height=record.height,
        )  # fmt: skip
        self.tables.ask(record, deciding, outcome.ask, now, is_one_enough=outcome.is_one_enough)

    # --- applying --------------------------------------------------------------------------------

    def find_gap(self) -> str:
        """The part of the record that was missed, so that the next applies can never be prepared; empty if none was."""
        x = self.context
        # c(h) hashes every set in turn (S1): one round that was never seen, and no later digest can be right
        for height in range(self.weights.next_height, x.height + 1):
            inputs = self._inputs.get(height)
            if inputs is None:
                return f"round {height} was not seen"
            applied = inputs.applied_height
            if applied is None or applied in self._decisions:
                continue
            if x.book.get(applied) is None:
                return f"round {applied} was not seen"
            if self._get_deciding(applied) is None:
                return f"the records of round {decision.get_deciding_height(x.state.config, applied)} were not seen"
        return ""

    def advance(self, now: float) -> bool:
        """Start the next apply if everything it needs is here; return whether it changes the weights."""
        x = self.context
        if not self.weights.can_apply or self.applying is not None or self.weights.next_height > x.height:
            return False
        # in Cooldown too: whoever was behind still gets to the certified weights without a load
        if x.member is None or x.state.run_state not in APPLY_STATES:
            return False
        action = self._prepare(self.weights.next_height, now)
        if action is None:
            return False
        self.applying = action
        x.end_wait("payloads", types.WaitOutcome.ALL_HELD)
        x.do(action)
        return action.run_update

    def _prepare(self, height: int, now: float) -> Apply | None:
        x = self.context
        inputs = self._inputs.get(height)
        if inputs is None:
            return None
        applied: list[tuple[int, KnownResult]] | None = []
        if inputs.applied_height is not None:
            applied = self._collect(inputs.applied_height, height, now)
        if applied is None:
            return None
        lr = compute_step_lr(x.state, inputs.step)
        is_local = x.state.model.optimizer.kind is OptimizerKind.LOCAL_STEPS
        return Apply(
            epoch=x.epoch,
            height=height,
            step=inputs.step,
            lr=lr,
            lr_bits=get_lr_bits(lr),
            run_update=inputs.applied_height is not None,
            full_digest=inputs.is_full,
            random_seed=inputs.random_seed,
            applied=tuple((m, r.commitment) for m, r in applied),
            blobs=tuple(r.header.body_hash for _, r in applied),
            inner_steps=tuple(r.header.inner_steps for _, r in applied) if is_local else (),
        )

    def _collect(self, decided: int, height: int, now: float) -> list[tuple[int, KnownResult]] | None:
        """The decided results in ascending batch start (C5), or None while one is missing (C6)."""
        chosen = self._decisions.get(decided)
        record = self.context.book.get(decided)
        if chosen is None or record is None:
            return None
        for member, commitment in chosen.items():
            self._adopt(record, member, commitment, now)
        found = [(m, record.results.get(m, {}).get(c)) for m, c in chosen.items()]
        missing = [m for m, r in found if r is None or r.status is not PayloadStatus.HELD]
        # C6: waited for, never skipped or replaced, because others apply it
        if missing:
            self.context.wait(
                "payloads", types.Wait.PAYLOADS, types.describe_payloads(describe_awaited(missing), decided, height),
                until=now + self.context.round_limit_s, then="fall behind: keep fetching, stop training",
                height=decided, apply_height=height, members=missing,
            )  # fmt: skip
            return None
        results = {m: r for m, r in found if r is not None}
        order = decision.compute_apply_order({m: r.header.batch_start for m, r in results.items()})
        return [(m, results[m]) for m in order]

    def is_newcomer(self, member: int, height: int) -> bool:
        # M8: counted from joined_height, not from anything the newcomer says
        client = self.context.state.clients[member]
        young = height - client.joined_height < self.context.state.model.cold_start_warmup_steps
        return young and bool(client.flags & ClientFlag.NEWCOMER)

    def on_applied(self, event: Applied) -> Apply | None:
        action = self.applying
        # otherwise an answer from before the weights were lost, or of another epoch
        if action is None or (event.epoch, event.height) != (self.context.epoch, action.height):
            return None
        self.applying = None
        self.weights.note_applied(action, event.reply)
        self._prune()
        self.weights.follow(self.context.state.rounds, self.context.height)
        return action

    def _prune(self) -> None:
        self._inputs = {h: f for h, f in self._inputs.items() if h >= self.weights.next_height}
        needed = self.needed_height
        if needed is not None:
            self._decisions = {h: d for h, d in self._decisions.items() if h >= needed}
            self.tables.forget_before(needed)

    # --- being behind ----------------------------------------------------------------------------

    def count_behind(self) -> bool:
        """Count the rounds in a row that this client is behind; return whether they are too many (C6)."""
        x, weights = self.context, self.weights
        # who heals is behind on purpose, and within a limit of its own (`Healing._is_too_late`)
        behind = x.member is not None and not weights.is_healing and weights.next_height < x.height
        self.behind_rounds = self.behind_rounds + 1 if behind else 0
        return self.behind_rounds > BEHIND_LIMIT_ROUNDS
