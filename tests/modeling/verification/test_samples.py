"""A micro-batch of several pieces shows each of them as if it were computed alone (V1, V2)."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from auditing_kit import LENGTH, SAMPLES, Member, draw_tokens, get_seed
from kits.models import write_config
from kits.tier import few
from torch.nn import functional
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP

from psyche.core.committee.verdicts import compute_distance
from psyche.core.encoding.work import compute_difference, decode_table
from psyche.modeling.architecture import read_blueprint
from psyche.modeling.model import enable_checkpointing, get_parameters
from psyche.modeling.trainer import batch
from psyche.modeling.trainer.batch import compute_gradients, decode_tokens
from psyche.modeling.trainer.replica import Replica
from psyche.modeling.verification import samples
from psyche.modeling.verification.samples import find_layers
from psyche.modeling.verification.work import WorkLog
from psyche.wire.data import BEGINS
from psyche.wire.trainer import LoadRequest, WorkRequest

PIECE, ROWS = 2, 7  # the last piece has one sample
DIVISIBLE = ["llama", "gpt_neox", "bloom", "cohere", "falcon", "glm4", "granite", "mistral", "olmo2", "phi3", "qwen2",
             "qwen3", "seed_oss", "smollm3", "stablelm", "starcoder2"]  # fmt: skip
ONE_BY_ONE = ["mixtral", "gemma", "gpt2", "mamba", "opt"]  # experts, scaled or unusual embeddings, no layers

Build = Callable[[str], Replica]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def build(family: str) -> Replica:
        torch.manual_seed(3)
        config = read_blueprint(write_config(tmp_path / "config.json", family)).config
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
        parameters, device = get_parameters(model), torch.device("cpu")
        layers = find_layers(model, parameters)
        return cast("Replica", SimpleNamespace(model=model, parameters=parameters, device=device, layers=layers))

    return build


def draw_rows(seed: int) -> torch.Tensor:
    return decode_tokens(draw_tokens(seed, ROWS), ROWS, LENGTH, 64)


def run(replica: Replica, micro_batch_size: int, seed: int, rows: torch.Tensor) -> WorkLog:
    log = WorkLog(WorkRequest(seed=get_seed(seed), piece_samples=PIECE), replica)
    compute_gradients(
        replica.model, replica.parameters, rows, micro_batch_size=micro_batch_size, device=replica.device, clip=None,
        pieces=log,
    )  # fmt: skip
    return log


def compare(replica: Replica, micro_batch_size: int, seed: int, rows: torch.Tensor) -> None:
    """Hold each row against that of the pieces one by one."""
    found = run(replica, micro_batch_size, seed, rows)._rows
    layers, replica.layers = replica.layers, None
    wanted = run(replica, micro_batch_size, seed, rows)._rows
    replica.layers = layers
    assert layers is not None
    assert len(found) == len(wanted) == 4
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert compute_distance(compute_difference(found, number), compute_difference(wanted, number)) < 2e-5


@pytest.mark.parametrize("family", few(DIVISIBLE, 2))
def test_pieces_of_one_micro_batch_are_those_computed_one_by_one(family: str, build: Build) -> None:
    replica = build(family)
    for seed in range(8):  # which rows take part
        compare(replica, 4 if seed % 2 else 99, seed, draw_rows(seed))


def test_samples_of_large_layers_are_multiplied_some_at_a_time(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "_BLOCK", 3 * LENGTH * 64 // 8)  # three of seven samples of the head
    compare(build("llama"), 99, 1, draw_rows(1))


def test_rows_of_several_sequences_show_their_pieces_too(build: Build) -> None:
    ids = draw_rows(0)
    places = torch.arange(LENGTH) % 8
    places[[0, 8]] += BEGINS
    compare(build("llama"), 99, 3, torch.stack((ids, ids, places.expand_as(ids)), -1))


@pytest.mark.parametrize("family", few(ONE_BY_ONE, 1))
def test_a_model_whose_samples_cannot_be_told_computes_its_pieces_one_by_one(family: str, build: Build) -> None:
    assert build(family).layers is None


def test_layers_that_are_computed_again_compute_their_pieces_one_by_one(build: Build) -> None:
    replica = build("llama")
    enable_checkpointing(cast("AutoModelForCausalLM", replica.model))  # pyright: ignore[reportArgumentType]
    assert find_layers(replica.model, replica.parameters) is None


def count_passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes, compute_losses = list[int](), batch.compute_losses

    def count(model: torch.nn.Module, rows: torch.Tensor, *others: object) -> tuple[torch.Tensor, torch.Tensor]:
        sizes.append(len(rows))
        return compute_losses(model, rows, *others)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(batch, "compute_losses", count)
    return sizes


def test_a_trainer_needs_one_pass_for_all_pieces(load_request: LoadRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = count_passes(monkeypatch)
    Member(load_request, micro_batch_size=99).run(1)
    assert sizes[-2:] == [SAMPLES, 1], "the last one is the calibration"


def apply_weights(self: LlamaMLP, x: torch.Tensor) -> torch.Tensor:
    """As the layers do, without calling them."""
    up = functional.linear(x, self.up_proj.weight)
    return self.down_proj(self.act_fn(self.gate_proj(x)) * up)


def apply_flat(self: LlamaMLP, x: torch.Tensor) -> torch.Tensor:
    flat = x.flatten(0, 1).flip(0)
    return self.down_proj(self.act_fn(self.gate_proj(flat)) * self.up_proj(flat)).flip(0).view_as(x)


@pytest.mark.parametrize("forward", [apply_weights, apply_flat])
def test_samples_that_do_not_add_up_to_the_gradient_begin_the_batch_anew(
    forward: Callable[[LlamaMLP, torch.Tensor], torch.Tensor], load_request: LoadRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    calm = Member(load_request, micro_batch_size=1).run(2)
    monkeypatch.setattr(LlamaMLP, "forward", forward)
    sizes, member = count_passes(monkeypatch), Member(load_request, micro_batch_size=99)
    sizes.clear()
    member.run(2)
    assert sizes == [SAMPLES] + [1] * (2 * SAMPLES + 1)
    for one, other in zip(member.replies, calm.replies, strict=True):
        assert one.work is not None
        assert other.work is not None
        tables = [
            decode_table(work.table, SAMPLES, is_calibrated=one is member.replies[0]) for work in (one.work, other.work)
        ]
        for piece in range(SAMPLES):
            assert compute_distance(*(compute_difference(table, piece) for table in tables)) < 2e-5
