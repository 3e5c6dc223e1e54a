"""Comparison of a real run with a simulated one, whose machines are calibrated from the real run's logs."""

from collections.abc import Sequence
from statistics import mean, median

from psyche.analysis.accounts import Accounts, Place, RoundAccount, What
from psyche.analysis.tally import Span, find_spans
from psyche.config.load import LoadedRun
from psyche.config.profile import ClassTable
from psyche.forecast.play import Forecast, play
from psyche.forecast.question import Question
from psyche.forecast.workload import compute_workload
from psyche.sim.faults import CleanExit

LOOPBACK_MBIT_S = 8_000.0
LOOPBACK_MS = 0.2
MIN_S = 1e-4
SKIPPED = 3  # first rounds of an epoch: processes still load code and fill pipelines


def measure_machines(run: LoadedRun, real: Accounts, clients: int) -> ClassTable:
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
    spans = [find_spans(node.spans[What.TRAIN], one.start, one.end) for node in accounts.nodes.values()]
    return [_get_seconds(found[0]) for found in spans if found]


def compute_spread(rounds: Sequence[Sequence[float]]) -> float:
    """Half the width of members' uniformly distributed times in a round, as a share of their mean.

    The longest of n such times is expected (n - 1) / (n + 1) of the spread above the mean. Delays that all members
    share, such as other load on their machine, do not count.
    """
    over = [(max(times) / mean(times) - 1) * (len(times) + 1) / (len(times) - 1) for times in rounds if len(times) > 1]
    return mean(over) if over else 0.0


def _get_seconds(span: Span) -> float:
    return span.end - span.start


def play_measured(
    run: LoadedRun, real: Accounts, clients: int, *, latency_ms: float = LOOPBACK_MS, loss_percent: float = 0.0
) -> Forecast:
    """Play a real run again in simulated time, with its lines and with its clients joining and leaving as they did.

    Args:
        run: configuration of the real run.
        real: accounts of its logs.
        clients: how many took part in a round.
        latency_ms, loss_percent: of its network lines.
    """
    lines = {"latency_ms": latency_ms, "loss_percent": loss_percent}
    machines = measure_machines(run, real, clients).model_copy(update=lines)
    names, epochs = get_names(real), _get_epochs(real)
    founders = sum(epochs[name][0] == epochs[names[0]][0] for name in names) if names else clients
    late = [_build_latecomer(run, real, machines, epochs[name][0]) for name in names[founders:]]
    last = max((epoch for _, epoch in epochs.values()), default=0)
    leaving = [(number, epochs[name][1]) for number, name in enumerate(names) if epochs[name][1] < last]
    return play(
        Question(
            run=run, workload=compute_workload(run), classes=(machines, *late), counts=(founders, *(1 for _ in late)),
            rounds=run.config.total_steps - 1, seed=0,
            faults=tuple(CleanExit(who=(f"client-{number}",), at_epoch=epoch + 1) for number, epoch in leaving),
        )
    )  # fmt: skip


def _build_latecomer(run: LoadedRun, real: Accounts, machines: ClassTable, epoch: int) -> ClassTable:
    """A machine that joins in the middle of the epoch before its first one."""
    before = [one for one in real.rounds if one.epoch == epoch - 1]
    after_s = before[len(before) // 2].start - real.rounds[0].start if before else 0.0
    formed_s = run.config.waiting_for_members_extra_time + 1 + machines.load_s
    return machines.model_copy(update={"joins_after_min": (formed_s + after_s) / 60})


def _get_epochs(accounts: Accounts) -> dict[str, tuple[int, int]]:
    found = {node.name: [epoch for epoch, _ in node.present] for node in accounts.nodes.values() if node.present}
    return {name: (min(epochs), max(epochs)) for name, epochs in found.items()}


def get_names(accounts: Accounts) -> list[str]:
    epochs = _get_epochs(accounts)
    return sorted(epochs, key=lambda name: (epochs[name][0], len(name), name))


def compare_sets(real: Accounts, simulated: Accounts) -> list[str]:
    """Describe where the decided sets differ.

    Clients have different names in the two runs, and their index in an epoch depends on the order of joins. So each
    member is identified by its position in `get_names`.
    """
    ours, theirs = _get_numbered(real), _get_numbered(simulated)
    found = [f"real: {a}, simulated: {b}" for a, b in zip(ours, theirs, strict=False) if a != b]
    if len(ours) != len(theirs):
        found.append(f"real: {len(ours)} sets, simulated: {len(theirs)}")
    return found


def _get_numbered(accounts: Accounts) -> list[tuple[Place, list[int | str]]]:
    numbers: dict[str, int | str] = {name: number for number, name in enumerate(get_names(accounts))}

    def number_all(members: Sequence[str]) -> list[int | str]:
        return sorted((numbers.get(name, name) for name in members), key=str)

    return [(place, number_all(members)) for place, members in accounts.get_sets()]


def get_round_times(accounts: Accounts) -> list[float]:
    return [one.seconds for one in accounts.data_rounds if one.height >= SKIPPED]


def compare_times(real: Accounts, simulated: Accounts) -> tuple[float, float]:
    return _get_median(get_round_times(real)), _get_median(get_round_times(simulated))


def _get_median(times: Sequence[float]) -> float:
    return median(times) if times else 0.0
