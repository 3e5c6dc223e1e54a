"""The engine of the trainer: what each call does, and what it refuses."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from transformers.models.llama import LlamaForCausalLM

from psyche.core.encoding.plan import decode_plan, get_payload_bytes
from psyche.core.state.state import Lookahead, Model, OptimizerKind
from psyche.errors import ConfigError, TrainerError
from psyche.modeling.model import get_parameters, init_model, load_model
from psyche.modeling.snapshot import get_tensor_path, read_snapshot_info
from psyche.modeling.trainer.batch import Cancelled, compute_gradients, decode_tokens, evaluate
from psyche.modeling.trainer.engine import TrainerEngine
from psyche.modeling.trainer.failure import FailureKind, TrainerFailure
from psyche.wire.data import BEGINS, NOT_COUNTED
from psyche.wire.trainer import (
    ApplyRequest,
    Contribution,
    LoadReply,
    LoadRequest,
    SentResult,
    SnapshotRequest,
    TrainRequest,
)

CPU = torch.device("cpu")
SAMPLES, LENGTH = 5, 16


def tokens_of(height: int, samples: int = SAMPLES) -> bytes:
    generator = np.random.default_rng(height)
    return generator.integers(0, 64, size=(samples, LENGTH), dtype="<u4").tobytes()


def train_request(height: int, **changes: object) -> TrainRequest:
    request = TrainRequest(
        epoch=0, height=height, step=height + 1, lr=1e-2, lookahead_lr=1e-2 if height else 0.0,
        tokens=tokens_of(height), samples=SAMPLES, sequence_length=LENGTH, decided=(), in_flight=True,
    )  # fmt: skip
    return msgspec.structs.replace(request, **changes)


def apply_request(height: int, payloads: tuple[bytes, ...], **changes: object) -> ApplyRequest:
    request = ApplyRequest(
        height=height, lr=1e-2, payloads=payloads, run_update=True, full_digest=False, random_seed=height
    )  # fmt: skip
    return msgspec.structs.replace(request, **changes)


def snapshot_request(path: Path, **changes: object) -> SnapshotRequest:
    request = SnapshotRequest(
        kind="resume", path=str(path), epoch=2, step=9, data_index=45, chain=b"\x03" * 32, digest=b"\x04" * 32,
        prev_commitment=b"\x05" * 32,
    )  # fmt: skip
    return msgspec.structs.replace(request, **changes)


@pytest.fixture
def engine(load_request: LoadRequest) -> TrainerEngine:
    made = TrainerEngine()
    made.load(load_request)
    return made


def resume(load_request: LoadRequest, path: Path, **changes: object) -> tuple[TrainerEngine, LoadReply]:
    engine = TrainerEngine()
    request = msgspec.structs.replace(load_request, path=str(path), is_snapshot=True, **changes)
    return engine, engine.load(request)


def read_all(engine: TrainerEngine) -> dict[str, bytes]:
    loaded = engine._get_loaded()
    state = {**loaded.replica.parameters, **loaded.replica.distro.momentum.get_state()}
    return {name: tensor.detach().numpy().tobytes() for name, tensor in state.items()}


def stop_at(call: int) -> Callable[[], None]:
    """A beat that cancels at its `call`-th call, counted from 1."""
    left = [call]

    def beat() -> None:
        left[0] -= 1
        if not left[0]:
            raise Cancelled

    return beat


def run_rounds(engine: TrainerEngine, rounds: range, payloads: list[bytes]) -> list[bytes]:
    """Train and apply with overlap: R(h-2) at the start of round h."""
    parts: list[bytes] = []
    for height in rounds:
        due = (payloads[height - 2],) if height >= 2 else ()
        parts.append(engine.apply(apply_request(height, due, run_update=height >= 2)).weight_part)
        decided = (SentResult(height=height - 2, applied=True),) if height >= 2 else ()
        payloads.append(engine.train(train_request(height, decided=decided)).payload)
    return parts


def test_loading_says_what_was_loaded(load_request: LoadRequest) -> None:
    reply = TrainerEngine().load(load_request)
    plan = decode_plan(reply.plan)
    assert (plan.k, plan.one_bit) == (4, True)
    assert reply.parameters == sum(math.prod(t.dims) for t in plan.tensors)
    assert (reply.vocab_size, reply.train_count, reply.chain, reply.device) == (64, 0, bytes(32), "cpu")
    assert TrainerEngine().load(load_request).weight_root == reply.weight_root


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"micro_batch_size": 0}, "micro_batch_size is 0"),
        ({"device": "abacus"}, "device 'abacus'"),
        ({"device": "meta"}, "only cpu, mps and cuda"),
        ({"path": "/nowhere"}, "/nowhere"),
        ({"path": "/nowhere", "is_snapshot": True}, "snapshot /nowhere"),
    ],
)
def test_what_cannot_be_loaded_says_why(load_request: LoadRequest, changes: dict[str, object], text: str) -> None:
    with pytest.raises(TrainerError) as caught:
        TrainerEngine().load(msgspec.structs.replace(load_request, **changes))
    assert text in str(caught.value)


def test_only_distro_trains_in_a_run(load_request: LoadRequest, run_model: Model) -> None:
    run_model.optimizer.kind = OptimizerKind.ADAMW
    with pytest.raises(TrainerError, match="ADAMW: a run trains with Distro"):
        TrainerEngine().load(msgspec.structs.replace(load_request, model=run_model))


def test_activations_that_are_computed_again_change_no_bit(load_request: LoadRequest, engine: TrainerEngine) -> None:
    other = TrainerEngine()
    other.load(msgspec.structs.replace(load_request, activation_checkpointing=True))
    assert other._get_loaded().replica.model.model.layers[0].gradient_checkpointing
    assert not engine._get_loaded().replica.model.model.layers[0].gradient_checkpointing
    payloads: tuple[list[bytes], list[bytes]] = ([], [])
    assert run_rounds(other, range(3), payloads[0]) == run_rounds(engine, range(3), payloads[1])
    assert payloads[0] == payloads[1]
    assert read_all(other) == read_all(engine)


def test_activations_that_cannot_be_computed_again_are_refused(
    load_request: LoadRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LlamaForCausalLM, "supports_gradient_checkpointing", False)  # as of some other families
    with pytest.raises(ConfigError, match="--activation-checkpointing: transformers has none for llama; leave it out"):
        TrainerEngine().load(msgspec.structs.replace(load_request, activation_checkpointing=True))


def test_micro_batches_add_up_to_the_whole_batch(tiny_model: Path) -> None:
    model = load_model(tiny_model)
    parameters = get_parameters(model)
    tokens = decode_tokens(tokens_of(0), SAMPLES, LENGTH, 64)
    whole, uneven = (
        compute_gradients(model, parameters, tokens, micro_batch_size=size, device=CPU, clip=None) for size in (5, 2)
    )
    assert uneven.loss == pytest.approx(whole.loss, rel=1e-6)
    assert whole.loss == pytest.approx(evaluate(model, tokens, micro_batch_size=3, device=CPU), rel=1e-6)
    for name, gradient in whole.tensors.items():
        torch.testing.assert_close(uneven.tensors[name], gradient, rtol=1e-4, atol=1e-7)
    reference = model(input_ids=tokens, labels=tokens)
    assert whole.loss == pytest.approx(reference.loss.item(), rel=1e-6)


def label(ids: bytes, lengths: list[int], counted: np.ndarray) -> bytes:
    """Rows with labels, cut into sequences of these lengths; a label counts where `counted` says so."""
    rows = np.frombuffer(ids, "<u4").reshape(SAMPLES, LENGTH)
    places = np.concatenate([np.arange(length) for length in lengths])
    places = np.broadcast_to(np.where(places == 0, BEGINS, places), rows.shape)
    labels = np.where(counted, rows, NOT_COUNTED).astype(np.int32).view(np.uint32)
    return np.stack([rows, labels, places], axis=-1).astype("<u4").tobytes()


def test_packed_sequences_are_trained_as_if_each_were_alone_and_only_counted_labels_are(tiny_model: Path) -> None:
    model = load_model(tiny_model)
    parameters, lengths = get_parameters(model), [5, 1, 7, 3]
    counted = np.random.default_rng(7).random((SAMPLES, LENGTH)) < 0.6
    counted[:2] = True
    packed = decode_tokens(label(tokens_of(0), lengths, counted), SAMPLES, LENGTH, 64, has_labels=True)
    found = compute_gradients(model, parameters, packed, micro_batch_size=2, device=CPU, clip=None)
    total, predicted, start = torch.zeros(()), 0, 0
    plain = decode_tokens(tokens_of(0), SAMPLES, LENGTH, 64)
    for length in lengths:
        ids, wanted = plain[:, start : start + length], torch.from_numpy(counted[:, start : start + length])
        targets = torch.where(wanted, ids, NOT_COUNTED)[:, 1:]
        logits = model(input_ids=ids).logits[:, :-1]
        total = total + torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction="sum"
        )  # fmt: skip
        predicted += int(wanted[:, 1:].sum())
        start += length
    assert found.predicted == predicted
    assert found.loss == pytest.approx(total.item() / predicted, rel=1e-5)
    gradients = torch.autograd.grad(total / predicted, list(parameters.values()))
    for name, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(found.tensors[name], gradient, rtol=1e-4, atol=1e-6)


def test_labels_that_all_count_in_one_sequence_train_as_the_tokens_alone_do(tiny_model: Path) -> None:
    model = load_model(tiny_model)
    parameters = get_parameters(model)
    plain = decode_tokens(tokens_of(0), SAMPLES, LENGTH, 64)
    labelled = decode_tokens(label(tokens_of(0), [LENGTH], np.array(True)), SAMPLES, LENGTH, 64, has_labels=True)
    one, other = (
        compute_gradients(model, parameters, rows, micro_batch_size=5, device=CPU, clip=None)
        for rows in (plain, labelled)
    )
    assert (one.predicted, one.loss) == (other.predicted, pytest.approx(other.loss, rel=1e-6))
    for name, gradient in one.tensors.items():
        torch.testing.assert_close(other.tensors[name], gradient, rtol=1e-4, atol=1e-7)


def test_a_batch_without_a_counted_label_sends_nothing(engine: TrainerEngine) -> None:
    before = read_all(engine)
    raw = label(tokens_of(0), [LENGTH], np.array(False))
    reply = engine.train(train_request(0, tokens=raw, has_labels=True))
    assert (reply.payload, reply.refused) == (b"", "no label of its samples counts")
    assert read_all(engine) == before
    counted = engine.train(train_request(0, tokens=label(tokens_of(0), [9, 7], np.array(True)), has_labels=True))
    assert counted.tokens == SAMPLES * (LENGTH - 2)
    assert counted.payload


def test_labels_outside_the_vocabulary_are_refused() -> None:
    raw = np.array([1, 1, BEGINS, 2, 64, 1], "<u4").tobytes()
    with pytest.raises(TrainerError, match="a label is neither -100 nor below 64"):
        decode_tokens(raw, 1, 2, 64, has_labels=True)


def test_gradients_are_clipped_by_their_global_norm(tiny_model: Path) -> None:
    model = load_model(tiny_model)
    tokens = decode_tokens(tokens_of(0), SAMPLES, LENGTH, 64)
    free, clipped = (
        compute_gradients(model, get_parameters(model), tokens, micro_batch_size=5, device=CPU, clip=clip)
        for clip in (None, 0.25)
    )
    assert free.norm == clipped.norm > 0.25
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in clipped.tensors.values()))
    assert norm == pytest.approx(0.25, rel=1e-4)
    for name, gradient in free.tensors.items():
        torch.testing.assert_close(clipped.tensors[name], gradient * (0.25 / (free.norm + 1e-6)))


@pytest.mark.parametrize(
    ("raw", "samples", "length", "text"),
    [
        (bytes(8), 1, 3, "8 bytes for 1 x 3"),
        (b"", 0, 4, "0 samples of 4"),
        (bytes(4), 1, 1, "1 samples of 1"),
        (np.array([1, 2, 64, 3], "<u4").tobytes(), 2, 2, "token id 64 at sample 1, position 0: the vocabulary has 64"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(raw: bytes, samples: int, length: int, text: str) -> None:
    with pytest.raises(TrainerError) as caught:
        decode_tokens(raw, samples, length, 64)
    assert text in str(caught.value)


def test_training_gives_a_payload_of_the_plans_length_and_lowers_the_loss(load_request: LoadRequest) -> None:
    engine = TrainerEngine()
    plan = decode_plan(engine.load(load_request).plan)
    losses: list[float] = []
    for height in range(6):
        request = train_request(height, tokens=tokens_of(0), lookahead_lr=0.0, in_flight=False)
        decided = (SentResult(height=height - 1, applied=True),) if height else ()
        reply = engine.train(msgspec.structs.replace(request, decided=decided))
        assert len(reply.payload) == get_payload_bytes(plan)
        assert (reply.train_count, reply.tokens, reply.refused) == (height + 1, SAMPLES * (LENGTH - 1), "")
        losses.append(reply.loss)
        engine.apply(apply_request(height + 1, (reply.payload,)))
    assert losses[-1] < losses[0] - 0.05


@pytest.mark.parametrize("call", [1, 2, 3, 4])  # three micro-batches of 5 samples, then the end
def test_a_cancelled_batch_changes_no_byte(engine: TrainerEngine, call: int) -> None:
    run_rounds(engine, range(2), [])
    before = read_all(engine)
    reply = engine.train(train_request(2), stop_at(call))
    assert reply.cancelled
    assert (reply.payload, reply.train_count) == (b"", 2)
    assert read_all(engine) == before


def test_a_cancelled_batch_keeps_what_the_record_decided(load_request: LoadRequest) -> None:
    engines = [TrainerEngine(), TrainerEngine()]
    for engine in engines:
        engine.load(load_request)
        run_rounds(engine, range(2), [])
    decided = (SentResult(height=0, applied=False),)
    engines[0].train(train_request(2, decided=decided), stop_at(2))
    after_cancel = engines[0].train(train_request(3))
    uncancelled = engines[1].train(train_request(3, decided=decided))
    assert after_cancel.payload == uncancelled.payload
    assert read_all(engines[0]) == read_all(engines[1])


def test_the_look_ahead_is_taken_only_where_something_is_in_flight(load_request: LoadRequest) -> None:
    losses: list[float] = []
    for lookahead_lr in (0.0, 1e-2):
        engine = TrainerEngine()
        engine.load(load_request)
        engine.train(train_request(0))
        losses.append(engine.train(train_request(1, lookahead_lr=lookahead_lr)).loss)
    assert losses[0] != losses[1]


def test_v4_an_own_look_ahead_needs_nothing_but_the_own_last_payload(
    load_request: LoadRequest, run_model: Model
) -> None:
    run_model.optimizer.lookahead = Lookahead.OWN
    engines = [TrainerEngine() for _ in range(3)]
    for engine in engines:
        engine.load(load_request)
    own = engines[0].train(train_request(0)).payload
    engines[1].apply(apply_request(0, (own,)))
    tokens = tokens_of(1)
    ahead = engines[0].train(train_request(1, tokens=tokens, own=(Contribution(payload=own),))).loss
    at_hand = engines[1].train(train_request(1, tokens=tokens, lookahead_lr=0.0)).loss
    assert ahead == at_hand
    engines[2].train(train_request(0))
    alone, still = (engines[2].train(train_request(1, lookahead_lr=lr)).loss for lr in (1e-2, 0.0))
    assert alone == still != ahead, "without an own result in flight there is none"


def test_a_non_finite_gradient_is_refused_and_the_next_round_goes_on(engine: TrainerEngine) -> None:
    engine.train(train_request(0))
    loaded = engine._get_loaded()
    parameter = loaded.replica.parameters["model.norm.weight"]
    kept = parameter.detach().clone()
    with torch.no_grad():
        parameter[0] = math.inf
    before = read_all(engine)
    reply = engine.train(train_request(1))
    assert reply.refused.startswith("non-finite gradient at step 2")
    assert (reply.payload, reply.train_count) == (b"", 1)
    assert read_all(engine) == before
    with torch.no_grad():
        parameter.copy_(kept)
    assert engine.train(train_request(2)).payload


def test_memory_running_out_halves_the_micro_batch_and_tries_again(load_request: LoadRequest) -> None:
    engine = TrainerEngine()
    engine.load(msgspec.structs.replace(load_request, micro_batch_size=4))
    failures = [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory"), None]

    def beat() -> None:
        if failures and (error := failures.pop(0)):
            raise error

    reply = engine.train(train_request(0), beat)
    assert reply.payload
    assert reply.micro_batch_size == 1
    assert engine.train(train_request(1)).micro_batch_size == 1


@pytest.mark.parametrize(
    ("error", "wanted", "text"),
    [
        (MemoryError(), TrainerFailure, "one sequence of 16 tokens"),
        (RuntimeError("a defect"), RuntimeError, "a defect"),
    ],
    ids=["memory at one sequence", "not memory"],
)
def test_what_no_smaller_micro_batch_helps_is_raised(
    engine: TrainerEngine, error: Exception, wanted: type[Exception], text: str
) -> None:
    before = read_all(engine)

    def beat() -> None:
        raise error

    with pytest.raises(wanted, match=text) as caught:
        engine.train(train_request(0), beat)
    assert getattr(caught.value, "kind", None) is (FailureKind.OUT_OF_MEMORY if wanted is TrainerFailure else None)
    assert read_all(engine) == before


def test_a_bad_payload_is_refused_and_nothing_is_applied(engine: TrainerEngine) -> None:
    good = engine.train(train_request(0)).payload
    before = read_all(engine)
    with pytest.raises(TrainerError, match="apply at height 2"):
        engine.apply(apply_request(2, (good, good[:-1])))
    assert read_all(engine) == before


def test_weight_decay_runs_with_an_empty_set(load_request: LoadRequest, run_model: Model) -> None:
    optimizer = replace(run_model.optimizer, weight_decay=0.5)
    engine = TrainerEngine()
    engine.load(msgspec.structs.replace(load_request, model=replace(run_model, optimizer=optimizer)))
    name = "model.embed_tokens.weight"
    before = engine._get_loaded().replica.parameters[name].detach().clone()
    engine.apply(apply_request(2, (), run_update=False))
    assert torch.equal(engine._get_loaded().replica.parameters[name], before)
    engine.apply(apply_request(3, ()))
    factor = np.float32(1 - 1e-2 * 0.5)
    assert torch.equal(engine._get_loaded().replica.parameters[name], before * torch.tensor(factor))


def test_the_weight_part_is_that_of_the_snapshot(engine: TrainerEngine, tmp_path: Path) -> None:
    parts = run_rounds(engine, range(4), [])
    assert parts[0] == parts[1] != parts[2] != parts[3]
    reply = engine.snapshot(snapshot_request(tmp_path / "s"))
    assert reply.weight_root == parts[-1] == read_snapshot_info(tmp_path / "s").weight_root
    assert reply.size_bytes > 4 * 26_000


def test_in_full_value_mode_the_weight_part_covers_all_but_what_the_tensors_hold(
    load_request: LoadRequest, run_model: Model, tmp_path: Path
) -> None:
    """S2: names, shapes and small files are exact, the arithmetic is not."""
    optimizer = replace(run_model.optimizer, quantize_1bit=False)
    engine = TrainerEngine()
    loaded = engine.load(msgspec.structs.replace(load_request, model=replace(run_model, optimizer=optimizer)))
    payload = engine.train(train_request(0)).payload
    reply = engine.apply(apply_request(2, (payload,)))
    assert (reply.weight_part, reply.is_full) == (loaded.weight_root, True)
    assert engine.snapshot(snapshot_request(tmp_path / "s")).weight_root == loaded.weight_root
    assert read_snapshot_info(tmp_path / "s").weight_root != loaded.weight_root


def test_a_trainer_that_resumes_equals_one_that_never_stopped(
    engine: TrainerEngine, load_request: LoadRequest, tmp_path: Path
) -> None:
    payloads: list[bytes] = []
    run_rounds(engine, range(4), payloads)
    engine.snapshot(snapshot_request(tmp_path / "s"))
    resumed, reply = resume(load_request, tmp_path / "s")
    assert (reply.train_count, reply.chain, reply.prev_commitment) == (4, b"\x03" * 32, b"\x05" * 32)
    assert read_all(resumed) == read_all(engine)
    twin = list(payloads)
    assert run_rounds(engine, range(4, 6), payloads) == run_rounds(resumed, range(4, 6), twin)
    assert payloads == twin
    assert read_all(resumed) == read_all(engine)


def test_a_snapshot_carries_decisions_that_no_train_has_taken_up(
    engine: TrainerEngine, load_request: LoadRequest, tmp_path: Path
) -> None:
    run_rounds(engine, range(2), [])
    engine.train(train_request(2, decided=(SentResult(height=0, applied=False),)), stop_at(1))
    engine.snapshot(snapshot_request(tmp_path / "s"))
    resumed, _ = resume(load_request, tmp_path / "s")
    assert resumed.train(train_request(3)).payload == engine.train(train_request(3)).payload


def test_a_snapshot_carries_what_the_last_drain_decided(
    engine: TrainerEngine, load_request: LoadRequest, tmp_path: Path
) -> None:
    """P6: the drain's decisions reach the trainer with the snapshot, for no train comes between them."""
    run_rounds(engine, range(3), [])
    fates = (SentResult(height=1, applied=False), SentResult(height=2, applied=True))
    engine.snapshot(msgspec.structs.replace(snapshot_request(tmp_path / "s"), decided=fates))
    resumed, _ = resume(load_request, tmp_path / "s")
    told = engine.train(train_request(0, decided=fates)).payload
    assert resumed.train(train_request(0)).payload == told


def test_momentum_is_left_behind_where_asked_or_where_the_plan_changed(
    engine: TrainerEngine, load_request: LoadRequest, run_model: Model, tmp_path: Path
) -> None:
    run_rounds(engine, range(2), [])
    engine.snapshot(snapshot_request(tmp_path / "s"))
    optimizer = replace(run_model.optimizer, compression_topk=3)
    for changed in ({"keep_momentum": False}, {"model": replace(run_model, optimizer=optimizer)}):
        fresh, reply = resume(load_request, tmp_path / "s", **changed)
        assert (reply.train_count, reply.prev_commitment) == (0, bytes(32))
        state = fresh._get_loaded().replica.distro.momentum.get_state()
        assert all(not tensor.any() for name, tensor in state.items() if name.startswith("momentum"))


def test_damage_is_found_when_a_snapshot_is_loaded(
    engine: TrainerEngine, load_request: LoadRequest, tmp_path: Path
) -> None:
    engine.train(train_request(0))
    engine.snapshot(snapshot_request(tmp_path / "s"))
    momentum = tmp_path / "s" / "momentum.safetensors"
    raw = momentum.read_bytes()
    momentum.write_bytes(raw[:-1] + b"\xaa")
    with pytest.raises(TrainerError, match=r"momentum\.safetensors is damaged"):
        resume(load_request, tmp_path / "s")
    assert resume(load_request, tmp_path / "s", keep_momentum=False)[1].train_count == 0
    momentum.write_bytes(raw)
    tensor = get_tensor_path(tmp_path / "s", 3)
    raw = tensor.read_bytes()
    tensor.write_bytes(raw[:8] + bytes([raw[8] ^ 1]) + raw[9:])
    with pytest.raises(TrainerError, match="are damaged"):
        resume(load_request, tmp_path / "s")


def test_a_tied_model_trains_resumes_and_exports(tiny_config: Path, load_request: LoadRequest, tmp_path: Path) -> None:
    import json

    from transformers import AutoModelForCausalLM

    config = tmp_path / "tied.json"
    config.write_text(json.dumps({**json.loads(tiny_config.read_text()), "tie_word_embeddings": True}))
    init_model(config, tmp_path / "tied", 1)
    engine = TrainerEngine()
    engine.load(msgspec.structs.replace(load_request, path=str(tmp_path / "tied")))
    root = run_rounds(engine, range(3), [])[-1]
    engine.snapshot(snapshot_request(tmp_path / "s"))
    assert resume(load_request, tmp_path / "s")[1].weight_root == root
    engine.snapshot(snapshot_request(tmp_path / "e", kind="export"))
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "e")
    assert torch.equal(exported.lm_head.weight, engine._get_loaded().replica.parameters["model.embed_tokens.weight"])


def test_an_impossible_snapshot_leaves_nothing(engine: TrainerEngine, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for changes in ({"kind": "picture"}, {"kind": "export", "dtype": "int4"}):
        with pytest.raises(TrainerError, match="must be"):
            engine.snapshot(snapshot_request(tmp_path / "s", **changes))
    for kind in ("resume", "export"):
        with pytest.raises(TrainerError, match=r"cannot be written.*; move away (the file that|what) is in the way$"):
            engine.snapshot(snapshot_request(tmp_path / "file" / "s", kind=kind))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_nothing_works_before_a_load() -> None:
    engine = TrainerEngine()
    with pytest.raises(TrainerError, match="nothing is loaded"):
        engine.train(train_request(0))


def test_statistics_are_those_of_the_update_and_change_no_bit(load_request: LoadRequest) -> None:
    optimizer = replace(load_request.model.optimizer, quantize_1bit=False, compression_topk=64)  # all is sent as it is
    asked = msgspec.structs.replace(load_request, model=replace(load_request.model, optimizer=optimizer))
    engines = [TrainerEngine(), TrainerEngine()]
    for engine in engines:
        engine.load(asked)
    with_them, without = (engine.train(train_request(0, with_statistics=engine is engines[0])) for engine in engines)
    assert (with_them.payload, without.statistics) == (without.payload, ())
    names = [one.name for one in with_them.statistics]
    assert names == sorted(engines[0]._get_loaded().replica.parameters)
    for one in with_them.statistics:  # the first update is lr times the gradient, and the momentum is that too
        assert one.update_energy == pytest.approx(1e-2 * one.grad_energy, rel=1e-4)
        assert 0.5 < one.agreement <= 1.0 or one.name.endswith("embed_tokens.weight")
        assert 0 < one.momentum_norm <= one.update_energy
    total = sum(one.momentum_norm**2 for one in with_them.statistics) ** 0.5
    clip = load_request.model.optimizer.clip_grad_norm
    assert total == pytest.approx(1e-2 * min(with_them.grad_norm, clip or with_them.grad_norm), rel=1e-3)
