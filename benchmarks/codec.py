"""Bits that one sent coefficient costs on the wire, and how fast payloads are coded (without numba: NumPy's speed)."""

from collections.abc import Callable
from math import comb, log2
from time import process_time

import numpy as np
from _table import build_parser, finish, print_table

from psyche.core.encoding.plan import PlanTensor, TransformPlan, get_payload_bytes
from psyche.modeling.distro.codec import HIGH_LEVEL, ChunkSets, decode_payload, encode_payload, validate_payload

# height, width, k, bits of a value in local steps (0: signs of DisTrO)
SETTINGS = (
    (64, 64, 8, 0), (64, 64, 4, 0), (16, 16, 16, 0), (16, 16, 4, 0), (1, 64, 8, 0), (64, 64, 32, 0), (64, 64, 64, 0),
    (64, 64, 16, 2), (64, 64, 64, 2), (64, 64, 256, 2),
)  # fmt: skip
LIMIT_BITS = 11.2  # of a coefficient at 4096 coefficients, k 8, sign included


def make_payload(
    height: int, width: int, topk: int, scaled_bits: int, chunks: int
) -> tuple[TransformPlan, list[ChunkSets]]:
    """A plan of one group, and uniform sets of full size: what training sends nearly always."""
    dims = (chunks * width,) if height == 1 else (chunks * height, width)
    plan = TransformPlan((PlanTensor("w", dims, (height, width)),), topk, not scaled_bits, scaled_bits)
    generator = np.random.default_rng(0)
    area = height * width
    # Gaps of a uniform set: sorted numbers of a smaller range, spread by their place.
    sets = np.sort(generator.integers(0, area - topk + 1, (chunks, topk)), axis=1) + np.arange(topk)
    values = generator.choice(np.array([-1, 1], dtype=np.int8), (chunks, topk))
    if not scaled_bits:
        return plan, [ChunkSets(sets.astype(np.int32), values)]
    values *= generator.choice(np.array([1, HIGH_LEVEL], dtype=np.int8), (chunks, topk))
    return plan, [ChunkSets(sets.astype(np.int32), values, generator.integers(-32, 1, chunks).astype(np.int8))]


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
    chunks, repeats = (20_000, 2) if args.quick else (100_000, 25)
    rows: list[tuple[object, ...]] = []
    result: dict[str, object] = {"chunks": chunks}
    for height, width, topk, scaled_bits in SETTINGS:
        area = height * width
        plan, sets = make_payload(height, width, topk, scaled_bits, chunks)
        body = encode_payload(plan, sets)
        assert len(body) == get_payload_bytes(plan)
        assert all(np.array_equal(sets[0].indices, each.indices) for each in decode_payload(plan, body))
        bits = len(body) * 8 / (chunks * topk)
        floor = log2(comb(area, topk)) / topk + (scaled_bits or 1)
        encode_s = measure_s(lambda plan=plan, sets=sets: encode_payload(plan, sets), repeats)
        decode_s = measure_s(lambda plan=plan, body=body: decode_payload(plan, body), repeats)
        validate_s = measure_s(lambda plan=plan, body=body: validate_payload(plan, body), repeats)
        speeds = [round(len(body) / seconds / 1e6) for seconds in (encode_s, decode_s, validate_s)]
        coding = f", {scaled_bits} bits" if scaled_bits else ""
        rows.append((f"{height}x{width}, k {topk}{coding}", floor, bits, *speeds))
        name = f"{area}_{topk}" + (f"_{scaled_bits}" if scaled_bits else "")
        result |= {f"bits_{name}": bits, f"floor_{name}": floor}
        result |= {
            f"{what}_s_{name}": s for what, s in (("encode", encode_s), ("decode", decode_s), ("validate", validate_s))
        }
    columns = ["chunk", "floor", "bits", "encode MB/s", "decode MB/s", "validate MB/s"]
    title = f"Bits per coefficient with its value; MB of payload per second of one core ({chunks} chunks)"
    print_table(title, columns, rows, "codec")
    assert float(str(rows[0][2])) <= LIMIT_BITS, "4096/8 must cost at most 11.2 bits"
    finish(args, result)


if __name__ == "__main__":
    main()
