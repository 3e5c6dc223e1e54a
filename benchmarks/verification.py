"""How far a piece's values are from those of who computes it again (E), of honest members and of cheats (V10).

    python benchmarks/verification.py [--quick] [--pieces 312]

One member trains the demo's model with overlap and an own look-ahead, pieces of one sample. After 0, 20 and 200 rounds
its pieces are computed again in other arithmetic, and as cheats would. A fit of honest distances says how often an
honest piece would fail. The last table is what tables of work and momentum roots add to a round, in CPU time.
"""

import math
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import NormalDist, fmean, median, stdev
from typing import Any

import torch
from _table import build_parser, finish, print_table
from torch import Tensor, nn

from psyche.core.committee.verdicts import FAIL_FACTOR, compute_distance, compute_tolerance
from psyche.core.encoding.header import NumericClass
from psyche.core.encoding.work import Values
from psyche.core.state.state import Config, Lookahead, Model, Optimizer, OptimizerKind
from psyche.data.corpus import build_demo_corpus
from psyche.modeling.architecture import read_blueprint
from psyche.modeling.model import init_model, load_model
from psyche.modeling.trainer.batch import PieceLog, compute_gradients, count_predicted
from psyche.modeling.trainer.engine import TrainerEngine
from psyche.modeling.trainer.replica import STAY, Ahead, Replica
from psyche.modeling.verification.sketch import Sketch
from psyche.wire.crypto import blake3_hash
from psyche.wire.trainer import Contribution, LoadRequest, TrainRequest, WorkRequest

ROOT = Path(__file__).parents[1]
SAMPLES, LENGTH, RATE, WARMUP = 24, 128, 1e-3, 10
STAGES = (0, 20, 200)
STALE = (1, 5, 20)
CPU = torch.device("cpu")
OPTIMIZER = Optimizer(
    OptimizerKind.DISTRO, clip_grad_norm=1.0, compression_decay=0.95, compression_topk=16, compression_chunk=16,
    quantize_1bit=True, lookahead=Lookahead.OWN,
)  # fmt: skip
Weights = list[Tensor]


class _Pieces(PieceLog):
    """The values of each piece alone, under one seed."""

    def __init__(self, seed: bytes) -> None:
        self.piece_samples, self.values = 1, list[Values]()
        self._sketch, self._before = Sketch(seed), (0.0,) * 64

    def add(self, losses: Sequence[float], gradients: Mapping[str, Tensor]) -> None:
        del losses
        now = self._sketch.compute(gradients)
        self.values.append(tuple(after - before for after, before in zip(now, self._before, strict=True)))
        self._before = now


class Run:
    """A member alone: it applies its own payloads two rounds later."""

    def __init__(self, folder: Path, corpus: Path) -> None:
        self.folder = folder
        init_model(ROOT / "config" / "demo" / "model.json", folder / "model", 7)
        self.replica = Replica(load_model(folder / "model", read_blueprint(folder / "model", LENGTH)), OPTIMIZER, CPU)
        raw = b"".join(path.read_bytes() for path in sorted(corpus.glob("*.bin")))
        self._raw = raw[: len(raw) // 2 * 2]
        self.height = 0
        self.payloads: list[bytes] = []
        self.weights: deque[Weights] = deque(maxlen=max(STALE) + 1)  # those of D of the last rounds

    def get_rows(self, height: int) -> Tensor:
        """The samples of a round: byte tokens of the corpus."""
        size = SAMPLES * LENGTH * 2
        start = height * size % (len(self._raw) - size) // 2 * 2
        ids = torch.frombuffer(bytearray(self._raw[start : start + size]), dtype=torch.int16)
        return ids.long().view(SAMPLES, LENGTH)

    def get_rate(self, height: int) -> float:
        return RATE * min(1.0, (height + 1) / WARMUP)

    def begin(self) -> Ahead:
        """Apply what is due; the look-ahead of the round that begins."""
        if self.height >= 2:
            due = [Contribution(payload=self.payloads[self.height - 2])]
            self.replica.apply(due, self.get_rate(self.height), 0.0)
        self.weights.append([one.detach().clone() for one in self.replica.parameters.values()])
        return Ahead(self.get_rate(self.height - 1), self.payloads[-1]) if self.payloads else STAY

    def train(self, ahead: Ahead) -> None:
        gradients = self.replica.compute(self.get_rows(self.height), SAMPLES, ahead, lambda: None)
        rate = self.get_rate(self.height)
        self.payloads.append(self.replica.compress(gradients.tensors, rate, (), in_flight=True, height=self.height))
        self.height += 1

    def compute(self, rows: Tensor, ahead: Ahead, kind: NumericClass = NumericClass.FP32) -> list[Values]:
        """The values of each sample of a batch."""
        log = _Pieces(blake3_hash(self.height.to_bytes(4, "little")))
        with self.replica.at(ahead):
            compute_gradients(
                self.replica.model, self.replica.parameters, rows, micro_batch_size=1, device=CPU, clip=None,
                pieces=log, numeric_class=kind, predicted=count_predicted(rows),
            )  # fmt: skip
        return log.values

    @contextmanager
    def at_weights(self, weights: Weights) -> Iterator[None]:
        own = [one.detach().clone() for one in self.replica.parameters.values()]
        self._set(weights)
        try:
            yield
        finally:
            self._set(own)

    @torch.no_grad()
    def _set(self, weights: Weights) -> None:
        for one, value in zip(self.replica.parameters.values(), weights, strict=True):
            one.copy_(value)


@contextmanager
def half_the_layers(model: Any) -> Iterator[None]:
    layers, model.model.layers = model.model.layers, nn.ModuleList(list(model.model.layers)[::2])
    try:
        yield
    finally:
        model.model.layers = layers


def measure(run: Run, ahead: Ahead, found: dict[str, list[float]]) -> None:
    """Compare every piece of the round that has begun with what others would show of it."""
    rows = run.get_rows(run.height)
    own = run.compute(rows, ahead)
    total = [sum(column) for column in zip(*own, strict=True)]

    def note(name: str, claimed: list[Values], truth: list[Values] = own) -> None:
        found[name] += (compute_distance(one, other) for one, other in zip(claimed, truth, strict=True))

    model: Any = run.replica.model
    model.set_attn_implementation("eager")
    note("honest fp32, another attention kernel", run.compute(rows, ahead))
    model.set_attn_implementation("sdpa")
    bf16 = run.compute(rows, ahead, kind=NumericClass.BF16)
    note("honest bf16 against fp32", bf16)
    note("honest bf16, other threads", _with_threads(2, lambda: run.compute(rows, ahead, kind=NumericClass.BF16)), bf16)
    for age in STALE:
        if len(run.weights) > age:
            with run.at_weights(run.weights[-1 - age]):
                note(f"weights {age} rounds old", run.compute(rows, ahead))
    if ahead is not STAY:
        note("no look-ahead", run.compute(rows, STAY))
        note("last round's mean", [_scale(run.compute(run.get_rows(run.height - 1), ahead), 1 / SAMPLES)] * SAMPLES)
    # half of a sequence has half of the predicted tokens: what it adds to the mean is scaled as if they were all
    note("half the sequence", run.compute(rows[:, : LENGTH // 2], ahead))
    note("mean of the batch", [tuple(value / SAMPLES for value in total)] * SAMPLES)
    others = [tuple((a - b) / (SAMPLES - 1) for a, b in zip(total, one, strict=True)) for one in own]
    note("mean of the others", others)
    note("another sample of the batch", [*own[1:], own[0]])
    note("other data", run.compute(run.get_rows(run.height + 5_000), ahead))
    with half_the_layers(model):
        note("half the layers", run.compute(rows, ahead))


def _scale(values: list[Values], factor: float) -> Values:
    return tuple(factor * sum(column) for column in zip(*values, strict=True))


def _with_threads(count: int, compute: Callable[[], list[Values]]) -> list[Values]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return compute()
    finally:
        torch.set_num_threads(before)


def compute_false_look(distances: list[float], tolerance: float) -> float:
    """How likely an honest piece fails, by a normal fit of the distances' logarithms."""
    logs = [math.log(max(distance, 1e-12)) for distance in distances]
    return NormalDist().cdf((fmean(logs) - math.log(FAIL_FACTOR * tolerance)) / max(stdev(logs), 1e-9))


def measure_cost(folder: Path, rows: Callable[[int], Tensor], rounds: int) -> dict[str, float]:
    """CPU seconds of a round without and with tables and roots, by turns, with all pieces in one pass or one by one."""
    ways = {"without": (False, 8), "with tables and roots": (True, 8), "with them, piece by piece": (True, 1)}
    engines = {name: TrainerEngine() for name in ways}
    for name, (shows, size) in ways.items():
        model = Model(max_seq_len=LENGTH, optimizer=OPTIMIZER)
        load = LoadRequest(
            path=str(folder / "model"), is_snapshot=False, model=model, micro_batch_size=size, device="cpu",
            verifies=shows,
        )  # fmt: skip
        engines[name].load(load)
    spent: defaultdict[str, list[float]] = defaultdict(list)
    for height in range(rounds):
        seed = blake3_hash(height.to_bytes(4, "little"))
        for name, engine in engines.items():
            work = WorkRequest(seed=seed, piece_samples=1) if ways[name][0] else None
            tokens = rows(height)[:8].int().numpy().astype("<u4").tobytes()
            started = time.process_time()
            engine.train(
                TrainRequest(
                    epoch=0,
                    height=height,
                    step=height + 1,
                    lr=RATE,
                    lookahead_lr=0.0,
                    tokens=tokens,
                    samples=8,
                    sequence_length=LENGTH,
                    decided=(),
                    in_flight=True,
                    work=work,
                )
            )
            spent[name].append(time.process_time() - started)
    return {name: median(times) for name, times in spent.items()}


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--pieces", type=int, default=312, help="pieces of each stage")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "psyche-benchmark-corpus")
    args = parser.parse_args()
    torch.set_num_threads(1)
    corpus = build_demo_corpus(args.data)
    rounds = 1 if args.quick else -(-args.pieces // SAMPLES)
    stages = STAGES[:2] if args.quick else STAGES
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), corpus.train_folder)
        for stage in stages:
            found: defaultdict[str, list[float]] = defaultdict(list)
            while run.height < stage + rounds:
                ahead = run.begin()
                if run.height >= stage:
                    measure(run, ahead, found)
                run.train(ahead)
            report(stage, found)
            result[f"after {stage}"] = found
        cost = measure_cost(run.folder, run.get_rows, 3 if args.quick else 30)
    print_table("CPU seconds of a round of 8 samples", ("", "s"), list(cost.items()))
    finish(args, result | {"cost": cost})


def report(stage: int, found: Mapping[str, list[float]]) -> None:
    config = Config(tolerance_fp32_ppm=1_000, tolerance_bf16_ppm=20_000)
    rows: list[list[object]] = []
    for name, distances in found.items():
        kind = NumericClass.BF16 if "bf16" in name else NumericClass.FP32
        false = compute_false_look(distances, compute_tolerance(config, kind, {})) if "honest" in name else math.nan
        rows.append([name, len(distances), min(distances), median(distances), max(distances), false])
    print_table(f"E from round {stage} on", ("pieces of", "pieces", "least", "median", "most", "fails"), rows)


if __name__ == "__main__":
    main()
