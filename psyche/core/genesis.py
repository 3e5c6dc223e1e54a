"""How a run comes to be."""

import copy

from psyche.core.errors import ConfigRefused
from psyche.core.layout import decode_model, encode_model
from psyche.core.limits import (
    CLIENT_VERSION_BYTES,
    DESCRIPTION_BYTES,
    HASH_BYTES,
    NAME_BYTES,
    RUN_ID_BYTES,
    U16_MAX,
    U32_MAX,
    U64_MAX,
)
from psyche.core.state import ZERO32, Config, Coordinator, Metadata, Model, Progress
from psyche.core.transitions import resume


def create_run(
    config: Config, model: Model, run_id: str, run_uid: bytes, metadata: Metadata, client_version: str, now: int,
    *, progress: Progress | None = None,
) -> Coordinator:  # fmt: skip
    """A new run, waiting for members since `now` (unix seconds). The arguments are copied.

    `run_uid` is 32 bytes that no other run has, not even one of the same name; every signature
    names it. `progress` lets a run begin at a later step.

    Raises:
        ConfigRefused: the configuration or a text breaks a rule; the message names key and rule.
    """
    progress = progress or Progress()
    _check_names(run_id, run_uid, metadata, client_version)
    _check_progress(progress)
    state = Coordinator(
        metadata=copy.copy(metadata),
        client_version=client_version,
        run_id=run_id,
        run_uid=run_uid,
        model=model,
        config=copy.copy(config),
        progress=copy.copy(progress),
    )
    resume(state, now)  # checks the configuration
    state.model = decode_model(encode_model(model))  # as it stands on record: some settings are float32 there
    return state


def _check_names(run_id: str, run_uid: bytes, metadata: Metadata, client_version: str) -> None:
    texts = (
        ("run_id", run_id, RUN_ID_BYTES),
        ("metadata.name", metadata.name, NAME_BYTES),
        ("metadata.description", metadata.description, DESCRIPTION_BYTES),
        ("client_version", client_version, CLIENT_VERSION_BYTES),
    )
    for key, text, limit in texts:
        if len(text.encode()) > limit or "\0" in text:
            raise ConfigRefused(f"{key}: at most {limit} bytes, without zero bytes (layout)")
    if not run_id:
        raise ConfigRefused("run_id: must not be empty")
    for key, number in (("num_parameters", metadata.num_parameters), ("vocab_size", metadata.vocab_size)):
        if not 0 <= number <= U64_MAX:
            raise ConfigRefused(f"metadata.{key}: {number} is not between 0 and {U64_MAX}")
    if len(run_uid) != HASH_BYTES or run_uid == ZERO32:
        raise ConfigRefused(f"run_uid: {HASH_BYTES} bytes, not all zero")


def _check_progress(progress: Progress) -> None:
    places = (("epoch", progress.epoch, 0, U16_MAX), ("step", progress.step, 1, U32_MAX),
              ("epoch_start_data_index", progress.epoch_start_data_index, 0, U64_MAX))  # fmt: skip
    for key, number, least, most in places:
        if not least <= number <= most:
            raise ConfigRefused(f"progress.{key}: {number} is not between {least} and {most}")
