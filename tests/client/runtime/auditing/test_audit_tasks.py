"""Files of evidence that a client keeps (V13)."""

import os
from pathlib import Path
from typing import Any

import pytest

from psyche.client.engine import actions as act
from psyche.client.runtime.audit_tasks import AuditTasks
from psyche.client.runtime.trainer_inputs import DataAhead, PayloadCache
from psyche.core.encoding.evidence import NEEDED, Evidence, SignedResult, decode_evidence
from psyche.core.encoding.header import NumericClass, ResultHeader, encode_header
from psyche.core.state.enums import AuditReason
from psyche.core.state.state import ZERO32
from psyche.errors import DataError
from psyche.testing.builders import build_hash

TOKENS = b"\1\0\0\0"
PAYLOAD, LAST, SENT, OPENING = (build_hash(name) for name in ("payload", "last", "sent", "opening"))
HEADER = encode_header(
    ResultHeader(
        ZERO32, 0, 5, 3, 4, 0, 8, 9, ZERO32, ZERO32, ZERO32, ZERO32, ZERO32, ZERO32, 8, 9, NumericClass.FP32, ZERO32
    )
)  # fmt: skip


class Rows:
    async def get(self, start: int, end: int, *, epoch: int, height: int) -> bytes:
        assert (start, end, epoch, height) == (8, 9, 0, 3)
        return TOKENS


def build_tasks(*held: bytes) -> AuditTasks:
    payloads, rows = PayloadCache(), Rows()
    for blob in held:
        payloads.keep(blob, 0, 9, b"body of " + blob[:2])
    nothing: Any = None
    data: Any = rows
    return AuditTasks(nothing, DataAhead(data), payloads, nothing, nothing)


def build_action(reason: AuditReason, piece: int = 0, *, overlap: bool = True) -> act.KeepEvidence:
    link = act.Link(ZERO32, ZERO32, ZERO32, 0.1, LAST if overlap else SENT, OPENING)
    case = act.Case(5, 3, 8, 9, 1, (0,), 0, PAYLOAD, LAST if overlap else ZERO32, 0.1, link)
    parts: dict[str, Any] = {"table": b"table", "values": (0.5,) * 64} if "table" in NEEDED[reason] else {}
    evidence = Evidence(reason, piece, 0.02, 0.0, bytes(165_192), (SignedResult(HEADER, bytes(64)),), HEADER, **parts)
    return act.KeepEvidence(0, 5, 3, case, evidence)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("reason", [AuditReason.GRADIENT, AuditReason.SIGNS, AuditReason.LINK, AuditReason.MOMENTUM])
async def test_a_file_has_what_its_accusation_is_judged_by(reason: AuditReason, overlap: bool, tmp_path: Path) -> None:
    action = build_action(reason, 7, overlap=overlap)
    path = await build_tasks(PAYLOAD, LAST, SENT, OPENING).write_evidence(action, tmp_path, 9)
    assert path.name == f"epoch-00000-round-000003-member-005-{reason.name.lower()}-00007.evidence"
    found, needed = decode_evidence(path.read_bytes()), NEEDED[reason]
    last = b"body of " + (LAST if overlap else SENT)[:2] if needed else b""
    assert (found.results, found.last_result) == (action.evidence.results, HEADER + last)
    assert [found.tokens, found.payload, found.opening] == [
        TOKENS if "tokens" in needed else b"",
        b"body of " + PAYLOAD[:2] if "payload" in needed else b"",
        b"body of " + OPENING[:2] if "opening" in needed else b"",
    ]


async def test_what_is_no_longer_here_is_said_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"what it needs, {PAYLOAD.hex()[:16]}, is no longer here"):
        await build_tasks(LAST).write_evidence(build_action(AuditReason.SIGNS), tmp_path, 9)
    assert list(tmp_path.iterdir()) == []


async def test_the_newest_files_are_kept_and_what_else_is_in_the_folder_stays(tmp_path: Path) -> None:
    folder, tasks = tmp_path / "evidence", build_tasks()
    for number in range(4):
        path = await tasks.write_evidence(build_action(AuditReason.WITHHELD, 9 - number), folder, 2)
        os.utime(path, (number, number))
        (folder / "notes.txt").touch()
    assert sorted(path.name[-15:] for path in folder.iterdir()) == ["-00006.evidence", "-00007.evidence", "notes.txt"]
