"""Triton's kernels in its interpreter on a CPU, beside torch: equal payloads and weights, and a way back to torch."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from psyche.modeling.local import exchange as exchange_module
from psyche.modeling.local import kernels
from psyche.modeling.local.exchange import find_exact_kernels

PLAY = """
import sys
import numpy as np
import torch
from psyche.core.encoding.plan import compute_plan
from psyche.modeling.local.exchange import Exchange, Part, find_exact_kernels
from psyche.modeling.distro.codec import decode_payload

found = find_exact_kernels(torch.device("cpu"))
assert found is not None, "the first look finds equal bytes"
draw = torch.Generator().manual_seed(1)
for shapes, edge, k, bits in (
    ({"a": (32, 48), "b": (20,), "c": (3, 7, 16), "d": ()}, 16, 8, 2),  # several strips and columns, ragged, a scalar
    ({"a": (14, 7)}, 7, 1000, 1),  # all of a chunk
    ({"a": (64, 128)}, 64, 64, 2),
)[: int(sys.argv[1])]:
    plan = compute_plan(shapes, edge, k, one_bit=False, scaled_bits=bits)
    peers = []
    for kernels in (found, None, None):
        weights = {name: torch.ones(dims) * 0.02 for name, dims in shapes.items()}
        weights["a"].view(-1)[3] = -0.0
        peers.append((Exchange(weights, plan, 0.9, lambda _, kernels=kernels: kernels), weights))
    for height in range(2):
        deltas = [{name: torch.randn(dims, generator=draw) * 1e-3 for name, dims in shapes.items()} for _ in range(2)]
        bodies = [peer.compress(deltas[number], (), True, height) for number, (peer, _) in enumerate(peers[:2])]
        assert peers[2][0].compress(deltas[0], (), True, height) == bodies[0], "torch sends the same"
        parts = [Part(decode_payload(plan, body), 3 + place) for place, body in enumerate(bodies)]
        for number, (peer, _) in enumerate(peers):
            peer.apply(parts[:: -1 if number else 1], 0.9)
    one, other, third = ([weight.numpy().tobytes() for weight in weights.values()] for _, weights in peers)
    assert one == other == third, "all end in the same weights"
print("equal")
"""


@pytest.mark.parametrize("cases", [0, pytest.param(3, marks=pytest.mark.whole)])  # beside those of the first look
def test_interpreted_kernels_give_the_bytes_of_torch(cases: int) -> None:
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", PLAY, str(cases)],
        check=False, capture_output=True, text=True, timeout=300, env={**os.environ, "TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert done.stdout == "equal\n", done.stderr


def compress_wrongly(*given: Any) -> None:
    kernels.compress(*given)
    given[-1].values[0, 0] *= -1


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (SimpleNamespace(compress=compress_wrongly, apply=kernels.apply), "bytes"),
        (SimpleNamespace(compress=kernels.compress, apply=lambda *_: None), "bytes"),
        (SimpleNamespace(), "no attribute 'compress'"),
    ],
    ids=["one sign is wrong", "weights stay", "they do not run"],
)
def test_what_is_not_exact_on_a_device_is_not_used_there(
    broken: SimpleNamespace, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_module, "import_module", lambda _: broken)
    find_exact_kernels.cache_clear()
    try:
        with capture_logs() as lines:
            assert [find_exact_kernels(torch.device("cpu")) for _ in range(2)] == [None, None]
    finally:
        find_exact_kernels.cache_clear()
    (line,) = lines
    assert "torch exchanges local steps on this GPU" in line["event"]
    assert reason in line["reason"]
