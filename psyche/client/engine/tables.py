"""Tables behind the results roots on record: rebuilt from known results, fetched, checked, and served (W7)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from psyche.client.engine.actions import AskTable, TableArrived
from psyche.client.engine.announcements import Announcements
from psyche.client.engine.context import EngineContext
from psyche.client.engine.records import RoundRecord, ShownTable
from psyche.core.committee.decision import find_table, get_deciding_height
from psyche.core.committee.results import compute_results_root
from psyche.core.state.bits import get_members
from psyche.core.state.gossip import Gossip, Result
from psyche.core.state.limits import MAX_CLIENTS
from psyche.core.state.state import Round, RoundFlag, WitnessRecord
from psyche.core.state.timeline import get_attested_height, get_round
from psyche.errors import WireError
from psyche.telemetry import types
from psyche.wire.gossip import decode_gossip, is_signed_by

ASK_AGAIN_S: Final = 2.0
MOST_AT_ONCE: Final = 8  # tables of a round asked for within `ASK_AGAIN_S`: each may take 150 kB
FEW_AT_ONCE: Final = 2  # the same if any one table is enough (C1)
OTHERS_ASKED: Final = 3  # members asked beside the witness, from the second attempt on


@dataclass(slots=True)
class _Asked:
    count: int = 0
    at: float = float("-inf")
    is_waiting: bool = False


@dataclass(slots=True)
class Tables:
    """Finds the tables behind the roots of witness records; they are kept in the records of their rounds."""

    context: EngineContext
    announcements: Announcements
    _tried: dict[tuple[int, int], int] = field(default_factory=dict)  # (height, witness) -> `count_known` then
    _asked: dict[tuple[int, int], _Asked] = field(default_factory=dict)

    def clear(self) -> None:
        self._tried.clear()
        self._asked.clear()

    def forget_before(self, height: int) -> None:
        self._tried = {key: size for key, size in self._tried.items() if key[0] >= height}
        self._asked = {key: asked for key, asked in self._asked.items() if key[0] >= height}

    # --- known tables ------------------------------------------------------------------------------

    def find_all(self, record: RoundRecord, deciding: Round) -> dict[int, Mapping[int, bytes]]:
        """The available tables by witness: those received, and those rebuilt from known results.

        If a root is agreed, only tables of that root: no other one can decide (C1).
        """
        is_agreed = bool(deciding.flags & RoundFlag.ROOT)
        wanted = [w for w in deciding.witnesses if w.held and (not is_agreed or w.results_root == deciding.agreed_root)]
        self._make_up(record, deciding, wanted)
        return {w.member: table.commitments for w in wanted if (table := _get_kept(record, w)) is not None}

    def show(self, root: bytes) -> tuple[bytes, ...] | None:
        """The signed results behind a root that this client reported, or can rebuild from the record; else None."""
        for record in self.context.book.all():
            if root in record.tables:
                return record.tables[root].items
        state = self.context.state
        for round_ in state.rounds:
            attested = self.context.book.get(get_attested_height(state.config, state.epoch, round_.height))
            if attested is not None:
                self._make_up(attested, round_, [w for w in round_.witnesses if w.held and w.results_root == root])
                if root in attested.tables:
                    return attested.tables[root].items
        return None

    def _make_up(self, record: RoundRecord, deciding: Round, witnesses: Iterable[WitnessRecord]) -> None:
        """Keep the tables that can be rebuilt from known results; try each again only when more is known."""
        known = record.count_known()
        untried = [w for w in witnesses if self._tried.get((record.height, w.member)) != known]
        lacking = [w for w in untried if _get_kept(record, w) is None]
        if not lacking:
            return
        owed, signed = _get_owed(record), record.get_signed()
        for witness in lacking:
            commitments = find_table(witness, owed, deciding.seed, record.epoch, record.height, signed)
            if commitments is not None:
                record.keep_table(witness.results_root, witness.held, commitments, signed)
        known = record.count_known()  # rebuilt tables are not new knowledge
        self._tried.update({(record.height, w.member): known for w in lacking})

    # --- requests for tables -----------------------------------------------------------------------

    def ask(
        self, record: RoundRecord, deciding: Round, witnesses: Iterable[int], now: float, *, is_one_enough: bool = False
    ) -> None:
        """Ask for these witnesses' tables, a few at a time, those asked for least often first.

        If one of them is enough, ask for only two until one has been outstanding for `ASK_AGAIN_S`.
        """
        asked = {w: self._asked.setdefault((record.height, w), _Asked()) for w in witnesses}
        is_overdue = any(a.count and now - a.at >= ASK_AGAIN_S for a in asked.values())
        most = FEW_AT_ONCE if is_one_enough and not is_overdue else MOST_AT_ONCE
        due = sorted((w for w, a in asked.items() if now - a.at >= ASK_AGAIN_S), key=lambda w: (asked[w].count, w))
        questions: dict[tuple[bytes, int, int], int] = {}  # root, held, member to ask -> a witness that reported them
        for witness in due[: max(0, most - self._count_waiting(record.height, now))]:
            claimed = next(w for w in deciding.witnesses if w.member == witness)
            for member in self._choose_asked(record, deciding, claimed, asked[witness].count):
                questions.setdefault((claimed.results_root, claimed.held, member), witness)
            self._asked[record.height, witness] = _Asked(asked[witness].count + 1, now, is_waiting=True)
        for (root, _, member), witness in questions.items():
            self.context.do(AskTable(record.epoch, record.height, witness, self.context.get_key(member), root))

    def _count_waiting(self, height: int, now: float) -> int:
        return sum(h == height and a.is_waiting and now - a.at < ASK_AGAIN_S for (h, _), a in self._asked.items())

    def _choose_asked(self, record: RoundRecord, deciding: Round, claimed: WitnessRecord, turn: int) -> list[int]:
        """The witness itself, and from the second attempt on others in turn: it may be gone or hide its table (W7)."""
        witness = [] if claimed.member == self.context.member else [claimed.member]
        alike = {w.member for w in deciding.witnesses if w.results_root == claimed.results_root}
        members, _ = self.context.get_sources(record.members)
        others = sorted((m for m in members if m != claimed.member), key=lambda m: m not in alike)
        first = max(0, turn - 1) * OTHERS_ASKED
        count = min(OTHERS_ASKED, len(others)) if turn or not witness else 0
        return [*witness, *(others[(first + i) % len(others)] for i in range(count))]

    def on_table(self, event: TableArrived) -> None:
        """Keep a received table if it gives the root on record and every entry is signed (C1, C3, R7)."""
        x = self.context
        asked = self._asked.get((event.height, event.member)) if event.epoch == x.epoch else None
        if asked is not None:
            asked.is_waiting = False
        record = x.book.get(event.height)
        deciding = get_round(x.state, get_deciding_height(x.state.config, event.height))
        if event.epoch != x.epoch or record is None or deciding is None or event.items is None:
            return
        claimed = next((w for w in deciding.witnesses if w.member == event.member), None)
        if claimed is not None and _get_kept(record, claimed) is not None:
            return
        table = self._read(record, claimed, event)
        if table is None:
            why = "the list does not give its root"
            x.log(types.Refused(what=types.Refusable.TABLE, reason=why, member=event.member))
            return
        record.tables[event.root] = table
        for raw in table.items:
            self.announcements.note_signed(decode_gossip(raw), record)

    def _read(self, record: RoundRecord, claimed: WitnessRecord | None, event: TableArrived) -> ShownTable | None:
        if claimed is None or claimed.results_root != event.root or not claimed.held:
            return None
        owing = claimed.held & _get_owed(record)
        found: dict[int, tuple[Gossip, bytes]] = {}
        for raw in (event.items or ())[:MAX_CLIENTS]:
            message = self._read_named(raw, record)
            if message is not None and owing >> message.member & 1:
                found[message.member] = (message, raw)
        listed = {m: g.body.commitment for m, (g, _) in sorted(found.items()) if isinstance(g.body, Result)}
        root = compute_results_root(record.epoch, record.height, claimed.held, listed)
        if root != event.root or list(listed) != get_members(owing):
            return None
        if not all(is_signed_by(message, self.context.get_key(m)) for m, (message, _) in found.items()):
            return None
        return ShownTable(claimed.held, listed, tuple(found[m][1] for m in listed))

    def _read_named(self, raw: bytes, record: RoundRecord) -> Gossip | None:
        try:
            message = decode_gossip(raw)
        except WireError:
            return None
        named = (message.run_uid, message.epoch, message.height)
        expected = (self.context.state.run_uid, record.epoch, record.height)
        return message if named == expected and isinstance(message.body, Result) else None


def _get_owed(record: RoundRecord) -> int:
    return sum(1 << m for m in record.assignments)


def _get_kept(record: RoundRecord, witness: WitnessRecord) -> ShownTable | None:
    """The kept table of a witness; None if its root was kept under another `held`."""
    table = record.tables.get(witness.results_root)
    return table if table is not None and table.held == witness.held else None
