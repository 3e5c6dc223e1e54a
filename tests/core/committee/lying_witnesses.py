"""Rounds of up to 256 members and 32 witnesses without an agreed root, with every lie a witness can tell about them.

A `Round` here is a record and what lies behind it: the true tables of the honest witnesses, which anybody may get,
and those of liars, which only some may get. Blooms of honest witnesses hold what they held, and what was planted:
a false positive is any commitment, for who grinds finds one.
"""

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from psyche.core.committee.bloom import compute_bloom
from psyche.core.committee.decision import Decision, DecisionView, Undecided, decide, find_table
from psyche.core.committee.elections import compute_liar_bound, compute_quorum
from psyche.core.committee.results import compute_results_root
from psyche.core.state.bits import compute_bits
from psyche.core.state.state import WitnessRecord
from psyche.testing.builders import build_hash

SEED = build_hash("seed of the deciding round")
EPOCH, HEIGHT = 3, 7
Commitments = Mapping[int, bytes]


def commit(member: int, version: int = 0) -> bytes:
    return build_hash("commitment", member, version)


def build_record(
    witness: int, table: Commitments | None, held: int | None = None, bloom: Collection[bytes] | None = None
) -> WitnessRecord:
    """The record of a witness that holds exactly this table, or says otherwise; None: its root stands for no list."""
    listed = table or {}
    bits = compute_bits(listed) if held is None else held
    root = build_hash("garbage", witness) if table is None else compute_results_root(EPOCH, HEIGHT, bits, table)
    held_bloom = compute_bloom(SEED, witness, listed.values() if bloom is None else bloom)
    return WitnessRecord(member=witness, held=bits, broadcast_bloom=held_bloom, results_root=root)


@dataclass
class Case:
    """A closed round; member indexes of witnesses are 0 to n - 1."""

    n: int
    members: int  # how many
    records: list[WitnessRecord] = field(default_factory=list)
    tables: dict[int, Commitments] = field(default_factory=dict)  # behind the roots, where there is one
    honest: set[int] = field(default_factory=set)
    signed: dict[int, list[bytes]] = field(default_factory=dict)  # by member

    def add(self, witness: int, held: int, bloom: Collection[bytes], table: Commitments | None) -> None:
        """One witness's record, and the table behind it."""
        self.records.append(build_record(witness, table, held, bloom))
        if table is not None:
            self.tables[witness] = table

    def view(self, shown: Mapping[int, Commitments]) -> DecisionView:
        """What a client that can show these tables decides by."""
        everybody = (1 << self.members) - 1
        return DecisionView(
            members=everybody, owed=everybody, seed=SEED, n=self.n, q=compute_quorum(self.n), agreed_root=None,
            agreed_held=0, records=self.records, tables=shown,
        )  # fmt: skip


@dataclass
class Client:
    """Knows some signed results, and gets the tables of some witnesses, if it asks for them."""

    case: Case
    known: dict[int, set[bytes]]
    reachable: set[int]
    shown: dict[int, Commitments] = field(default_factory=dict)

    def decide(self) -> Decision:
        """What it comes to by asking as it is told to, until nobody answers any more."""
        while True:
            self._find_tables()
            decision = decide(self.case.view(self.shown))
            if not isinstance(decision, Undecided):
                return decision
            came = [w for w in decision.ask if w in self.reachable and w in self.case.tables and w not in self.shown]
            if not came:
                return decision
            for witness in came[:4]:
                self.shown[witness] = self.case.tables[witness]
                for member, commitment in self.case.tables[witness].items():
                    self.known.setdefault(member, set()).add(commitment)

    def _find_tables(self) -> None:
        everybody = (1 << self.case.members) - 1
        for record in self.case.records:
            if record.member not in self.shown:
                table = find_table(record, everybody, SEED, EPOCH, HEIGHT, self.known)
                if table is not None:
                    self.shown[record.member] = table


def build_case(rng: random.Random, n: int, members: int, *, equivocators: int) -> Case:
    """Up to f liars, some members with two results or many, and false positives wherever they may do harm."""
    liars = set(rng.sample(range(n), rng.randint(0, compute_liar_bound(n))))
    case = Case(n, members, honest=set(range(n)) - liars)
    several = set(rng.sample(range(members), equivocators))
    case.signed = {m: [commit(m, v) for v in range(rng.choice((2, 2, 3, 6)) if m in several else 1)]
                   for m in range(members)}  # fmt: skip
    targets = [c for m in several for c in case.signed[m]]
    planted = rng.choice((0.0, 0.1, 0.5, 1.0))
    share = rng.choice((0.6, 0.9, 1.0))  # of the members that each witness holds
    for witness in rng.sample(range(n), n):
        if witness in case.honest and rng.random() < 0.05:
            continue  # silent
        listed = {
            m: rng.choice(case.signed[m][: rng.choice((1, 2, 6))]) for m in range(members) if rng.random() < share
        }
        bloom = [*listed.values(), *(c for c in targets if rng.random() < planted)]
        if witness in case.honest:
            case.add(witness, compute_bits(listed), bloom, listed)
        else:
            _add_liar(rng, case, witness, listed, targets)
    return case


def _add_liar(
    rng: random.Random, case: Case, witness: int, listed: Commitments, targets: Collection[bytes]
) -> None:  # fmt: skip
    """Any bits, any bloom, and a table, or none, that need not agree with either."""
    held = compute_bits(listed) | rng.choice((0, (1 << case.members) - 1))
    pool = [*listed.values(), *targets]
    bloom = [c for c in pool if rng.random() < rng.choice((0.1, 0.9))]
    whole = {m: listed.get(m, case.signed[m][-1]) for m in range(case.members) if held >> m & 1}
    case.add(witness, held, bloom, rng.choice((None, whole)))


def build_client(rng: random.Random, case: Case, *, reaches_honest: bool) -> Client:
    """One that has heard two results of a member at the most, some or none, and reaches some liars."""
    share = rng.choice((0.0, 0.9, 1.0))
    known = {m: set(rng.sample(signed, min(len(signed), rng.randint(1, 2))))
             for m, signed in case.signed.items() if rng.random() < share}  # fmt: skip
    reachable = {w for w in range(case.n) if (w in case.honest and reaches_honest) or rng.random() < 0.5}
    return Client(case, known, reachable)
