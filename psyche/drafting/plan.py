"""The numbers of a new run, computed from what its owner answered."""

from dataclasses import dataclass
from typing import Final

from psyche.config.schema import ConfigTable
from psyche.core.state.limits import U16_MAX
from psyche.core.state.state import Optimizer, OptimizerKind
from psyche.drafting.backends import DraftedBackend
from psyche.drafting.model_choice import ModelChoice
from psyche.forecast.local_steps import describe_local_steps, propose_local_steps
from psyche.forecast.whole_run import WholeRun
from psyche.forecast.workload import compute_even_shapes, compute_payload_bytes

FETCH_BYTES_PER_S: Final = 6_250_000  # 50 Mbit/s: a slow line of those that can take part
SAVE_BYTES_PER_S: Final = 100_000_000  # a slow disk
SAVED_BYTES: Final = 16  # of a parameter: weights, momentum, export
START_S: Final = 60  # a client's processes start, and load torch
APPLY_S: Final = 0.5  # a round's results, on a usual machine
LOAD_S: Final = 10.0  # in Warmup
TENS_S: Final = 10
LEAST_COOLDOWN_S: Final = 3
WARMUP_SHARE: Final = 20  # the learning rate rises during a twentieth of the run
USUAL_MBIT_S: Final = 20.0  # upload that members have at home
FINAL_LR_SHARE: Final = 10


@dataclass(frozen=True, slots=True)
class Answers:
    """What the owner decides of a run, besides model and data."""

    run_id: str
    members: int  # clients with which an epoch starts
    min_members: int  # clients with which it goes on
    steps: int  # that are trained
    backend: DraftedBackend


@dataclass(frozen=True, slots=True)
class Plan:
    """The computed settings: `config` for `[config]`; those of the schedule are in steps."""

    config: dict[str, int]
    schedule_warmup_steps: int
    final_lr: float
    cold_start_steps: int


def compute_run_plan(answers: Answers, model: ModelChoice) -> Plan:
    recipe = model.recipe
    fetch_s = model.weights_bytes / FETCH_BYTES_PER_S
    save_s = SAVED_BYTES * model.parameters // SAVE_BYTES_PER_S
    batch = min(U16_MAX, recipe.member_samples * answers.members)
    epoch_rounds = min(recipe.epoch_rounds, answers.steps)
    config = {
        "warmup_time": _round_up(START_S + 2 * fetch_s, TENS_S),
        "cooldown_time": max(LEAST_COOLDOWN_S, save_s),
        "waiting_for_members_extra_time": ConfigTable.model_fields["waiting_for_members_extra_time"].default,
        "max_round_train_time": recipe.train_s,
        "round_witness_time": max(recipe.witness_s, answers.backend.traits.least_witness_s),
        "rounds_per_epoch": epoch_rounds,
        "total_steps": answers.steps + 1,
        "init_min_clients": answers.members,
        "min_clients": answers.min_members,
        "witness_nodes": 0,
        "verification_percent": 0,
        "global_batch_size_start": batch,
        "global_batch_size_end": batch,
        "global_batch_size_warmup_tokens": 0,
    }
    return Plan(config, answers.steps // WARMUP_SHARE, recipe.base_lr / FINAL_LR_SHARE, epoch_rounds // 10)


def describe_proposal(answers: Answers, model: ModelChoice, run: WholeRun) -> str:
    """The local steps to write into run.toml where lines are slower than the run needs; empty if these do."""
    if run.upload_mbit_s <= USUAL_MBIT_S:
        return ""
    found = propose_local_steps(model.parameters, answers.members, USUAL_MBIT_S, run.train_s, Optimizer())
    return "" if found is None else (
        f"  with {USUAL_MBIT_S:g} Mbit/s         {describe_local_steps(found)}, and global_batch_size "
        f"{found.inner_steps} times as large, train nearly all of the time; see docs/configuration.md"
    )  # fmt: skip


def estimate_whole_run(answers: Answers, model: ModelChoice) -> WholeRun:
    """The whole run on usual machines with lines that are fast enough; `psyche simulate` takes the owner's."""
    recipe, config = model.recipe, compute_run_plan(answers, model).config
    optimizer = Optimizer(
        OptimizerKind.DISTRO, compression_chunk=recipe.chunk, compression_topk=recipe.topk, quantize_1bit=True
    )
    payload_bytes = compute_payload_bytes(compute_even_shapes(model.parameters, recipe.chunk), optimizer)
    tokens = config["global_batch_size_end"] * model.sequence_tokens
    train_s = tokens / answers.members / recipe.tokens_per_s
    return WholeRun(
        steps=answers.steps, epochs=-(-answers.steps // config["rounds_per_epoch"]), round_s=train_s + APPLY_S,
        around_s=config["waiting_for_members_extra_time"] + LOAD_S + config["cooldown_time"], train_s=train_s,
        tokens=tokens, sent_bytes=payload_bytes * (answers.members - 1), send_s=train_s + APPLY_S,
    )  # fmt: skip


def _round_up(seconds: float, step: int) -> int:
    return int(-(-seconds // step) * step)
