"""One rank's shard of a model that a group trains: FSDP2, tensor parallelism, and the rank's part of DisTrO.

Every rank has a `Shard`. The engine, in rank 0, calls its methods; each first sends the call to the other ranks.
Weights, gradients and momentum stay where they are; payload bytes and numbers travel, and single tensors on their way
to a file or a digest.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from psyche.core.encoding.plan import TransformPlan
from psyche.core.state.state import Optimizer
from psyche.errors import TrainerError
from psyche.modeling.distro.codec import decode_payload
from psyche.modeling.distro.layout import Held, compute_layout
from psyche.modeling.distro.momentum import find_group
from psyche.modeling.distro.statistics import add_sums
from psyche.modeling.inference.scoring import Scored
from psyche.modeling.local.exchange import Part, find_infinite
from psyche.modeling.local.inner import is_muons
from psyche.modeling.local.optimizer import LocalSteps
from psyche.modeling.trainer.batch import Cancelled, Gradients, PieceLog, Share
from psyche.modeling.trainer.ranks.group import Group
from psyche.modeling.trainer.ranks.parallel import (
    build_sharded,
    check_tensor_parallelism,
    get_held,
    get_index,
    get_local,
)
from psyche.modeling.trainer.replica import Ahead, Replica
from psyche.modeling.weights import Stored
from psyche.wire.trainer import Contribution, ScoreRow, SentResult


class RankShare(Share):
    """A data-parallel rank's rows of each micro-batch. All ranks take every step, for they gather weights together."""

    def __init__(self, shard: "Shard", group: Group) -> None:
        self._shard, self._group = shard, group
        self.ranks = group.data
        self._data_rank, self._tensor_rank = divmod(group.rank, group.tensor)

    def take(self, rows: torch.Tensor, micro_batch_size: int) -> tuple[torch.Tensor, float]:
        own = rows[self._data_rank * micro_batch_size :][:micro_batch_size]
        return (own, 1.0) if len(own) else (rows[:1], 0.0)

    def collect(self, parameters: Mapping[str, nn.Parameter]) -> dict[str, torch.Tensor]:
        """The gradients of the rank's own plan: its part of a cut tensor, the whole of an uncut one that it owns."""
        found: dict[str, torch.Tensor] = {}
        for name, own in super().collect(parameters).items():
            parameter = parameters[name]
            if isinstance(own, DTensor) and name in self._shard.owners:
                gradient: torch.Tensor = own.full_tensor()
            elif isinstance(own, DTensor) and isinstance(parameter, DTensor):
                # Tensor parallelism leaves some gradients whole at each rank, that of a divided embedding for one.
                gradient = own.redistribute(placements=parameter.placements)
            else:
                gradient = own
            if name in self._shard.masters:
                found[name] = get_local(gradient)
        return found

    def add(self, loss: float) -> float:
        return self._group.add(0.0 if self._tensor_rank else loss)  # ranks that share their rows have the same loss

    def add_norm(self, norm: float) -> float:
        return math.sqrt(self._group.add(norm**2))


class Shard(Replica):
    is_group = True

    def __init__(self, model: nn.Module, optimizer: Optimizer, group: Group, *, offload: bool) -> None:
        self._group = group
        self._gradients: dict[str, torch.Tensor] = {}
        self._named = dict(model.named_parameters())
        self._held = {name: get_held(parameter) for name, parameter in self._named.items()}
        self._all_held = group.share(self._held)
        earlier = self._all_held[: group.rank]
        self._first_held = {n for n, own in self._held.items() if not any(_is_equal(held[n], own) for held in earlier)}
        super().__init__(model, optimizer, group.device, offload=offload)
        self.share = RankShare(self, group)
        for name, parameter in self._named.items():
            self.tensors[name] = Stored(tuple(parameter.shape), partial(self.read, name))

    def _divide(self) -> tuple[Mapping[str, torch.Tensor], TransformPlan]:
        whole = {one.name for one in self.plan.tensors if is_muons(one.name, one.dims, self.settings)}
        self.layout = compute_layout(self.plan, self._all_held, whole)
        self.owners = self.layout.owners
        own = self.layout.plans[self._group.rank]
        self.masters = {
            entry.name: torch.zeros(entry.dims, device=self.device)
            if entry.name in self.owners
            else get_local(self._named[entry.name])
            for entry in own.tensors
        }
        return self.masters, own

    def fill(self, source: Mapping[str, torch.Tensor] | None = None) -> None:
        """Take over the values of a whole model that rank 0 has, a tensor at a time."""
        self._group.send("fill")
        for name, tensor in (*self._named.items(), *self.model.named_buffers()):
            whole = self._spread(name, tensor, 0, None if source is None else source[name])
            if name in self.owners and name in self.masters:
                self.masters[name].copy_(whole)

    @torch.no_grad()
    def _spread(self, name: str, tensor: torch.Tensor, owner: int, whole: torch.Tensor | None) -> torch.Tensor:
        """Give everyone its part of a tensor that one rank has whole."""
        if whole is None:
            whole = torch.empty(tuple(tensor.shape), dtype=tensor.dtype)
        whole = whole.detach().to(self.device).contiguous()
        dist.broadcast(whole, owner)
        get_local(tensor).copy_(whole[get_index(self._held[name])] if name in self._held else whole)
        return whole

    def _publish(self) -> None:
        """Give the uncut tensors from their owners to the ranks that compute with them."""
        for name, owner in self.owners.items():
            self._spread(name, self._named[name], owner, self.masters.get(name))

    def compute(
        self, tokens: torch.Tensor, micro_batch_size: int, ahead: Ahead, check: Callable[[], None] = lambda: None,
        pieces: PieceLog | None = None,
    ) -> Gradients:  # fmt: skip
        assert pieces is None, "refused at the load"
        self._group.send("compute", tokens, micro_batch_size, ahead)
        self._gradients = {}
        gradients = super().compute(tokens, micro_batch_size, ahead, partial(self._agree, check))
        self._gradients = gradients.tensors
        return gradients

    def _agree(self, check: Callable[[], None]) -> None:
        """Cancel at every rank what was cancelled at rank 0."""
        is_cancelled = False
        try:
            check()
        except Cancelled:
            is_cancelled = True
        if self._group.add(float(is_cancelled)):
            raise Cancelled

    @contextmanager
    def look_ahead(self, ahead: Ahead) -> Iterator[None]:
        own = self._find_own(ahead)
        try:
            with self.distro.lookahead(ahead.lr, None if own is None else self.layout.take(self._group.rank, own)):
                self._publish()
                yield
        except Cancelled:  # at all ranks; after another error they do not meet again
            self._publish()
            raise
        self._publish()

    def compress(
        self, gradients: Mapping[str, torch.Tensor], lr: float, decided: Sequence[SentResult], in_flight: bool,
        height: int, is_measured: bool = False,
    ) -> bytes:  # fmt: skip
        """The whole model's payload, merged at rank 0 from those of all ranks, each of the gradients that it has."""
        del gradients
        self._group.send("compress", {}, lr, decided, in_flight, height, is_measured)
        payload = super().compress(self._gradients, lr, decided, in_flight, height, is_measured)
        self._gradients = {}
        return self._merge(payload)

    def apply(self, payloads: Sequence[Contribution], lr: float, weight_decay: float) -> None:
        if isinstance(self.optimizer, LocalSteps):
            parts = self.decode(payloads)  # a bad one is not sent to the others
            self._group.send("apply", payloads, lr, weight_decay)
            self.optimizer.apply(parts)
        else:
            decoded = [decode_payload(self.plan, one.payload) for one in payloads]
            self._group.send("apply", payloads, lr, weight_decay)
            self.optimizer.apply_sets([self.layout.take(self._group.rank, sets) for sets in decoded], lr, weight_decay)
        self._publish()

    def decode(self, payloads: Sequence[Contribution]) -> list[Part]:
        """The rank's part of them."""
        return [part._replace(sets=self.layout.take(self._group.rank, part.sets)) for part in super().decode(payloads)]

    def begin_round(self, own: Sequence[Contribution]) -> None:
        parts = self.decode(own)
        self._group.send("begin_round", own)
        self.local.begin(parts)
        self._publish()

    def step(self, number: int, gradients: Mapping[str, torch.Tensor], rates: tuple[float, float]) -> None:
        del gradients
        self._group.send("step", number, {}, rates)
        self.local.step(number, self._gradients, rates)
        self._gradients = {}
        self._publish()

    def merge(self, held: Sequence[Contribution]) -> None:
        parts = self.decode(held)
        self._group.send("merge", held)
        self.local.merge(parts)
        self._publish()

    def end_round(
        self, decided: Sequence[SentResult], in_flight: bool, height: int, is_measured: bool = False
    ) -> bytes:
        self._group.send("end_round", decided, in_flight, height, is_measured)
        deltas = self.local.end()
        self._publish()
        if self._group.add(
            len(find_infinite(deltas))
        ):  # so that no rank's error memory takes up what another's refuses
            raise TrainerError("inner steps: the change of a tensor is not finite")
        return self._merge(self._send(deltas, decided, in_flight, height, is_measured))

    def _merge(self, payload: bytes) -> bytes:
        """The payload and figures of the whole model at rank 0, from those of all ranks."""
        parts = self._group.gather((payload, self.sums))
        self.sums = add_sums(sums for _, sums in parts)
        return self.layout.merge([part for part, _ in parts]) if parts else b""

    def abandon_round(self) -> None:
        self._group.send("abandon_round")
        self.local.abandon()
        self._publish()

    def score(self, row: ScoreRow, check: Callable[[], None] = lambda: None) -> list[Scored]:
        self._group.send("score", row)
        return super().score(row, partial(self._agree, check))

    def write(
        self, start: Sequence[int], count: int, written: list[int], check: Callable[[], None] = lambda: None
    ) -> None:
        self._group.send("write", start, count, [])
        super().write(start, count, written, partial(self._agree, check))

    def _agree_time(self, seconds: float) -> float:
        return self._group.add(0.0 if self._group.rank else seconds)

    @contextmanager
    def reading(self) -> Iterator[None]:
        try:
            with super().reading():
                yield
        finally:
            for module in self.model.modules():
                if isinstance(module, FSDPModule):  # without a backward pass it would keep the root's weights
                    module.reshard()

    @torch.no_grad()
    def read(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Elements [start, stop) of a flat parameter, at rank 0; no others are sent."""
        self._group.send("read", name, start, stop)
        parameter, held = self._named[name], self._held[name]
        inner = math.prod(parameter.shape[1:])
        first, last = start // inner, -(-stop // inner)
        rows = torch.zeros((last - first, *parameter.shape[1:]), dtype=parameter.dtype, device=self.device)
        if name in self._first_held:
            local = get_local(parameter)
            indices, *others = held or (np.arange(1),)
            kept = slice(*np.searchsorted(indices, [first, last]))  # they rise
            rows[get_index((indices[kept] - first, *others))] = (local if held else local[None])[kept]
        flat = rows.view(-1)[start - first * inner : stop - first * inner]
        dist.reduce(flat.view(torch.int32), 0)  # all others have zeros there, and integers keep every bit
        return flat

    def get_momentum(self) -> dict[str, torch.Tensor]:
        """The state of the whole model, as one rank would have it, at rank 0."""
        self._group.send("get_momentum")
        state = {name: tensor.cpu().numpy() for name, tensor in super().get_momentum().items()}
        parts = self._group.gather(state)
        whole: dict[str, torch.Tensor] = {}
        for name in {name: None for part in parts for name in part}:
            edges = find_group(self.plan, name)
            rows = [part.get(name) for part in parts]
            whole[name] = torch.from_numpy(state[name] if edges is None else self.layout.join(edges, rows))
        return whole

    def load_momentum(self, state: Mapping[str, torch.Tensor]) -> None:
        self._group.send("load_momentum", {})
        found = {name: find_group(self.plan, name) for name in state}
        parts = [
            {name: state[name] if edges is None else state[name][places[edges]]
             for name, edges in found.items() if edges is None or edges in places}
            for places in self.layout.places
        ]  # fmt: skip
        super().load_momentum(self._group.scatter(parts))


def _is_equal(held: Held, other: Held) -> bool:
    return all(map(np.array_equal, held, other))


def make_shard(group: Group, model: Any, optimizer: Optimizer, checkpointing: bool, offload: bool) -> Shard:
    """Divide a whole model among all ranks; called at rank 0."""
    check_tensor_parallelism(model, group.tensor)
    made = type(model), model.config, optimizer, checkpointing, offload
    group.send("build", *made)
    shard = build_shard(group, *made)
    shard.fill({**dict(model.named_parameters()), **dict(model.named_buffers())})
    return shard


def build_shard(
    group: Group, kind: type[Any], config: Any, optimizer: Optimizer, checkpointing: bool, offload: bool
) -> Shard:
    return Shard(build_sharded(kind, config, optimizer, checkpointing, group), optimizer, group, offload=offload)
