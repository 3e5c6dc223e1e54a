"""The state of a run as bytes: what the chain stores and the TCP server sends (`docs/protocol-reference.md` 3).

`tables` declares every field. The record stores optimizer settings as float32, so `decode_state` returns float32
values. A configuration must pass through `schedule.round_f32` before it becomes state; otherwise two coordinators
of one run would compute with different numbers.
"""

from dataclasses import replace
from typing import Final

from psyche.core.encoding.tables import ACCOUNT, CONFIG, MODEL
from psyche.core.state.state import Checkpoint, Config, Coordinator, Model
from psyche.core.state.state_rules import check_state

CONFIG_TAG: Final = b"psyche/config/1"


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
    return CONFIG.write(config)


def decode_config(raw: bytes) -> Config:
    return CONFIG.decode(raw)


def encode_model(model: Model, *, zero_checkpoints: bool = False) -> bytes:
    """The 960 bytes of the model; `zero_checkpoints` replaces every checkpoint source by zeros."""
    if zero_checkpoints:
        empty = [Checkpoint() for _ in model.extra_checkpoints]
        model = replace(model, checkpoint=Checkpoint(), extra_checkpoints=empty)
    return MODEL.write(model)


def decode_model(raw: bytes) -> Model:
    return MODEL.decode(raw)


def get_config_preimage(state: Coordinator) -> bytes:
    """The input of config_hash (a BLAKE3): tag | config 128 | model 960 with checkpoint sources zeroed."""
    return CONFIG_TAG + encode_config(state.config) + encode_model(state.model, zero_checkpoints=True)
