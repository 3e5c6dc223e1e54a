"""What transformers makes of a config.json: asked of a trainer process, so that whoever asks loads no torch."""

import json
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import msgspec
import trio

from psyche.durable import make_folder, read_file, replace_file
from psyche.errors import ConfigError, TrainerError
from psyche.modeling.model_config import check_model_settings, read_model_fields
from psyche.modeling.snapshot import CONFIG_NAME
from psyche.modeling.trainer.process import TrainerProcess, WatchdogLimits
from psyche.storage.port import find_cache_folder
from psyche.wire.crypto import blake3_hash
from psyche.wire.trainer import CheckReply, CheckRequest

START_S: Final = 600.0  # nobody else waits for it, and on a busy machine torch takes minutes
FOLDER: Final = "described"  # in the cache's folder: answers, which all processes of this user share
_RULES: Final = Path(__file__).parents[1] / "architecture.py"
_MAX_BYTES: Final = 1 << 26
_known: dict[Path, CheckReply] = {}  # where the cache cannot be written, this process at least asks once


def describe_model(path: Path, max_seq_len: int = 0) -> CheckReply | None:
    """Ask what the model of a config file or folder has in memory; None: transformers is not installed.

    Blocks for the seconds that torch takes, unless somebody has asked before; not for use within trio.

    Raises:
        ConfigError: a run cannot train the model (AR1 to AR3, AR7).
    """
    path = path / CONFIG_NAME if path.is_dir() else path
    settings = read_model_fields(path)
    check_model_settings(path, settings)
    if find_spec("transformers") is None or find_spec("torch") is None:
        return None
    described = _recall(path, settings, 0)
    fits = described.positions is None or max_seq_len <= described.positions
    return described if fits else _recall(path, settings, max_seq_len)


def _recall(path: Path, settings: Mapping[str, Any], max_seq_len: int) -> CheckReply:
    kept = _find_kept(settings, max_seq_len)
    if kept not in _known:
        with suppress(OSError, msgspec.MsgspecError):  # missing, or not what was written
            _known[kept] = msgspec.msgpack.decode(read_file(kept, _MAX_BYTES), type=CheckReply)
    if kept not in _known:
        request = CheckRequest(device="cpu", config=str(path.absolute()), max_seq_len=max_seq_len)
        try:
            _known[kept] = trio.run(_ask, request)
        except TrainerError as error:
            raise ConfigError(str(error)) from error
        with suppress(OSError):
            make_folder(kept.parent)
            replace_file(kept, msgspec.msgpack.encode(_known[kept]), kept.with_suffix(f".{token_hex(4)}.part"))
    return _known[kept]


def _find_kept(settings: Mapping[str, Any], max_seq_len: int) -> Path:
    """The file with the answer; its name holds all that the answer follows from."""
    made_by = version("transformers"), blake3_hash(_RULES.read_bytes()).hex()
    asked = json.dumps([made_by, max_seq_len, settings], sort_keys=True, default=str)
    return find_cache_folder() / FOLDER / blake3_hash(asked.encode()).hex()


async def _ask(request: CheckRequest) -> CheckReply:
    trainer = TrainerProcess(limits=WatchdogLimits(start_s=START_S))
    try:
        return await trainer.check(request)
    finally:
        await trainer.stop()
