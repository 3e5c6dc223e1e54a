"""Instructions on a chain: the IDL describes the bodies that are written."""

from dataclasses import fields
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from psyche.backends.solana.interface.borsh import decode_value
from psyche.backends.solana.interface.idl import load_program
from psyche.core.committee.seeds import EXPIRED
from psyche.core.encoding.bodies import encode_body
from psyche.core.rules.apply import KINDS
from psyche.core.state import messages as msg
from psyche.core.state.state import Checkpoint, CheckpointKind, Metadata, Optimizer, Progress
from psyche.testing.builders import build_config, build_model

KEY = bytes(range(32))


U16, U32, U63 = st.integers(0, 65_535), st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 63) - 1)
MEMBERS, KEYS = st.integers(0, 255), st.binary(min_size=32, max_size=32)
TEXTS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=32)
SOURCES = st.builds(Checkpoint, st.just(CheckpointKind.HUB), TEXTS, st.none() | TEXTS)
RATES = st.none() | U63
MESSAGES = st.one_of(
    st.builds(msg.Tick, st.none() | st.just(EXPIRED) | KEYS),
    st.builds(msg.Join, KEYS, U63),
    st.builds(msg.LeaveRun),
    st.builds(msg.Withdraw, U16, MEMBERS),
    st.builds(msg.WarmupWitness, U16, MEMBERS, KEYS),
    st.builds(msg.HealthCheck, U16, U32, MEMBERS),
    st.builds(msg.NameCheckpoint, U16, KEYS, SOURCES),
    st.builds(msg.ReportEquivocation, U16, U32, MEMBERS),
    st.builds(msg.Pause) | st.builds(msg.Resume) | st.builds(msg.ReclaimSlot),
    st.builds(msg.Recover, U63, U63),
    st.builds(msg.SetRates, RATES, RATES),
    st.builds(
        msg.Collect,
        st.lists(st.tuples(KEYS, st.none() | st.integers(1, (1 << 64) - 1)), min_size=1, max_size=64).map(tuple),
    ),
    st.builds(
        msg.Update,
        st.none() | st.builds(lambda seconds: build_config(warmup_time=seconds), U63),
        st.none() | st.builds(lambda source: build_model(checkpoint=source, optimizer=Optimizer()), SOURCES),
        st.none() | st.builds(Progress, U16, U32, U63),
        st.none() | st.builds(Metadata, TEXTS, TEXTS, U63, U63),
        st.none() | st.lists(TEXTS, max_size=4).map(tuple),
    ),
    st.builds(msg.UpdateClientVersion, TEXTS.filter(lambda text: len(text.encode()) <= 96)),
)


@given(MESSAGES)
def test_the_idl_describes_a_body_by_the_names_and_values_of_its_message(message: Any) -> None:
    kind = next(kind for kind in KINDS if kind.type is type(message))
    name = "set_future_epoch_rates" if kind.type is msg.SetRates else kind.name
    arguments = load_program("coordinator").instructions.get(name)
    if arguments is None or "body" not in arguments.arguments.fields or kind.type is msg.Update:
        return  # an update is sent without the model's further sources; the frozen instructions have one
    found = decode_value(arguments.arguments, encode_body(message), kind.name)["body"]
    assert list(found) == [field.name for field in fields(message)]
    for field, value in found.items():
        said = getattr(message, field)
        if isinstance(said, str):
            assert value == said.encode().ljust(len(value), b"\0")
        elif not isinstance(said, Checkpoint):  # in the layout of the account
            assert value == said
