"""Every family takes the same path: made, loaded, tried, saved, exported, and read back by plain transformers."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from kits.models import FAMILIES, write_config
from kits.tier import few
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from psyche.core.state.state import ZERO32
from psyche.modeling.architecture import build_random, read_blueprint
from psyche.modeling.export import DiskView
from psyche.modeling.first_weights import compute_first_digest
from psyche.modeling.model import convert_model, get_shapes, get_tensors, init_model, load_model
from psyche.modeling.model_files import FolderFiles
from psyche.modeling.trainer.engine import TrainerEngine
from psyche.wire.crypto import compute_state_digest
from psyche.wire.trainer import ApplyRequest, LoadRequest, SnapshotRequest, TrainRequest

FIRST = ["gpt2", "deepseek_v3"]  # a row of positions and a tied head; one tensor of experts and a kept buffer
ROWS = (torch.arange(32) * 5 % 64).reshape(2, 16)


@pytest.fixture(params=few([*FIRST, *sorted(FAMILIES.keys() - set(FIRST))], len(FIRST)))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    config = write_config(tmp_path / "config.json", request.param)
    init_model(config, tmp_path / "model", 7)
    return tmp_path / "model"


def make_request(kind: str, path: Path) -> SnapshotRequest:
    return SnapshotRequest(kind=kind, path=str(path), epoch=0, step=2, data_index=2, chain=ZERO32, digest=bytes(32))


def train_once(engine: TrainerEngine) -> None:
    tokens = ROWS.numpy().astype("<u4").tobytes()
    train = TrainRequest(epoch=0, height=0, step=1, lr=1e-2, lookahead_lr=0.0, tokens=tokens, samples=2,
                         sequence_length=16, decided=(), in_flight=False)  # fmt: skip
    reply = engine.train(train)
    assert reply.payload, reply.refused
    apply = ApplyRequest(height=0, lr=1e-2, payloads=(reply.payload,), run_update=True, full_digest=True, random_seed=0)
    engine.apply(apply)


def compute_logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=ROWS).logits


def read_plainly(folder: Path) -> Any:
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(report.values()), report
    return model


def test_a_model_is_made_trained_saved_and_read_by_plain_transformers(
    folder: Path, tmp_path: Path, load_request: LoadRequest
) -> None:
    engine, load = TrainerEngine(), msgspec.structs.replace(load_request, path=str(folder))
    first = engine.load(load)
    assert compute_first_digest(FolderFiles(folder), is_exact=True) == compute_state_digest(ZERO32, first.weight_root)
    assert torch.equal(compute_logits(load_model(folder)), compute_logits(read_plainly(folder)))
    train_once(engine)
    saved = engine.snapshot(make_request("resume", tmp_path / "snapshot"))
    assert saved.weight_root != first.weight_root
    engine.snapshot(make_request("export", tmp_path / "export"))
    exported = msgspec.structs.replace(make_request("export", tmp_path / "later"), source=str(tmp_path / "snapshot"))
    TrainerEngine().snapshot(exported)
    snapshot = msgspec.structs.replace(load, path=str(tmp_path / "snapshot"), is_snapshot=True)
    assert TrainerEngine().load(snapshot).weight_root == saved.weight_root
    assert engine._loaded is not None
    trained = compute_logits(engine._loaded.replica.model)
    for name in ("export", "later"):
        assert torch.equal(compute_logits(read_plainly(tmp_path / name)), trained), name


def test_files_with_the_names_of_save_pretrained_are_converted_to_those_of_memory(folder: Path, tmp_path: Path) -> None:
    model = build_random(read_blueprint(folder), seed=7)
    model.save_pretrained(tmp_path / "usual")
    convert_model(tmp_path / "usual", tmp_path / "converted")
    converted = get_tensors(load_model(tmp_path / "converted"))
    assert get_shapes(converted) == read_blueprint(folder).tensors
    assert all(torch.equal(one, converted[name]) for name, one in get_tensors(model).items())
    with safe_open(tmp_path / "usual" / "model.safetensors", "pt") as usual:
        names = set(usual.keys())
    assert list_exported(folder) == names


def list_exported(folder: Path) -> set[str]:
    return set(DiskView(get_tensors(load_model(folder)), read_blueprint(folder)).dims)


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_neox"])
def test_an_export_has_the_names_that_other_programs_read(family: str, tmp_path: Path) -> None:
    init_model(write_config(tmp_path / "config.json", family), tmp_path / "model", 1)
    names = list_exported(tmp_path / "model")
    wanted = {"qwen3_moe": "model.layers.1.mlp.experts.3.gate_proj.weight", "gpt_neox": "embed_out.weight"}[family]
    assert wanted in names
    assert wanted not in read_blueprint(tmp_path / "model").tensors


def test_persistent_buffers_are_in_the_digest_and_in_exports(tmp_path: Path, load_request: LoadRequest) -> None:
    init_model(write_config(tmp_path / "config.json", "deepseek_v3"), tmp_path / "model", 1)
    bias = "model.layers.1.mlp.gate.e_score_correction_bias"
    model = load_model(tmp_path / "model")
    get_tensors(model)[bias].copy_(torch.tensor([0.5, -0.5, 0.25, 0.0]))
    model.save_pretrained(tmp_path / "other", save_original_format=False)
    roots = set[bytes]()
    for name in ("model", "other"):
        engine = TrainerEngine()
        roots.add(engine.load(msgspec.structs.replace(load_request, path=str(tmp_path / name))).weight_root)
    assert len(roots) == 2
    train_once(engine)
    engine.snapshot(make_request("export", tmp_path / "export"))
    kept = get_tensors(read_plainly(tmp_path / "export"))[bias]
    assert kept.tolist() == [0.5, -0.5, 0.25, 0.0]  # as loaded: nothing trains it
    assert json.loads((tmp_path / "export" / "config.json").read_text())["model_type"] == "deepseek_v3"
