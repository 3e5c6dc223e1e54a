"""What an auditor concludes from numbers (`docs/protocol-reference.md`, V6, V10, V11).

Everybody who has the same tables and weights comes to the same verdict, but for the noise of machines, which the
tolerance allows for.
"""

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from statistics import median
from typing import Final

from psyche.core.encoding.header import NumericClass
from psyche.core.encoding.work import MAX_MAGNITUDE, Values
from psyche.core.state.state import AuditReason, Config

MAX_TOLERANCE: Final = 0.04
FAIL_FACTOR: Final = 3  # a piece fails from this many tolerances on
UNCLEAR_LIMIT: Final = 3  # so many unclear audits
UNCLEAR_WINDOW: Final = 8  # among so many fail
LEAST_AGREEMENT: Final = 0.8  # of a payload's signs with those of its whole round's gradient
SUSPECTED_ONCE_IN_ROUNDS: Final = 64
_PPM: Final = 1_000_000


class Verdict(IntEnum):
    """What an audit says of a piece."""

    OK = 0
    UNCLEAR = 1
    FAIL = 2


def compute_distance(claimed: Values, own: Values) -> float:
    """E, how far the claimed values of a piece are from the own ones, relative to these (V10).

    Where the own ones are all zero there is no measure: 0 if the claimed ones are too, otherwise 2^60.
    """
    norm, away = math.hypot(*own), math.dist(claimed, own)
    return min(away / norm, MAX_MAGNITUDE) if norm else MAX_MAGNITUDE * (away > 0)


def compute_calibration(rows: Mapping[int, Values]) -> dict[int, float]:
    """How far each member's calibration row is from the median of all rows of its numeric class (V6)."""
    if not rows:
        return {}
    middle = tuple(median(column) for column in zip(*rows.values(), strict=True))
    return {member: compute_distance(row, middle) for member, row in rows.items()}


def compute_tolerance(config: Config, numeric_class: NumericClass, distances: Mapping[int, float]) -> float:
    """The tolerance of a numeric class in an epoch; `distances` are those of the class's calibration rows (V10)."""
    ppm = config.tolerance_fp32_ppm if numeric_class is NumericClass.FP32 else config.tolerance_bf16_ppm
    spread = 2 * median(distances.values()) if distances else 0.0
    return min(max(ppm / _PPM, spread), MAX_TOLERANCE)


def find_odd(distances: Mapping[int, float], tolerance: float) -> list[int]:
    """The members whose arithmetic is off: in this epoch they accuse nobody and judge nobody (V6)."""
    return sorted(member for member, distance in distances.items() if distance > tolerance)


def find_unfit(distances: Mapping[int, float], from_all: Mapping[int, float]) -> list[int]:
    """Of the members whose arithmetic is off, those whose work would be taken for that of cheats (V6).

    They are as far off from the rows of all classes: few members of a class cannot make another one of it seem unfit.
    """
    return sorted(m for m, distance in distances.items() if min(distance, from_all[m]) > MAX_TOLERANCE)


def compute_own_tolerance(tolerance: float, distance: float) -> float:
    """The tolerance of one member of a class, whose calibration row is off by `distance` (V6).

    A machine that is a little off is not taken for a cheat. One that is off as far as cheats are has no excuse: else
    spoiling the calibration row would be a licence to cheat.
    """
    return min(max(tolerance, distance), MAX_TOLERANCE)


def judge_piece(distance: float, tolerance: float) -> Verdict:
    if distance <= tolerance:
        return Verdict.OK
    return Verdict.FAIL if distance > FAIL_FACTOR * tolerance else Verdict.UNCLEAR


def is_repeated(verdicts: Sequence[Verdict]) -> bool:
    """Whether a member's audits, the newest last, are unclear too often (V10)."""
    return verdicts[-UNCLEAR_WINDOW:].count(Verdict.UNCLEAR) >= UNCLEAR_LIMIT


def judge_accused(reason: AuditReason, distance: float, tolerance: float) -> bool | None:
    """Whether a piece shows that its member is guilty; None if that cannot be said (V12)."""
    verdict = judge_piece(distance, tolerance)
    if reason is AuditReason.REPEATED:
        return verdict is not Verdict.OK
    return None if verdict is Verdict.UNCLEAR else verdict is Verdict.FAIL


def compute_agreement(sent: Sequence[float], own: Sequence[float]) -> float:
    """The share of the places sent where payload and gradient have one sign; 0 if nothing is sent (V11)."""
    same = sum(a * b > 0 for a, b in zip(sent, own, strict=True))
    return same / len(sent) if sent else 0.0


def judge_round(agreement: float, reason: AuditReason, distance: float, tolerance: float) -> AuditReason | None:
    """What a whole round recomputed shows: NONE if it is right, None if nothing can be said (V11).

    `reason` and `distance` are those of the opened momentum, NONE and -1 if there is none: then the signs decide.
    """
    if reason is not AuditReason.NONE:
        return reason
    if distance >= 0:
        verdict = judge_piece(distance, tolerance)
        return {Verdict.OK: AuditReason.NONE, Verdict.UNCLEAR: None, Verdict.FAIL: AuditReason.LINK}[verdict]
    if agreement < 0:
        return None
    return AuditReason.SIGNS if agreement < LEAST_AGREEMENT else AuditReason.NONE


def find_suspect(agreements: Mapping[int, float], suspected: Mapping[int, int], height: int) -> int | None:
    """Whose round is recomputed as a whole: the member that agreed least, none twice in 64 rounds (V11).

    `agreements` are those of the last four rounds; `suspected` says in which round a member was chosen last.
    """
    free = [m for m in agreements if m not in suspected or height - suspected[m] >= SUSPECTED_ONCE_IN_ROUNDS]
    return min(free, key=lambda member: (agreements[member], member)) if free else None
