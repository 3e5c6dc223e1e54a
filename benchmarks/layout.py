"""How long a full state takes to encode and decode: 256 members, four rounds of 32 records."""

from collections.abc import Callable
from hashlib import sha256
from time import perf_counter

from _table import build_parser, finish, print_table

from psyche.core.layout import decode_state, encode_state
from psyche.core.state import Audit, Client, Coordinator, Round, Slot, SlotState, WitnessRecord

LIMITS_MS = {"encode": 10.0, "decode": 5.0}


def make_full_state() -> Coordinator:
    """Every list at its capacity, every hash different."""
    keys = [(sha256(b"s%d" % i).digest(), sha256(b"p%d" % i).digest()) for i in range(256)]
    state = Coordinator(run_id="full", nonce=1 << 40)
    state.clients = [Client(*key, slot=i, credits=i, good_streak=8) for i, key in enumerate(keys)]
    state.registry.slots = [Slot(*key, earned=i, state=SlotState.JOINED) for i, key in enumerate(keys)]
    state.rounds = [make_full_round(height) for height in range(4)]
    return state


def make_full_round(height: int) -> Round:
    everybody = (1 << 256) - 1
    records = [
        WitnessRecord(member=i, held=everybody, heard=everybody, broadcast_bloom=bytes([i + 1]) * 320)
        for i in range(32)
    ]
    audits = [Audit(verifier=i, target=i + 1, commit=bytes([i + 1]) * 32) for i in range(32)]
    return Round(height=height, members=everybody, clients_len=256, witnesses=records, audits=audits)


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
    }
    rows = [(name, took[name], LIMITS_MS[name], len(raw)) for name in took]
    print_table("A state of 256 members", ["operation", "median ms", "limit ms", "bytes"], rows)
    finish(args, {f"{name}_ms": value for name, value in took.items()})


if __name__ == "__main__":
    main()
