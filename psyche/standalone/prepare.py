"""`psyche data prepare`: texts or chats become rows that a run trains on, with labels, positions and lengths."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from random import Random
from typing import Final

import numpy as np

from psyche.data.prepared.packing import Mode, Piece, Row, Samples, build_row, fill, pack
from psyche.data.prepared.sources import Record, Source, read_records
from psyche.data.prepared.writing import RowWriter
from psyche.durable import naming
from psyche.errors import DataError
from psyche.standalone.chats import Encoder
from psyche.wire.data import NOT_COUNTED

SHORT_TURNS: Final = 3  # a chat of several turns has more messages
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """How rows are made; `mode` None: each sample has a row of its own."""

    length: int
    mode: Mode | None
    is_chat: bool = False
    multiturn_only: bool = False
    epochs: int = 1
    seed: int = 42
    limit: int | None = None


@dataclass(slots=True)
class Prepared:
    samples: int = 0  # those in rows, of one epoch
    too_long: int = 0
    too_short: int = 0
    without_answer: int = 0
    rows: int = 0
    tokens: int = 0  # without padding
    counted: int = 0
    first: Row | None = None


def prepare(
    sources: Sequence[Source], encoder: Encoder, settings: Preparation, folder: Path, *,
    reading: Progress, packing: Progress,
) -> Prepared:  # fmt: skip
    """Write the rows into a folder that is not there yet; it is there with all of them, or not at all.

    Raises:
        DataError: a record cannot be used, or none is left.
    """
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
    part.mkdir(parents=True)
    try:
        report = Prepared()
        path = part / "samples"
        with naming(part), Samples(path) as samples:
            for record in _read_all(sources, encoder.fields, settings, reading):
                _add(samples, record, encoder, settings, report)
            _write(samples, encoder, settings, part, report, packing)
        path.unlink()
        if folder.exists():
            folder.rmdir()
        part.rename(folder)
        return report
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _read_all(
    sources: Sequence[Source], fields: Sequence[str], settings: Preparation, progress: Progress
) -> Iterator[Record]:
    total, done = sum(source.size_bytes for source in sources), 0

    def read() -> Iterator[Record]:
        nonlocal done
        for source in sources:
            before = done
            yield from read_records(source, fields, lambda here, before=before: progress(before + here, total))
            done += source.size_bytes

    return islice(read(), settings.limit)


def _add(samples: Samples, record: Record, encoder: Encoder, settings: Preparation, report: Prepared) -> None:
    if settings.multiturn_only and isinstance(record.value, list) and len(record.value) <= SHORT_TURNS:
        report.too_short += 1
        return
    ids, counts = encoder.encode(record)
    is_cut = not settings.is_chat and settings.mode is not None
    if not counts[1:].any():
        report.without_answer += 1
    elif len(ids) > settings.length and not is_cut:
        report.too_long += 1
    else:
        samples.add(ids, counts)
        report.samples += 1


def _write(
    samples: Samples, encoder: Encoder, settings: Preparation, folder: Path, report: Prepared, progress: Progress
) -> None:
    if not len(samples):
        raise DataError(
            f"nothing to train on: {report.too_long} samples have more than {settings.length} tokens, "
            f"{report.without_answer} have nothing that counts, {report.too_short} have at most {SHORT_TURNS} messages"
        )
    tokens, total = samples.finish(), len(samples) * settings.epochs
    writer, done = RowWriter(folder, settings.length), 0
    try:
        for number in range(settings.epochs):
            for pieces in _arrange(samples.shuffle(settings.seed, number), settings, number):
                row = build_row(tokens, pieces, settings.length, encoder.padding)
                writer.add(row)
                report.first = report.first or row
                report.tokens += sum(piece.end - piece.start for piece in pieces)
                report.counted += int(np.count_nonzero(row.labels != NOT_COUNTED))
                done += len(pieces)
                progress(min(done, total), total)
        report.rows = writer.count
        writer.finish()
    finally:
        writer.close()


def _arrange(samples: Iterator[Piece], settings: Preparation, number: int) -> Iterator[list[Piece]]:
    if settings.mode is None:
        return ([piece] for piece in samples)
    if not settings.is_chat:
        return fill(samples, settings.length)
    return pack(samples, settings.length, settings.mode, Random(f"{settings.seed}/{number}"))  # noqa: S311 - no secret


def describe_row(row: Row, encoder: Encoder) -> Iterator[str]:
    """Say of each part of a row what it is and whether it counts, sequence by sequence."""
    start = 0
    for number, length in enumerate(row.sequence_lengths):
        if set(row.inputs[start : start + length].tolist()) == {encoder.padding}:
            yield f"padding, {length} tokens"
            return
        yield f"sequence {number}, {length} tokens"
        places = range(start, start + length)
        for counts, part in groupby(places, lambda place: bool(row.labels[place] != NOT_COUNTED)):
            text = encoder.decode(row.inputs[list(part)].tolist())
            yield f"  {'counted' if counts else 'context'}  {text!r}"
        start += length
