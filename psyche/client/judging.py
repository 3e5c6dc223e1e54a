"""What evidence says of a member: who has the weights and the replay store computes it again (V13).

`read_case` checks all that can be checked without weights, so that nothing is judged that its member did not sign.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from psyche.client.engine.actions import Link
from psyche.client.engine.announcements import compute_step_lr
from psyche.client.engine.auditing.desk import Answer, read_answer
from psyche.client.engine.auditing.questions import build_link, build_local
from psyche.client.engine.auditing.works import count_pieces, find_pieces, has_local_steps, is_calibrated
from psyche.client.runtime.weights.replay import Stored, make_apply_request
from psyche.core.committee.assignment import compute_assignments
from psyche.core.committee.elections import get_verifiers
from psyche.core.committee.verdicts import (
    FAIL_FACTOR,
    LEAST_AGREEMENT,
    compute_distance,
    compute_own_tolerance,
    compute_tolerance,
    judge_accused,
)
from psyche.core.encoding.account import decode_state
from psyche.core.encoding.evidence import NEEDED, Evidence, SignedResult, decode_evidence
from psyche.core.encoding.header import ResultHeader, ResultKind, decode_header
from psyche.core.encoding.plan import decode_plan
from psyche.core.encoding.work import compute_difference, compute_pieces, decode_report, decode_table
from psyche.core.state.gossip import Gossip, Result
from psyche.core.state.limits import HEADER_BYTES, SIGNATURE_BYTES
from psyche.core.state.state import ZERO32, AuditReason, Coordinator, DataType, Round
from psyche.core.state.timeline import get_round
from psyche.errors import TrainerError, WireError
from psyche.modeling.verification.openings import decode_pair, draw_chunks
from psyche.wire.crypto import (
    blake3_hash,
    blob_id_of,
    compute_chain_digest,
    compute_commitment,
    compute_data_hash,
    compute_state_digest,
)
from psyche.wire.gossip import is_signed_by
from psyche.wire.ports import Trainer
from psyche.wire.trainer import ApplyRequest, AuditRequest, AuditTarget, LinkRequest, LoadRequest, get_applied_heights

ReadSet = Callable[[int, int], Stored | None]
_GIVEN_BACK: Final = "what was opened says nothing: it is not known what the momentum was before this round"


@dataclass(frozen=True, slots=True)
class Case:
    """What a member is accused of, and the trained work that it is about: its own, or of whom its report is about."""

    evidence: Evidence
    state: Coordinator
    accused: ResultHeader
    trained: ResultHeader
    piece: int  # of the trained work
    last: ResultHeader | None  # that of the round before the trained one
    last_body: bytes
    tolerance: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether the member is guilty; None if that cannot be said; and what was found, in words."""

    guilty: bool | None
    found: str


def read_case(raw: bytes) -> Case:
    """Read evidence, and check that its parts belong together and to the member.

    Raises:
        WireError: it is damaged, or a part is not what the member signed; nothing can be said of it then.
    """
    evidence = decode_evidence(raw)
    state = decode_state(evidence.record)
    accused = _check_signed(evidence.results[0], state)
    trained, piece = _follow_reports(evidence, state, accused)
    needed = NEEDED[evidence.reason]
    if "table" in needed and blob_id_of(evidence.table) != accused.work_root:
        raise WireError("evidence: table: it is not the one of the header")
    has_labels = state.model.data_type is DataType.FINETUNING
    if "tokens" in needed and compute_data_hash(evidence.tokens, has_labels=has_labels) != trained.data_hash:
        raise WireError("evidence: tokens: they are not those of the header")
    if "payload" in needed and blob_id_of(evidence.payload) != trained.body_hash:
        raise WireError("evidence: payload: it is not the one of the header")
    if needed != NEEDED[AuditReason.GRADIENT] and accused is not trained:
        raise WireError("evidence: results: reports have no momentum and no payload to judge")
    last, body = _read_last(evidence, trained, state)
    if needed and not evidence.last_result:
        _check_unneeded(trained, state)
    least = compute_tolerance(state.config, trained.numeric_class, {})
    if evidence.tolerance < least:
        raise WireError(f"evidence: tolerance: {evidence.tolerance:g}, but that of the run is {least:g}")
    tolerance = compute_own_tolerance(evidence.tolerance, evidence.calibration)
    return Case(evidence, state, accused, trained, piece, last, body, tolerance)


def _check_signed(result: SignedResult, state: Coordinator) -> ResultHeader:
    """The header of a result, if it is its member's, and of what the record has it do in that round."""
    header = decode_header(result.header)
    round_ = _get_round(state, header.height)
    if (header.run_uid, header.epoch) != (state.run_uid, state.progress.epoch):
        raise WireError("evidence: record: it is of another run or epoch")
    if header.step != round_.step:
        raise WireError(f"evidence: header: round {header.height} has step {round_.step}, not {header.step}")
    if header.result_kind is ResultKind.AUDIT:
        if header.member not in get_verifiers(round_, state.config):
            raise WireError(f"evidence: header: member {header.member} is no verifier of round {header.height}")
        if blob_id_of(result.report) != header.body_hash:
            raise WireError("evidence: report: it is not the one of the header")
    elif compute_assignments(round_, state.config).get(header.member) != (header.batch_start, header.batch_end):
        raise WireError(f"evidence: header: member {header.member} does not have this batch in round {header.height}")
    body = Result(compute_commitment(result.header), result.header)
    message = Gossip(header.run_uid, header.epoch, header.height, header.member, body, result.signature)
    if not is_signed_by(message, state.clients[header.member].p2p):
        raise WireError(f"evidence: signature: member {header.member} did not sign this header")
    return header


def _get_round(state: Coordinator, height: int) -> Round:
    found = get_round(state, height)
    if found is None:
        raise WireError(f"evidence: record: it does not have round {height}")
    return found


def _follow_reports(evidence: Evidence, state: Coordinator, accused: ResultHeader) -> tuple[ResultHeader, int]:
    """The trained work that the accused piece or row is about, and its piece."""
    header, row = accused, evidence.piece
    for before, result in zip(evidence.results, evidence.results[1:], strict=False):
        rows = decode_report(before.report)
        _check_piece(row, range(len(rows)))
        audit, sooner = rows[row], header.height - 1
        header = _check_signed(result, state)
        is_report = header.result_kind is ResultKind.AUDIT
        if (header.height, header.member, is_report) != (sooner, audit.target, audit.is_report):
            raise WireError(f"evidence: results: row {row} of the report is not about the result that follows")
        row = audit.piece
    _check_piece(row, find_pieces(header, state))
    return header, row


def _check_piece(piece: int, pieces: range) -> None:
    if piece not in pieces:
        raise WireError(f"evidence: piece {piece}: the member has {len(pieces)} from {pieces.start} on")


def _read_last(evidence: Evidence, trained: ResultHeader, state: Coordinator) -> tuple[ResultHeader | None, bytes]:
    """The header that the trained one names as its member's last, if it is of the round before, and its payload."""
    raw, body = evidence.last_result[:HEADER_BYTES], evidence.last_result[HEADER_BYTES:]
    if not raw:
        return None, b""
    if compute_commitment(raw) != trained.prev_commitment:
        _check_other(raw, body, trained, state)
        return None, b""
    last = decode_header(raw)
    if (last.epoch, last.height) != (trained.epoch, trained.height - 1):
        return None, b""
    if body and blob_id_of(body) != last.body_hash:
        raise WireError("evidence: last result: its payload is not the one of its header")
    return last, body


def _check_other(raw: bytes, signature: bytes, trained: ResultHeader, state: Coordinator) -> None:
    """Check that the member has signed this in the round before: then what it names is nothing of that round (V4)."""
    is_other = len(signature) == SIGNATURE_BYTES
    other = _check_signed(SignedResult(raw, signature), state) if is_other else None
    if other is None or (other.member, other.height) != (trained.member, trained.height - 1):
        raise WireError("evidence: last result: it is not the one that the header names")


def _check_unneeded(trained: ResultHeader, state: Coordinator) -> None:
    """Who trained nothing in the round before has no last result to look ahead with."""
    if not state.config.overlap or not trained.height or trained.prev_commitment == ZERO32:
        return
    if trained.member in compute_assignments(_get_round(state, trained.height - 1), state.config):
        raise WireError("evidence: last result: it is not the one that the header names")


async def judge(
    trainer: Trainer, case: Case, load: LoadRequest, read_set: ReadSet, tolerance: float | None = None
) -> Judgement:
    """Compute again what the member is accused of, at the weights that the replayed sets give.

    `load` names the weights that the epoch began with.

    Raises:
        TrainerError: the weights are others than those of the record or of the header, or a set is missing.
        WireError: what was opened is not of this member.
    """
    tolerance = case.tolerance if tolerance is None else tolerance
    if case.evidence.reason >= AuditReason.SIGNS and has_local_steps(case.state):
        return Judgement(False, "nobody looks at whole rounds of local steps: only inner steps are computed again")
    match case.evidence.reason:
        case AuditReason.WITHHELD | AuditReason.PATHS:
            return Judgement(None, "what a member opens, or does not, is not signed: only its jury has seen it")
        case AuditReason.MOMENTUM:
            return _judge_momentum(case)
        case AuditReason.SIGNS | AuditReason.SELECTION | AuditReason.LINK:
            return _judge_whole(await _compute(trainer, case, load, read_set), tolerance)
        case _:
            return _judge_piece(case, await _compute(trainer, case, load, read_set), tolerance)


def _judge_momentum(case: Case) -> Judgement:
    seed = _get_round(case.state, case.accused.height).seed  # of no chunk: only headers are compared
    link = build_link(case.state, case.trained, case.last, seed, (case.last.prev_commitment,) if case.last else ())
    if link is None:
        return Judgement(None, _GIVEN_BACK)
    guilty = link is AuditReason.MOMENTUM
    return Judgement(guilty, "its momentum before is " + ("not " if guilty else "") + "that of its result before")


def _judge_piece(case: Case, answer: Answer, tolerance: float) -> Judgement:
    pieces = count_pieces(case.accused, case.state)
    table = decode_table(case.evidence.table, pieces, is_calibrated=is_calibrated(case.accused))
    distance = compute_distance(compute_difference(table, case.evidence.piece), answer.values)
    keeper = compute_distance(case.evidence.values, answer.values)
    found = f"what it shows is off by {distance:.2g}, what was computed for this file by {keeper:.2g}"
    guilty = judge_accused(case.evidence.reason, distance, tolerance)
    return Judgement(guilty, f"{found}; {_describe_limits(tolerance)}")


def _judge_whole(answer: Answer, tolerance: float) -> Judgement:
    guilty = answer.judge_accused(tolerance)
    if answer.link_reason is not AuditReason.NONE:
        return Judgement(guilty, "what it sent is not the largest part of its momentum")
    if answer.link_distance < 0:
        found = f"{answer.agreement:.0%} of the signs sent are those of its gradient"
        return Judgement(guilty, f"{found}; at least {LEAST_AGREEMENT:.0%} must be")
    found = f"its momentum grew by something that differs by {answer.link_distance:.2g} from its gradient"
    return Judgement(guilty, f"{found}; {_describe_limits(tolerance)}")


def _describe_limits(tolerance: float) -> str:
    return f"up to {tolerance:.2g} is noise, more than {FAIL_FACTOR * tolerance:.2g} fails"


async def _compute(trainer: Trainer, case: Case, load: LoadRequest, read_set: ReadSet) -> Answer:
    reply = await trainer.load(load)
    if compute_state_digest(reply.chain, reply.weight_root) != case.state.certified.digest:
        first = case.state.certified.digest.hex()[:16]
        raise TrainerError(f"{load.path}: these are not the weights {first} that the epoch began with")
    if blake3_hash(reply.plan) != case.trained.plan_hash:
        raise TrainerError("the model has another plan of chunks than the one that the header names")
    sets, applied = await _replay(trainer, case, read_set)
    target = _make_target(case, reply.plan, applied)
    height, seed = case.trained.height, _get_round(case.state, case.accused.height).seed
    applies = tuple(sets[number] for number in get_applied_heights(height))
    # a verifier draws two sketches of each piece, its own under the seed of its round
    request = AuditRequest(height=height, seeds=(seed, seed), targets=(target,), applies=applies)
    audited = await trainer.audit(request)
    refused = audited.refused or audited.targets[0].refused
    if refused:
        raise TrainerError(f"it cannot be computed: {refused}")
    answer = read_answer(audited.targets[0])
    if answer is None:
        raise TrainerError("it cannot be computed: a number is beyond what a table can hold")
    return answer


async def _replay(trainer: Trainer, case: Case, read_set: ReadSet) -> tuple[list[ApplyRequest], Collection[bytes]]:
    """Make the weights of the trained work; return the sets, and the commitments of all results in them."""
    chain, digest = case.state.certified.digest, ZERO32
    sets, applied, epoch = list[ApplyRequest](), set[bytes](), case.trained.epoch
    for height in range(case.trained.height + 1):
        if (stored := read_set(epoch, height)) is None:
            raise TrainerError(f"the replay store lacks the set of round {height} of epoch {epoch}")
        done, bodies = stored
        sets.append(make_apply_request(done, bodies))
        applied.update(commitment for _, commitment in done.applied)
        reply = await trainer.apply(sets[-1])
        chain = compute_chain_digest(chain, done.epoch, height, done.step, done.lr_bits, done.applied)
        digest = compute_state_digest(chain, reply.weight_part)
    if digest != case.trained.base_digest:
        raise TrainerError(f"the replayed sets give the weights {digest.hex()[:16]}, the header names others")
    return sets, applied


def _make_target(case: Case, plan: bytes, applied: Collection[bytes]) -> AuditTarget:
    trained, state, evidence = case.trained, case.state, case.evidence
    samples = trained.batch_end - trained.batch_start + 1
    is_whole = bool(evidence.payload)
    pieces = tuple(range(compute_pieces(samples, trained.piece_samples))) if is_whole else (case.piece,)
    has_last = state.config.overlap and case.last is not None and case.last.result_kind is ResultKind.TRAINED
    local = build_local(state, trained, case.last if has_last else None)
    looks_ahead = has_last and local is None
    if has_last and not case.last_body:
        raise WireError("evidence: last result: its payload is missing")
    return AuditTarget(
        tokens=evidence.tokens, samples=samples, sequence_length=state.model.max_seq_len,
        piece_samples=trained.piece_samples, pieces=pieces, numeric_class=trained.numeric_class,
        lookahead_lr=compute_step_lr(state, trained.step - 1) if looks_ahead else 0.0,
        last_body=case.last_body if has_last else b"", has_labels=state.model.data_type is DataType.FINETUNING,
        local=local, payload=evidence.payload, link=_make_link(case, plan, applied) if evidence.opening else None,
    )  # fmt: skip


def _make_link(case: Case, plan: bytes, applied: Collection[bytes]) -> LinkRequest:
    seed = _get_round(case.state, case.accused.height + 1).seed
    link = build_link(case.state, case.trained, case.last, seed, applied)
    if not isinstance(link, Link):
        raise WireError(_GIVEN_BACK if link is None else "its headers contradict each other already")
    chunks, decoded = case.state.config.opened_chunks, decode_plan(plan)
    # the accuser's own word: the member has not signed what it opened
    places = draw_chunks(decoded, seed, chunks)
    decode_pair(decoded, places, link.momentum_before, link.momentum_after, case.evidence.opening)
    taken_out = () if link.taken_out == ZERO32 else (case.last_body,)
    return LinkRequest(
        momentum_before=link.momentum_before, momentum_after=link.momentum_after, opening=case.evidence.opening,
        seed=seed, opened_chunks=chunks, lr=link.lr, taken_out=taken_out,
    )  # fmt: skip
