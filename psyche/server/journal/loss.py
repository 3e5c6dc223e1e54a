"""What a broken journal has lost, said before anybody gives it up, and set aside when somebody does (K1)."""

from dataclasses import dataclass
from typing import Final

from psyche.core.state.messages import HealthCheck, NameCheckpoint, WarmupWitness, WitnessMessage
from psyche.core.state.state import Coordinator
from psyche.errors import WireError
from psyche.server.journal.events import decode_event
from psyche.server.journal.journal import JournalDisk, Record, get_numbers, get_segment_name, scan_segment

ASIDE: Final = "broken-"  # what the name of a file that was set aside begins with


@dataclass(frozen=True, slots=True)
class Loss:
    """Where the journal breaks off although records follow.

    Args:
        segment: the first number of the segment that is broken, or that something before is missing from.
        offset: the byte at which it breaks off.
        seq: the first record that is lost.
        behind: the whole records that lie behind it, in this segment and the later ones.
    """

    segment: int
    offset: int
    seq: int
    behind: tuple[Record, ...]

    @property
    def last_seq(self) -> int:
        """The last record that is known to have been there."""
        return self.behind[-1].seq if self.behind else self.seq

    def refuse(self) -> str:
        """Why the server does not start, and the ways out."""
        name = get_segment_name(self.segment)
        return (
            f"journal: {name}, byte {self.offset}: record {self.seq} is broken or missing, and {_count(self.behind)} "
            f"behind it, up to record {self.last_seq}, so this is not a torn tail: records that were acknowledged are "
            "lost. Restore the state folder from another or an older copy, or give up what is lost: `psyche server "
            "run --accept-loss` says how much that is, and keeps the broken files aside"
        )

    def describe(self, state: Coordinator) -> str:
        """What is given up, where `state` is the run as it stands before the first lost record."""
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
    """The whole records of all segments that begin after `after_first`."""
    found: list[Record] = []
    for first in get_numbers(disk.names(), "journal-"):
        if first > after_first:
            scan = scan_segment(disk.read(get_segment_name(first)), first)
            found += [*scan.records, *scan.behind]
    return tuple(found)


def find_newest_round(records: tuple[Record, ...]) -> tuple[int, int] | None:
    """The newest (epoch, height) that a record names; (epoch, 0) where only an epoch is named."""
    return max((round_ for record in records if (round_ := _get_round(record)) is not None), default=None)


def _get_round(record: Record) -> tuple[int, int] | None:
    try:
        match decode_event(record.kind, record.body).message:
            case WitnessMessage(epoch=epoch, height=height) | HealthCheck(epoch=epoch, height=height):
                return epoch, height
            case WarmupWitness(epoch=epoch) | NameCheckpoint(epoch=epoch):
                return epoch, 0
            case _:
                return None
    except WireError:  # a later version's record: it only says less
        return None


def set_aside(disk: JournalDisk, loss: Loss) -> list[str]:
    """Take the broken rest out of the journal, the newest file first; everything stays under another name.

    Raises:
        OSError: the disk failed; what is left is still refused, or cut already.
    """
    kept: list[str] = []
    for first in reversed(get_numbers(disk.names(), "journal-")):
        if first < loss.segment:
            continue
        name = get_segment_name(first)
        aside = _choose_name(disk, name)
        disk.replace(aside, disk.read(name))  # on disk before the original goes
        if first == loss.segment and loss.offset > 0:
            disk.truncate(name, loss.offset)
        else:
            disk.remove(name)
        kept.append(aside)
    return kept


def _choose_name(disk: JournalDisk, name: str) -> str:
    names, number = disk.names(), 1
    while f"{ASIDE}{number}-{name}" in names:
        number += 1
    return f"{ASIDE}{number}-{name}"
