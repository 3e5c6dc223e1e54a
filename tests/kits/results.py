"""What clients sign and trainers reply: headers, results, other gossip, train replies. All are honest, except
for fields that a test replaces.
"""

from dataclasses import replace
from typing import Any, Final

from psyche.client.engine.announcements import compute_step_lr
from psyche.core.committee.assignment import compute_assignments
from psyche.core.committee.schedule import get_lr_bits
from psyche.core.encoding.header import NumericClass, ResultHeader, encode_header
from psyche.core.encoding.plan import compute_plan, encode_plan, get_payload_bytes
from psyche.core.state.gossip import Gossip, GossipBody, Result
from psyche.core.state.state import ZERO32, Coordinator
from psyche.core.state.timeline import get_round
from psyche.testing.builders import build_hash
from psyche.wire.crypto import Identity, blake3_hash, blob_id_of, compute_commitment, compute_state_digest
from psyche.wire.gossip import sign_gossip
from psyche.wire.trainer import LoadReply, TrainReply

PLAN_BODY: Final = compute_plan({"w": (256, 64)}, chunk=64, topk=8, one_bit=True)
PLAN: Final = encode_plan(PLAN_BODY)
PAYLOAD_BYTES: Final = get_payload_bytes(PLAN_BODY)
WEIGHTS: Final = blake3_hash(b"first weights")
FIRST_DIGEST: Final = compute_state_digest(ZERO32, WEIGHTS)


def build_train_reply(payload: bytes = b"payload", **changes: Any) -> TrainReply:
    values: dict[str, Any] = {
        "payload": payload, "loss": 2.0, "grad_norm": 1.0, "tokens": 8, "seconds": 0.5, "compute_seconds": 0.4,
        "micro_batch_size": 1, "train_count": 1,
    }  # fmt: skip
    return TrainReply(**(values | changes))


def build_load_reply(plan: bytes = PLAN) -> LoadReply:
    return LoadReply(
        plan=plan, weight_root=WEIGHTS, parameters=4096, vocab_size=256, numeric_class=0, device="cpu", chain=ZERO32,
        train_count=0,
    )  # fmt: skip


def build_body(state: Coordinator, member: int, height: int) -> bytes:
    """The payload of a member's result of this round, with the plan's length."""
    seed = build_hash("body", state.progress.epoch, height, member)
    return (seed * (PAYLOAD_BYTES // 32 + 1))[:PAYLOAD_BYTES]


def build_header(
    state: Coordinator, member: int, key: bytes, *, height: int | None = None, body: bytes | None = None, **changes: Any
) -> ResultHeader:
    """The header of an honest member's result, by default of the running round.

    `key` is the member's; hashes that the state does not have are zero.
    """
    named = state.current.height if height is None else height
    round_ = get_round(state, named)
    assert round_ is not None, f"round {named} is not kept any more"
    start, end = compute_assignments(round_, state.config).get(member, (0, 0))
    body = build_body(state, member, named) if body is None else body
    header = ResultHeader(
        run_uid=state.run_uid, epoch=state.progress.epoch, member=member, height=named, step=round_.step,
        lr_bits=get_lr_bits(compute_step_lr(state, round_.step)), batch_start=start, batch_end=end,
        plan_hash=ZERO32, config_hash=ZERO32, base_digest=ZERO32, data_hash=ZERO32, prev_commitment=ZERO32,
        body_hash=blob_id_of(body), body_len=len(body), train_count=1, numeric_class=NumericClass.FP32,
        trainer_key=key, inner_steps=min(state.model.optimizer.inner_steps, end - start + 1),
    )  # fmt: skip
    return replace(header, **changes)


def build_result(header: ResultHeader) -> Result:
    raw = encode_header(header)
    return Result(compute_commitment(raw), raw)


def sign(
    state: Coordinator, identity: Identity, member: int, body: GossipBody, *, height: int | None = None, **named: Any
) -> Gossip:
    """Signed gossip of the running round; `named` may give another `epoch` or `run_uid`."""
    epoch, run_uid = named.get("epoch", state.progress.epoch), named.get("run_uid", state.run_uid)
    return sign_gossip(identity, run_uid, epoch, state.current.height if height is None else height, member, body)


def get_commitment(message: Gossip) -> bytes:
    assert isinstance(message.body, Result)
    return message.body.commitment
