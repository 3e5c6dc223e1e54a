"""How long a full state takes to encode and decode: 256 members, four rounds of 32 records."""

import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from _table import build_parser, finish, print_table
from kits.runs import build_run

from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state.state import Coordinator
from psyche.core.state.state_rules import check_state

LIMITS_MS = {"encode": 10.0, "decode": 5.0, "of it the rules": 2.0}


def make_full_state() -> Coordinator:
    """256 members in their fifth round, each of the four that are stored with all its records."""
    run = build_run(256, rounds_per_epoch=9, witness_nodes=32, global_batch_size_start=256, global_batch_size_end=256)
    run.warm_up()
    for _ in range(4):
        run.run_round()
    run.witness_all()
    assert all(len(round_.witnesses) == 32 for round_ in run.state.rounds)
    return run.state


def measure_ms(call: Callable[[], object], repeats: int) -> float:
    """The median of single calls, in milliseconds."""
    times = []
    for _ in range(repeats):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return sorted(times)[repeats // 2] * 1e3


def main() -> None:
    args = build_parser(__doc__).parse_args()
    repeats = 5 if args.quick else 201
    state = make_full_state()
    raw = encode_state(state)
    assert decode_state(raw) == state
    took = {
        "encode": measure_ms(lambda: encode_state(state), repeats),
        "decode": measure_ms(lambda: decode_state(raw), repeats),
        "of it the rules": measure_ms(lambda: check_state(state), repeats),
    }
    rows = [(name, took[name], LIMITS_MS[name], len(raw)) for name in took]
    print_table("A state of 256 members", ["operation", "median ms", "limit ms", "bytes"], rows)
    finish(args, {f"{name}_ms": value for name, value in took.items()})


if __name__ == "__main__":
    main()
