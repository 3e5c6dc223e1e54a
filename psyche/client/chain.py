"""The chain of applied sets: what is decided, fetched, applied and digested, height by height (C1 to C6, S1 to S7)."""

from dataclasses import dataclass, field

from psyche.client.actions import Applied, AppliedSet, Apply, AskTable, Healed, StoreReplay, TableArrived
from psyche.client.announcements import Announcements, compute_step_lr
from psyche.client.context import Context, describe_members
from psyche.client.records import KnownResult, PayloadStatus, RoundRecord
from psyche.core.decision import (
    Decided,
    DecisionView,
    Undecided,
    Void,
    decide,
    find_contradictors,
    get_deciding_height,
)
from psyche.core.limits import BEHIND_LIMIT_ROUNDS, MAX_CLIENTS
from psyche.core.messages import Gossip, Result
from psyche.core.results import compute_results_root
from psyche.core.schedule import get_lr_bits
from psyche.core.state import ZERO32, ClientFlag, Coordinator, Round, RoundFlag, RunState, WitnessRecord
from psyche.core.timeline import (
    get_applied_height,
    get_attested_height,
    get_round,
    is_full_digest_height,
)
from psyche.errors import WireError
from psyche.wire.crypto import compute_chain_digest, compute_state_digest
from psyche.wire.gossip import decode_gossip, is_signed_by
from psyche.wire.trainer import SentResult

ASK_AGAIN_S = 2.0
EVIDENCE_WITNESSES = 2  # whose lists are read for a second signature, where none is needed to decide
APPLY_STATES = (RunState.ROUND_TRAIN, RunState.ROUND_WITNESS, RunState.COOLDOWN)


@dataclass(slots=True)
class RoundFacts:
    """What an apply needs of its round; kept after the round has left the ring."""

    step: int
    random_seed: int
    is_full: bool
    applied_height: int | None


@dataclass(slots=True)
class OpenDecision:
    """A closed round whose set this client cannot name yet, and what it knew when it last tried."""

    outcome: Undecided
    knowledge: tuple[int, int]


@dataclass(slots=True)
class Chain:
    """Weights over one epoch. `next_height` is the round whose apply comes next."""

    context: Context
    announcements: Announcements
    loaded: bool = False
    healing: bool = False
    fetching: bool = False  # the agreed weights are on their way: this round's batch may still be trained
    applying: int | None = None
    next_height: int = 0
    chain: bytes = ZERO32
    digests: dict[int, bytes] = field(default_factory=dict)
    full: dict[int, bool] = field(default_factory=dict)
    chains: dict[int, bytes] = field(default_factory=dict)
    diverged: bool = False
    diverged_at: int | None = None  # the first height that showed it
    mismatch: bool = False  # a digest of the present weights contradicts the record; cleared when a heal begins
    replayed: bool = False  # the present weights come from a replay that is not yet agreed with (S7)
    agreeing: int = 0  # own digests in a row that the record agreed with, since a heal
    contradictions: int = 0  # digests of a replay that are not the agreed ones
    behind_rounds: int = 0
    own_fates: list[SentResult] = field(default_factory=list)
    own_sent: dict[int, bytes] = field(default_factory=dict)  # height -> own commitment, undecided
    _decisions: dict[int, dict[int, bytes]] = field(default_factory=dict)  # height -> member -> commitment
    _open: dict[int, OpenDecision] = field(default_factory=dict)  # by height of the results
    _facts: dict[int, RoundFacts] = field(default_factory=dict)
    _answered: set[tuple[int, int]] = field(default_factory=set)  # (height, witness) whose list was read
    _asked: dict[tuple[int, int], float] = field(default_factory=dict)
    _pending: AppliedSet | None = None
    _checked: set[int] = field(default_factory=set)

    def clear(self) -> None:
        """Another epoch: nothing of the last one counts here."""
        self.loaded = self.healing = False
        self._forget_weights()
        for known in (self._decisions, self._open, self._facts, self._answered, self._asked):
            known.clear()
        # what the last epoch's drain did not decide was never applied (P3)
        self.own_fates += [SentResult(height=h, applied=False) for h in self.own_sent]
        self.own_sent.clear()

    def begin(self, certified: bytes) -> None:
        """The weights of the epoch's start are there: c(-1) is their digest (S1). Rounds may have begun already."""
        self._forget_weights()
        self.chain = certified
        self.loaded = True

    def _forget_weights(self) -> None:
        self.applying = self._pending = None
        self.diverged = self.mismatch = self.replayed = False
        self.diverged_at = None
        self.fetching = False
        self.next_height = self.agreeing = self.contradictions = self.behind_rounds = 0
        for known in (self.digests, self.full, self.chains, self._checked):
            known.clear()

    @property
    def needed_height(self) -> int | None:
        """The first round whose results may still have to be applied; None where this client applies nothing."""
        if self.context.member is None:
            return None
        return self.next_height - (2 if self.context.state.config.overlap else 1)

    @property
    def is_open(self) -> bool:
        """Whether a closed round is still to be decided."""
        return bool(self._open)

    def follow(self, now: float) -> None:
        """A new state: remember its rounds' numbers, decide what closed, compare digests."""
        state = self.context.state
        for round_ in state.rounds:
            if round_.members and round_.height <= state.current.height:
                self._remember(state, round_)
        self.decide(now)
        self._compare_digests()

    def _remember(self, state: Coordinator, round_: Round) -> None:
        self._facts[round_.height] = RoundFacts(
            step=round_.step,
            random_seed=round_.random_seed,
            is_full=is_full_digest_height(state.config, state.epoch, round_.height),
            applied_height=get_applied_height(state.config, state.epoch, round_.height),
        )

    # --- decisions -------------------------------------------------------------------------------

    def decide(self, now: float) -> None:
        """Decide what has closed; who takes no part in the epoch decides nothing."""
        if self.context.member is None:
            self._open.clear()
            return
        for height in sorted(self._facts):
            applied = self._facts[height].applied_height
            if applied is not None and applied not in self._decisions and height >= self.next_height:
                self._try_decide(applied, now)

    def _get_deciding(self, height: int) -> Round | None:
        """The round whose records decide the results of `height`, if it stands in the state."""
        state = self.context.state
        return get_round(state, get_deciding_height(state.config, height))

    def _try_decide(self, height: int, now: float) -> None:
        x = self.context
        record, deciding = x.book.get(height), self._get_deciding(height)
        if record is None or deciding is None or not deciding.flags & RoundFlag.CLOSED:
            return
        assert get_attested_height(x.state.config, x.state.epoch, deciding.height) == height, "the round decides it"
        view = self._make_view(record, deciding)
        knowledge = (sum(map(len, view.known.values())), len(view.answered))
        known = self._open.get(height)
        if known is None or known.knowledge != knowledge:
            outcome = decide(view)
            if not isinstance(outcome, Undecided):
                self._open.pop(height, None)
                x.end_wait(f"decide {height}", "decided")
                if isinstance(outcome, Decided):
                    self._ask_tables(record, deciding, find_contradictors(view, outcome)[:EVIDENCE_WITNESSES], now)
                self._settle(record, outcome, deciding, now)
                return
            known = self._open[height] = OpenDecision(outcome, knowledge)
        self._ask(record, deciding, known.outcome, now)

    def _make_view(self, record: RoundRecord, deciding: Round) -> DecisionView:
        # what was signed counts, whatever this client thinks of it: the record decides
        known = {m: frozenset(record.signed.get(m, ())) for m in record.signed}
        for member, results in record.results.items():
            known[member] = known.get(member, frozenset()) | frozenset(results)
        return DecisionView(
            epoch=record.epoch,
            attested_height=record.height,
            members=record.members,
            owed=sum(1 << m for m in record.assignments),
            seed=deciding.seed,
            n=deciding.witnesses_expected,
            q=deciding.quorum,
            agreed_root=deciding.agreed_root if deciding.flags & RoundFlag.ROOT else None,
            agreed_held=deciding.agreed_held,
            records=tuple(deciding.witnesses),
            known=known,
            answered=frozenset(w for h, w in self._answered if h == record.height),
        )

    def _settle(self, record: RoundRecord, outcome: Decided | Void, deciding: Round, now: float) -> None:
        x = self.context
        listed = dict(outcome.commitments) if isinstance(outcome, Decided) else {}
        adopted = [self._adopt(record, member, commitment, now) for member, commitment in listed.items()]
        if isinstance(outcome, Decided) and outcome.by_root and all(adopted):
            record.keep_table(deciding.agreed_root, listed)  # W7: who lacks the list may ask anyone
        chosen = {m: c for m, c in listed.items() if not self._is_newcomer(m, record.height)}
        self._decisions[record.height] = chosen
        own = self.own_sent.pop(record.height, None)
        if own is not None:
            applied = x.member is not None and chosen.get(x.member) == own
            self.own_fates.append(SentResult(height=record.height, applied=applied))
        x.log("decided", height=record.height, members=sorted(chosen), void=isinstance(outcome, Void))

    def _adopt(self, record: RoundRecord, member: int, commitment: bytes, now: float) -> bool:
        """A decided result that was put off is one to fetch from now on; whether it is known."""
        raw = record.signed.get(member, {}).get(commitment)
        if raw is not None and commitment not in record.results.get(member, {}):
            self.announcements.take_listed(decode_gossip(raw), record, now=now)
        return commitment in record.results.get(member, {})

    def _ask(self, record: RoundRecord, deciding: Round, outcome: Undecided, now: float) -> None:
        x = self.context
        until = record.started_at + self._round_limit_s() * 2
        x.wait(f"decide {record.height}", f"the witnesses' lists of round {record.height}", until, "be behind")
        self._ask_tables(record, deciding, outcome.ask, now)

    def _ask_tables(self, record: RoundRecord, deciding: Round, witnesses: tuple[int, ...], now: float) -> None:
        x = self.context
        roots = {w.member: w.results_root for w in deciding.witnesses}
        for witness in witnesses:
            key = (record.height, witness)
            if witness == x.member or now - self._asked.get(key, -ASK_AGAIN_S) < ASK_AGAIN_S:
                continue
            self._asked[key] = now
            x.do(AskTable(record.epoch, record.height, witness, x.get_key(witness), roots[witness]))

    def on_table(self, event: TableArrived, now: float) -> None:
        """A witness's list: every signed result that its root covers is known from now on (C1, C3)."""
        record = self.context.book.get(event.height)
        deciding = self._get_deciding(event.height)
        if event.epoch != self.context.epoch or record is None or deciding is None or event.items is None:
            return
        claimed = next((w for w in deciding.witnesses if w.member == event.member), None)
        messages = self._read_list(record, claimed, event)
        if messages is None:
            self.context.log("refused", what="table", reason="the list does not give its root", member=event.member)
            return
        self._answered.add((event.height, event.member))
        for message in messages:
            self.announcements.take_listed(message, record, now=now)

    def _read_list(
        self, record: RoundRecord, claimed: WitnessRecord | None, event: TableArrived
    ) -> list[Gossip] | None:
        """The results that the witness's root covers; None where the list does not give it."""
        if claimed is None or claimed.results_root != event.root:
            return None
        owing = {m for m in record.assignments if claimed.held >> m & 1}
        found: dict[int, Gossip] = {}
        for raw in (event.items or ())[:MAX_CLIENTS]:
            message = self._read_signed(raw, record)
            if message is not None and message.member in owing:
                found[message.member] = message
        commitments = {m: g.body.commitment for m, g in found.items() if isinstance(g.body, Result)}
        root = compute_results_root(record.epoch, record.height, claimed.held, commitments)
        return list(found.values()) if set(found) == owing and root == event.root else None

    def _read_signed(self, raw: bytes, record: RoundRecord) -> Gossip | None:
        """A result of the record's round, signed by its trainer; None for anything else."""
        try:
            message = decode_gossip(raw)
        except WireError:
            return None
        x = self.context
        named = (message.run_uid, message.epoch, message.height) == (x.state.run_uid, record.epoch, record.height)
        if not named or not isinstance(message.body, Result) or not record.members >> message.member & 1:
            return None
        return message if is_signed_by(message, x.get_key(message.member)) else None

    # --- applying --------------------------------------------------------------------------------

    def find_gap(self) -> str:
        """Why the next applies can never be prepared: what was not seen of the record; empty where they can."""
        x = self.context
        for height in range(self.next_height, x.height + 1):
            facts = self._facts.get(height)
            if facts is None:
                return f"round {height} was not seen"
            applied = facts.applied_height
            if applied is None or applied in self._decisions:
                continue
            if x.book.get(applied) is None:
                return f"round {applied} was not seen"
            if self._get_deciding(applied) is None:
                return f"the records of round {get_deciding_height(x.state.config, applied)} were not seen"
        return ""

    def advance(self, now: float) -> bool:
        """Start the next apply if everything it needs is here; whether it changes the weights."""
        x = self.context
        if not self.loaded or self.healing or self.applying is not None or self.next_height > x.height:
            return False
        if x.member is None or x.state.run_state not in APPLY_STATES:
            return False
        entry = self._prepare(self.next_height, now)
        if entry is None:
            return False
        self._pending, self.applying = entry, entry.height
        x.end_wait("payloads", "all held")
        x.do(StoreReplay(entry))
        x.do(
            Apply(
                entry.epoch, entry.height, entry.lr, entry.blobs, entry.run_update, entry.full_digest, entry.random_seed
            )
        )
        return entry.run_update

    def _prepare(self, height: int, now: float) -> AppliedSet | None:
        x = self.context
        facts = self._facts.get(height)
        if facts is None:
            return None
        applied: list[tuple[int, KnownResult]] | None = []
        if facts.applied_height is not None:
            applied = self._collect(facts.applied_height, height, now)
        if applied is None:
            return None
        lr = compute_step_lr(x.state, facts.step)
        return AppliedSet(
            epoch=x.epoch,
            height=height,
            step=facts.step,
            lr=lr,
            lr_bits=get_lr_bits(lr),
            run_update=facts.applied_height is not None,
            full_digest=facts.is_full,
            random_seed=facts.random_seed,
            applied=tuple((m, r.commitment) for m, r in applied),
            blobs=tuple(r.header.body_hash for _, r in applied),
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
        if missing:
            until = now + self._round_limit_s()
            what = f"payloads of {describe_members(missing)} of round {decided}, to apply in round {height}"
            self.context.wait("payloads", what, until, "be behind: go on fetching, do not train")
            return None
        results = [(m, r) for m, r in found if r is not None]
        return sorted(results, key=lambda pair: pair[1].header.batch_start)

    def _is_newcomer(self, member: int, height: int) -> bool:
        # M8: counted from joined_height, not from anything the newcomer says
        client = self.context.state.clients[member]
        young = height - client.joined_height < self.context.state.model.cold_start_warmup_steps
        return young and bool(client.flags & ClientFlag.NEWCOMER)

    def on_applied(self, event: Applied) -> AppliedSet | None:
        """The trainer has applied: c and D of that height."""
        if event.epoch != self.context.epoch or event.height != self.applying or self._pending is None:
            return None
        entry, self._pending, self.applying = self._pending, None, None
        self.chain = compute_chain_digest(
            self.chain, entry.epoch, entry.height, entry.step, entry.lr_bits, entry.applied
        )
        self.chains[entry.height] = self.chain
        self.digests[entry.height] = compute_state_digest(self.chain, event.reply.weight_part)
        self.full[entry.height] = event.reply.is_full
        self.next_height = entry.height + 1
        self._prune()
        self._compare_digests()
        return entry

    def _prune(self) -> None:
        """What was applied is not looked at again."""
        self._facts = {h: f for h, f in self._facts.items() if h >= self.next_height}
        needed = self.needed_height
        if needed is not None:
            self._decisions = {h: d for h, d in self._decisions.items() if h >= needed}
            self._answered = {key for key in self._answered if key[0] >= needed}
            self._asked = {key: at for key, at in self._asked.items() if key[0] >= needed}

    # --- agreement -------------------------------------------------------------------------------

    def _compare_digests(self) -> None:
        state = self.context.state
        for round_ in sorted(state.rounds, key=lambda r: r.height):
            own = self.digests.get(round_.height)
            known = round_.members and round_.flags & RoundFlag.DIGEST and round_.height not in self._checked
            if not known or own is None or round_.height > state.current.height:
                continue
            self._checked.add(round_.height)
            agrees = own == round_.agreed_digest
            self.context.log("digest", height=round_.height, digest=own, agreed=agrees)
            if agrees:
                self.agreeing += 1
            else:
                self._note_contradiction(round_)
        if self.diverged and self.agreeing >= 2:  # S7: done when the last two in a row agree
            self.settle()

    def _note_contradiction(self, round_: Round) -> None:
        self.agreeing = 0
        self.contradictions += self.replayed  # S7: what counts is how often the replay, the judge, contradicts
        self.mismatch = True
        if not self.diverged:
            self.diverged = True  # S4
            self.diverged_at = round_.height
            self.context.log(
                "diverged", height=round_.height, digest=self.digests[round_.height], agreed=round_.agreed_digest
            )

    def on_healed(self, event: Healed) -> None:
        """Digests of a replay, or of weights that peers had, replace the own ones; agreement is judged anew."""
        self.healing = self.fetching = False
        self.replayed = True
        self.chain = event.chain
        self.chains[event.height] = event.chain
        self.next_height = event.height + 1
        self.digests.update(event.digests)
        self.full.update(event.is_full)
        self._checked = {h for h in self._checked if h not in event.digests}
        self.agreeing = 0
        # the momentum is that of the epoch's start, or none: it knows nothing of results sent since (R8)
        self.own_fates.clear()
        self.own_sent.clear()
        self._compare_digests()

    def settle(self) -> None:
        """The weights in the trainer were checked against an agreed digest: they are right until a digest differs."""
        self.diverged = self.mismatch = self.replayed = False
        self.diverged_at = None
        self.contradictions = 0
        self.context.log("healed", height=self.next_height - 1)

    def count_behind(self) -> bool:
        """A round has passed without its apply: whether that was one too many (C6)."""
        behind = self.context.member is not None and not self.healing and self.next_height < self.context.height
        self.behind_rounds = self.behind_rounds + 1 if behind else 0
        return self.behind_rounds > BEHIND_LIMIT_ROUNDS

    def _round_limit_s(self) -> int:
        config = self.context.state.config
        return config.max_round_train_time + config.round_witness_time
