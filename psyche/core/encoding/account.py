"""The state of a run as bytes: what the chain stores and the TCP server sends (`docs/protocol-reference.md` 3).

`tables` declares every field. The record stores optimizer settings as float32, so `decode_state` returns float32
values. A configuration must pass through `schedule.round_f32` before it becomes state; otherwise two coordinators
of one run would compute with different numbers.
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
        WireError: the layout cannot hold a value; the message names the field.
    """
    return ACCOUNT.write(state)


def decode_state(raw: bytes) -> Coordinator:
    """Read an account of 165,192 bytes.

    An accepted account encodes back to the same bytes, and every transition can work on it.

    Raises:
        WireError: the length, discriminator or version is wrong; an enumeration's value is unknown; a number is
            above its limit; a float is not finite; a pad, reserve or unused entry is not zero; a string is not
            UTF-8; or no run can reach this combination of values (`state_rules`). The message names the field.
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
    """The 960 bytes of the model; `zero_checkpoints` replaces every checkpoint source by zeros."""
    if zero_checkpoints:
        empty = [Checkpoint() for _ in model.extra_checkpoints]
        model = replace(model, checkpoint=Checkpoint(), extra_checkpoints=empty)
    return MODEL.write(model)


def decode_model(raw: bytes) -> Model:
    """Read a model of 960 bytes; raises WireError like `decode_state`."""
    return MODEL.decode(raw)


def get_config_preimage(state: Coordinator) -> bytes:
    """The input of config_hash (a BLAKE3): tag | config 128 | model 960 with checkpoint sources zeroed."""
    return CONFIG_TAG + encode_config(state.config) + encode_model(state.model, zero_checkpoints=True)


def encode_witness(message: WitnessMessage) -> bytes:
    """The bytes of a witness message without its discriminator: 493 bytes, metadata length u32, metadata.

    Raises:
        WireError: the layout cannot hold a value; the message names the field.
    """
    if len(message.metadata) > METADATA_BYTES:
        raise WireError(f"WitnessMessage.metadata: {len(message.metadata)} bytes, at most {METADATA_BYTES}")
    return WITNESS_HEAD.write(message) + _LENGTH.pack(len(message.metadata)) + message.metadata


def decode_witness(raw: bytes) -> WitnessMessage:
    """Read the bytes of `encode_witness`. The coordinator checks the rules of W4, not this function.

    Raises:
        WireError: the length is wrong, flags are unknown, or the metadata is too long; the message names the field.
    """
    fixed = WITNESS_HEAD.size + _LENGTH.size
    if len(raw) < fixed:
        raise WireError(f"WitnessMessage: {len(raw)} bytes, at least {fixed} needed")
    length = _LENGTH.unpack_from(raw, WITNESS_HEAD.size)[0]
    if length > METADATA_BYTES or len(raw) != fixed + length:
        raise WireError(f"WitnessMessage.metadata: length {length} with {len(raw) - fixed} bytes given")
    values = WITNESS_HEAD.read_values(raw[: WITNESS_HEAD.size])
    return WitnessMessage(*values, metadata=raw[fixed:])
