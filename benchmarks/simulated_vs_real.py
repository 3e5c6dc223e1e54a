"""One run both ways: four real clients on loopback, and the same in simulated time with what was measured there.

    python benchmarks/simulated_vs_real.py [--json FILE] [--quick] [--run-dir FOLDER]

Starts `psyche local-testnet` with the demo's model and 40 rounds; measures in the event logs how long clients
trained and applied, gives a simulation machines with these times, and compares decided sets and seconds of a
round. With `--run-dir` an earlier testnet's folder is read instead.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from _table import build_parser, finish, print_table

from psyche.config.load import LoadedRun, load_run
from psyche.simulator.accounts import Accounts, What, read_accounts
from psyche.simulator.both_ways import compare_sets, compare_times, get_round_times, measure_machines, play_measured
from psyche.telemetry.events import read_events

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = 4
TOLERANCE = 0.2
CHANGES = {
    "init_min_clients": "4",
    "rounds_per_epoch": "20",
    "total_steps": "41",
    "global_batch_size_start": "32",
    "global_batch_size_end": "32",
}


def write_config(folder: Path, *, overlap: bool, quick: bool) -> Path:
    """The demo's configuration, shorter."""
    shutil.copytree(ROOT / "config" / "demo", folder)
    changes = CHANGES | {"overlap": "true" if overlap else "false"} | ({"total_steps": "13"} if quick else {})
    lines = (folder / "run.toml").read_text().splitlines()
    for number, line in enumerate(lines):
        key = line.partition(" =")[0]
        if key in changes:
            lines[number] = f"{key} = {changes[key]}"
    (folder / "run.toml").write_text("\n".join(lines) + "\n")
    return folder


def run_testnet(config: Path, folder: Path) -> Path:
    """The real run; its folder."""
    command = [
        sys.executable,
        "-m",
        "psyche",
        "local-testnet",
        "start",
        "--num-clients",
        str(CLIENTS),
        "--wait-for-all",
    ]
    command += ["--config-path", str(config), "--run-dir", str(folder), "--cache-dir", str(ROOT / "runs" / "cache")]
    subprocess.run([*command, "--no-sample", "--keep", "--threads", "1"], check=True, stdout=sys.stderr)
    return folder


def compare(run: LoadedRun, folder: Path) -> dict[str, object]:
    """Figures of both ways."""
    real: Accounts = read_accounts(sorted(read_events(folder / "events"), key=lambda event: event["t"]))
    simulated = play_measured(run, real, CLIENTS).accounts
    machine = measure_machines(run, real, CLIENTS)
    seconds = compare_times(real, simulated)
    return {
        "differing sets": len(compare_sets(real, simulated)), "sets": len(real.get_sets()),
        "real round s": seconds[0], "simulated round s": seconds[1], "ratio": seconds[1] / seconds[0],
        "training s": run.config.global_batch_size_end / CLIENTS * run.model.max_seq_len / machine.tokens_per_s,
        "applying s": machine.apply_s,
        "real waiting": _get_waiting(real), "simulated waiting": _get_waiting(simulated),
        "real p90/median": _get_tail(real), "simulated p90/median": _get_tail(simulated),
    }  # fmt: skip


def _get_waiting(accounts: Accounts) -> float:
    return sum(accounts.shares[what] for what in (What.WAIT, What.TRANSFER, What.WITNESS))


def _get_tail(accounts: Accounts) -> float:
    times = sorted(get_round_times(accounts))
    return times[len(times) * 9 // 10] / median(times) if times else 0.0


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--run-dir", type=Path, metavar="FOLDER", help="read a testnet of four clients instead")
    args = parser.parse_args()
    result: dict[str, object] = {}
    if args.run_dir is not None:
        result["given"] = compare(load_run(next(args.run_dir.rglob("run.toml"))), args.run_dir)
    else:
        for overlap in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                config = write_config(Path(folder) / "config", overlap=overlap, quick=args.quick)
                made = run_testnet(config, Path(folder) / "run")
                result[f"overlap {'on' if overlap else 'off'}"] = compare(load_run(config), made)
    for name, found in result.items():
        assert isinstance(found, dict)
        print_table(f"{CLIENTS} clients, {name}", ("what", "value"), [(k, v) for k, v in found.items()])
        verdict = "within" if abs(found["ratio"] - 1) <= TOLERANCE else "NOT within"
        print(f"round times are {verdict} {TOLERANCE:.0%} of the real ones")
    finish(args, result)


if __name__ == "__main__":
    main()
