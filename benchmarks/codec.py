"""Bits that one sent coefficient costs on the wire, and how fast payloads are coded."""

from collections.abc import Callable
from math import comb, log2
from time import process_time

import numpy as np
from _table import build_parser, finish, print_table

from psyche.core.encoding.plan import PlanTensor, TransformPlan, get_payload_bytes
from psyche.modeling.distro.codec import ChunkSets, decode_payload, encode_payload, validate_payload

SETTINGS = ((64, 64, 8), (64, 64, 4), (16, 16, 16), (16, 16, 4), (1, 64, 8), (64, 64, 32))
LIMIT_BITS = 11.2  # of a coefficient at 4096 coefficients, k 8, sign included


def make_payload(height: int, width: int, topk: int, chunks: int) -> tuple[TransformPlan, list[ChunkSets]]:
    """A plan of one group, and uniform sets of full size: what training sends nearly always."""
    dims = (chunks * width,) if height == 1 else (chunks * height, width)
    plan = TransformPlan((PlanTensor("w", dims, (height, width)),), topk, one_bit=True)
    generator = np.random.default_rng(0)
    area = height * width
    # Gaps of a uniform set: sorted numbers of a smaller range, spread by their place.
    sets = np.sort(generator.integers(0, area - topk + 1, (chunks, topk)), axis=1) + np.arange(topk)
    signs = generator.choice(np.array([-1, 1], dtype=np.int8), (chunks, topk))
    return plan, [ChunkSets(sets.astype(np.int32), signs)]


def measure_s(call: Callable[[], object], repeats: int) -> float:
    """The least processor time of some calls."""
    times = []
    for _ in range(repeats):
        start = process_time()
        call()
        times.append(process_time() - start)
    return min(times)


def main() -> None:
    args = build_parser(__doc__).parse_args()
    chunks, repeats = (20_000, 2) if args.quick else (300_000, 3)
    rows: list[tuple[object, ...]] = []
    result: dict[str, object] = {"chunks": chunks}
    for height, width, topk in SETTINGS:
        area = height * width
        plan, sets = make_payload(height, width, topk, chunks)
        body = encode_payload(plan, sets)
        assert len(body) == get_payload_bytes(plan)
        assert all(np.array_equal(sets[0].indices, each.indices) for each in decode_payload(plan, body))
        bits = len(body) * 8 / (chunks * topk)
        floor = log2(comb(area, topk)) / topk + 1
        encode_s = measure_s(lambda plan=plan, sets=sets: encode_payload(plan, sets), repeats)
        decode_s = measure_s(lambda plan=plan, body=body: decode_payload(plan, body), repeats)
        validate_s = measure_s(lambda plan=plan, body=body: validate_payload(plan, body), repeats)
        speeds = [chunks / seconds / 1e6 for seconds in (encode_s, decode_s, validate_s)]
        rows.append((f"{height}x{width}, k {topk}", floor, bits, *speeds))
        name = f"{area}_{topk}"
        result |= {f"bits_{name}": bits, f"floor_{name}": floor}
        result |= {
            f"{what}_s_{name}": s for what, s in (("encode", encode_s), ("decode", decode_s), ("validate", validate_s))
        }
    columns = ["chunk", "floor", "bits", "encode M/s", "decode M/s", "validate M/s"]
    print_table(f"Bits per coefficient, sign included; millions of chunks per second ({chunks} chunks)", columns, rows)
    assert rows[0][2] <= LIMIT_BITS, "4096/8 must cost at most 11.2 bits"
    finish(args, result)


if __name__ == "__main__":
    main()
