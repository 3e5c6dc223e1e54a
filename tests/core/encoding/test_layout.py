"""The account's bytes: where every part lies, that they read back, and what is refused."""

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kits.tier import draw
from layout_states import CONFIGS, MODELS, STATES, make_state

from psyche.core.committee.schedule import round_f32
from psyche.core.encoding.account import (
    decode_config,
    decode_model,
    encode_config,
    encode_model,
    encode_state,
    get_config_preimage,
)
from psyche.core.encoding.fields import pad, u16, u32, u64
from psyche.core.encoding.fields import raw as raw_field
from psyche.core.encoding.records import FieldLayout, RecordLayout, TaggedLayout
from psyche.core.encoding.tables import ACCOUNT, OPTIMIZER
from psyche.core.state.state import (
    Audit,
    Checkpoint,
    CheckpointKind,
    Client,
    Config,
    Coordinator,
    InnerOptimizer,
    Lookahead,
    LrSchedule,
    Model,
    Optimizer,
    OptimizerKind,
    Progress,
    Round,
    Slot,
    StartCandidate,
    WitnessRecord,
)
from psyche.errors import WireError

# Offsets of the parts, counted by hand from the sizes of the account.
METADATA, RUN, MODEL, CONFIG, PROGRESS, EPOCH = 16, 472, 560, 1_520, 1_648, 1_792
ROUNDS, CLIENTS, CHALLENGES, REGISTRY, NONCE = 2_048, 77_056, 109_824, 111_872, 161_088
TOTAL = 165_192


def read_account(raw: bytes) -> Coordinator:
    """The form alone, for any values: what of them a run can reach is tested in test_state_rules.py."""
    return ACCOUNT.decode(raw)


def patch(raw: bytes, offset: int, data: bytes) -> bytes:
    return raw[:offset] + data + raw[offset + len(data) :]


SLOW = settings(
    max_examples=draw(60),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
FULL = make_state()
RAW = encode_state(FULL)


def test_the_account_has_165192_bytes_and_reads_back() -> None:
    assert len(RAW) == TOTAL
    assert read_account(RAW) == FULL
    assert read_account(encode_state(Coordinator())) == Coordinator()


def test_the_bytes_of_an_empty_state_never_change() -> None:
    """A change here is a change of the format: it needs another version. The recorded traces hold all other bytes."""
    empty = encode_state(Coordinator(config=Config(waiting_for_members_extra_time=0)))
    assert hashlib.sha256(empty).hexdigest() == "b8c51427b084fe4269d7de927e81f9e03bd6bbe9b5edd4701f2506d7d580fc09"


def test_the_file_begins_with_discriminator_and_version() -> None:
    assert RAW[:8] == hashlib.sha256(b"account:CoordinatorAccount").digest()[:8]
    assert RAW[8:16] == b"\x01" + bytes(7)


def read(code: str, offset: int) -> tuple[Any, ...]:
    return struct.unpack_from("<" + code, RAW, offset)


def test_the_run_lies_at_its_fixed_place() -> None:
    assert RAW[METADATA : METADATA + 64] == FULL.metadata.name.encode().ljust(64, b"\0")
    assert read("QQ", METADATA + 344) == (FULL.metadata.num_parameters, FULL.metadata.vocab_size)
    assert RAW[METADATA + 360 : METADATA + 362] == b"v1"
    assert RAW[RUN : RUN + 32] == "läuft".encode().ljust(32, b"\0")
    assert RAW[RUN + 32 : RUN + 64] == FULL.run_uid
    assert read("B7xQB", RUN + 64) == (FULL.run_state, FULL.state_start_unix, FULL.pending_pause)


@SLOW
@given(STATES)
def test_any_state_reads_back(state: Coordinator) -> None:
    raw = encode_state(state)
    assert read_account(raw) == state
    assert encode_state(read_account(raw)) == raw


@SLOW
@given(st.integers(0, TOTAL - 1), st.integers(1, 255))
def test_changed_bytes_are_refused_or_mean_exactly_themselves(offset: int, change: int) -> None:
    raw = patch(RAW, offset, bytes([RAW[offset] ^ change]))
    try:
        state = read_account(raw)
    except WireError:
        return
    assert encode_state(state) == raw
    assert state != FULL


@settings(max_examples=draw(300), deadline=None)
@given(MODELS, st.integers(0, 959), st.integers(1, 255))
def test_a_changed_model_is_refused_or_means_exactly_itself(model: Model, offset: int, change: int) -> None:
    original = encode_model(model)
    assert decode_model(original) == model
    raw = patch(original, offset, bytes([original[offset] ^ change]))
    try:
        changed = decode_model(raw)
    except WireError:
        return
    assert encode_model(changed) == raw


@given(CONFIGS)
def test_any_config_reads_back(config: Config) -> None:
    assert decode_config(encode_config(config)) == config


def test_a_full_state_reads_back() -> None:
    state = Coordinator()
    state.clients = [Client(signer=bytes([i]) * 32, slot=i) for i in range(256)]
    state.registry.slots = [Slot(signer=bytes([i]) * 32) for i in range(256)]
    state.epoch.start_candidates = [StartCandidate(bytes([i]) * 32, i) for i in range(1, 5)]
    for round_ in state.rounds:
        round_.witnesses = [WitnessRecord(member=i) for i in range(32)]
        round_.audits = [Audit(verifier=i) for i in range(32)]
    assert read_account(encode_state(state)) == state


@pytest.mark.parametrize(
    ("offset", "data", "field"),
    [
        (0, b"\0", "Coordinator.discriminator: "),
        (8, b"\2", "Coordinator.version: 2 instead of 1"),
        (METADATA + 1, b"\xff", "Metadata.name: 'utf-8' codec"),
        (METADATA + 63, b"x", "Metadata.name: bytes after the end"),
        (RUN + 64, b"\x08", "Coordinator.run_state: 8 is no RunState"),
        (RUN + 65, b"\1", "Coordinator.pad: byte 537 is not zero"),
        (RUN + 80, b"\2", "Coordinator.pending_pause: 2 is neither 0 nor 1"),
        (MODEL, b"\1", "Model.kind: 1 instead of 0"),
        (MODEL + 16, b"\x09", "Model.architecture: 9 is no Architecture"),
        (MODEL + 20, b"\x07", "Checkpoint.kind: 7 is unknown"),
        (MODEL + 20, b"\x00", "Checkpoint EPHEMERAL: bytes after"),
        (MODEL + 88, b"\x00", "Checkpoint HUB.revision: marked as absent, but"),
        (MODEL + 88, b"\x02", "Checkpoint HUB.revision: 2 is neither"),
        (MODEL + 160, b"\x06", "DataLocation.kind: 6"),
        (MODEL + 464, b"\x04", "LrSchedule.kind: 4"),
        (MODEL + 468, b"\x01", "LrSchedule COSINE.pad: byte 0"),
        (MODEL + 472, struct.pack("<d", float("nan")), "LrSchedule COSINE.base_lr: nan is not"),
        (MODEL + 472, struct.pack("<d", float("inf")), "LrSchedule COSINE.base_lr: inf is not"),
        (MODEL + 536, struct.pack("<f", float("-inf")), "Optimizer DISTRO.compression_decay: -inf"),
        (CONFIG + 70, b"\x05", "Config.overlap: 5 is neither"),
        (MODEL + 7, b"\1", "Coordinator.model.pad: byte 567"),
        (PROGRESS + 2, b"\1", "Coordinator.progress.pad: byte 1650"),
        (EPOCH + 12, b"\x01\x01", "Coordinator.clients: 257 entries, at most 256"),
        (EPOCH + 12, b"\x01\x00", "Coordinator.clients: entries from 1 on are not zero"),
        (EPOCH + 37, b"\x08", "Coordinator.epoch.stop_reason: 8 is no StopReason"),
        (EPOCH + 40 + 80 + 32, b"\x01", "Coordinator.epoch.start_candidates: entries from 1 on"),
        (EPOCH + 40 + 34, b"\x01", r"Coordinator.epoch.start_candidates\[0\].pad"),
        (ROUNDS + 234, b"\x01\x01", "Coordinator.rounds: entry 0: Round.clients_len: 257 is above the limit of 256"),
        (ROUNDS + 236, b"\x21", "entry 0: Round.witnesses_expected: 33 is above the limit of 32"),
        (ROUNDS + 18_752 + 240, b"\x21", "rounds: entry 1: Round.witnesses: 33 entries, at most 32"),
        (ROUNDS + 18_752 + 240, b"\x01", "rounds: entry 1: Round.witnesses: entries from 1 on"),
        (ROUNDS + 18_752 + 244, b"\x21", "rounds: entry 1: Round.audits: 33 entries, at most 32"),
        (ROUNDS + 248, b"\x80", "Round.flags: 128 is no set of RoundFlag"),
        (ROUNDS + 18_752 + 320 + 512, b"\0\1", "entry 1: WitnessRecord.member: 256 is above the limit of 255"),
        (ROUNDS + 18_752 + 320 + 512 + 2, b"\x08", "WitnessRecord.flags: 8"),
        (ROUNDS + 18_752 + 320 + 512 + 511, b"\1", r"Coordinator.rounds\[1\].witnesses\[1\].pad: byte"),
        (CLIENTS + 128 + 64, b"\x04", "Coordinator.clients: entry 1: Client.state: 4 is no ClientState"),
        (CLIENTS + 68, b"\x40", "entry 0: Client.flags: 64"),
        (CLIENTS + 71, b"\x01", "entry 0: Client.slot: "),
        (CLIENTS + 255, b"\x01", r"Coordinator.clients\[1\].pad"),
        (CHALLENGES + 127, b"\x01", r"Coordinator.challenges\[0\].pad"),
        (REGISTRY, b"\x01\x01", "Registry.slots: 257 entries"),
        (REGISTRY + 4, b"\x01", "Coordinator.registry.pad"),
        (REGISTRY + 64 + 116, b"\x05", "Registry.slots: entry 0: Slot.state: 5"),
        (REGISTRY + 64 + 3 * 192, b"\x01", "Registry.slots: entries from 3 on are not zero"),
        (EPOCH + 209, b"\x01", "Coordinator.pad: byte 2001 is not zero"),
        (NONCE + 8 + 127, b"x", "Coordinator.bootstrap: bytes after the end"),
        (NONCE + 8 + 128, bytes(128) + b"x", "Coordinator.bootstrap: entries from 1 on are not zero"),
        (NONCE + 8, b"\xff", "Coordinator.bootstrap: 'utf-8' codec"),
        (NONCE + 8 + 512, b"x", "Coordinator.pad: byte 161608 is not zero"),
        (TOTAL - 1, b"\x01", "Coordinator.pad: byte 165191 is not zero"),
    ],
)
def test_bytes_that_break_a_rule_are_refused_by_name(offset: int, data: bytes, field: str) -> None:
    with pytest.raises(WireError, match=field):
        read_account(patch(RAW, offset, data))


@pytest.mark.parametrize("length", [0, TOTAL - 1, TOTAL + 1])
def test_another_length_is_refused(length: int) -> None:
    with pytest.raises(WireError, match=f"{length} bytes, must be 165192"):
        read_account((RAW + b"\0")[:length])


def change(path: str, value: object) -> Callable[[Coordinator], None]:
    *parents, last = path.split(".")

    def apply(state: Coordinator) -> None:
        node: Any = state
        for name in parents:
            node = node[int(name)] if name.isdigit() else getattr(node, name)
        setattr(node, last, value)

    return apply


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("run_id", "x" * 33, "Coordinator.run_id: 33 bytes of UTF-8, at most 32"),
        ("run_id", "ä" * 17, "Coordinator.run_id: 34 bytes"),
        ("run_id", "a\0b", "Coordinator.run_id: 3 bytes of UTF-8"),
        ("run_id", "\ud800", "Coordinator.run_id: 'utf-8' codec"),
        ("run_uid", bytes(31), "Coordinator.run_uid: 31 bytes, must be 32"),
        ("nonce", 1 << 64, "Coordinator.nonce: 18446744073709551616 does not fit"),
        ("nonce", -1, "Coordinator.nonce: -1 does not fit"),
        ("config.min_clients", 65_536, "Config.min_clients: 65536 does not fit"),
        ("rounds.0.members", 1 << 256, "Round.members: int too big"),
        ("rounds.0.members", -1, "Round.members: can't convert negative"),
        ("rounds.0.clients_len", 257, "Round.clients_len: 257 is above"),
        ("rounds.0.witnesses", [WitnessRecord()] * 33, "Round.witnesses: 33 entries, at most 32"),
        ("rounds.1.witnesses", [WitnessRecord(member=256)], "WitnessRecord.member: 256 is above"),
        ("rounds", [Round()], "Coordinator.rounds: 1 entries, must be 4"),
        ("clients", [Client()] * 257, "Coordinator.clients: 257 entries, at most 256"),
        ("challenges.3.voters", 1 << 256, "Challenge.voters: int too big"),
        ("clients", [Client(slot=256)], "Client.slot: 256 is above"),
        ("epoch.start_candidates", [StartCandidate()], "start_candidates: an entry is all zero"),
        ("epoch.start_candidates", [StartCandidate(b"\1" * 32)] * 5, "start_candidates: 5 entries, at most 4"),
        ("model.checkpoint", Checkpoint(CheckpointKind.EPHEMERAL, "x"), "Checkpoint EPHEMERAL: has no name, but"),
        ("model.checkpoint", Checkpoint(CheckpointKind.LOCAL, "x", "y"), "Checkpoint LOCAL: has no revision"),
        ("model.lr_schedule", LrSchedule(stable_steps=1), "LrSchedule CONSTANT: has no stable_steps"),
        ("model.lr_schedule", LrSchedule(base_lr=float("inf")), "LrSchedule CONSTANT.base_lr: inf is not"),
        ("model.optimizer", Optimizer(OptimizerKind.ADAMW, eps=1e39), "Optimizer ADAMW.eps: 1e\\+39 does not fit"),
        ("model.optimizer", Optimizer(OptimizerKind.ADAMW, 1e39), "Optimizer ADAMW.clip_grad_norm: float too large"),
        ("model.optimizer", Optimizer(OptimizerKind.ADAMW, betas=(0.9, 1e39)), "Optimizer ADAMW.betas: float too"),
        ("model.extra_checkpoints", [], "Model.extra_checkpoints: 0 entries, must be 3"),
    ],
)
def test_what_the_layout_cannot_hold_is_refused_by_name(path: str, value: object, field: str) -> None:
    state = make_state()
    change(path, value)(state)
    with pytest.raises(WireError, match=field):
        encode_state(state)


def test_settings_of_optimizers_come_back_as_float32() -> None:
    model = Model(optimizer=Optimizer(OptimizerKind.DISTRO, compression_decay=0.999))
    assert decode_model(encode_model(model)).optimizer.compression_decay == round_f32(0.999) != 0.999


def test_the_config_hash_covers_config_and_model_but_no_checkpoint_source() -> None:
    preimage = get_config_preimage(FULL)
    assert len(preimage) == 15 + 128 + 960
    assert preimage.startswith(b"psyche/config/1" + encode_config(FULL.config))
    moved = replace(FULL, model=replace(FULL.model, checkpoint=Checkpoint(), extra_checkpoints=[Checkpoint()] * 3))
    assert get_config_preimage(moved) == preimage
    model = preimage[-960:]
    assert model[20:156] == bytes(136)
    assert model[552:] == bytes(408)
    assert model[:20] + model[156:552] == RAW[MODEL : MODEL + 20] + RAW[MODEL + 156 : MODEL + 552]
    assert get_config_preimage(replace(FULL, model=replace(FULL.model, max_seq_len=9_999))) != preimage
    assert get_config_preimage(replace(FULL, config=replace(FULL.config, min_clients=9_999))) != preimage


def test_every_byte_of_the_account_has_a_name() -> None:
    assert ACCOUNT.locate(0) == "discriminator"
    assert ACCOUNT.locate(CLIENTS + 3 * 128 + 40) == "clients[3].p2p"
    assert ACCOUNT.locate(MODEL + 21) == "model.checkpoint.byte 1"
    assert ACCOUNT.locate(CONFIG + 70) == "config.overlap"
    assert ACCOUNT.locate(ROUNDS + 18_752 + 320 + 5 * 512 + 8) == "rounds[1].witnesses[5].held"
    with pytest.raises(AssertionError):
        ACCOUNT.locate(TOTAL)


def test_a_table_that_forgets_a_field_or_misaligns_one_does_not_load() -> None:
    with pytest.raises(AssertionError, match=r"Progress: fields \{'step'\} are missing"):
        RecordLayout(Progress, (u16("epoch"), pad(6), u64("epoch_start_data_index")))
    with pytest.raises(AssertionError, match="every number lies at a multiple of its size"):
        RecordLayout(Progress, (u16("epoch"), u32("step"), u64("epoch_start_data_index")))
    with pytest.raises(AssertionError, match="every kind has its fields"):
        TaggedLayout(Checkpoint, CheckpointKind, 136, {CheckpointKind.EPHEMERAL: ()})
    with pytest.raises(AssertionError, match="a variant is too long"):
        TaggedLayout(Checkpoint, CheckpointKind, 8, dict.fromkeys(CheckpointKind, (raw_field("name", 32),)))


@dataclass
class Place:
    epoch: int = 0
    step: int = 0


@dataclass
class Pair:
    first: Place
    second: Place


def test_numbers_of_two_bytes_lie_at_even_places() -> None:
    with pytest.raises(AssertionError, match="every number lies at a multiple of its size"):
        FieldLayout("odd", (pad(1), u16("epoch")))


def test_a_record_reads_back_with_several_dataclasses_in_it() -> None:
    fields_of_both = (u32("first.step"), u32("second.step"), u16("second.epoch"), u16("first.epoch"))
    layout = RecordLayout(Pair, fields_of_both, {"first": Place, "second": Place})
    pair = Pair(Place(1, 2), Place(3, 4))
    assert layout.write(pair) == b"\x02\0\0\0\x04\0\0\0\x03\0\x01\0"
    assert layout.decode(layout.write(pair)) == pair


def test_the_settings_of_adamw_have_exactly_these_bytes() -> None:
    optimizer = Optimizer(kind=OptimizerKind.ADAMW, betas=(0.5, 0.25), eps=2.0, weight_decay=None, clip_grad_norm=1.0)
    expected = struct.pack("<IfffBB2xff", OptimizerKind.ADAMW, 0.5, 0.25, 2.0, 0, 1, 0.0, 1.0)
    assert OPTIMIZER.write(optimizer) == expected.ljust(32, b"\0")
    assert OPTIMIZER.read(OPTIMIZER.write(optimizer)) == optimizer


def test_the_look_ahead_of_distro_is_one_byte() -> None:
    optimizer = Optimizer(OptimizerKind.DISTRO, compression_topk=8, compression_chunk=64, lookahead=Lookahead.OWN)
    written = OPTIMIZER.write(optimizer)
    assert written == struct.pack("<IBBBBfffHH", 2, 0, 0, 0, 1, 0.0, 0.0, 0.0, 8, 64).ljust(32, b"\0")
    assert OPTIMIZER.read(written) == optimizer
    with pytest.raises(WireError, match="lookahead: 2 is no Lookahead"):
        OPTIMIZER.read(written[:7] + b"\2" + written[8:])


def test_the_settings_of_local_steps_fill_their_bytes() -> None:
    optimizer = Optimizer(
        OptimizerKind.LOCAL_STEPS, clip_grad_norm=1.0, weight_decay=0.5, compression_topk=64, compression_chunk=32,
        inner_optimizer=InnerOptimizer.MUON_ANEW, inner_steps=8, merge_step=2, value_bits=1, error_decay=0.25,
        outer_rate=2.0,
    )  # fmt: skip
    expected = struct.pack("<IBBBBffffHHHH", 3, 1, 1, 3, 1, 1.0, 0.5, 0.25, 2.0, 8, 64, 32, 2)
    assert OPTIMIZER.write(optimizer) == expected
    assert len(expected) == 32
    assert OPTIMIZER.read(expected) == optimizer
    with pytest.raises(WireError, match="inner_optimizer: 4 is no InnerOptimizer"):
        OPTIMIZER.read(expected[:6] + b"\4" + expected[7:])


@pytest.mark.parametrize(("kind", "one_bit"), [(kind, one_bit) for kind in OptimizerKind for one_bit in (True, False)])
def test_signs_and_local_steps_are_exact(kind: OptimizerKind, one_bit: bool) -> None:
    assert Optimizer(kind, quantize_1bit=one_bit).is_exact is (one_bit or kind is OptimizerKind.LOCAL_STEPS)


@pytest.mark.parametrize("inner", InnerOptimizer)
def test_v2_rounds_of_distro_and_of_local_steps_that_begin_anew_can_be_computed_again(inner: InnerOptimizer) -> None:
    replayable = [kind for kind in OptimizerKind if Optimizer(kind, inner_optimizer=inner).is_replayable]
    assert replayable == [OptimizerKind.DISTRO, *[OptimizerKind.LOCAL_STEPS] * inner.name.endswith("_ANEW")]


def test_a_variant_that_is_too_long_is_refused_beside_a_short_one() -> None:
    class Kind(IntEnum):
        SHORT = 0
        LONG = 1

    @dataclass
    class Value:
        kind: Kind = Kind.SHORT
        first: int = 0
        second: int = 0

    variants = {Kind.SHORT: (u32("first"),), Kind.LONG: (u32("first"), u32("second"))}
    with pytest.raises(AssertionError, match="Value: a variant is too long"):
        TaggedLayout(Value, Kind, 8, variants)
