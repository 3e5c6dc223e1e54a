"""Our optimizer step against the published algorithm written down as its formulas stand.

The formulas' way: per tensor, momentum in weight space, a dense DCT, the k largest, a second dense
transform to take out what was sent, a mean over all peers' values, a third one, the sign. Ours does
all that and the wire coding both ways. One process, one thread, in turns, the least processor time.

`--demo-repo PATH` measures the published code beside both: a checkout of bloc97/DeMo, which needs einops. A second
table has the exchange of local steps.
"""

import gc
import importlib.util
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time
from types import SimpleNamespace
from typing import Any

import torch
from _table import build_parser, finish, print_table

from psyche.core.encoding.plan import TransformPlan, compute_chunk_edge, compute_plan
from psyche.modeling.distro import compiled
from psyche.modeling.distro.basis import get_float_basis
from psyche.modeling.distro.codec import decode_payload
from psyche.modeling.distro.optimizer import Distro
from psyche.modeling.local.exchange import Exchange, Part
from psyche.wire.trainer import SentResult

Tensors = dict[str, torch.Tensor]
Sent = dict[str, tuple[torch.Tensor, torch.Tensor]]
DECAY, LR = 0.95, 1e-3


class Formulas:
    """The published algorithm: one trainer."""

    def __init__(self, weights: Tensors, chunk: int, topk: int) -> None:
        self.weights = weights
        self.chunk = chunk
        self.topk = topk
        self.momentum = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    def basis(self, n: int) -> torch.Tensor:
        return torch.from_numpy(get_float_basis(compute_chunk_edge(n, self.chunk)).copy())

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 1:
            d = self.basis(x.shape[0])
            return torch.einsum("xw,jw->xj", x.view(-1, d.shape[0]), d)
        dh, dw = self.basis(x.shape[0]), self.basis(x.shape[1])
        cut = x.view(x.shape[0] // len(dh), len(dh), x.shape[1] // len(dw), len(dw))
        return torch.einsum("yhxw,ih,jw->yxij", cut, dh, dw)

    def decode(self, c: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        if len(shape) == 1:
            return torch.einsum("xj,jw->xw", c, self.basis(shape[0])).reshape(shape)
        return torch.einsum("yxij,ih,jw->yhxw", c, self.basis(shape[0]), self.basis(shape[1])).reshape(shape)

    def compress(self, gradients: Tensors) -> Sent:
        sent: Sent = {}
        for name, m in self.momentum.items():
            m.mul_(DECAY).add_(gradients[name], alpha=LR)
            encoded = self.encode(m)
            flat = encoded.flatten(-2) if m.dim() > 1 else encoded
            k = min(self.topk, flat.shape[-1])
            index = flat.abs().topk(k, dim=-1, sorted=False).indices
            value = flat.gather(-1, index)
            own = torch.zeros_like(flat).scatter_(-1, index, value)
            m.sub_(self.decode(own.view(encoded.shape), m.shape))
            sent[name] = (index, value)
        return sent

    def apply(self, peers: list[Sent]) -> None:
        for name, weight in self.weights.items():
            index = torch.cat([peer[name][0] for peer in peers], dim=-1)
            value = torch.cat([peer[name][1] for peer in peers], dim=-1)
            shape = self.encode_shape(weight.shape)
            dense = torch.zeros(*shape[:2], shape[2] * shape[3]) if weight.dim() > 1 else torch.zeros(shape)
            dense.scatter_reduce_(-1, index, value, reduce="mean", include_self=False)
            weight.sub_(LR * self.decode(dense.view(shape), weight.shape).sign())

    def look_ahead(self) -> None:
        """To the look-ahead point of a run with overlap and back, as the formulas say: by addition."""
        for sign in (-1.0, 1.0):
            for name, weight in self.weights.items():
                weight.add_(self.momentum[name].sign(), alpha=sign * LR)

    def encode_shape(self, shape: torch.Size) -> tuple[int, ...]:
        edges = [compute_chunk_edge(n, self.chunk) for n in shape]
        return (*(n // edge for n, edge in zip(shape, edges, strict=True)), *edges)


class Published:
    """The published code in one process; the others' messages are copies of its own."""

    def __init__(self, repository: Path, weights: Tensors, chunk: int, topk: int, peers: int) -> None:
        spec = importlib.util.spec_from_file_location("demo", repository / "demo.py")
        assert spec is not None, f"{repository} has no demo.py"
        assert spec.loader is not None, "files that end with .py have a loader"
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        vars(module)["dist"] = SimpleNamespace(all_gather=self._gather)
        self._parameters = {name: torch.nn.Parameter(weight) for name, weight in weights.items()}
        group: Any = SimpleNamespace(size=lambda: peers)
        self._optimizer = module.DeMo(
            self._parameters.values(), DECAY, topk, chunk, process_group=group, lr=LR
        )  # fmt: skip

    def _gather(self, into: Sequence[torch.Tensor], own: torch.Tensor, **_: Any) -> SimpleNamespace:
        for one in into:
            one.copy_(own)
        return SimpleNamespace(wait=lambda: None)

    def step(self, gradients: Tensors) -> None:
        for name, parameter in self._parameters.items():
            parameter.grad = gradients[name]
        self._optimizer.step()


def make_shapes(vocabulary: int, hidden: int, layers: int, inner: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a Llama, untied."""
    shapes: dict[str, tuple[int, ...]] = {
        "embed": (vocabulary, hidden),
        "head": (vocabulary, hidden),
        "norm": (hidden,),
    }
    for layer in range(layers):
        shapes |= {f"{layer}.{name}": (hidden, hidden) for name in "qkvo"}
        shapes |= {f"{layer}.gate": (inner, hidden), f"{layer}.up": (inner, hidden), f"{layer}.down": (hidden, inner)}
        shapes |= {f"{layer}.norm1": (hidden,), f"{layer}.norm2": (hidden,)}
    return shapes


def make_tensors(plan: TransformPlan, scale: float) -> Tensors:
    return {tensor.name: torch.randn(tensor.dims) * scale for tensor in plan.tensors}


def check_same_choice(plan: TransformPlan, chunk: int, gradients: Tensors) -> None:
    """Both ways must choose the same coefficients, or the comparison means nothing."""
    weights = make_tensors(plan, 0.02)
    body = Distro(weights, plan, DECAY).compress(gradients, LR, (), True, 0)
    sent = Formulas(weights, chunk, plan.k).compress(gradients)
    for group, sets in zip(plan.groups, decode_payload(plan, body), strict=True):
        names = [plan.tensors[place].name for place in group.tensors]
        theirs = torch.cat([sent[name][0].reshape(-1, group.k) for name in names]).sort(dim=1).values
        different = int((theirs != torch.from_numpy(sets.indices)).any(dim=1).sum())
        assert different <= group.chunks // 1000, f"{different} chunks of {group.edges} differ"


class Rounds:
    """What a trainer gives `compress` beside gradients: the result before is in flight, the one before that applied."""

    def __init__(self, height: int) -> None:
        self.height = height

    def begin(self) -> tuple[tuple[SentResult, ...], bool, int]:
        self.height += 1
        return (SentResult(height=self.height - 2, applied=True),), True, self.height


def make_plain(plan: TransformPlan) -> Distro:
    """Ours where numba is missing."""
    usual, compiled.LEAST_PARAMETERS = compiled.LEAST_PARAMETERS, 1 << 60
    try:
        return Distro(make_tensors(plan, 0.02), plan, DECAY)
    finally:
        compiled.LEAST_PARAMETERS = usual


def look_ahead(distro: Distro) -> None:
    with distro.lookahead(LR):
        pass


def measure_in_turns(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The least processor seconds of each call, all of them called in every turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = process_time()
            call()
            times[name].append(process_time() - start)
    return {name: min(values[1:]) for name, values in times.items()}


def measure_model(
    shapes: dict[str, tuple[int, ...]], chunk: int, topk: int, peers: int, repeats: int, repository: Path | None = None
) -> dict[str, float]:
    plan = compute_plan(shapes, chunk, topk, one_bit=True)
    gradients = make_tensors(plan, 1.0)
    gc.collect()  # the published code's module and optimizer of the case before hold each other
    if peers <= 3:
        check_same_choice(plan, chunk, gradients)
    ours = Distro(make_tensors(plan, 0.02), plan, DECAY)
    plain = make_plain(plan)
    theirs = Formulas(make_tensors(plan, 0.02), chunk, topk)
    bodies = [ours.compress(gradients, LR, (), False, height) for height in range(peers)]
    sent = [theirs.compress(gradients) for _ in range(2)] * -(-peers // 2)
    rounds, plain_rounds = Rounds(peers), Rounds(0)
    published = repository and Published(repository, make_tensors(plan, 0.02), chunk, topk, peers)
    return measure_in_turns(
        {
            **({"published": lambda: published.step(gradients)} if published else {}),
            "their compress": lambda: theirs.compress(gradients),
            "our compress": lambda: ours.compress(gradients, LR, *rounds.begin()),
            "their apply": lambda: theirs.apply(sent[:peers]),
            "our apply": lambda: ours.apply(bodies, LR, 0.0),
            "our decoding": lambda: [decode_payload(plan, body) for body in bodies],
            "their look-ahead": theirs.look_ahead,
            "our look-ahead": lambda: look_ahead(ours),
            "plain compress": lambda: plain.compress(gradients, LR, *plain_rounds.begin()),
            "plain apply": lambda: plain.apply(bodies, LR, 0.0),
        },
        repeats,
    )


def measure_exchange(shapes: dict[str, tuple[int, ...]], topk: int, peers: int, repeats: int) -> dict[str, float]:
    """Nanoseconds a parameter of an exchange of local steps."""
    plan = compute_plan(shapes, 64, topk, one_bit=False, scaled_bits=2)
    exchange = Exchange(make_tensors(plan, 0.02), plan, DECAY)
    moves = make_tensors(plan, 1e-3)
    bodies = [exchange.compress(moves, (), True, height) for height in range(peers)]
    parts = [Part(decode_payload(plan, body), 8) for body in bodies]
    rounds = Rounds(peers)
    took = measure_in_turns(
        {
            "compress": lambda: exchange.compress(moves, *rounds.begin()),
            "decode": lambda: [decode_payload(plan, body) for body in bodies],
            "apply": lambda: exchange.apply(parts, 1.0),
        },
        repeats,
    )
    parameters = sum(math.prod(shape) for shape in shapes.values())
    return {name: seconds / parameters * 1e9 for name, seconds in took.items()}


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--demo-repo", type=Path, metavar="PATH", help="a checkout of the published code")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    small, middle = make_shapes(256, 128, 4, 384), make_shapes(32_000, 256, 6, 688)
    large = make_shapes(25_600, 768, 12, 2_048)
    cases = [("0.9M", small, 16, 16, 3), ("21M", middle, 64, 8, 3)]
    if not args.quick:
        cases += [("21M", middle, 16, 16, 3)]
        cases += [("124M", large, 64, 8, peers) for peers in (2, 8, 32)]
    rows: list[tuple[object, ...]] = []
    result: dict[str, object] = {}
    for name, shapes, chunk, topk, peers in cases:
        took = measure_model(shapes, chunk, topk, peers, 3 if args.quick or name == "124M" else 9, args.demo_repo)
        steps = {who: took[f"{who} compress"] + took[f"{who} apply"] for who in ("their", "our", "plain")}
        runs = {who: steps[who] + took[f"{who} look-ahead"] for who in ("their", "our")}
        ratios = [took[f"their {what}"] / took[f"our {what}"] for what in ("compress", "apply")]
        ratios += [steps["their"] / steps["our"], runs["their"] / runs["our"], steps["their"] / steps["plain"]]
        ratios += [took["published"] / steps["our"]] if args.demo_repo else []
        rows.append(
            (name, chunk, topk, peers, steps["their"] * 1e3, steps["our"] * 1e3, took["our decoding"] * 1e3,
             took["our look-ahead"] * 1e3, *(f"{ratio:.1f}" for ratio in ratios))
        )  # fmt: skip
        result[f"ratio_{name}_{chunk}_{topk}_{peers}"] = steps["their"] / steps["our"]
        result[f"ours_ms_{name}_{chunk}_{topk}_{peers}"] = steps["our"] * 1e3
    columns = [
        "model", "chunk", "k", "peers", "formulas ms", "ours ms", "of it decoding", "look-ahead ms", "compress x",
        "apply x", "step x", "with look-ahead x", "without numba x", *(["published x"] if args.demo_repo else []),
    ]  # fmt: skip
    print_table(
        "One optimizer step; x = how many times faster than the formulas, or the published code", columns, rows,
        "distro_step",
    )  # fmt: skip
    exchanges: list[tuple[object, ...]] = []
    for topk in (16, 64, 256):
        for peers in (4, 16):
            took = measure_exchange(middle if args.quick else large, topk, peers, 3)
            exchanges.append((topk, peers, *took.values(), sum(took.values())))
            result[f"exchange_ns_{topk}_{peers}"] = sum(took.values())
    size = "21M" if args.quick else "124M"
    print_table(
        f"An exchange of local steps, {size}, chunk 64, 2 bits a value: nanoseconds a parameter",
        ["k", "peers", "compress", "decode", "apply", "in all"], exchanges, "exchange",
    )  # fmt: skip
    finish(args, result)


if __name__ == "__main__":
    main()
