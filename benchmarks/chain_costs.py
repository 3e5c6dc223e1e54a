"""What a run on a chain costs: bytes of its transactions, deposits, and fees without priority."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "programs" / "coordinator"))

from _table import build_parser, finish, print_table
from kits.svm import NAMES, get_program_path
from solders.litesvm import LiteSVM
from transaction_kit import ALONE, TICK, WITH_TICK, CountedRun, compute_size, make_key

from psyche.core.state.limits import STATE_BYTES
from psyche.testing.builders import build_config, build_state

DEPOSITS = {"coordinator account": STATE_BYTES, "instance": 181, "earned points of one signer": 145}
PROGRAM_BYTES, PROGRAM_DATA_BYTES = 36, 45  # what the loader keeps beside the code
WITNESSES = (1, 8, 32)


def measure_sizes() -> list[tuple[str, int, int, int]]:
    """Bytes alone, with a tick where one makes sense, and then with a fee payer of its own."""
    rows = []
    for name, instructions in (WITH_TICK | ALONE).items():
        both = (*instructions, TICK) if name in WITH_TICK else instructions
        rows.append((name, compute_size(instructions), compute_size(both), compute_size(both, payer=make_key())))
    return rows


def measure_deposits() -> dict[str, int]:
    """Lamports that accounts hold while they exist; all but those of deployments come back."""
    rent = LiteSVM().minimum_balance_for_rent_exemption
    deposits = {name: rent(size) for name, size in DEPOSITS.items()}
    sizes = {f"deployment of the {NAMES[key]}": get_program_path(key).stat().st_size for key in NAMES}
    deployed = {name: rent(PROGRAM_BYTES) + rent(PROGRAM_DATA_BYTES + size) for name, size in sizes.items()}
    return deposits | deployed | {"three deployments": sum(deployed.values())}


def measure_fees(members: int) -> dict[str, int]:
    """Lamports of one round in which all are witnesses, and of an epoch of ten, from its joins to its end."""
    config = build_config(
        rounds_per_epoch=10, witness_nodes=members, global_batch_size_start=members, global_batch_size_end=members
    )
    run = CountedRun(build_state(config))
    run.join(*range(members))
    run.warm_up()
    before = run.lamports
    run.run_round()
    a_round = run.lamports - before
    run.finish_epoch()
    return {"round": a_round, "epoch": run.lamports}


def main() -> None:
    args = build_parser(__doc__).parse_args()
    sizes, deposits = measure_sizes(), measure_deposits()
    fees = {number: measure_fees(number) for number in WITNESSES}
    print_table("Bytes of the largest forms, at most 1,232", ["transaction", "alone", "with tick", "own payer"], sizes)
    print_table("Deposits", ["account", "lamports"], list(deposits.items()))
    rows = [(f"{number} witnesses, as many members", *cost.values()) for number, cost in fees.items()]
    print_table("Fees without priority, in lamports", ["run", "a round", "an epoch of 10"], rows)
    result = {f"{name}_bytes": float(largest) for name, _, _, largest in sizes}
    result |= {f"{name}_lamports": float(value) for name, value in deposits.items()}
    result |= {f"{kind}_{number}_lamports": float(v) for number, cost in fees.items() for kind, v in cost.items()}
    finish(args, result)


if __name__ == "__main__":
    main()
