"""What the backend of a run adds to a round: a server, and a local chain with slots of 100 and of 400 ms.

    python benchmarks/backend_overhead.py [--json FILE] [--quick]

The same run, a small model on two real clients, with each backend as `psyche local-testnet` starts it. `round_s` is the
median time from one round's start to the next, `train_s` that of a client's training in it, and `overhead_s` the rest.
On a chain `lamports` are what a client's wallet paid for an epoch, join and warm-up included, and that by round.
Fees of a busy chain and the slower confirmations of a public one come on top. Both clients share this machine's cores.
"""

import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio
from _table import build_parser, finish, print_table

from psyche.backends.kinds import BackendKind
from psyche.config.rewrite import set_values
from psyche.telemetry import types
from psyche.telemetry.console import Console
from psyche.telemetry.events import read_event, read_lines
from psyche.testnet.settings import Layout, TestnetSettings
from psyche.testnet.supervisor import run_testnet

ROOT: Final = Path(__file__).resolve().parents[1]
CLIENTS: Final = 2
SKIPPED: Final = 2  # the first rounds of an epoch fill the pipeline
BACKENDS: Final = ((BackendKind.tcp, 0), (BackendKind.solana, 100), (BackendKind.solana, 400))


@dataclass
class Seen:
    """What one client's events tell."""

    rounds: list[float]
    training: list[float]
    balances: list[int]  # lamports, as each epoch begins and as the run ends
    epochs: int


def read_client(path: Path) -> Seen:
    """Read a client's event log."""
    seen, last = Seen([], [], [], 0), None
    for line in read_lines(path):
        match read_event(line):
            case types.RoundStarted(height=height, drain=drain) if not drain:
                if last is not None and height > SKIPPED:
                    seen.rounds.append(line["t"] - last)
                seen.epochs += height == 0
                last = line["t"]
            case types.RoundStarted():
                last = None
            case types.Trained() as trained:
                seen.training.append(trained.seconds)
            case types.StateChanged(run_state=state) if state.name in ("COOLDOWN", "WAITING_FOR_MEMBERS"):
                last = None
            case types.WalletBalance(lamports=lamports):
                seen.balances.append(lamports)
            case _:
                pass
    return seen


def measure(backend: BackendKind, slot_ms: int, rounds: int, cache: Path) -> dict[str, float]:
    """One run with this backend."""
    with tempfile.TemporaryDirectory() as folder:
        config = write_config(Path(folder) / "config", rounds)
        settings = TestnetSettings(
            num_clients=CLIENTS, config_path=config, run_dir=Path(folder) / "run", cache_dir=cache, sample=False,
            backend=backend, slot_ms=slot_ms or 100, wait_for_all=True, threads=1, device="cpu",
        )  # fmt: skip
        code = trio.run(run_testnet, settings, Console(sys.stderr))
        assert code == 0, "a run that went wrong measures nothing"
        layout = Layout(Path(folder) / "run", Path(folder) / "run" / "events")
        clients = [read_client(layout.events_of(f"client-{number}")) for number in (1, 2)]
    round_s = statistics.median(one for seen in clients for one in seen.rounds)
    train_s = statistics.median(one for seen in clients for one in seen.training)
    paid = [(seen.balances[0] - seen.balances[-1]) / seen.epochs for seen in clients if seen.balances]
    epoch_lamports = statistics.mean(paid) if paid else 0.0
    return {
        "round_s": round_s,
        "train_s": train_s,
        "overhead_s": round_s - train_s,
        "lamports_per_round": epoch_lamports / rounds,
        "lamports_per_epoch": epoch_lamports,
    }


def write_config(folder: Path, rounds: int) -> Path:
    """The demo's settings with one epoch of `rounds` rounds."""
    source = ROOT / "config" / "demo-solana"
    folder.mkdir()
    values = {("config", "rounds_per_epoch"): rounds, ("config", "total_steps"): rounds + 1}
    (folder / "run.toml").write_text(set_values((source / "run.toml").read_text(), values))
    (folder / "model.json").write_text((source / "model.json").read_text())
    return folder


def main() -> None:
    """Measure each backend and print the table."""
    args = build_parser(__doc__).parse_args()
    rounds = 8 if args.quick else 40
    result: dict[str, object] = {}
    rows: list[list[object]] = []
    for backend, slot_ms in BACKENDS:
        name = "a server" if backend is BackendKind.tcp else f"a chain, slots of {slot_ms} ms"
        found = measure(backend, slot_ms, rounds, ROOT / "runs" / "cache")
        result[name] = found
        rows.append([name, *found.values()])
    columns = ["backend", "round, s", "training, s", "overhead, s", "lamports a round", "lamports an epoch"]
    print_table(f"{CLIENTS} clients, {rounds} rounds, each client", columns, rows)
    finish(args, result)


if __name__ == "__main__":
    main()
