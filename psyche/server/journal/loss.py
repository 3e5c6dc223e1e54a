"""Lost records of a broken journal: reporting them, and setting them aside when the owner accepts the loss (K1)."""

from dataclasses import dataclass
from itertools import count
from typing import Final

from psyche.core.state.messages import (
    HealthCheck,
    JudgeChallenge,
    NameCheckpoint,
    ReportAudit,
    WarmupWitness,
    WitnessMessage,
)
from psyche.core.state.state import Coordinator
from psyche.errors import WireError
from psyche.server.journal.changes import decode_change
from psyche.server.journal.journal import JournalDisk, JournalError, Record, get_numbers, get_segment_name, scan_segment

ASIDE: Final = "broken-"  # prefix of the names of files that were set aside


@dataclass(frozen=True, slots=True)
class Loss:
    """A broken place in the journal that is followed by valid records."""

    segment: int  # the first record number of the segment that is broken, or that follows a gap
    offset: int  # of the broken place in the segment, in bytes
    seq: int  # the first lost record
    behind: tuple[Record, ...]  # the complete ones after it, in this segment and later ones

    @property
    def last_seq(self) -> int:
        return self.behind[-1].seq if self.behind else self.seq

    def refuse(self) -> str:
        """Build the error that the server does not start, with the ways out."""
        name = get_segment_name(self.segment)
        return (
            f"journal: {name}, byte {self.offset}: record {self.seq} is broken or missing, and {_count(self.behind)} "
            f"behind it, up to record {self.last_seq}, so this is not a torn tail: records that were acknowledged are "
            "lost. Restore the state folder from another or an older copy, or give up what is lost: `psyche server "
            "run --accept-loss` says how much that is, and keeps the broken files aside"
        )

    def describe(self, state: Coordinator) -> str:
        """Describe the accepted loss; `state` is the run before the first lost record."""
        progress = state.progress
        upto = find_newest_round(self.behind)
        newest = "none of the lost ones names a round" if upto is None else (
            f"the newest lost one that names a round is of epoch {upto[0]}, height {upto[1]}"
        )  # fmt: skip
        return (
            f"loss accepted: records {self.seq} to {self.last_seq} are given up ({_count(self.behind)} among them). "
            f"The record goes back to epoch {progress.epoch}, height {state.current.height}, step {progress.step}; "
            f"{newest}. Clients of the lost rounds end, because the record goes back: start them again"
        )


def _count(behind: tuple[Record, ...]) -> str:
    return "1 whole record lies" if len(behind) == 1 else f"{len(behind)} whole records lie"


def find_later_records(disk: JournalDisk, after_first: int) -> tuple[Record, ...]:
    found: list[Record] = []
    for first in get_numbers(disk.names(), "journal-"):
        if first > after_first:
            scan = scan_segment(disk.read(get_segment_name(first)), first)
            found += [*scan.records, *scan.behind]
    return tuple(found)


def find_newest_round(records: tuple[Record, ...]) -> tuple[int, int] | None:
    """Find the newest (epoch, height) that a record names; (epoch, 0) if it names only an epoch."""
    return max((round_ for record in records if (round_ := _get_round(record)) is not None), default=None)


def _get_round(record: Record) -> tuple[int, int] | None:
    try:
        match decode_change(record.kind, record.body).message:
            case WitnessMessage() | HealthCheck() | ReportAudit() | JudgeChallenge() as message:
                return message.epoch, message.height
            case WarmupWitness(epoch=epoch) | NameCheckpoint(epoch=epoch):
                return epoch, 0
            case _:
                return None
    except WireError:  # a record of a later version: skip it
        return None


def set_aside(disk: JournalDisk, loss: Loss) -> list[str]:
    """Move the broken rest out of the journal, newest file first; everything is kept under another name.

    Raises:
        JournalError: the disk failed; the rest of the journal is either still refused or already cut.
    """
    kept: list[str] = []
    try:
        for first in reversed([first for first in get_numbers(disk.names(), "journal-") if first >= loss.segment]):
            name, known = get_segment_name(first), set(disk.names())
            aside = next(new for number in count(1) if (new := f"{ASIDE}{number}-{name}") not in known)
            disk.replace(aside, disk.read(name))  # on disk before the original is removed
            if first == loss.segment and loss.offset > 0:
                disk.truncate(name, loss.offset)
            else:
                disk.remove(name)
            kept.append(aside)
    except OSError as error:
        raise JournalError(
            f"journal: the broken files cannot be set aside ({error}); free disk space and try again"
        ) from error
    return kept
