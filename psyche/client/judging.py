"""What evidence says of a member: who has the weights and the replay store computes it again (V13).

`read_case` checks all that can be checked without weights, so that nothing is judged that its member did not sign.
"""

from collections.abc import Callable
from dataclasses import dataclass

from psyche.client.engine.announcements import compute_step_lr
from psyche.client.runtime.weights.replay import Stored, make_apply_request
from psyche.core.committee.assignment import compute_assignments
from psyche.core.committee.verdicts import Verdict, compute_distance, compute_tolerance, judge_piece
from psyche.core.encoding.account import decode_state
from psyche.core.encoding.evidence import Evidence, decode_evidence
from psyche.core.encoding.header import ResultHeader, ResultKind, decode_header
from psyche.core.encoding.work import Values, compute_difference, compute_pieces, decode_table
from psyche.core.state.gossip import Gossip, Result
from psyche.core.state.limits import HEADER_BYTES
from psyche.core.state.state import ZERO32, Coordinator, DataType, Round
from psyche.core.state.timeline import get_round
from psyche.errors import TrainerError, WireError
from psyche.wire.crypto import (
    blob_id_of,
    compute_chain_digest,
    compute_commitment,
    compute_data_hash,
    compute_state_digest,
)
from psyche.wire.gossip import is_signed_by
from psyche.wire.ports import Trainer
from psyche.wire.trainer import ApplyRequest, AuditRequest, AuditTarget, LoadRequest, get_applied_heights


@dataclass(frozen=True, slots=True)
class Case:
    """A piece of a member's signed work: what its table says of it, and what its accuser computed."""

    state: Coordinator
    round: Round
    header: ResultHeader
    piece: int
    target: AuditTarget
    claimed: Values
    accuser: Values


@dataclass(frozen=True, slots=True)
class Judgement:
    """How far the claimed values are from those computed, and what follows; and how far its accuser's are."""

    verdict: Verdict
    distance: float
    tolerance: float
    accuser_distance: float


def read_case(raw: bytes) -> Case:
    """Read evidence, and check that its parts belong together and to the member.

    Raises:
        WireError: it is damaged, or a part is not what the member signed; nothing can be said of it then.
    """
    evidence = decode_evidence(raw)
    header, state = decode_header(evidence.header), decode_state(evidence.record)
    round_ = get_round(state, header.height)
    if (header.run_uid, header.epoch) != (state.run_uid, state.progress.epoch) or round_ is None:
        raise WireError("evidence: record: it is of another run, or no longer has the round of the header")
    _check_member(evidence, header, state, round_)
    rows, pieces = _check_work(evidence, header, state)
    if evidence.piece >= pieces:
        raise WireError(f"evidence: piece {evidence.piece}: the member has {pieces}")
    table = decode_table(evidence.table, pieces, is_calibrated=header.height == 0)
    body, lr = _find_ahead(evidence, header, state)
    target = AuditTarget(
        tokens=evidence.tokens, samples=rows, sequence_length=state.model.max_seq_len,
        piece_samples=header.piece_samples, pieces=(evidence.piece,), numeric_class=header.numeric_class,
        lookahead_lr=lr, last_body=body, has_labels=state.model.data_type is DataType.FINETUNING,
    )  # fmt: skip
    claimed = compute_difference(table, evidence.piece)
    return Case(state, round_, header, evidence.piece, target, claimed, evidence.values)


def _check_member(evidence: Evidence, header: ResultHeader, state: Coordinator, round_: Round) -> None:
    if header.result_kind is not ResultKind.TRAINED:
        raise WireError("evidence: header: it is of a report, which says nothing of trained work")
    batch = compute_assignments(round_, state.config).get(header.member)
    if batch != (header.batch_start, header.batch_end):
        raise WireError(f"evidence: header: member {header.member} does not have this batch in round {header.height}")
    body = Result(compute_commitment(evidence.header), evidence.header)
    message = Gossip(header.run_uid, header.epoch, header.height, header.member, body, evidence.signature)
    if not is_signed_by(message, state.clients[header.member].p2p):
        raise WireError(f"evidence: signature: member {header.member} did not sign this header")


def _check_work(evidence: Evidence, header: ResultHeader, state: Coordinator) -> tuple[int, int]:
    """The numbers of samples and of pieces, of a table and tokens that the header covers."""
    has_labels = state.model.data_type is DataType.FINETUNING
    if blob_id_of(evidence.table) != header.work_root:
        raise WireError("evidence: table: it is not the one of the header")
    if compute_data_hash(evidence.tokens, has_labels=has_labels) != header.data_hash:
        raise WireError("evidence: tokens: they are not those of the header")
    rows = header.batch_end - header.batch_start + 1
    return rows, compute_pieces(rows, header.piece_samples)


def _find_ahead(evidence: Evidence, header: ResultHeader, state: Coordinator) -> tuple[bytes, float]:
    """The payload that the look-ahead follows and its rate (V4); empty and 0 for none."""
    if not state.config.overlap or header.height == 0 or header.prev_commitment == ZERO32:
        return b"", 0.0
    raw, body = evidence.last_result[:HEADER_BYTES], evidence.last_result[HEADER_BYTES:]
    if compute_commitment(raw) != header.prev_commitment:
        raise WireError("evidence: last result: it is not the one that the header names")
    last = decode_header(raw)
    if (last.epoch, last.height) != (header.epoch, header.height - 1):
        return b"", 0.0
    if blob_id_of(body) != last.body_hash:
        raise WireError("evidence: last result: its payload is not the one of its header")
    return body, compute_step_lr(state, header.step - 1)


def judge(case: Case, values: Values, tolerance: float | None = None) -> Judgement:
    """Judge what the member claimed by values computed from its samples; the config's tolerance is the default."""
    if tolerance is None:
        tolerance = compute_tolerance(case.state.config, case.header.numeric_class, {})
    distance = compute_distance(case.claimed, values)
    accuser_distance = compute_distance(case.accuser, values)
    return Judgement(judge_piece(distance, tolerance), distance, tolerance, accuser_distance)


async def compute_values(
    trainer: Trainer, case: Case, load: LoadRequest, read_set: Callable[[int, int], Stored | None]
) -> Values:
    """Compute the piece at the weights that the replayed sets give; `load` names the epoch's first ones.

    Raises:
        TrainerError: the weights are others than those of the record or of the header, or a set is missing.
    """
    reply = await trainer.load(load)
    chain = case.state.certified.digest
    if compute_state_digest(reply.chain, reply.weight_root) != chain:
        raise TrainerError(f"{load.path}: these are not the weights {chain.hex()[:16]} that the epoch began with")
    sets, digest = list[ApplyRequest](), ZERO32
    for height in range(case.header.height + 1):
        if (stored := read_set(case.header.epoch, height)) is None:
            raise TrainerError(f"the replay store lacks the set of round {height} of epoch {case.header.epoch}")
        done, bodies = stored
        sets.append(make_apply_request(done, bodies))
        applied = await trainer.apply(sets[-1])
        chain = compute_chain_digest(chain, done.epoch, height, done.step, done.lr_bits, done.applied)
        digest = compute_state_digest(chain, applied.weight_part)
    if digest != case.header.base_digest:
        raise TrainerError(f"the replayed sets give the weights {digest.hex()[:16]}, the header names others")
    height = case.header.height
    applies = tuple(sets[number] for number in get_applied_heights(height))
    request = AuditRequest(height=height, seeds=(case.round.seed,), targets=(case.target,), applies=applies)
    audited = await trainer.audit(request)
    refused = audited.refused or audited.targets[0].refused
    if refused:
        raise TrainerError(f"the piece cannot be computed: {refused}")
    return audited.targets[0].pieces[0].values[0]
