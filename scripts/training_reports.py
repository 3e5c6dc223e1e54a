"""The examples of results, digests and reports in docs/peer-training.md."""

import struct
from dataclasses import fields

from hex_tables import Part, draw_example, draw_frame, draw_table
from training_example import (
    ALICE,
    ALICES,
    BOBS,
    CAROLS,
    CERTIFIED,
    DECAY,
    EPOCH,
    HEIGHT,
    LR,
    NAMES,
    OVERLAP_APPLIES,
    PAYLOADS,
    RUN_UID,
    SEED,
    STEP,
    TOPK,
    compute_commitments,
    get_trained,
    get_weight_part,
    make_body,
    make_files,
    make_header,
    make_plan,
    make_settings,
    make_weights,
)
from training_payloads import MINUS, show

from psyche.core.committee.bloom import compute_bloom, compute_positions
from psyche.core.committee.results import compute_results_root
from psyche.core.committee.schedule import get_lr_bits
from psyche.core.encoding.account import (
    CONFIG_TAG,
    encode_config,
    encode_model,
    encode_witness,
    get_config_preimage,
)
from psyche.core.encoding.header import HEADER, ResultHeader, encode_header
from psyche.core.encoding.manifest import encode_manifest
from psyche.core.encoding.records import FieldLayout
from psyche.core.encoding.tables import CONFIG, MODEL, WITNESS_HEAD
from psyche.core.state.bits import compute_bits, to_bytes32
from psyche.core.state.gossip import Finished, GossipBody, Ready, ReadyFlag, Result
from psyche.core.state.messages import WitnessMessage
from psyche.core.state.state import WitnessFlag
from psyche.modeling.distro.optimizer import Distro
from psyche.modeling.weights import compute_entries
from psyche.wire.backend import Request, build_submit
from psyche.wire.crypto import blake3_hash, compute_chain_digest, compute_commitment, compute_state_digest
from psyche.wire.gossip import encode_gossip, get_signed_bytes, sign_gossip

SOURCES = ((20, 156), (552, 960))  # the bytes of a model that name sources of the weights


# --- results --------------------------------------------------------------------------------------------


def draw_header_fields() -> list[str]:
    what = {
        "run_uid": "as on record", "epoch": "`progress.epoch`", "member": "your index in `clients`",
        "height": "of the round", "step": "of the round", "lr_bits": "[the rate](#the-learning-rate) of this step",
        "batch_start": "your share's first sample", "batch_end": "its last one, included",
        "plan_hash": "[the plan's](#the-transform-plan)", "config_hash": "below",
        "base_digest": "D(h): the weights that you trained on", "data_hash": "[samples](#samples)",
        "prev_commitment": "of your last Result, also of an earlier epoch; zeros if this is the first since you "
        "loaded weights without momentum. No rule reads it yet",
        "body_hash": "the payload's blob id", "body_len": "its bytes",
        "train_count": "batches that you trained with this momentum, this one included. No rule reads it yet",
        "numeric_class": "0: fp32, 1: bf16 autocast", "trainer_key": "your p2p key",
        "momentum_before": "zeros, like all roots and flags below",
        "momentum_after": "", "lookahead_root": "", "work_root": "", "flags": "",
    }  # fmt: skip
    names = [one.name for one in fields(ResultHeader)]
    if names != list(what):
        raise ValueError(f"the header's fields are {names}")
    return draw_table(("field", "content"), [(f"`{name}`", text) for name, text in what.items() if text])


def draw_config_hash() -> list[str]:
    settings = make_settings()
    config, model = encode_config(settings.config), encode_model(settings.model)
    blank = bytearray(model)
    for start, end in SOURCES:
        blank[start:end] = bytes(end - start)
    hashed = CONFIG_TAG + config + blank
    if hashed != get_config_preimage(settings):
        raise ValueError("other bytes of the model are hashed than the page says")
    return [
        "The example's `config`:", "", *draw_example(split_record(CONFIG, config), config), "",
        "Its `model`, as on record:", "", *draw_example(split_record(MODEL, model), model), "",
        show("`config_hash`", blake3_hash(hashed)) + ".",
    ]  # fmt: skip


def split_record(layout: FieldLayout, raw: bytes) -> list[Part]:
    """A record's bytes, field by field."""
    parts: list[Part] = []
    at = 0
    for field in layout.fields:
        parts.append((field.name or "zero", raw[at : at + field.size]))
        at += field.size
    return parts


def draw_result() -> list[str]:
    raw = encode_header(make_header(ALICES))
    body = Result(compute_commitment(raw), raw)
    message = sign_gossip(ALICE, RUN_UID, EPOCH, HEIGHT, ALICES, body)
    signed = get_signed_bytes(message)
    parts: list[Part] = [
        ("tag", signed[:15]), ("run_uid", RUN_UID), ("epoch 3, u16", signed[47:49]),
        ("height 0, u32", signed[49:53]), ("member 5, u16", signed[53:55]), ("commitment", signed[55:]),
        ("signature", message.signature), *split_record(HEADER, raw),
    ]  # fmt: skip
    return [
        *draw_example(parts, encode_gossip(message)), "",
        "What the headers of the two others have in its place:", "", *_draw_others(),
    ]  # fmt: skip


def _draw_others() -> list[str]:
    headers = [make_header(member) for member in (BOBS, CAROLS)]
    alices = make_header(ALICES)
    names = [
        one.name for one in fields(ResultHeader) if any(_get(h, one.name) != _get(alices, one.name) for h in headers)
    ]
    rows = [(f"`{name}`", *(f"`{_get(header, name)}`" for header in headers)) for name in names]
    rows.append(("commitment", *(f"`{compute_commitment(encode_header(header)).hex()}`" for header in headers)))
    return draw_table(("field", *(NAMES[header.member] for header in headers)), rows)


def _get(header: ResultHeader, name: str) -> object:
    found = getattr(header, name)
    return found.hex() if isinstance(found, bytes) else found


# --- digests --------------------------------------------------------------------------------------------


def compute_before() -> bytes:
    """c(1): two rounds applied nothing."""
    previous = CERTIFIED
    for height in range(OVERLAP_APPLIES):
        previous = compute_chain_digest(previous, EPOCH, height, STEP + height, get_lr_bits(LR), ())
    return previous


def draw_digests() -> list[str]:
    applied, weights, previous = tuple(compute_commitments().items()), make_weights(), compute_before()
    Distro(get_trained(weights), make_plan(), 0.9, TOPK, one_bit=True).apply(
        [make_body(member) for member, _ in applied], LR, DECAY
    )
    part = blake3_hash(encode_manifest(compute_entries(weights), make_files()))
    chain = compute_chain_digest(previous, EPOCH, OVERLAP_APPLIES, STEP + OVERLAP_APPLIES, get_lr_bits(LR), applied)
    parts: list[Part] = [
        ("tag", b"psyche/chain/1"), ("c(1)", previous), ("epoch 3, u16", (EPOCH).to_bytes(2, "little")),
        ("height 2, u32", (2).to_bytes(4, "little")), ("step 9, u32", (9).to_bytes(4, "little")),
        ("lr_bits, u32", get_lr_bits(LR).to_bytes(4, "little")),
    ]  # fmt: skip
    for member, commitment in applied:
        parts += [(f"member {member}, u16", member.to_bytes(2, "little")), ("commitment", commitment)]
    hashed = b"".join(piece for _, piece in parts)
    if blake3_hash(hashed) != chain:
        raise ValueError("the parts are not what the code hashes")
    order = ", then ".join(f"{NAMES[member]}'s, who is member {member}" for member, _ in applied)
    return [
        f"Here are those of round 2 of epoch 3, which applies the results of round 0: {order}:", "",
        *draw_example(parts, hashed), "",
        (f"Before it, c({MINUS}1) is the certified digest, bytes `0d`; rounds 0 and 1 (steps 7 and 8) applied nothing. "
        f"{show('c(2)', chain)}. {show('Weight part after the apply', part)}. "
        f"{show('D(2)', compute_state_digest(chain, part))}."),
    ]  # fmt: skip


# --- reports --------------------------------------------------------------------------------------------


def draw_report() -> list[str]:
    commitments = compute_commitments()
    held = (BOBS, CAROLS, ALICES)
    root = compute_results_root(EPOCH, HEIGHT, compute_bits(held), commitments)
    idle = compute_results_root(EPOCH, HEIGHT, compute_bits((0, *held)), commitments)
    positions = ", ".join(map(str, compute_positions(SEED, ALICES, commitments[BOBS])))
    bloom = compute_bloom(SEED, ALICES, commitments.values())
    return [
        (
            "A report on round 0 of epoch 3 that holds the three results of above, of members 1, 4 and 5. "
            f"{show('Results root', root)}."
        ),
        "",
        (
            "If member 0 had owed nothing and finished, `held` would be 0, 1, 4 and 5, with the same three leaves. "
            f"{show('Root with member 0', idle)}."
        ),
        "",
        (
            "In a running round whose seed is 32 bytes `08`, Alice's bloom filter has these bits for Bob's result: "
            f"{positions}. The whole filter, for all three:"
        ),
        "",
        *draw_example([("bloom", bloom)], bloom),
    ]


def draw_messages() -> list[str]:
    """What Alice says in round 1, in which round 0 is attested."""
    digest = compute_state_digest(compute_before(), get_weight_part())
    commitments = compute_commitments()
    held = compute_bits(commitments)
    root = compute_results_root(EPOCH, HEIGHT, held, commitments)
    ready, seen = Ready(digest, ReadyFlag(0)), compute_bits((BOBS, ALICES))
    report = WitnessMessage(
        epoch=EPOCH, height=HEIGHT + 1, member=ALICES, flags=WitnessFlag.COMPLETE | WitnessFlag.FULL_DIGEST, at_s=12,
        held=held, heard=compute_bits((0, *commitments)), missing=0,
        broadcast_bloom=compute_bloom(SEED, ALICES, commitments.values()), results_root=root, state_digest=digest,
        metadata=struct.pack("<Iff", STEP + 1, 2.5, 1_000.0),
    )  # fmt: skip
    raw = encode_witness(report)
    parts = [*split_record(WITNESS_HEAD, raw[:-16]), ("length of the metadata", raw[-16:-12]), ("metadata", raw[-12:])]
    return [
        "What Alice says in round 1 of epoch 3, in which these results are attested. Ready:", "",
        *_draw_gossip(ready, [("D(1)", digest), ("flags", b"\x00")]), "",
        "Finished; she knows the Results of round 1 of members 1 and 5:", "",
        *_draw_gossip(Finished(held, root, seen), _split_finished(held, root, seen)), "",
        "Finished with Ready in it, where many members send messages (S6):", "",
        *_draw_gossip(Finished(held, root, seen, ready),
                      [*_split_finished(held, root, seen), ("D(1)", digest), ("flags", b"\x00")]), "",
        "Her witness message, complete, 12 s after she saw the round; the loss is 2.5, with 1,000 tokens a second:", "",
        *draw_example(parts, raw), "",
        "The request that brings it to the server:", "", *draw_frame(Request(4, build_submit(report))),
    ]  # fmt: skip


def _split_finished(held: int, root: bytes, seen: int) -> list[Part]:
    return [("held", to_bytes32(held)), ("results root", root), ("seen", to_bytes32(seen))]


def _draw_gossip(body: GossipBody, parts: list[Part]) -> list[str]:
    message = sign_gossip(ALICE, RUN_UID, EPOCH, HEIGHT + 1, ALICES, body)
    signed = get_signed_bytes(message)
    at = len(signed) - sum(len(part) for _, part in parts)
    head: list[Part] = [
        ("tag", signed[: at - 40]), ("run_uid", RUN_UID), ("epoch 3, u16", signed[at - 8 : at - 6]),
        ("height 1, u32", signed[at - 6 : at - 2]), ("member 5, u16", signed[at - 2 : at]),
    ]  # fmt: skip
    return draw_example([*head, *parts, ("signature", message.signature)], encode_gossip(message))


assert PAYLOADS.keys() == NAMES.keys(), "every payload has a trainer"
