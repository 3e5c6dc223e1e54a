"""One run both ways: four real clients on loopback, and the same in simulated time with what was measured there.

    python benchmarks/simulated_vs_real.py [--json FILE] [--quick] [--run-dir FOLDER]
    python benchmarks/simulated_vs_real.py --delay-ms 50 --loss-percent 0.5      # each line, both ways; as root

Starts `psyche local-testnet` with the demo's model and 40 rounds; measures in the event logs how long clients
trained and applied, gives a simulation machines with these times, and compares decided sets and seconds of a
round. With `--run-dir` an earlier testnet's folder is read instead. With delay or loss
server and clients live in a network namespace each, on lines that are so, and the simulation has the same lines.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import trio
from _table import build_parser, finish, print_table
from forecast.calibration import compare_sets, compare_times, get_round_times, measure_machines, play_measured
from kits.namespaces import Line, open_namespaces

from psyche.analysis.accounts import Accounts, What, read_accounts
from psyche.config.load import LoadedRun, load_run
from psyche.modeling.trainer.process import HOST_VARIABLE
from psyche.telemetry.events import read_entries
from psyche.testnet.backends import HOST
from psyche.testnet.prepare import prepare
from psyche.testnet.process import Child
from psyche.testnet.settings import TestnetSettings, get_node_name
from psyche.testnet.supervisor import get_backend_argv, get_client_argv, get_trainer_host_argv

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "runs" / "cache"
CLIENTS = 4
LIMIT_S = 1_800.0
LOOPBACK = Line(delay_s=1e-4)
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
    command += ["--config-path", str(config), "--run-dir", str(folder), "--cache-dir", str(CACHE)]
    subprocess.run([*command, "--no-sample", "--keep", "--threads", "1"], check=True, stdout=sys.stderr)
    return folder


def play_real(config: Path, folder: Path, line: Line) -> Path:
    """The real run, on loopback where the line is nothing special; its folder."""
    return run_testnet(config, folder) if line == Line() else trio.run(run_on_lines, config, folder, line)


async def run_on_lines(config: Path, folder: Path, line: Line) -> Path:
    """The same on machines that the kernel pretends, with a line each; its folder."""
    settings = TestnetSettings(
        num_clients=CLIENTS, config_path=config, run_dir=folder, cache_dir=CACHE, threads=1, wait_for_all=True
    )
    prepared = await prepare(settings, lambda text: print(text, file=sys.stderr))
    names = [get_node_name(number) for number in range(1, CLIENTS + 1)]
    with open_namespaces({"server": Line(), **dict.fromkeys(names, line)}) as machines:
        path, server = prepared.run.path, machines.addresses["server"]
        path.write_text(path.read_text().replace(HOST, server))  # the data server's place
        trainers = Path(folder) / "trainers"

        def start(node: str, argv: list[str]) -> Child:
            bind = argv.index("--bind-ip" if node == "server" else "--bind-p2p-interface") + 1
            there = [part.replace(HOST, server) for part in argv]
            there[bind] = machines.addresses[node]
            output = prepared.layout.logs / f"{node}.log"
            return Child(node, [*machines.prefix[node], *there], output=output, env={HOST_VARIABLE: str(trainers)})

        host = Child("trainers", get_trainer_host_argv(trainers), output=prepared.layout.logs / "trainers.log")
        children = [host, start("server", get_backend_argv(prepared, settings))]
        try:
            clients = [start(name, get_client_argv(prepared, settings, n)) for n, name in enumerate(names, 1)]
            children += clients
            with trio.fail_after(LIMIT_S):
                codes = [await client.wait() for client in clients]
            assert not any(codes), f"clients ended with {codes}; see {prepared.layout.logs}"
        finally:
            for child in children:
                child.kill()
    return folder


def compare(run: LoadedRun, folder: Path, line: Line = LOOPBACK) -> dict[str, object]:
    """Figures of both ways."""
    real: Accounts = read_accounts(read_entries(folder / "events"))
    lines = {"latency_ms": 2e3 * line.delay_s, "loss_percent": 100 * (1 - (1 - line.loss) ** 2)}
    simulated = play_measured(run, real, CLIENTS, **lines).accounts
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
    return sum(accounts.shares[what] for what in (What.WAIT, What.SEND, What.TRANSFER, What.WITNESS))


def _get_tail(accounts: Accounts) -> float:
    times = sorted(get_round_times(accounts))
    return times[len(times) * 9 // 10] / median(times) if times else 0.0


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--run-dir", type=Path, metavar="FOLDER", help="read a testnet of four clients instead")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="of each client's line, either way")
    parser.add_argument("--loss-percent", type=float, default=0.0, help="of each client's line, either way")
    args = parser.parse_args()
    line = Line(args.delay_ms / 1e3, args.loss_percent / 100)
    result: dict[str, object] = {}
    if args.run_dir is not None:
        result["given"] = compare(load_run(next(args.run_dir.rglob("run.toml"))), args.run_dir)
    else:
        for overlap in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                config = write_config(Path(folder) / "config", overlap=overlap, quick=args.quick)
                made = play_real(config, Path(folder) / "run", line)
                result[f"overlap {'on' if overlap else 'off'}"] = compare(load_run(config), made, line)
    for name, found in result.items():
        assert isinstance(found, dict)
        print_table(f"{CLIENTS} clients, {name}", ("what", "value"), [(k, v) for k, v in found.items()])
        verdict = "within" if abs(found["ratio"] - 1) <= TOLERANCE else "NOT within"
        print(f"round times are {verdict} {TOLERANCE:.0%} of the real ones")
    finish(args, result)


if __name__ == "__main__":
    main()
