"""The schema has the keys and the variants of the core."""

from dataclasses import fields
from typing import Any, get_args

import pytest
from pydantic import Tag

from psyche.config import model_schema, schema
from psyche.config.values import get_variant_name
from psyche.core.state import state
from psyche.core.state.settings import get_keys


@pytest.mark.parametrize(
    ("annotation", "members"),
    [
        (model_schema.LlmTable.model_fields["architecture"].annotation, state.Architecture),
        (model_schema.LlmTable.model_fields["data_type"].annotation, state.DataType),
        (model_schema.TokenBytes, state.TokenSize),
        (schema.RunStateName, state.RunState),
    ],
)
def test_a_choice_has_the_variants_of_the_core(annotation: Any, members: Any) -> None:
    assert list(get_args(annotation)) == [get_variant_name(member) for member in members]


@pytest.mark.parametrize(
    ("union", "members"),
    [
        (model_schema.CHECKPOINT, state.CheckpointKind),
        (model_schema.DATA_LOCATION, state.DataLocationKind),
        (model_schema.HTTP_LOCATION, state.HttpLocationKind),
        (model_schema.SCHEDULE, state.ScheduleKind),
        (model_schema.CHOSEN_OPTIMIZER, state.OptimizerKind),
    ],
)
def test_a_union_has_the_variants_of_the_core(union: Any, members: Any) -> None:
    tags = {one.tag for part in get_args(get_args(union)[0]) for one in get_args(part) if isinstance(one, Tag)}
    wanted = {get_variant_name(member) for member in members}
    assert tags == wanted


def test_the_original_documentations_keys_are_needed_and_later_ones_are_not() -> None:
    needed = {name for name, field in schema.ConfigTable.model_fields.items() if field.is_required()}
    assert needed == {
        "warmup_time", "cooldown_time", "max_round_train_time", "round_witness_time", "min_clients", "init_min_clients",
        "verification_percent", "witness_nodes", "global_batch_size_start", "global_batch_size_end", "total_steps",
        "global_batch_size_warmup_tokens",
    }  # fmt: skip


@pytest.mark.parametrize("record", [state.Config, state.Metadata, state.Progress, state.LrSchedule, state.Optimizer])
def test_every_field_of_the_settings_is_a_key(record: type) -> None:
    assert set(get_keys(record)) == {one.name for one in fields(record)} - {"kind"}
