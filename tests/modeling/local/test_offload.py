"""`--offload`: an optimizer whose state is on the host does what one does that has it on its device, bit for bit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from kits.tier import few

from psyche.core.encoding.plan import compute_run_plan
from psyche.core.state.state import InnerOptimizer, Model, Optimizer, OptimizerKind
from psyche.errors import ConfigError
from psyche.modeling.architecture import read_blueprint
from psyche.modeling.device import HOST, find_host
from psyche.modeling.distro.codec import decode_payload
from psyche.modeling.distro.optimizer import Distro
from psyche.modeling.local.exchange import Part
from psyche.modeling.local.optimizer import LocalSteps
from psyche.modeling.trainer import memory
from psyche.modeling.trainer.engine import TrainerEngine
from psyche.modeling.trainer.memory import Fitting, Setup, Step, predict_bytes
from psyche.wire.trainer import OFFLOADED, LoadRequest, SentResult

ROUNDS, STEPS = 5, 3
SHAPES = {"layers.0.weight": (48, 32), "embedding": (64, 16), "norm": (40,)}
LOCAL = Optimizer(
    OptimizerKind.LOCAL_STEPS, weight_decay=0.1, inner_steps=STEPS, merge_step=1, compression_topk=4,
    compression_chunk=16, value_bits=2, error_decay=0.95, outer_rate=1.0,
)  # fmt: skip
DISTRO = Optimizer(
    OptimizerKind.DISTRO, compression_topk=4, compression_chunk=16, compression_decay=0.95, quantize_1bit=True
)
on_both = pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))],
)
Run = Callable[[torch.device | None], tuple[list[bytes], dict[str, torch.Tensor]]]


def make_tensors(device: str, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).to(device) for name, shape in SHAPES.items()}


def get_decided(height: int) -> tuple[SentResult, ...]:
    """Every third result is left out, so that its values are given back (R8)."""
    return (SentResult(height=height - 2, applied=height % 3 > 0),) if height > 1 else ()


def run_local_steps(device: str, kind: InnerOptimizer) -> Run:
    settings = replace(LOCAL, inner_optimizer=kind)
    plan = compute_run_plan(SHAPES, settings)

    def run(host: torch.device | None) -> tuple[list[bytes], dict[str, torch.Tensor]]:
        weights, sent = make_tensors(device, 1), []
        local = LocalSteps(weights, plan, settings, host)
        for height in range(ROUNDS):
            own = [Part(decode_payload(plan, payload), STEPS) for payload in sent[-1:]]
            local.begin(own)
            for step in range(STEPS):
                if step == settings.merge_step:
                    local.merge(own)
                local.step(step, make_tensors(device, 10 * height + step), (1e-2, 1e-2))
            sent.append(local.exchange.compress(local.end(), get_decided(height), in_flight=True, height=height))
            local.apply(own)
            if height == 1:  # as at a resume
                state = {name: tensor.clone() for name, tensor in local.get_state().items()}
                local = LocalSteps(weights, plan, settings, host)
                local.load_state(state)
        kept = [*local.exchange.memory.coefficients, *local._masters]
        kept += [one for optimizer in local.inner._optimizers for two in optimizer.state.values()
                 for name, one in two.items() if name != "step"]  # fmt: skip
        assert {one.device.type for one in kept} == {"cpu" if host is not None else device}
        return sent, {**weights, **local.get_state()}

    return run


def run_distro(device: str) -> Run:
    plan = compute_run_plan(SHAPES, DISTRO)

    def run(host: torch.device | None) -> tuple[list[bytes], dict[str, torch.Tensor]]:
        weights, sent = make_tensors(device, 1), []
        distro = Distro(weights, plan, DISTRO.compression_decay, host)
        ahead: list[torch.Tensor] = []
        for height in range(ROUNDS):
            with distro.lookahead(1e-2):
                ahead += [weight.clone() for weight in weights.values()]
            gradients = make_tensors(device, height)
            sent.append(distro.compress(gradients, 1e-2, get_decided(height), in_flight=True, height=height))
            measured = [figure for sums in distro.measure(gradients).values() for figure in sums]
            ahead.append(torch.tensor(measured))
            distro.apply(sent[-1:], 1e-2, 0.1)
        assert {one.device.type for one in distro.momentum.coefficients} == {"cpu" if host is not None else device}
        return sent, {**weights, **distro.get_state(), **{str(n): tensor for n, tensor in enumerate(ahead)}}

    return run


def assert_equal(run: Run) -> None:
    (sent, state), (offloaded, other) = run(None), run(HOST)
    assert sent == offloaded
    assert state.keys() == other.keys()
    for name, tensor in state.items():
        assert torch.equal(tensor.cpu(), other[name].cpu()), name


@on_both
@pytest.mark.parametrize("kind", list(InnerOptimizer))
def test_offloaded_local_steps_send_and_keep_the_same_bytes(device: str, kind: InnerOptimizer) -> None:
    assert_equal(run_local_steps(device, kind))


@on_both
def test_offloaded_distro_sends_and_keeps_the_same_bytes(device: str) -> None:
    assert_equal(run_distro(device))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_is_offloaded_takes_no_memory_of_a_gpu_and_is_copied_without_a_detour() -> None:
    shapes = {"weight": (4096, 4096)}
    plan = compute_run_plan(shapes, replace(LOCAL, compression_chunk=64))
    weights = {"weight": torch.zeros(shapes["weight"], device="cuda")}
    taken = torch.cuda.memory_allocated()
    local = LocalSteps(weights, plan, LOCAL, HOST)
    local.inner.allocate()
    local.begin()
    assert torch.cuda.memory_allocated() - taken < 0.6e9, "buffers of blocks alone"
    assert all(one.is_pinned() for one in (*local.exchange.memory.coefficients, *local._masters))


def test_a_device_that_computes_in_the_hosts_memory_takes_the_option_and_says_that_it_moves_nothing(
    load_request: LoadRequest,
) -> None:
    assert find_host(torch.device("cpu"), offload=True) is None
    assert find_host(torch.device("cuda"), offload=True) == HOST
    assert find_host(torch.device("cuda"), offload=False) is None
    plain, offloaded = (
        TrainerEngine().load(msgspec.structs.replace(load_request, offload=offload)) for offload in (False, True)
    )
    assert offloaded.notices == (*plain.notices, "--offload moves nothing here: cpu computes in the host's memory")
    assert offloaded.weight_root == plain.weight_root


@pytest.mark.parametrize("optimizer", few([LOCAL, DISTRO]))
def test_a_prediction_leaves_out_what_is_offloaded_and_a_refusal_proposes_it(
    load_request: LoadRequest, run_model: Model, optimizer: Optimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No backward pass is played for a GPU without one: the host is another device than the CPU's here."""
    host, device = torch.device("meta"), torch.device("cpu")
    step = Step(read_blueprint(Path(load_request.path)).config, optimizer, run_model.max_seq_len)
    plain, offloaded = (predict_bytes(step, device, 1, activation_checkpointing=False, host=h) for h in (None, host))
    parameters = plain["weights"] // 4
    moved = sum(plain[name] - offloaded[name] for name in OFFLOADED)
    assert moved == pytest.approx((16 if optimizer is LOCAL else 8) * parameters, rel=0.01)
    assert offloaded["look-ahead copy"] == 0
    assert offloaded["weights"] == plain["weights"] == pytest.approx(offloaded["gradients"], rel=0.01)
    free = sum(offloaded.values()) / 0.9 + parameters
    monkeypatch.setattr(memory, "get_free_bytes", lambda _device: int(free))
    monkeypatch.setattr(memory, "find_host", lambda _device, *, offload: host if offload else None)
    with pytest.raises(ConfigError, match="take a micro-batch of 1 with --offload"):
        Fitting(step, device).fit(Setup(1), 1)
    assert Fitting(step, device).fit(Setup(1, offload=True), 1).micro_batch_size == 1
