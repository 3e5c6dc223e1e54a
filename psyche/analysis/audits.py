"""What a run's verification has found, from the events of its clients, or from what its backend and members say."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from msgspec.structs import replace

from psyche.core.committee.verdicts import Verdict
from psyche.core.state.enums import AuditReason
from psyche.telemetry import types
from psyche.telemetry.challenges import ACCUSATIONS
from psyche.telemetry.text import format_number
from psyche.wire.report import (
    MAX_AUDITED,
    MAX_OUTCOME_CHARS,
    Accusation,
    AuditedMember,
    SelfReport,
    Verification,
    clean_text,
)

MAX_DISTANCES: Final = 10_000  # of one member; newer ones are counted alone
MAX_MEMBERS: Final = 1_024
MAX_CHALLENGES: Final = 64
SHOWN_MEMBERS: Final = 8
SHOWN_KEYS: Final = 8
_TAKEN: Final = frozenset({types.Audited, types.ArithmeticOff, types.Challenged, types.ChallengeEnded})
_Place = tuple[int, int, bytes]  # epoch, height, and whose work it is
NameKey = Callable[[bytes], str]


@dataclass(slots=True)
class _Found:
    """What was found of one member."""

    audits: int = 0
    distances: list[float] = field(default_factory=list[float])
    odd: types.ArithmeticOff | None = None

    def summarize(self, key: bytes) -> AuditedMember:
        middle, worst = (median(self.distances), max(self.distances)) if self.distances else (0.0, 0.0)
        odd_by, odd_epoch = (0.0, 0) if self.odd is None else (self.odd.distance, self.odd.epoch)
        return AuditedMember(key, self.audits, middle, worst, odd_by, odd_epoch)


@dataclass(slots=True)
class AuditsView:
    """Counts audits, and how far members' work is from what others compute; challenges are told once."""

    verdicts: Counter[Verdict] = field(default_factory=Counter[Verdict])
    challenges: dict[tuple[int, int, bytes], Accusation] = field(
        default_factory=dict[tuple[int, int, bytes], Accusation]
    )
    status: Verification | None = None  # of a backend
    _found: dict[bytes, _Found] = field(default_factory=lambda: defaultdict(_Found))
    _told: list[AuditedMember] = field(default_factory=list[AuditedMember])

    def take(self, event: types.Event) -> None:
        if type(event) not in _TAKEN:  # most events are others
            return
        match event:
            case types.Audited():
                self._on_audited(event)
            case types.ArithmeticOff():
                self._on_odd(event)
            case types.Challenged() | types.ChallengeEnded():
                self._on_challenge(event)
            case _:
                pass

    def _on_audited(self, event: types.Audited) -> None:
        self.verdicts[event.verdict] += 1
        found = self._find(event.key)
        if found is not None and not event.report and event.distance >= 0:
            found.audits += 1
            if len(found.distances) < MAX_DISTANCES:
                found.distances.append(event.distance)

    def _on_odd(self, event: types.ArithmeticOff) -> None:
        if (found := self._find(event.key)) is not None and event.distance >= 0:
            found.odd = event

    def _find(self, digits: str) -> _Found | None:
        key = _read_key(digits)
        return self._found[key] if key and (key in self._found or len(self._found) < MAX_MEMBERS) else None

    def _on_challenge(self, event: types.Challenged | types.ChallengeEnded) -> None:
        target, accuser = _read_key(event.target), _read_key(event.accuser)
        key = (event.epoch, event.height, target)
        if not target or not accuser or (key in self.challenges and isinstance(event, types.Challenged)):
            return
        ended = {}
        if isinstance(event, types.ChallengeEnded):
            outcome = clean_text(event.outcome, MAX_OUTCOME_CHARS)
            ended = {"guilty": event.guilty, "innocent": event.innocent, "outcome": outcome}
        self.challenges[key] = Accusation(event.epoch, event.height, target, accuser, event.reason, **ended)
        if len(self.challenges) > MAX_CHALLENGES:
            del self.challenges[min(self.challenges)]

    # --- what a backend says -----------------------------------------------------------------------

    def take_status(self, status: Verification | None) -> None:
        self.status = status
        if status is not None:
            self.challenges = {(one.epoch, one.height, one.target): one for one in status.challenges}

    def take_reports(self, reports: Iterable[SelfReport]) -> None:
        """Put together what members say that they found."""
        self.verdicts.clear()
        told: dict[bytes, list[AuditedMember]] = defaultdict(list)
        for report in reports:
            self.verdicts.update(dict(zip(Verdict, report.audits, strict=True)))
            for one in report.audited:
                told[one.key].append(one)
        self._told = [_merge(rows) for rows in told.values()]

    # --- summaries -----------------------------------------------------------------------------------

    def count(self) -> tuple[int, int, int]:
        """The audits made that were fine, unclear, and failed."""
        fine, unclear, failed = (self.verdicts[one] for one in Verdict)
        return fine, unclear, failed

    def list_members(self, most: int = MAX_AUDITED) -> tuple[AuditedMember, ...]:
        """Those whose work is off by most, and whose arithmetic is."""
        members = [*(found.summarize(key) for key, found in self._found.items()), *self._told]
        return tuple(sorted(members, key=lambda one: (-max(one.worst, one.odd_by), one.key))[:most])

    def describe(self, name: NameKey = lambda key: key.hex()) -> Iterator[str]:
        """What was audited and found, in lines; none where nothing was. `name` names whose key begins so."""
        counts = self.count()
        if self.status is not None:
            yield _describe_status(self.status)
        if any(counts):
            yield "audits: {} made, {} fine, {} unclear, {} failed".format(sum(counts), *counts)
        for one in self.list_members(SHOWN_MEMBERS):
            yield f"  {name(one.key)}: {'; '.join(_describe_member(one))}"
        for _, one in sorted(self.challenges.items()):
            yield "  " + _describe_challenge(one, name)
        if self.status is not None and self.status.banned:
            keys, more = self.status.banned[:SHOWN_KEYS], len(self.status.banned) - SHOWN_KEYS
            others = f" and {more} more" if more > 0 else ""
            yield f"  banned from the run: {', '.join(name(key) for key in keys)}{others}"


def _read_key(digits: str) -> bytes:
    """The start of a key; empty if this is none."""
    try:
        key = bytes.fromhex(digits)
    except ValueError:
        return b""
    return key if 8 <= len(key) <= 32 else b""


def _merge(rows: Sequence[AuditedMember]) -> AuditedMember:
    """What several say of one member: the median is that of their medians, each as often as it audited."""
    ordered = sorted((one for one in rows if one.audits), key=lambda one: one.median)
    audits = sum(one.audits for one in ordered)
    middle, passed = 0.0, 0
    for one in ordered:
        passed += one.audits
        if 2 * passed >= audits:
            middle = one.median
            break
    odd = max(rows, key=lambda one: (one.odd_by > 0, one.odd_epoch))
    worst = max(one.worst for one in rows)
    return replace(odd, audits=audits, median=middle, worst=worst)


def _describe_status(status: Verification) -> str:
    end = "juries put out who fails" if status.convicts else "what they find is only shown"
    counts = f"{status.passed} passed, {status.doubted} doubted, {status.accused} accused"
    made = status.passed + status.doubted + status.accused
    reports = f"; on record {format_number(made, 'report')} of the last rounds: {counts}" if made else ""
    return f"{status.percent} % of the members verify, {end}{reports}"


def _describe_member(one: AuditedMember) -> Iterator[str]:
    if one.audits:
        audits = format_number(one.audits, "audit")
        yield f"off by {one.median:.1e} in the median, {one.worst:.1e} at worst, in {audits}"
    if one.odd_by:
        yield f"its arithmetic is off by {one.odd_by:.1e} in epoch {one.odd_epoch}"


def _describe_challenge(one: Accusation, name: NameKey) -> str:
    reason = ACCUSATIONS[AuditReason(one.reason)] if one.reason in {*AuditReason} else f"reason {one.reason}"
    votes = f"{one.guilty} guilty, {one.innocent} innocent"
    end = one.outcome or "its jury has not decided yet"
    what = f"epoch {one.epoch}, round {one.height}"
    said = "" if reason in end else f" ({reason})"
    return f"{name(one.target)}, accused by {name(one.accuser)} of its work in {what}{said}: {end}; {votes}"
