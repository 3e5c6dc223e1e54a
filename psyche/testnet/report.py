"""The report of a run, from its event logs and the weights on disk."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from psyche.analysis.audits import AuditsView
from psyche.durable import replace_file
from psyche.telemetry import types
from psyche.telemetry.events import Entry, read_entries
from psyche.telemetry.loading import EXIT_INTERRUPTED
from psyche.telemetry.status import NodeView
from psyche.telemetry.text import format_bytes, format_seconds, format_tables
from psyche.testnet.settings import Layout, get_node_name

WEIGHTS: Final = "*.safetensors"
BF16_BYTES: Final = 2
LAST_LOSSES: Final = 10  # one round's loss on eight samples is noise
HEX_SHOWN: Final = 8
MAX_POINTS: Final = 100_000  # samples of one client's loss; older ones are dropped


@dataclass(slots=True)
class ClientReport:
    """One client's part. `digest` is its own final state digest, `weights_sha256` that of its exported files."""

    name: str
    rounds_trained: int = 0
    batches_failed: int = 0  # that could not be trained
    rounds_applied: int = 0
    tokens: int = 0
    loss: float | None = None
    step: int = 0
    digest: str = ""
    weights_sha256: str = ""
    exported: str = ""
    finished: bool = False
    exit_code: int | None = None
    starts: int = 0
    kills: int = 0
    heals: int = 0
    epochs_failed: int = 0
    steps_lost: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    allreduce_bytes: int = 0
    parameters: int = 0
    seconds_to_join: float | None = None
    compute_share: float | None = None
    waits: int = 0
    wait_overrun_s: float = 0.0  # of the wait that exceeded its deadline most; 0: none did
    losses: list[tuple[int, float]] = field(default_factory=list)
    key: str = ""


@dataclass(slots=True)
class RunReport:
    run_id: str
    seconds: float
    clients: list[ClientReport]
    kills: int
    stopped: str = ""
    held_out_loss: float | None = None
    prompt: str = ""
    sample: str = ""  # what the trained model wrote after the prompt
    audits: list[str] = field(default_factory=list)  # what members found of each other, in lines
    problems: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        digests = {client.digest for client in self.clients}
        return len(digests) == 1 and "" not in digests


def compute_allreduce_bytes(parameters: int, members: int, rounds: int) -> int:
    if members < 2:
        return 0
    return round(2 * (members - 1) / members * BF16_BYTES * parameters * rounds)


def build_client_report(
    name: str, entries: Iterable[Entry], members: int, audits: AuditsView | None = None
) -> ClientReport:
    report, view = ClientReport(name), NodeView(name)
    started = first_training = last_training = None
    deadlines: dict[str, float] = {}  # of the waits that have one
    final = ""
    for t, _, event in entries:
        view.update(t, event)
        if audits is not None:
            audits.take(event)
        match event:
            case types.ClientStarted():
                started = t if started is None else started
                report.key = event.identity.hex()
                deadlines.clear()  # those of the process that ended were not kept, and not broken either
            case types.WaitStarted():
                report.waits += 1
                if event.until is not None:
                    deadlines[event.what] = event.until
            case types.WaitEnded() if event.what in deadlines:
                report.wait_overrun_s = max(report.wait_overrun_s, round(t - deadlines.pop(event.what), 3))
            case types.WarmupReady() if report.seconds_to_join is None and started is not None:
                report.seconds_to_join = round(t - started, 2)
            case types.RoundStarted():
                first_training = t if first_training is None else first_training
                last_training = t
            case types.Trained():
                report.losses.append((event.step, event.loss))
                del report.losses[:-MAX_POINTS]
            case types.ModelLoaded():
                report.parameters = event.parameters
            case types.Finished(held=True):
                final = event.digest.hex()
            case _:
                pass
    _copy_view(report, view)
    report.digest = final or view.digest
    report.allreduce_bytes = compute_allreduce_bytes(report.parameters, members, view.rounds_trained)
    span = (last_training or 0.0) - (first_training or 0.0)
    report.compute_share = round(view.compute_seconds / span, 3) if span > 0 else None
    return report


def _copy_view(report: ClientReport, view: NodeView) -> None:
    for name in (
        "rounds_trained", "batches_failed", "rounds_applied", "tokens", "step", "exported", "finished", "starts",
        "heals", "epochs_failed", "steps_lost", "bytes_sent", "bytes_received",
    ):  # fmt: skip
        setattr(report, name, getattr(view, name))
    last = [loss for _, loss in report.losses[-LAST_LOSSES:]]
    report.loss = round(sum(last) / len(last), 4) if last else None


def hash_weights(folder: Path) -> str:
    files = sorted(folder.glob(WEIGHTS))
    if not files:
        return ""
    whole = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            whole.update(file.name.encode() + hashlib.file_digest(stream, "sha256").digest())
    return whole.hexdigest()


def build_report(
    layout: Layout, run_id: str, exits: dict[int, int | None], kills: dict[int, int], seconds: float, stopped: str
) -> RunReport:
    clients: list[ClientReport] = []
    audits = AuditsView()
    for number in sorted(exits):
        name = get_node_name(number)
        client = build_client_report(name, read_entries(layout.events_of(name)), len(exits), audits)
        client.exit_code, client.kills = exits[number], kills.get(number, 0)
        if client.exported:
            client.weights_sha256 = hash_weights(Path(client.exported))
        clients.append(client)
    report = RunReport(run_id, round(seconds, 1), clients, sum(kills.values()), stopped)
    names = {client.key: client.name for client in clients}
    report.audits = list(audits.describe(lambda key: find_name(names, key)))
    report.problems = find_problems(report)
    return report


def find_name(names: Mapping[str, str], key: bytes) -> str:
    """The client whose key begins so, of clients by their keys; else the key's first digits."""
    return next((name for known, name in names.items() if known.startswith(key.hex())), key.hex()[:HEX_SHOWN])


def find_problems(report: RunReport) -> list[str]:
    problems: list[str] = []
    for client in report.clients:
        is_asked = bool(report.stopped) and client.exit_code == EXIT_INTERRUPTED
        if client.exit_code != 0 and not is_asked:
            problems.append(f"{client.name} ended with exit code {client.exit_code}")
        elif not client.finished and not report.stopped:
            problems.append(f"{client.name} did not finish")
    if not any(client.digest for client in report.clients):
        problems.append("no client has trained a round")
    elif not report.equal:
        problems.append("the final digests differ")
    weights = {(client.step, client.weights_sha256) for client in report.clients if client.weights_sha256}
    if len({step for step, _ in weights}) == 1 and len(weights) > 1:
        problems.append("the exported weights differ")
    return problems


def write_summary(report: RunReport, path: Path) -> None:
    content: dict[str, Any] = asdict(report) | {"equal": report.equal}
    replace_file(path, (json.dumps(content, indent=1) + "\n").encode(), path.with_suffix(".part"))


def format_report(report: RunReport) -> str:
    head = ("client", "rounds", "loss", "digest", "weights", "sent", "received", "kills", "heals")
    rows = [_get_row(client) for client in report.clients]
    lines = [format_tables(head, rows), ""]
    # Every client tells of the run's failed epochs, but one that was away misses some: the maximum is right.
    failed = max((client.epochs_failed for client in report.clients), default=0)
    lost = max((client.steps_lost for client in report.clients), default=0)
    took = format_seconds(report.seconds)
    untrained = sum(client.batches_failed for client in report.clients)
    batches = f"batches not trained: {untrained}, " if untrained else ""
    lines.append(f"epochs given up: {failed}, steps lost: {lost}, {batches}kills: {report.kills}, took {took}")
    most = max((client.allreduce_bytes for client in report.clients), default=0)
    if most:
        lines.append(f"a bf16 all-reduce would have sent {format_bytes(most)} a client")
    overrun_s = max((client.wait_overrun_s for client in report.clients), default=0.0)
    late = f"the latest ended {format_seconds(overrun_s)} after its" if overrun_s else "none outlasted its"
    lines.append(f"waits: {sum(client.waits for client in report.clients)}, {late} deadline")
    lines += report.audits
    if report.held_out_loss is not None:
        lines.append(f"loss on text nobody trained on: {report.held_out_loss:.3f} nats per byte")
    if report.problems:
        lines += [f"PROBLEM: {problem}" for problem in report.problems]
    elif len(report.clients) == 1:
        lines.append("one client: there is nothing to compare its weights with")
    elif report.clients:
        lines.append(f"all {len(report.clients)} clients hold bit-identical weights")
    return "\n".join(lines)


def _get_row(client: ClientReport) -> list[str]:
    return [
        client.name, str(client.rounds_applied), "-" if client.loss is None else f"{client.loss:.3f}",
        client.digest[:HEX_SHOWN] or "-", client.weights_sha256[:HEX_SHOWN] or "-", format_bytes(client.bytes_sent),
        format_bytes(client.bytes_received), str(client.kills), str(client.heals),
    ]  # fmt: skip
