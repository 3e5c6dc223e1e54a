"""The state of a run as bytes: what the chain stores and the TCP server sends (`docs/protocol-reference.md` 3).

`tables` declares every field. Settings of optimizers are float32 on record: `decode_state`
gives float32 values, so configuration must be rounded by `schedule.round_f32` before it becomes
state, or two homes of one run would compute with different numbers.
"""

import struct
from dataclasses import replace
from typing import Final

from psyche.core.encoding.tables import ACCOUNT, CONFIG, MODEL, WITNESS_HEAD
from psyche.core.state.limits import METADATA_BYTES
from psyche.core.state.messages import WitnessMessage
from psyche.core.state.state import Checkpoint, Config, Coordinator, Model
from psyche.core.state.state_rules import check_state
from psyche.errors import WireError

CONFIG_TAG: Final = b"psyche/config/1"
_LENGTH: Final = struct.Struct("<I")


def encode_state(state: Coordinator) -> bytes:
    """The account: 165,192 bytes.

    Raises:
        WireError: naming the field whose value the layout cannot hold.
    """
    return ACCOUNT.write(state)


def decode_state(raw: bytes) -> Coordinator:
    """Read an account; what is accepted encodes back to the same bytes, and every transition bears it.

    Raises:
        WireError: naming the field: wrong length, discriminator or version; an unknown value of an
            enumeration; a number above its limit; a float that is not finite; a pad, reserve or
            unused entry that is not zero; a string that is not UTF-8; values that no run reaches
            together (`state_rules`).
    """
    state = ACCOUNT.decode(raw)
    check_state(state)
    return state


def encode_config(config: Config) -> bytes:
    """The 128 bytes of the configuration."""
    return CONFIG.write(config)


def decode_config(raw: bytes) -> Config:
    """Read a configuration of 128 bytes; raises WireError like `decode_state`."""
    return CONFIG.decode(raw)


def encode_model(model: Model, *, zero_checkpoints: bool = False) -> bytes:
    """The 960 bytes of the model; with `zero_checkpoints` every checkpoint source is zero."""
    if zero_checkpoints:
        empty = [Checkpoint() for _ in model.extra_checkpoints]
        model = replace(model, checkpoint=Checkpoint(), extra_checkpoints=empty)
    return MODEL.write(model)


def decode_model(raw: bytes) -> Model:
    """Read a model of 960 bytes; raises WireError like `decode_state`."""
    return MODEL.decode(raw)


def get_config_preimage(state: Coordinator) -> bytes:
    """What config_hash is the BLAKE3 of: tag | config 128 | model 960 without checkpoint sources."""
    return CONFIG_TAG + encode_config(state.config) + encode_model(state.model, zero_checkpoints=True)


def encode_witness(message: WitnessMessage) -> bytes:
    """A witness message without its discriminator: 493 bytes, metadata length u32, metadata.

    Raises:
        WireError: naming the field.
    """
    if len(message.metadata) > METADATA_BYTES:
        raise WireError(f"WitnessMessage.metadata: {len(message.metadata)} bytes, at most {METADATA_BYTES}")
    return WITNESS_HEAD.write(message) + _LENGTH.pack(len(message.metadata)) + message.metadata


def decode_witness(raw: bytes) -> WitnessMessage:
    """Read what `encode_witness` wrote; the rules of W4 are the coordinator's to check.

    Raises:
        WireError: naming the field: wrong length, unknown flags, metadata too long.
    """
    fixed = WITNESS_HEAD.size + _LENGTH.size
    if len(raw) < fixed:
        raise WireError(f"WitnessMessage: {len(raw)} bytes, at least {fixed} needed")
    length = _LENGTH.unpack_from(raw, WITNESS_HEAD.size)[0]
    if length > METADATA_BYTES or len(raw) != fixed + length:
        raise WireError(f"WitnessMessage.metadata: length {length} with {len(raw) - fixed} bytes given")
    values = WITNESS_HEAD.read_values(raw[: WITNESS_HEAD.size])
    return WitnessMessage(*values, metadata=raw[fixed:])
