"""Which announcements a client believes (R3, R7), before it downloads a byte."""

from dataclasses import dataclass
from enum import Enum

from psyche.client.engine.records import RoundRecord
from psyche.core.encoding.header import ResultHeader, decode_header
from psyche.core.state.gossip import Gossip, Result
from psyche.core.state.state import ZERO32
from psyche.errors import WireError


class Verdict(Enum):
    """What becomes of an announcement."""

    ACCEPT = "accept"
    DEFER = "defer"  # this client cannot judge the base digest yet
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Expected:
    """What every honest header of this run carries."""

    run_uid: bytes
    plan_hash: bytes  # zero: not known, for no model is loaded
    config_hash: bytes
    lr_bits: int
    max_body_bytes: int
    base_digest: bytes | None  # own D(h), or the agreed one; None: not known


def judge_result(
    message: Gossip, record: RoundRecord, trainer_key: bytes, expected: Expected
) -> tuple[Verdict, ResultHeader | None, str]:
    """Judge a signed result of the record's round; the reason is empty where it is accepted (R3)."""
    assert isinstance(message.body, Result), "only results have headers"
    try:
        header = decode_header(message.body.header)
    except WireError as error:
        return Verdict.REFUSE, None, str(error)
    if expected.plan_hash == ZERO32:
        return Verdict.DEFER, header, "no model is loaded yet"
    problem = _find_problem(header, message, record, trainer_key, expected)
    if problem:
        return Verdict.REFUSE, header, problem
    if expected.base_digest is None or header.base_digest != expected.base_digest:
        # kept, not fetched: what D(h) is may still turn out otherwise
        return Verdict.DEFER, header, "base_digest is not this client's D(h)"
    return Verdict.ACCEPT, header, ""


def _find_problem(
    header: ResultHeader, message: Gossip, record: RoundRecord, trainer_key: bytes, expected: Expected
) -> str:
    batch = record.assignments.get(message.member)
    if batch is None:
        return f"member {message.member} owes no batch in round {record.height}"
    wanted = (
        ("run_uid", header.run_uid, expected.run_uid),
        ("epoch", header.epoch, record.epoch),
        ("height", header.height, record.height),
        ("member", header.member, message.member),
        ("step", header.step, record.step),
        ("lr", header.lr_bits, expected.lr_bits),
        ("batch", (header.batch_start, header.batch_end), batch),
        ("plan_hash", header.plan_hash, expected.plan_hash),
        ("config_hash", header.config_hash, expected.config_hash),
        ("trainer_key", header.trainer_key, trainer_key),
    )
    for name, is_value, should in wanted:
        if is_value != should:
            return f"header field {name} is not what this round asks for"
    if not 0 < header.body_len <= expected.max_body_bytes:
        return f"header field body_len {header.body_len} is not in 1..{expected.max_body_bytes}"
    return ""
