"""The rules AR1 to AR7: a model that breaks one is refused by its name, with the key or tensor and the way out."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from kits.models import write_config
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from psyche.core.state.state import DataType, Model
from psyche.errors import ConfigError, TrainerError, UnusableModelError
from psyche.modeling import architecture
from psyche.modeling.architecture import build_random, read_blueprint
from psyche.modeling.model import get_parameters, init_model, load_model
from psyche.modeling.trainer.batch import compute_gradients, evaluate
from psyche.modeling.trainer.engine import TrainerEngine
from psyche.modeling.trainer.trial import try_model
from psyche.wire.trainer import CheckRequest, LoadRequest, SnapshotRequest

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("family", "changes", "max_seq_len", "words"),
    [
        ("llama", {"model_type": "llamma"}, 0, ("AR1: model_type 'llamma'", "did you mean 'llama'?")),
        ("llama", {"model_type": "t5"}, 0, ("AR1: model_type 't5' is no causal language model",)),
        ("llama", {"model_type": "bart", "transformers_version": "5.0"}, 0, ("AR1: is_encoder_decoder",)),
        ("llama", {"num_attention_heads": 5}, 0, ("AR1: transformers cannot build",)),
        ("gpt2", {"n_positions": 0}, 0, ("AR2: transformer.wpe.weight is empty",)),
        ("gpt2", {}, 33, ("AR7: max_position_embeddings is 32", "transformer.wpe.weight follows it", "to 32 or less")),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 33, ("AR7: ", "rope type 'dynamic'")),
    ],
)
def test_a_config_that_breaks_a_rule_is_refused_before_anything_is_loaded(
    family: str, changes: dict[str, object], max_seq_len: int, words: tuple[str, ...], tmp_path: Path
) -> None:
    config = write_config(tmp_path / "config.json", family, **changes)
    with pytest.raises(ConfigError) as caught:
        TrainerEngine().check(CheckRequest(device="cpu", config=str(config), max_seq_len=max_seq_len))
    assert all(word in str(caught.value) for word in words), caught.value
    assert str(config) in str(caught.value)


def plant(monkeypatch: pytest.MonkeyPatch, change: Callable[[PreTrainedModel], object]) -> None:
    real = architecture.build_meta

    def build(config: PreTrainedConfig) -> PreTrainedModel:
        model = real(config)
        change(model)
        return model

    monkeypatch.setattr(architecture, "build_meta", build)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.lm_head.weight.requires_grad_(False), "AR2: lm_head.weight is torch.float32, or is not trained"),
        (lambda m: m.register_buffer("steps", torch.zeros(1, dtype=torch.long)), "AR3: the buffer steps is"),
    ],
)
def test_what_cannot_be_trained_or_hashed_is_refused(
    change: Callable[[PreTrainedModel], object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, change)
    with pytest.raises(ConfigError, match=words):
        read_blueprint(write_config(tmp_path / "config.json", "llama"))


def test_files_with_other_names_than_memory_are_not_loaded(tmp_path: Path, load_request: LoadRequest) -> None:
    """AR4."""
    init_model(write_config(tmp_path / "config.json", "qwen3_moe"), tmp_path / "model", 1)
    build_random(read_blueprint(tmp_path / "model")).save_pretrained(tmp_path / "usual")
    with pytest.raises(TrainerError, match=r"AR4: lacks .*gate_up_proj.*has .*experts\.0.*psyche model convert"):
        TrainerEngine().load(msgspec.structs.replace(load_request, path=str(tmp_path / "usual")))


def test_what_makes_a_pass_random_is_off_in_the_trainer_and_stays_on_record(
    tmp_path: Path, load_request: LoadRequest
) -> None:
    """AR5; without it two passes would differ, which AR6 refuses."""
    config = write_config(tmp_path / "config.json", "gpt2", attn_pdrop=0.25)
    init_model(config, tmp_path / "model", 1)
    raw = (tmp_path / "model" / "config.json").read_bytes()
    assert json.loads(raw)["attn_pdrop"] == 0.25
    engine = TrainerEngine()
    notices = engine.load(msgspec.structs.replace(load_request, path=str(tmp_path / "model"))).notices
    assert "attn_pdrop (0.25 in config.json) is 0 in the trainer" in notices
    assert engine._loaded is not None
    assert engine._loaded.model_files["config.json"] == raw
    rates = {module.p for module in engine._loaded.replica.model.modules() if isinstance(module, nn.Dropout)}
    assert rates == {0.0}


def drop_causality(model: PreTrainedModel) -> None:
    plain = model.forward

    def forward(input_ids: torch.Tensor, **more: object) -> object:
        output = plain(input_ids=input_ids, **more)
        output.logits = output.logits + output.logits[:, -1:]
        return output

    model.forward = forward


def spoil(name: str) -> Callable[[PreTrainedModel], None]:
    def change(model: PreTrainedModel) -> None:
        with torch.no_grad():
            model.get_parameter(name)[0] = torch.nan

    return change


def add_random(model: PreTrainedModel) -> None:
    model.get_parameter("model.norm.weight").register_hook(lambda gradient: gradient + torch.rand_like(gradient))


def count_passes(model: PreTrainedModel) -> None:
    model.register_buffer("passes", torch.zeros(1))
    model.register_forward_hook(lambda one, *_: one.get_buffer("passes").add_(1) and None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (spoil("model.norm.weight"), "AR6: the model gives logits that are NaN or infinite"),
        (drop_causality, r"AR6: a later token changes earlier logits by .*not causal"),
        (lambda m: m.register_parameter("idle", nn.Parameter(torch.ones(2))), "AR6: the loss does not depend on idle"),
        (add_random, "AR6: two equal passes give .* other gradients"),
        (count_passes, "AR3: a pass changes the buffer passes"),
        (lambda m: setattr(m, "lm_head", nn.Linear(32, 60)), "AR6: the model gives 60 logits, but vocab_size is 64"),
    ],
)
def test_the_trial_refuses_a_model_that_a_run_cannot_rely_on(
    change: Callable[[PreTrainedModel], None], words: str, tiny_model: Path
) -> None:
    model = load_model(tiny_model).train()
    try_model(model, get_parameters(model), 64, 16, CPU)
    assert all(one.grad is None for one in model.parameters())
    change(model)
    with pytest.raises(UnusableModelError, match=words):
        try_model(model.train(), get_parameters(model), 64, 16, CPU)


def test_a_longer_run_than_the_model_was_made_for_is_written_into_its_export(
    tmp_path: Path, load_request: LoadRequest, run_model: Model
) -> None:
    """AR7."""
    init_model(write_config(tmp_path / "config.json", "llama"), tmp_path / "model", 1)
    run_model.max_seq_len = 48
    engine = TrainerEngine()
    reply = engine.load(msgspec.structs.replace(load_request, path=str(tmp_path / "model"), model=run_model))
    assert reply.notices == ("max_position_embeddings is 48 in the trainer",)
    engine.snapshot(SnapshotRequest(kind="export", path=str(tmp_path / "export"), epoch=0, step=1, data_index=0,
                                    chain=bytes(32), digest=bytes(32)))  # fmt: skip
    assert json.loads((tmp_path / "export" / "config.json").read_text())["max_position_embeddings"] == 48
    assert json.loads((tmp_path / "model" / "config.json").read_text())["max_position_embeddings"] == 32


def test_a_hostile_config_takes_neither_memory_nor_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "modeling_evil.py").write_text("raise SystemExit('ran')")
    wide = write_config(tmp_path / "config.json", "llama", hidden_size=1 << 20, intermediate_size=1 << 24,
                        transformers_version="5.0", _attn_implementation="evil/kernels")  # fmt: skip
    blueprint = read_blueprint(wide)  # some 200 TB, if it had values
    assert blueprint.tensors["model.layers.0.mlp.up_proj.weight"] == (1 << 24, 1 << 20)
    assert blueprint.config._attn_implementation in ("sdpa", "eager")
    monkeypatch.setattr(architecture, "MAX_TENSORS", 500)
    with pytest.raises(ConfigError, match="more than 500 tensors"):
        read_blueprint(write_config(tmp_path / "config.json", "llama", num_hidden_layers=100))
    code = write_config(tmp_path / "config.json", "llama", auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    with pytest.raises(ConfigError, match="AR1: auto_map"):
        read_blueprint(code)


def test_a_router_s_own_loss_is_trained_on_only_where_its_config_says_so(tmp_path: Path) -> None:
    rows = (torch.arange(32) * 5 % 64).reshape(2, 16)
    norms, losses = [], []
    for asked in (False, True):
        name = f"router-{asked}"
        config = write_config(
            tmp_path / "config.json", "mixtral", output_router_logits=asked, router_aux_loss_coef=1.0
        )  # fmt: skip
        init_model(config, tmp_path / name, 1)
        model = load_model(tmp_path / name).train()
        found = compute_gradients(model, get_parameters(model), rows, micro_batch_size=1, device=CPU, clip=None)
        norms.append(found.norm)
        losses.append((found.loss, evaluate(model, rows, micro_batch_size=2, device=CPU)))
    assert norms[0] != norms[1]
    assert losses[0] == losses[1], "what is reported is the loss of tokens alone"


@pytest.mark.parametrize(
    ("family", "changes", "is_taken"),
    [("qwen3", {}, True), ("gpt2", {}, True), ("mixtral", {}, True), ("mamba", {}, False), ("bloom", {}, False),
     ("mixtral", {"output_router_logits": True}, False)],
)  # fmt: skip
def test_a_run_on_rows_with_labels_needs_a_model_that_keeps_their_sequences_apart(
    family: str, changes: dict[str, object], is_taken: bool, tmp_path: Path, load_request: LoadRequest, run_model: Model
) -> None:
    init_model(write_config(tmp_path / "config.json", family, **changes), tmp_path / "model", 1)
    run_model.data_type = DataType.FINETUNING
    request = msgspec.structs.replace(load_request, path=str(tmp_path / "model"), model=run_model)
    if is_taken:
        assert TrainerEngine().load(request).parameters
    else:
        with pytest.raises(UnusableModelError, match=r"AR6: .*(several sequences|a row's first sequence)"):
            TrainerEngine().load(request)
