"""The share of time in training at 16 clients with 100 Mbit/s and 100 ms, of a 1B and an 8B model, in simulated time.

    python benchmarks/training_share.py [--json FILE] [--quick]

The real clients and the real server run as `psyche simulate` runs them; training, lines and disks are made up.
After the table: which batch, codec setting or line brings each model to 97 %, and local steps, whose rounds are H
times as long. What a payload and the exchange of local steps cost the processor is measured here, on this machine, and
taken as shared evenly by its cores; what a GPU does is assumed, and said.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from time import process_time

import numpy as np
import torch
from _table import build_parser, finish, print_facts, print_table

from psyche.analysis.accounts import What
from psyche.config.load import load_run
from psyche.config.profile import ClassTable
from psyche.core.encoding.plan import compute_run_plan
from psyche.core.state.state import Optimizer, OptimizerKind
from psyche.forecast.play import Forecast, play
from psyche.forecast.question import Question
from psyche.forecast.report import count_bounds
from psyche.forecast.workload import Workload, compute_even_shapes, compute_payload_bytes
from psyche.modeling.distro.codec import ChunkSets, decode_payload, encode_payload
from psyche.modeling.local.exchange import Exchange, Part

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = 16
MBIT_S, LATENCY_S = 100.0, 0.1
SEQUENCE = 2_048
SEQUENCES_PER_CLIENT = 64
FLOPS = 400e12  # that a member's GPU sustains: a good half of an H100's dense bf16
SPREAD_PERCENT = 1.0
GPU_S = 0.1  # for each billion parameters: the transform of a step, and again of an apply
CHUNK, TOPK = 64, 8
GOAL = 0.97
MEASURED = 10**8  # parameters
LOCAL_CORES = 16  # beside a member's GPU
MODELS = {"1B": 10**9, "8B": 8 * 10**9}


@dataclass(frozen=True)
class Setting:
    """What differs from the base; `batch` is a factor, `mbit_s` each member's line, `cores` those that code."""

    overlap: bool = True
    batch: int = 1
    topk: int = TOPK
    mbit_s: float = MBIT_S
    cores: int = 1
    inner_steps: int = 0  # of local steps; 0: DisTrO

    @property
    def optimizer(self) -> Optimizer:
        if not self.inner_steps:
            return Optimizer(
                OptimizerKind.DISTRO, compression_chunk=CHUNK, compression_topk=self.topk, quantize_1bit=True
            )
        return Optimizer(
            OptimizerKind.LOCAL_STEPS, compression_chunk=CHUNK, compression_topk=self.topk, value_bits=2,
            inner_steps=self.inner_steps, merge_step=self.inner_steps * 3 // 4, error_decay=0.95, outer_rate=1.0,
        )  # fmt: skip

    @property
    def text(self) -> str:
        parts = [f"overlap {'on' if self.overlap else 'off'}"]
        parts += [f"batch x {self.batch}"] if self.batch > 1 else []
        parts += [f"local steps, H {self.inner_steps}"] if self.inner_steps else []
        parts += [f"top-k {self.topk}"] if self.topk != TOPK else []
        parts += [f"{self.mbit_s:.0f} Mbit/s"] if self.mbit_s != MBIT_S else []
        parts += [f"{self.cores} cores"] if self.cores > 1 else []
        return ", ".join(parts)


@dataclass(frozen=True)
class Coding:
    """Processor seconds of one core, of a model of a billion parameters: measured with one of `MEASURED`.

    `decode_s` is of one payload, `compress_s` of a step beside its gradient, `apply_s` of payloads of all clients.
    """

    encode_s: float
    decode_s: float
    compress_s: float = 0.0
    apply_s: float = 0.0


@cache
def measure_coding(topk: int, inner_steps: int) -> Coding:
    torch.set_num_threads(1)
    settings = Setting(topk=topk, inner_steps=inner_steps).optimizer
    shapes = compute_even_shapes(MEASURED, CHUNK)
    plan = compute_run_plan(shapes, settings)
    scale = 10**9 / MEASURED
    if not inner_steps:
        (group,) = plan.groups
        rng = np.random.default_rng(0)
        steps = rng.integers(1, group.area // topk, size=(group.chunks, topk))
        sets = [ChunkSets((np.cumsum(steps, axis=1) - 1).astype(np.int32), np.ones(steps.shape, dtype=np.int8))]
        body = encode_payload(plan, sets)
        encode_s = take(lambda: encode_payload(plan, sets))
        return Coding(scale * encode_s, scale * take(lambda: decode_payload(plan, body)))
    weights = {name: torch.zeros(dims) for name, dims in shapes.items()}
    moves = {name: torch.randn(dims) * 1e-3 for name, dims in shapes.items()}
    exchange = Exchange(weights, plan, 0.95)
    compress_s = take(lambda: exchange.compress(moves, (), True, 0))
    body = exchange.compress(moves, (), True, 0)
    decode_s = take(lambda: decode_payload(plan, body))
    parts = [Part(decode_payload(plan, exchange.compress(moves, (), True, height)), 1) for height in range(CLIENTS)]
    apply_s = take(lambda: exchange.apply(parts, 1.0))
    return Coding(0.0, scale * decode_s, scale * compress_s, scale * apply_s)


def take(call: Callable[[], object]) -> float:
    """The least processor time of five calls."""
    times: list[float] = []
    for _ in range(5):
        started = process_time()
        call()
        times.append(process_time() - started)
    return min(times)


def build_question(parameters: int, setting: Setting, rounds: int) -> Question:
    """The question that a row answers."""
    run = load_run(ROOT / "config" / "dummy" / "run.toml")
    coding = measure_coding(setting.topk, setting.inner_steps)
    optimizer, inner = setting.optimizer, max(1, setting.inner_steps)
    run = replace(run, model=replace(run.model, max_seq_len=SEQUENCE, optimizer=optimizer))
    payload = compute_payload_bytes(compute_even_shapes(parameters, CHUNK), optimizer)
    billions = parameters / 1e9
    gpu_s = 0.0 if setting.inner_steps else GPU_S  # the exchange of local steps is measured
    work_s = gpu_s + (coding.apply_s + CLIENTS * coding.decode_s) / setting.cores
    step_s = gpu_s + coding.encode_s + coding.compress_s / setting.cores
    machine = ClassTable(
        name="member", share=1.0, tokens_per_s=FLOPS / (6 * parameters), up_mbit_s=setting.mbit_s,
        down_mbit_s=setting.mbit_s, latency_ms=LATENCY_S * 1e3, spread_percent=SPREAD_PERCENT, load_s=1.0,
        step_s=billions * step_s, apply_s=billions * work_s,
    )  # fmt: skip
    batch = CLIENTS * SEQUENCES_PER_CLIENT * setting.batch * inner
    changes = {
        "init_min_clients": CLIENTS, "overlap": setting.overlap, "rounds_per_epoch": rounds,
        "global_batch_size_start": batch, "global_batch_size_end": batch, "max_round_train_time": 7_200,
        "warmup_time": 120,
    }  # fmt: skip
    return Question(
        run=run, workload=Workload(parameters, payload, SEQUENCE, "parameters"), classes=(machine,), counts=(CLIENTS,),
        rounds=rounds, changes=changes,
    )  # fmt: skip


def describe_bound(forecast: Forecast) -> str:
    """What most rounds waited for last."""
    (kind, _), _ = count_bounds(forecast)[0]
    return {"training": "training", "transfer": "payloads on the line", "patience": "slow members"}.get(
        kind, "messages"
    )


def get_row(model: str, setting: Setting, forecast: Forecast) -> tuple[object, ...]:
    rounds = forecast.accounts.data_rounds[1:]  # in the first one nothing is due yet
    shares = [
        100 * sum(one.shares[what] * one.seconds for one in rounds) / sum(one.seconds for one in rounds)
        for what in What
    ]
    named = dict(zip(What, shares, strict=True))
    return (
        model, setting.text, sum(one.seconds for one in rounds) / len(rounds), round(named[What.TRAIN], 1),
        round(named[What.APPLY], 1), round(named[What.TRANSFER], 1),
        round(named[What.WAIT] + named[What.SEND] + named[What.WITNESS], 1), describe_bound(forecast),
    )  # fmt: skip


def find_better(setting: Setting) -> list[list[Setting]]:
    """Ways to the goal, each from small steps to large ones; the first that reaches it ends its way."""
    batches = [replace(setting, batch=batch) for batch in (2, 4, 8, 16, 32)]
    cores = [replace(setting, batch=batch, cores=8) for batch in (1, 2, 4, 8)]
    return [batches, [replace(setting, mbit_s=1_000.0)], [replace(setting, topk=4)], cores]


def make_assumptions() -> list[str]:
    """What the table rests on."""
    line = f"{MBIT_S:.0f} Mbit/s up and down for all transfers of each, {LATENCY_S * 1e3:.0f} ms one way"
    facts = [f"{CLIENTS} clients, {line}; times vary by {SPREAD_PERCENT:.0f} %"]
    for name, parameters in MODELS.items():
        tokens = FLOPS / 6 / parameters
        size = build_question(parameters, Setting(), 1).workload.payload_bytes
        facts.append(
            f"{name}: payloads of {size / 1e6:.1f} MB (chunk {CHUNK}, k {TOPK}, 1-bit), {tokens:,.0f} tokens/s a "
            f"member ({FLOPS / 1e12:.0f} TFLOP/s), {SEQUENCES_PER_CLIENT} x {SEQUENCE} tokens: "
            f"{SEQUENCES_PER_CLIENT * SEQUENCE / tokens:.1f} s of training a step"
        )
    coding = measure_coding(TOPK, 0)
    facts.append(
        f"assumed for each billion parameters: {GPU_S} s of GPU for a step and for an apply of DisTrO; measured on one "
        f"core: {coding.encode_s:.3f} s to encode a payload, {coding.decode_s:.3f} s to decode one of {CLIENTS}"
    )
    for setting in LOCAL:
        coding = measure_coding(setting.topk, setting.inner_steps)
        facts.append(
            f"local steps, k {setting.topk}, measured likewise: {coding.compress_s:.2f} s to compress and encode, "
            f"{coding.decode_s:.3f} s to decode one payload, {coding.apply_s:.2f} s to apply {CLIENTS}; a member has "
            f"{LOCAL_CORES} cores"
        )
    return facts


LOCAL = [Setting(inner_steps=8, topk=16), Setting(inner_steps=16, topk=64)]


def main() -> None:
    args = build_parser(__doc__).parse_args()
    rounds = 3 if args.quick else 6
    rows: list[tuple[object, ...]] = []
    result: dict[str, object] = {}

    def ask(model: str, setting: Setting) -> float:
        print(f"{model}, {setting.text} ...", file=sys.stderr, flush=True)
        forecast = play(build_question(MODELS[model], setting, rounds))
        assert not forecast.outcome.violations, forecast.outcome.describe()
        row = get_row(model, setting, forecast)
        rows.append(row)
        result[f"{model}, {setting.text}"] = {"round_s": row[2], "train": row[3], "apply": row[4], "transfer": row[5]}
        return float(str(row[3])) / 100

    for model in MODELS:
        for overlap in (True, False):
            ask(model, Setting(overlap=overlap))
    base = len(rows)
    for model in MODELS:
        for setting in LOCAL:
            ask(model, replace(setting, cores=LOCAL_CORES))
            if not args.quick:
                ask(model, setting)
                ask(model, replace(setting, cores=LOCAL_CORES, overlap=False))
    local = len(rows)
    for model in MODELS if not args.quick else ():
        for way in find_better(Setting()):
            for setting in way:
                if ask(model, setting) >= GOAL:
                    break
    columns = ("model", "setting", "round s", "training %", "applying %", "payloads %", "waiting %", "waits last for")
    print_facts(make_assumptions(), "training_share facts")
    print_table("Share of a member's time", columns, rows[:base], "training_share")
    print_table(
        "Local steps, the exchange on the cores of the member", columns, rows[base:local], "training_share local"
    )
    if rows[local:]:
        print_table(f"Ways to {GOAL:.0%} in training", columns, rows[local:], "training_share ways")
    finish(args, result)


if __name__ == "__main__":
    main()
