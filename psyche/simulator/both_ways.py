"""A real run beside a simulated one: what is measured in its logs becomes the machines of the simulation."""

from collections.abc import Sequence
from statistics import mean, median

from psyche.config.load import LoadedRun
from psyche.config.profile import ClassTable
from psyche.simulator.accounts import Accounts, Place, RoundAccount, What
from psyche.simulator.forecast import Forecast, Question, play
from psyche.simulator.spans import Span, find_spans
from psyche.simulator.workload import compute_workload

LOOPBACK_MBIT_S = 8_000.0
LOOPBACK_MS = 0.2
MIN_S = 1e-4
SKIPPED = 3  # rounds of an epoch: the first ones of a process load code and fill pipelines


def measure_machines(run: LoadedRun, real: Accounts, clients: int) -> ClassTable:
    """One class whose times are the means of what the clients of a real run took."""
    nodes = [node for node in real.nodes.values() if node.present]
    applied = [_get_seconds(span) for node in nodes for span in node.spans[What.APPLY]]
    samples = run.config.global_batch_size_end / clients
    rounds = [times for one in real.data_rounds if len(times := find_training(real, one)) == clients]
    train_s = max(MIN_S, median(map(mean, rounds)) if rounds else 0.0)
    return ClassTable(
        name="loopback", share=1.0, tokens_per_s=samples * run.model.max_seq_len / train_s, up_mbit_s=LOOPBACK_MBIT_S,
        down_mbit_s=LOOPBACK_MBIT_S, latency_ms=LOOPBACK_MS, spread_percent=min(99.0, 100 * compute_spread(rounds)),
        apply_s=median(applied) if applied else 0.0, load_s=1.0,
    )  # fmt: skip


def find_training(accounts: Accounts, one: RoundAccount) -> list[float]:
    """How long each member trained in a round."""
    spans = [find_spans(node.spans[What.TRAIN], one.start, one.end) for node in accounts.nodes.values()]
    return [_get_seconds(found[0]) for found in spans if found]


def compute_spread(rounds: Sequence[Sequence[float]]) -> float:
    """How much members of one round differ, as a share of their mean, evenly to both sides.

    Of n times the longest is (n - 1) / (n + 1) of that over the mean. What all have in common, such as other work of
    their machine, is no difference.
    """
    over = [(max(times) / mean(times) - 1) * (len(times) + 1) / (len(times) - 1) for times in rounds if len(times) > 1]
    return mean(over) if over else 0.0


def _get_seconds(span: Span) -> float:
    return span.end - span.start


def play_measured(
    run: LoadedRun, real: Accounts, clients: int, *, latency_ms: float = LOOPBACK_MS, loss_percent: float = 0.0
) -> Forecast:
    """The same run in simulated time, on lines as they were there."""
    lines = {"latency_ms": latency_ms, "loss_percent": loss_percent}
    machines = measure_machines(run, real, clients).model_copy(update=lines)
    rounds = run.config.total_steps - 1
    return play(
        Question(run=run, workload=compute_workload(run), classes=(machines,), counts=(clients,), rounds=rounds, seed=0)
    )


def compare_sets(real: Accounts, simulated: Accounts) -> list[str]:
    """Where the decided sets differ, in words; clients have other names, so sizes of sets are compared."""
    ours, theirs = _get_sizes(real), _get_sizes(simulated)
    found = [f"real: {a}, simulated: {b}" for a, b in zip(ours, theirs, strict=False) if a != b]
    if len(ours) != len(theirs):
        found.append(f"real: {len(ours)} sets, simulated: {len(theirs)}")
    return found


def _get_sizes(accounts: Accounts) -> list[tuple[Place, int]]:
    return [(place, len(members)) for place, members in accounts.get_sets()]


def get_round_times(accounts: Accounts) -> list[float]:
    """Seconds of rounds with data, the first ones of each epoch left out."""
    return [one.seconds for one in accounts.data_rounds if one.height >= SKIPPED]


def compare_times(real: Accounts, simulated: Accounts) -> tuple[float, float]:
    """Median seconds of a round, of both."""
    return _get_median(get_round_times(real)), _get_median(get_round_times(simulated))


def _get_median(times: Sequence[float]) -> float:
    return median(times) if times else 0.0
