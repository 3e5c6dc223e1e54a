"""What is taken out of the momentum, what is given back, and that neither a snapshot nor an edge loses a bit."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from distro_kit import make_distro, make_plan, make_tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from psyche.core.encoding.plan import TransformPlan
from psyche.errors import TrainerError
from psyche.modeling.distro.momentum import Momentum
from psyche.modeling.distro.transform import select
from psyche.wire.trainer import SentResult

DECAY = 0.95
PLAN = make_plan({"a": (16, 16)}, chunk=8, k=2)


def _gradient(seed: int, plan: TransformPlan = PLAN) -> torch.Tensor:
    group = plan.groups[0]
    return torch.randn(group.chunks, *group.edges, generator=torch.Generator().manual_seed(seed)) * 1e-3


def _train(
    momentum: Momentum,
    height: int,
    decided: Sequence[SentResult],
    *,
    in_flight: bool,
    gradient: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One round; what it sends."""
    momentum.settle(decided, height, in_flight=in_flight)
    gradient = _gradient(height) if gradient is None else gradient
    rows = slice(0, PLAN.groups[0].chunks)
    chosen = select(momentum.decay_block(0, rows, gradient.clone()), 2)
    momentum.record_sent(height, [chosen])
    return chosen


def _make() -> Momentum:
    return Momentum(PLAN, DECAY, torch.device("cpu"))


def _get(momentum: Momentum) -> torch.Tensor:
    return momentum.coefficients[0].clone()


def get_sent_heights(momentum: Momentum) -> tuple[int, ...]:
    """Of its own results whose values are kept, oldest first."""
    return tuple(sent.height for sent in momentum._sent)


def _places(chosen: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return torch.zeros(PLAN.groups[0].chunks, PLAN.groups[0].area).scatter_(1, chosen[0].long(), 1.0).bool()


def _decide(fate: str, height: int) -> SentResult:
    return SentResult(height=height, applied=fate == "applied")


@pytest.mark.parametrize(
    ("sent", "fate", "height", "in_flight", "is_out", "kept"),
    [
        pytest.param(0, "open", 1, True, True, (0,), id="with overlap it is out before its fate is known"),
        pytest.param(0, "applied", 5, True, True, (), id="with overlap, decided in rounds without training"),
        pytest.param(0, "rejected", 5, True, False, (), id="with overlap, decided against in such rounds"),
        pytest.param(79, "open", 1, True, False, (), id="nothing of an earlier epoch is in flight: a joiner"),
        pytest.param(0, "applied", 1, False, True, (), id="without overlap, applied"),
        pytest.param(0, "rejected", 1, False, False, (), id="without overlap, rejected"),
        pytest.param(0, "open", 1, False, False, (), id="without overlap, what is open was not applied"),
    ],
)
def test_the_values_of_the_last_result_are_out_or_in(
    sent: int, fate: str, height: int, in_flight: bool, is_out: bool, kept: tuple[int, ...]
) -> None:
    momentum = _make()
    places = _places(_train(momentum, sent, (), in_flight=in_flight))
    before = _get(momentum)
    assert bool((before[places] != 0).all())
    momentum.settle([] if fate == "open" else [_decide(fate, sent)], height, in_flight=in_flight)
    assert torch.equal(_get(momentum), torch.where(places, torch.zeros(()), before) if is_out else before)
    assert get_sent_heights(momentum) == kept


def test_a_result_decided_against_two_rounds_later_is_as_if_never_sent() -> None:
    """R(0) is sent, out at round 1, and rejected before round 2."""
    momentum, twin = _make(), _make()
    first = _train(momentum, 0, (), in_flight=True)
    _train(twin, 0, (), in_flight=True)
    twin._sent.clear()  # the twin never sent R(0), so it takes nothing out
    # R(0)'s places stay small in round 1, so that both send the same then.
    gradient = torch.where(_places(first).view(-1, 8, 8), torch.zeros(()), _gradient(1) + 1.0)
    second = _train(momentum, 1, (), in_flight=True, gradient=gradient)
    assert all(map(torch.equal, second, _train(twin, 1, (), in_flight=True, gradient=gradient)))
    momentum.settle([_decide("rejected", 0)], 2, in_flight=True)
    twin.settle([], 2, in_flight=True)
    assert torch.equal(_get(momentum), _get(twin))
    assert bool((_get(momentum)[_places(first)] != 0).all())
    assert get_sent_heights(momentum) == get_sent_heights(twin) == (1,)


def test_a_result_that_was_applied_is_not_given_back() -> None:
    momentum = _make()
    places = _places(_train(momentum, 0, (), in_flight=True))
    second = _places(_train(momentum, 1, (), in_flight=True))
    before = _get(momentum)
    momentum.settle([_decide("applied", 0)], 2, in_flight=True)
    assert torch.equal(_get(momentum), torch.where(second, torch.zeros(()), before))
    assert bool((places & ~second).any())


def test_what_comes_back_survives_the_zeros_of_the_result_after_it() -> None:
    momentum = _make()
    indices, values = _train(momentum, 0, (), in_flight=True)
    sent = values.clone()
    # Round 1 sends the very same places.
    again = torch.zeros(PLAN.groups[0].chunks, 64).scatter_(1, indices.long(), 1.0).view(-1, 8, 8)
    second = _train(momentum, 1, (), in_flight=True, gradient=again)
    assert torch.equal(second[0], indices)
    momentum.settle([_decide("rejected", 0)], 2, in_flight=True)
    assert torch.equal(_get(momentum).gather(1, indices.long()), sent * torch.tensor(DECAY))


def test_what_waits_longer_comes_back_decayed_once_for_each_round_trained() -> None:
    momentum = _make()
    indices, values = _train(momentum, 0, (), in_flight=True)
    sent = values.clone()
    momentum.settle((), 1, in_flight=True)
    for height in (1, 2):
        momentum.decay_block(0, slice(0, 4), torch.zeros(4, 8, 8))
        momentum.record_sent(height, [(torch.full((4, 2), 64, dtype=torch.int32), torch.zeros(4, 2))])
        if height == 1:
            momentum.settle((), 2, in_flight=True)
    assert get_sent_heights(momentum) == (1, 2)  # two are kept, so R(0) counts as applied by now
    momentum.settle([_decide("rejected", 0), _decide("rejected", 1)], 3, in_flight=True)
    assert bool((_get(momentum).gather(1, indices.long()) == 0).all())
    again = _make()
    indices, values = _train(again, 0, (), in_flight=True)
    again.settle((), 1, in_flight=True)
    again.decay_block(0, slice(0, 4), torch.zeros(4, 8, 8))
    again.record_sent(1, [(torch.full((4, 2), 64, dtype=torch.int32), torch.zeros(4, 2))])
    again.settle((), 2, in_flight=True)
    again.settle([_decide("rejected", 0)], 2, in_flight=True)
    assert torch.equal(_get(again).gather(1, indices.long()), sent * torch.tensor(DECAY))


def test_at_an_epochs_edge_take_out_and_give_back_follow_the_record() -> None:
    """R(78) was out and is rejected, R(79) was never out and is applied; then height 0 of the next epoch."""
    momentum = _make()
    sent = _train(momentum, 78, (), in_flight=True)
    last = _places(_train(momentum, 79, (), in_flight=True))
    before = _get(momentum)
    momentum.settle([_decide("rejected", 78), _decide("applied", 79)], 0, in_flight=False)
    back = torch.zeros(before.shape).scatter_(1, sent[0].long(), sent[1])
    assert torch.equal(_get(momentum), torch.where(last, torch.zeros(()), before) + back)
    assert get_sent_heights(momentum) == ()


FATES = st.sampled_from(["applied", "rejected", "open"])


@pytest.mark.whole
@given(st.lists(st.tuples(FATES, st.booleans()), min_size=4, max_size=9), st.booleans(), st.integers(0, 99))
@settings(max_examples=25)
def test_a_trainer_saved_and_restored_before_every_round_equals_its_uninterrupted_twin(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[str, bool]], one_bit: bool, seed: int
) -> None:
    """Over decisions of any kind and epochs' edges (the booleans): same payloads, same momentum, bit for bit."""
    plan = make_plan(one_bit=one_bit, k=3)
    twin, twin_weights = make_distro(plan, decay=DECAY)
    other, _ = make_distro(plan, decay=DECAY)
    file: Path = tmp_path_factory.mktemp("momentum") / "momentum.safetensors"
    height, sent = 0, []
    for turn, (fate, is_edge) in enumerate(script):
        decided = [SentResult(height=h, applied=fate == "applied") for h in sent] if fate != "open" else []
        if is_edge:
            height = 0
        save_file(other.momentum.get_state(), file)
        other, weights = make_distro(plan, decay=DECAY)
        other.momentum.load_state(load_file(file))
        gradients = make_tensors(plan, seed + turn)
        bodies = [each.compress(gradients, 1e-3, decided, height > 0, height) for each in (twin, other)]
        assert bodies[0] == bodies[1]
        states = [each.momentum.get_state() for each in (twin, other)]
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        with twin.lookahead(1e-3), other.lookahead(1e-3):
            assert all(torch.equal(weights[name], twin_weights[name]) for name in weights)
        sent, height = [height], height + 1


def test_a_snapshot_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    plan = make_plan()
    distro, _ = make_distro(plan)
    distro.compress(make_tensors(plan, 1), 1e-3, (), True, 0)
    state = {name: tensor.clone() for name, tensor in distro.momentum.get_state().items()}
    name = next(name for name in state if name.startswith("momentum."))
    index = next(name for name in state if name.endswith(".indices"))
    for change, message in (
        ({name: state[name][:, :-1]}, f"{name} is"),
        ({name: state[name].double()}, "must be torch.float32"),
        ({"sent": torch.zeros(3, 2, dtype=torch.int64)}, "at most 2 are kept"),
        ({index: state[index] + 10_000}, "an index is not between"),
        ({index: state[index] - 10_000}, "an index is not between"),
    ):
        with pytest.raises(TrainerError, match=message):
            distro.momentum.load_state(state | change)
    with pytest.raises(TrainerError, match="sent is missing"):
        distro.momentum.load_state({key: value for key, value in state.items() if key != "sent"})
    after = distro.momentum.get_state()
    assert all(torch.equal(after[key], state[key]) for key in state)


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_outside_its_range_is_refused(decay: float) -> None:
    with pytest.raises(TrainerError, match="compression_decay"):
        make_distro(make_plan(), decay=decay)
