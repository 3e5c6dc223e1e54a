"""Whole runs of the published algorithm, and of its delayed form with look-ahead, against their vectors."""

from typing import Any

import numpy as np
import pytest
import torch
from distro_kit import join_chunks, load_vectors

from psyche.core.encoding.plan import TransformPlan, compute_plan
from psyche.modeling.distro.apply import decay_weights
from psyche.modeling.distro.codec import ChunkSets, decode_payload
from psyche.modeling.distro.optimizer import Distro
from psyche.modeling.distro.transform import invert

RUNS = ["base", "odd", "dense", "sched", "single", "f64"]
Tensors = dict[str, torch.Tensor]


class Peer:
    """One trainer of a vector run, in full-value or 1-bit mode."""

    def __init__(self, tensors: Tensors, settings: dict[str, Any], one_bit: bool) -> None:
        self.names = [f"p{place}" for place in range(len(settings["shapes"]))]
        shapes = {name: tuple(shape) for name, shape in zip(self.names, settings["shapes"], strict=True)}
        self.plan = compute_plan(shapes, settings["chunk"], settings["k"], one_bit=one_bit)
        self.weights = {name: tensors[f"{name}.init"].float().clone() for name in self.names}
        self.distro = Distro(self.weights, self.plan, settings["decay"])

    def train(self, gradients: Tensors, lr: float, height: int) -> bytes:
        return self.distro.compress(gradients, lr, (), True, height)

    def get_momentum(self, *, without: list[ChunkSets] | None = None) -> Tensors:
        """The momentum as weights, less what a payload took."""
        groups = []
        for place, (group, held) in enumerate(zip(self.plan.groups, self.distro.momentum.coefficients, strict=True)):
            left = held.clone()
            if without is not None:
                chunk, entry = np.nonzero(without[place].indices < group.area)
                left[chunk, without[place].indices[chunk, entry].astype(np.int64)] = 0.0
            groups.append(invert(left.view(-1, *group.edges)))
        return join_chunks(self.plan, groups)


def _get_decoded(peer: Peer, payloads: list[bytes]) -> Tensors:
    applier = peer.distro._applier
    sets = [decode_payload(peer.plan, payload) for payload in payloads]
    groups = []
    for place, group in enumerate(peer.plan.groups):
        votes = [each[place] for each in sets]
        blocks = [applier.invert_block(group, block, votes).clone() for block in applier.blocks[place]]
        scale = 1.0 if not group.one_bit else 2.0 ** -(10 + (28 if group.edges[0] > 1 else 14))
        groups.append(torch.cat(blocks) * scale)
    return join_chunks(peer.plan, groups)


def _get_sent(plan: TransformPlan, payload: bytes) -> dict[str, list[dict[int, float]]]:
    sent: dict[str, list[dict[int, float]]] = {}
    for group, sets in zip(plan.groups, decode_payload(plan, payload), strict=True):
        rows = [
            {i: v for i, v in zip(*pair, strict=True) if i < group.area}
            for pair in zip(sets.indices.tolist(), sets.values.tolist(), strict=True)
        ]
        at = 0
        for place in group.tensors:
            tensor = plan.tensors[place]
            sent[tensor.name] = rows[at : at + tensor.chunks]
            at += tensor.chunks
    return sent


def _get_wanted(indices: torch.Tensor, values: torch.Tensor) -> list[dict[int, float]]:
    """What a vector says was sent; zeros are never sent here."""
    k = indices.shape[-1]
    pairs = zip(indices.reshape(-1, k).tolist(), values.float().reshape(-1, k).tolist(), strict=True)
    return [{i: v for i, v in zip(*pair, strict=True) if v} for pair in pairs]


def _is_close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float, scale: float | None = None) -> bool:
    """Whether they differ by at most `tolerance` of the largest number wanted, or of `scale`."""
    scale = float(wanted.abs().max()) if scale is None else scale
    return torch.allclose(found.double(), wanted.double().reshape(found.shape), rtol=0, atol=tolerance * scale)


def _check_sent(found: list[dict[int, float]], wanted: list[dict[int, float]], tolerance: float) -> tuple[int, float]:
    """Compare values where both sent something; how many indices differ, and the largest value."""
    scale = max((abs(v) for row in wanted for v in row.values()), default=0.0)
    for ours, theirs in zip(found, wanted, strict=True):
        assert all(abs(ours[i] - theirs[i]) <= tolerance * scale for i in ours.keys() & theirs.keys())
    return sum(len(ours.keys() ^ theirs.keys()) for ours, theirs in zip(found, wanted, strict=True)), scale


@pytest.mark.parametrize("run", RUNS)
def test_a_run_of_the_published_algorithm_is_reproduced(run: str) -> None:
    tensors, settings = load_vectors(f"distro/run_{run}")
    peers = [Peer(tensors, settings, one_bit=False) for _ in range(settings["peers"])]
    for step in range(settings["steps"]):
        payloads = []
        for rank, peer in enumerate(peers):
            at = f"s{step}.r{rank}"
            gradients = {name: tensors[f"{at}.{name}.grad"].float() for name in peer.names}
            payloads.append(peer.train(gradients, settings["lr"][step], step))
            sent = _get_sent(peer.plan, payloads[-1])
            momentum = peer.get_momentum(without=decode_payload(peer.plan, payloads[-1]))
            for name in peer.names:
                wanted = _get_wanted(tensors[f"{at}.{name}.idx"], tensors[f"{at}.{name}.val"])
                different, scale = _check_sent(sent[name], wanted, 2e-5)
                assert different == 0
                after = tensors[f"{at}.{name}.momentum_after"]
                assert _is_close(momentum[name], after, 2e-5, max(scale, float(after.abs().max())))
        decoded = _get_decoded(peers[0], payloads)
        for peer in peers:
            peer.distro.apply(payloads, settings["lr"][step], settings["wd"])
        for name in peers[0].names:
            assert _is_close(decoded[name], tensors[f"s{step}.{name}.decoded"], 2e-5)
            sure = tensors[f"{name}.sure"].bool()
            weight = tensors[f"s{step}.{name}.weight"].float()
            assert torch.allclose(peers[0].weights[name][sure], weight[sure], rtol=0, atol=1e-6)
    for name in peers[0].names:
        assert all(torch.equal(peer.weights[name], peers[0].weights[name]) for peer in peers)
        sure = tensors[f"{name}.sure"].bool()
        assert torch.allclose(peers[0].weights[name][sure], tensors[f"{name}.final"].float()[sure], rtol=0, atol=1e-6)


@pytest.mark.parametrize("run", ["1bit", "values"])
def test_a_delayed_run_with_lookahead_is_reproduced(run: str) -> None:
    """In the vectors' order: apply of two rounds ago, look-ahead, undo, weight decay, momentum."""
    tensors, settings = load_vectors(f"distro/psyche_run_{run}")
    peers = [Peer(tensors, settings, settings["q1"]) for _ in range(settings["peers"])]
    lr, sent_by_round = settings["lr"], []
    for turn in range(settings["rounds"]):
        payloads = []
        if turn >= 2:
            for name, decoded in _get_decoded(peers[0], sent_by_round[turn - 2]).items():
                # One-bit votes are averaged in fixed point, 2^-10 apart.
                assert _is_close(decoded, tensors[f"t{turn}.{name}.decoded"], 1e-3 if settings["q1"] else 2e-5)
        for rank, peer in enumerate(peers):
            at = f"t{turn}.r{rank}"
            if turn >= 2:
                peer.distro.apply(sent_by_round[turn - 2], lr[turn], 0.0)
            before = {name: weight.clone() for name, weight in peer.weights.items()}
            with peer.distro.lookahead(lr[max(turn - 1, 0)]):
                for name in peer.names:
                    assert torch.allclose(peer.weights[name], tensors[f"{at}.{name}.w_forward"], rtol=0, atol=1e-6)
            assert all(torch.equal(peer.weights[name], before[name]) for name in peer.names)
            decay_weights(list(peer.weights.values()), lr[turn], settings["wd"])
            gradients = _clip(tensors, settings, at, peer.names)
            payloads.append(peer.train(gradients, lr[turn], turn))
            sent, momentum = _get_sent(peer.plan, payloads[-1]), peer.get_momentum()
            for name in peer.names:
                assert _is_close(momentum[name], tensors[f"{at}.{name}.momentum"], 2e-5)
                wanted = _get_wanted(tensors[f"{at}.{name}.idx"], tensors[f"{at}.{name}.val"])
                for found, row in zip(sent[name], wanted, strict=True):
                    assert found.keys() == row.keys()
                    if settings["q1"]:
                        assert all(found[i] == (1 if row[i] > 0 else -1) for i in row)
                    else:
                        assert np.allclose([found[i] for i in row], list(row.values()), rtol=1e-4, atol=1e-9)
        sent_by_round.append(payloads)
    for name in peers[0].names:
        assert torch.allclose(peers[0].weights[name], tensors[f"{name}.final"], rtol=0, atol=1e-6)


def _clip(tensors: Tensors, settings: dict[str, Any], at: str, names: list[str]) -> Tensors:
    """The gradients of one peer, scaled as the vectors' trainer does."""
    gradients = {name: tensors[f"{at}.{name}.grad"] for name in names}
    if settings["clip"] is None:
        return gradients
    norm = float(torch.stack([gradient.norm() for gradient in gradients.values()]).norm())
    assert abs(norm - float(tensors[f"{at}.grad_norm"])) <= 1e-5 * norm
    factor = min(1.0, settings["clip"] / (norm + 1e-6))
    return {name: gradient * factor for name, gradient in gradients.items()}
