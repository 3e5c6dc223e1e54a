"""The chain of applied sets: what is decided, fetched, applied and digested, height by height (C1 to C6, S1 to S7)."""

from dataclasses import dataclass, field

from psyche.client.actions import Applied, AppliedSet, Apply, AskTable, Healed, StoreReplay, TableArrived
from psyche.client.announcements import Announcements, compute_step_lr
from psyche.client.context import Context
from psyche.client.records import KnownResult, PayloadStatus, RoundRecord
from psyche.core.decision import Decided, DecisionView, Undecided, Void, decide
from psyche.core.header import decode_header
from psyche.core.limits import BEHIND_LIMIT_ROUNDS
from psyche.core.messages import Gossip, Result
from psyche.core.results import compute_results_root
from psyche.core.schedule import get_lr_bits
from psyche.core.state import ZERO32, ClientFlag, Coordinator, Round, RoundFlag
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


@dataclass(slots=True)
class RoundFacts:
    """What an apply needs of its round; kept after the round has left the ring."""

    step: int
    random_seed: int
    is_full: bool
    applied_height: int | None


@dataclass(slots=True)
class Chain:
    """Weights over one epoch. `next_height` is the round whose apply comes next."""

    context: Context
    announcements: Announcements
    loaded: bool = False
    healing: bool = False
    applying: int | None = None
    next_height: int = 0
    chain: bytes = ZERO32
    digests: dict[int, bytes] = field(default_factory=dict)
    full: dict[int, bool] = field(default_factory=dict)
    chains: dict[int, bytes] = field(default_factory=dict)
    diverged: bool = False
    mismatch: bool = False  # a digest of the present weights contradicts the record; cleared when a heal begins
    agreeing: int = 0  # own digests in a row that the record agreed with, since a heal
    contradictions: int = 0
    behind_rounds: int = 0
    _decisions: dict[int, dict[int, bytes]] = field(default_factory=dict)  # height -> member -> commitment
    _records: dict[int, RoundRecord] = field(default_factory=dict)  # of rounds decided but not yet applied
    _facts: dict[int, RoundFacts] = field(default_factory=dict)
    _tables: dict[tuple[int, int], tuple[bytes, ...] | None] = field(default_factory=dict)
    _asked: dict[tuple[int, int], float] = field(default_factory=dict)
    _pending: AppliedSet | None = None
    own_fates: list[SentResult] = field(default_factory=list)
    own_sent: dict[int, bytes] = field(default_factory=dict)  # height -> own commitment, undecided
    _checked: set[int] = field(default_factory=set)

    def begin(self, certified: bytes) -> None:
        """An epoch starts: c(-1) is the certified digest (S1)."""
        self.chain = certified
        self.next_height = 0
        self.applying = self._pending = None
        self.diverged = self.healing = self.mismatch = False
        self.agreeing = self.contradictions = self.behind_rounds = 0
        for known in (self.digests, self.full, self.chains, self._decisions, self._records, self._facts,
                      self._tables, self._asked):  # fmt: skip
            known.clear()
        self._checked.clear()
        # what the last epoch's drain did not decide was never applied (P3)
        self.own_fates += [SentResult(height=h, applied=False) for h in self.own_sent]
        self.own_sent.clear()

    @property
    def is_current(self) -> bool:
        """Whether D of the running round is known."""
        return self.context.state.in_round and self.context.height in self.digests

    def follow(self, now: float) -> None:
        """A new state: remember its rounds' numbers, decide what closed, compare digests."""
        state = self.context.state
        for round_ in state.rounds:
            if round_.members and round_.height <= state.current.height:
                self._remember(state, round_)
        if self.context.member is None:
            self._compare_digests()
            return  # who takes no part in the epoch decides nothing
        for height in sorted(self._facts):
            applied = self._facts[height].applied_height
            if applied is not None and applied not in self._decisions and height >= self.next_height:
                self._try_decide(applied, now)
        self._compare_digests()

    def _remember(self, state: Coordinator, round_: Round) -> None:
        self._facts[round_.height] = RoundFacts(
            step=round_.step,
            random_seed=round_.random_seed,
            is_full=is_full_digest_height(state.config, state.epoch, round_.height),
            applied_height=get_applied_height(state.config, state.epoch, round_.height),
        )

    # --- decisions -------------------------------------------------------------------------------

    def _try_decide(self, height: int, now: float) -> None:
        x = self.context
        record = x.book.get(height) or self._records.get(height)
        deciding = get_round(x.state, height + 1 if x.state.config.overlap else height)
        if record is None or deciding is None or not deciding.flags & RoundFlag.CLOSED:
            return
        self._records[height] = record
        assert get_attested_height(x.state.config, x.state.epoch, deciding.height) == height, "the round decides it"
        outcome = decide(self._make_view(record, deciding))
        if isinstance(outcome, Undecided):
            self._ask(record, deciding, outcome, now)
            return
        x.end_wait(f"decide {height}", "decided")
        self._settle(record, outcome)

    def _make_view(self, record: RoundRecord, deciding: Round) -> DecisionView:
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
            known={m: frozenset(k) for m, k in record.results.items()},
            answered=frozenset(w for (h, w), items in self._tables.items() if h == record.height and items is not None),
        )

    def _settle(self, record: RoundRecord, outcome: Decided | Void) -> None:
        x = self.context
        chosen = dict(outcome.commitments) if isinstance(outcome, Decided) else {}
        self._decisions[record.height] = chosen
        own = self.own_sent.pop(record.height, None)
        if own is not None:
            applied = x.member is not None and chosen.get(x.member) == own
            self.own_fates.append(SentResult(height=record.height, applied=applied))
        x.log("decided", height=record.height, members=sorted(chosen), void=isinstance(outcome, Void))

    def _ask(self, record: RoundRecord, deciding: Round, outcome: Undecided, now: float) -> None:
        x = self.context
        until = record.started_at + self._round_limit_s() * 2
        x.wait(f"decide {record.height}", f"the witnesses' lists of round {record.height}", until, "be behind")
        roots = {w.member: w.results_root for w in deciding.witnesses}
        for witness in outcome.ask:
            key = (record.height, witness)
            if witness == x.member or now - self._asked.get(key, -ASK_AGAIN_S) < ASK_AGAIN_S:
                continue
            self._asked[key] = now
            x.do(AskTable(record.epoch, record.height, witness, x.get_key(witness), roots[witness]))

    def on_table(self, event: TableArrived, now: float) -> None:
        """A witness's list: every signed result in it that the record's root covers is known from now on (C1, C3)."""
        record = self.context.book.get(event.height) or self._records.get(event.height)
        if event.epoch != self.context.epoch or record is None or event.items is None:
            return
        messages = [m for m in map(self._read_signed, event.items) if m is not None]
        commitments = {m.member: m.body.commitment for m in messages if isinstance(m.body, Result)}
        deciding = get_round(
            self.context.state, event.height + 1 if self.context.state.config.overlap else event.height
        )
        claimed = next((w for w in deciding.witnesses if w.member == event.member), None) if deciding else None
        if claimed is None or not self._matches(record, claimed.held, event.root, commitments):
            self.context.log("refused", what="table", reason="the list does not give its root", member=event.member)
            return
        self._tables[event.height, event.member] = event.items
        for message in messages:
            assert isinstance(message.body, Result), "filtered above"
            if record.find(message.body.commitment) is None:
                record.deferred.pop(message.body.commitment, None)
                self.announcements.add(message, decode_header(message.body.header), record, now=now)

    def _read_signed(self, raw: bytes) -> Gossip | None:
        try:
            message = decode_gossip(raw)
            if isinstance(message.body, Result):
                decode_header(message.body.header)
        except WireError:
            return None
        x = self.context
        known = message.run_uid == x.state.run_uid and message.epoch == x.epoch
        known = known and message.member < len(x.state.clients) and isinstance(message.body, Result)
        return message if known and is_signed_by(message, x.get_key(message.member)) else None

    @staticmethod
    def _matches(record: RoundRecord, held: int, root: bytes, commitments: dict[int, bytes]) -> bool:
        owed = {m: c for m, c in commitments.items() if held >> m & 1 and m in record.assignments}
        if any(m not in owed for m in record.assignments if held >> m & 1):
            return False
        return compute_results_root(record.epoch, record.height, held, owed) == root

    # --- applying --------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Start the next apply if everything it needs is here."""
        x = self.context
        if not self.loaded or self.healing or self.applying is not None or not x.state.in_round:
            return
        if self.next_height > x.height:
            return
        entry = self._prepare(self.next_height, now)
        if entry is None:
            return
        self._pending, self.applying = entry, entry.height
        x.end_wait("payloads", "all held")
        x.do(StoreReplay(entry))
        x.do(
            Apply(
                entry.epoch, entry.height, entry.lr, entry.blobs, entry.run_update, entry.full_digest, entry.random_seed
            )
        )

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
        record = self.context.book.get(decided) or self._records.get(decided)
        if chosen is None or record is None:
            return None
        found = [(m, record.results.get(m, {}).get(c)) for m, c in chosen.items() if not self._is_newcomer(m, decided)]
        missing = [m for m, r in found if r is None or r.status is not PayloadStatus.HELD]
        if missing:
            until = now + self._round_limit_s()
            what = f"payloads of members {missing} of round {decided}, to apply in round {height}"
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
        self._records = {h: r for h, r in self._records.items() if h >= entry.height - 2}
        self._compare_digests()
        return entry

    # --- agreement -------------------------------------------------------------------------------

    def _compare_digests(self) -> None:
        state = self.context.state
        for round_ in state.rounds:
            own = self.digests.get(round_.height)
            known = round_.members and round_.flags & RoundFlag.DIGEST and round_.height not in self._checked
            if not known or own is None or round_.height > state.current.height:
                continue
            self._checked.add(round_.height)
            agrees = own == round_.agreed_digest
            self.context.log("digest", height=round_.height, digest=own, agreed=agrees)
            if agrees:
                self.agreeing += 1
                if self.diverged and self.agreeing >= 2:  # S7: done when two in a row agree
                    self.diverged = False
                    self.context.log("healed", height=round_.height)
            else:
                self.agreeing = 0
                self.contradictions += 1
                self.mismatch = True
                if not self.diverged:
                    self.diverged = True  # S4
                    self.context.log("diverged", height=round_.height, digest=own, agreed=round_.agreed_digest)

    def on_healed(self, event: Healed) -> None:
        """The replay's digests replace the own ones; agreement is judged anew."""
        self.healing = False
        self.loaded = True
        self.chain = event.chain
        self.next_height = event.height + 1
        self.digests.update(event.digests)
        self.full.update(event.is_full)
        self._checked = {h for h in self._checked if h not in event.digests}
        self.agreeing = 0
        self._compare_digests()

    def count_behind(self) -> bool:
        """A round has passed without its apply: whether that was one too many (C6)."""
        behind = self.loaded and not self.healing and self.next_height < self.context.height
        self.behind_rounds = self.behind_rounds + 1 if behind else 0
        return self.behind_rounds > BEHIND_LIMIT_ROUNDS

    def _round_limit_s(self) -> int:
        config = self.context.state.config
        return config.max_round_train_time + config.round_witness_time
