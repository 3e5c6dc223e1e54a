"""The schema agrees with the core: the same keys, the core's defaults, the widths of the record."""

from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_args

import annotated_types
import pytest
from pydantic import Tag

from psyche.config import model_schema, schema
from psyche.config.load import HARMLESS
from psyche.config.table import Table
from psyche.config.values import get_variant_name
from psyche.core.encoding.tables import CONFIG, METADATA, MODEL, PROGRESS
from psyche.core.state import state

PAIRS = [
    (schema.ConfigTable, state.Config, CONFIG),
    (schema.MetadataTable, state.Metadata, METADATA),
    (schema.ProgressTable, state.Progress, PROGRESS),
    (model_schema.LlmTable, state.Model, MODEL),
]
ONLY_ON_RECORD = {"extra_checkpoints"}
NUMBERS = "BHIQ"


def get_required(table: type[Table]) -> set[str]:
    return {name for name, field in table.model_fields.items() if field.is_required()}


@pytest.mark.parametrize(("table", "kind", "_record"), PAIRS)
def test_a_key_left_out_has_the_default_of_the_core(table: type[Table], kind: Any, _record: Any) -> None:
    assert is_dataclass(kind)
    assert set(table.model_fields) == {field.name for field in fields(kind)} - ONLY_ON_RECORD
    core = {field.name: field.default for field in fields(kind) if field.default is not MISSING}
    optional = {name: field.default for name, field in table.model_fields.items() if not field.is_required()}
    assert optional == {name: core[name] for name in optional}


@pytest.mark.parametrize(("table", "_kind", "record"), PAIRS)
def test_a_number_is_refused_where_the_record_has_no_room_for_it(table: type[Table], _kind: Any, record: Any) -> None:
    places = {one.name: one for one in record.fields if one.code in NUMBERS and one.from_wire is None}
    for name in places.keys() & table.model_fields.keys():
        most = next(one.le for one in table.model_fields[name].metadata if isinstance(one, annotated_types.Le))
        assert most == 256 ** places[name].size - 1, name


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
        (model_schema.Checkpoint, state.CheckpointKind),
        (model_schema.DataLocation, state.DataLocationKind),
        (model_schema.HttpLocation, state.HttpLocationKind),
        (model_schema.LrSchedule, state.ScheduleKind),
        (model_schema.Optimizer, state.OptimizerKind),
    ],
)
def test_a_union_has_the_variants_of_the_core(union: Any, members: Any) -> None:
    tags = {one.tag for part in get_args(get_args(union)[0]) for one in get_args(part) if isinstance(one, Tag)}
    wanted = {get_variant_name(member) for member in members}
    assert tags == ({"AdamW" if name == "Adamw" else name for name in wanted})


def test_the_original_documentations_keys_are_needed_and_later_ones_are_not() -> None:
    needed = set(HARMLESS) - {"rounds_per_epoch"}  # or epoch_time: one of the two
    assert get_required(schema.ConfigTable) == needed
