"""Draws the tables and examples of docs/peer-training.md from the code, between their markers.

    python scripts/draw_peer_training.py           write them
    python scripts/draw_peer_training.py --check   only report whether the page is stale

All examples are of one small model, and are made by the functions with which clients train.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import page_blocks
from hex_tables import Part, draw_example, draw_table
from training_example import (
    ALICES,
    CHUNK,
    CONFIG_JSON,
    SEED,
    TOPK,
    get_tokens,
    get_weight_part,
    make_files,
    make_round,
    make_weights,
)
from training_payloads import MINUS, TIMES, draw_apply, draw_payload, draw_plan, draw_plan_bytes, show
from training_reports import draw_config_hash, draw_digests, draw_header_fields, draw_messages, draw_report, draw_result

from psyche.core.committee.assignment import compute_assignments
from psyche.core.committee.elections import get_roles, get_witnesses
from psyche.core.committee.schedule import compute_learning_rate, get_lr_bits
from psyche.core.committee.shuffle import compute_order
from psyche.core.encoding.manifest import encode_manifest
from psyche.core.state.state import ZERO32, Config, LrSchedule, ScheduleKind
from psyche.data.permutation import Permutation
from psyche.modeling.weights import compute_blank_root, compute_entries, compute_slice_root, get_bytes
from psyche.wire.crypto import blob_id_of, compute_data_hash, compute_state_digest

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "peer-training.md"


# --- the model -------------------------------------------------------------------------------


def draw_model() -> list[str]:
    rows = [
        ("`heads.weight`", f"2 {TIMES} 8 {TIMES} 4", "i / 64 for i from 0 to 63: 0, 0.015625, …, 0.984375"),
        ("`lin.weight`", f"8 {TIMES} 8", f"i / 32 {MINUS} 1 for i from 0 to 63: {MINUS}1, {MINUS}0.96875, …, 0.96875"),
        ("`norm.offset`", "2", f"0.5, {MINUS}0.5; a buffer, so it is not trained"),
        ("`norm.weight`", "6", "1"),
        ("`scale`", "one number, no dimensions", "2"),
        ("`config.json`", f"{len(CONFIG_JSON)} bytes", f"`{CONFIG_JSON.decode()}`"),
    ]
    settings = f"`compression_chunk` is {CHUNK}, `compression_topk` {TOPK}, `quantize_1bit` on, the learning rate "
    more = "0.001 and the weight decay 0.1, both rounded to f32. A row of samples has 3 ids; those of sample i are "
    ids = f"3 (i {MINUS} 1,000) + 1, + 2 and + 3."
    return [*draw_table(("name", "size", "content"), rows), "", settings + more + ids]


def draw_manifest() -> list[str]:
    raw = encode_manifest(compute_entries(make_weights()), make_files())
    parts: list[Part] = [("tag", raw[:14]), ("tensors: 5, u32", raw[14:18])]
    at = 18
    for name, weight in make_weights().items():
        parts += [
            ("length of the name, u16", raw[at : at + 2]), ("name", name.encode()),
            ("dimensions, u8", bytes([weight.dim()])), ("each, u32", np.array(weight.shape, dtype="<u4").tobytes()),
            ("hash of the blob", blob_id_of(get_bytes(weight))),
        ]  # fmt: skip
        at += 2 + len(name) + 1 + 4 * weight.dim() + 32
    file = make_files()[0]
    parts += [
        ("files: 1, u32", raw[at : at + 4]), ("length of the name, u16", raw[at + 4 : at + 6]),
        ("name", file.name.encode()), ("bytes, u64", raw[at + 17 : at + 25]), ("hash of the blob", file.blob_id),
    ]  # fmt: skip
    weights, files = make_weights(), make_files()
    digest = compute_state_digest(ZERO32, get_weight_part())
    return [
        "The manifest of the example:", "", *draw_example(parts, raw), "",
        show("Weight part", get_weight_part()) + ". " + show("State digest with c = zeros", digest) + ".", "",
        show("Weight part in a run with full values", compute_blank_root(weights, files)) + ". "
        + show("Weight part of the slice that has piece 1 only, with a `random_seed` of 65",
               compute_slice_root(weights, files, 65)) + ".",
    ]  # fmt: skip


# --- chance, rates, samples -----------------------------------------------------------------------------


def draw_chance() -> list[str]:
    round_, config = make_round(), Config()
    order = compute_order(10, SEED)
    shares = compute_assignments(round_, config)
    quarter = replace(config, verification_percent=25)
    verifiers = [member for member, role in get_roles(round_, quarter).items() if role.name == "VERIFIER"]
    return [
        (
            f"The order of 10 places under a key of 32 bytes `08`: {', '.join(map(str, order))}. So place 0 has index "
            f"{order[0]}, and index 1 goes to place {order.index(1)}."
        ),
        "",
        (
            "A round with the members 0, 1, 4 and 5, all electors; its `seed` is 32 bytes `08`, its `random_seed` the "
            "first eight of them as u64, its `batch_size` 10, its `data_index` 1,000:"
        ),
        "",
        f"- witnesses in order: {', '.join(map(str, get_witnesses(round_)))}",
        f"- shares: {'; '.join(f'member {m} {start:,} to {end:,}' for m, (start, end) in shares.items())}",
        f"- with a `verification_percent` of 25 member {verifiers[0]} verifies",
    ]


def draw_rates() -> list[str]:
    base = LrSchedule(base_lr=0.001, warmup_init_lr=0.0001, final_lr=0.0002, warmup_steps=10, total_steps=110)
    stable = replace(
        base, kind=ScheduleKind.WARMUP_STABLE_DECAY, stable_steps=20, cosine_decay_steps=30, linear_decay_steps=40,
        cosine_decay_final_lr=0.0004, linear_decay_final_lr=0.0001,
    )  # fmt: skip
    linear, cosine = replace(base, kind=ScheduleKind.LINEAR), replace(base, kind=ScheduleKind.COSINE)
    cases: list[tuple[LrSchedule, int, tuple[int, int] | None]] = [
        (linear, 3, None), (linear, 10, None), (linear, 40, None), (cosine, 40, None), (cosine, 110, None),
        (cosine, 200, None), (cosine, 10, (11, 16)), (cosine, 11, (11, 16)), (cosine, 13, (11, 16)),
        (cosine, 16, (11, 16)), (cosine, 17, (11, 16)),
        (stable, 10, None), (stable, 29, None), (stable, 30, None), (stable, 40, None), (stable, 59, None),
        (stable, 60, None), (stable, 75, None), (stable, 99, None), (stable, 100, None), (stable, 200, None),
    ]  # fmt: skip
    rows: list[tuple[object, ...]] = []
    for schedule, step, cold in cases:
        rate = compute_learning_rate(schedule, step, cold)
        when = "" if cold is None else f"f = {cold[0]}, c = {cold[1] - cold[0]}"
        rows.append((schedule.kind.name, step, when, f"{rate:.9g}", f"`{get_lr_bits(rate):08x}`"))
    return [
        (
            "With `base_lr` 0.001, `warmup_init_lr` 0.0001, `warmup_steps` 10; `final_lr` 0.0002, `total_steps` 110; "
            "or `stable_steps` 20, `cosine_decay_steps` 30 to 0.0004, `linear_decay_steps` 40 to 0.0001:"
        ),
        "",
        *draw_table(("schedule", "step s", "cold start", "rate", "`lr_bits`, hex"), rows),
    ]


def draw_samples() -> list[str]:
    seed = b"\x05" * 32
    lines: list[str] = []
    for rows in (10, 16):
        orders = [Permutation(rows, seed, number).permute(np.arange(rows)).tolist() for number in range(2)]
        shown = "; ".join(f"pass {n}: {', '.join(map(str, order))}" for n, order in enumerate(orders))
        passes = f"samples 0 to {rows - 1} and {rows} to {2 * rows - 1}"
        lines += [f"The rows of {passes}, of {rows} rows in all, with a seed of 32 bytes `05`: {shown}.", ""]
    first, last = compute_assignments(make_round(), Config())[ALICES]
    ids = ", ".join(map(str, np.frombuffer(get_tokens(first, last), "<u4").tolist()))
    digest = compute_data_hash(get_tokens(first, last)).hex()
    return [*lines, f"`data_hash` of samples {first:,} to {last:,} of the example, with the ids {ids}: `{digest}`."]


BLOCKS: Final[dict[str, Callable[[], list[str]]]] = {
    "example model": draw_model,
    "chance": draw_chance,
    "rates": draw_rates,
    "manifest example": draw_manifest,
    "plan bytes": draw_plan_bytes,
    "plan example": draw_plan,
    "payload example": draw_payload,
    "apply example": draw_apply,
    "samples": draw_samples,
    "header fields": draw_header_fields,
    "config hash": draw_config_hash,
    "result example": draw_result,
    "digests": draw_digests,
    "report example": draw_report,
    "messages example": draw_messages,
}


if __name__ == "__main__":
    sys.exit(page_blocks.run("draw_peer_training.py", __doc__, sys.argv[1:], [PAGE], BLOCKS))
