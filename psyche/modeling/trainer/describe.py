"""What transformers makes of a config.json, and what training it takes: asked of a trainer process, without torch here.

Answers are kept, for the process takes seconds to start.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, TypeVar, cast

import msgspec
import trio

from psyche.core.state.state import Model
from psyche.durable import make_folder, read_file, replace_file
from psyche.errors import ConfigError, TrainerError
from psyche.modeling.model_config import check_model_settings, read_model_fields
from psyche.modeling.snapshot import CONFIG_NAME
from psyche.modeling.trainer.process import TrainerProcess, WatchdogLimits
from psyche.storage.port import find_cache_folder
from psyche.wire.crypto import blake3_hash
from psyche.wire.trainer import CheckReply, CheckRequest, LoadRequest, MemoryReply, MemoryRequest

START_S: Final = 600.0  # nobody else waits for it, and on a busy machine torch takes minutes
FOLDER: Final = "described"  # in the cache's folder: answers, which all processes of this user share
_RULES: Final = (Path(__file__).parents[1] / "architecture.py", Path(__file__).with_name("memory.py"))
_MAX_BYTES: Final = 1 << 26
_Answer = TypeVar("_Answer", CheckReply, MemoryReply)
_known: dict[Path, CheckReply | MemoryReply] = {}  # where the cache cannot be written, this process at least asks once


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
    request = CheckRequest(device="cpu", config=str(path.absolute()))
    described = _recall(settings, request, CheckReply)
    if described.positions is None or max_seq_len <= described.positions:
        return described
    return _recall(settings, msgspec.structs.replace(request, max_seq_len=max_seq_len), CheckReply)


def predict_memory(path: Path, model: Model, *, must_fit: bool = False) -> MemoryReply | None:
    """What a step of a run takes of memory, one sample at a time; None: transformers is not installed.

    That is on a CPU; with `must_fit` on this machine's device, as what is free there now decides. Blocks likewise.

    Raises:
        ConfigError: a run cannot train the model, or `must_fit` and it does not fit.
    """
    if describe_model(path, model.max_seq_len) is None:
        return None
    path = path / CONFIG_NAME if path.is_dir() else path
    device = "auto" if must_fit else "cpu"
    load = LoadRequest(
        path=str(path.absolute()), is_snapshot=False, model=model, micro_batch_size=1, device=device, batch_size=1
    )  # fmt: skip
    request = MemoryRequest(load=load, must_fit=must_fit)
    return cast("MemoryReply", _ask(request)) if must_fit else _recall(read_model_fields(path), request, MemoryReply)


def _recall(settings: Mapping[str, Any], request: CheckRequest | MemoryRequest, kind: type[_Answer]) -> _Answer:
    kept = _find_kept(settings, request)
    if kept not in _known:
        with suppress(OSError, msgspec.MsgspecError):  # missing, or not what was written
            _known[kept] = msgspec.msgpack.decode(read_file(kept, _MAX_BYTES), type=kind)
    if kept not in _known:
        _known[kept] = _ask(request)
        with suppress(OSError):
            make_folder(kept.parent)
            replace_file(kept, msgspec.msgpack.encode(_known[kept]), kept.with_suffix(f".{token_hex(4)}.part"))
    return cast("_Answer", _known[kept])


def _find_kept(settings: Mapping[str, Any], request: CheckRequest | MemoryRequest) -> Path:
    """The file with the answer; its name holds all that the answer follows from."""
    made_by = version("transformers"), version("torch"), *(blake3_hash(path.read_bytes()).hex() for path in _RULES)
    if isinstance(request, CheckRequest):
        of_run: object = request.max_seq_len
    else:
        model = request.load.model
        of_run = repr((model.optimizer, model.max_seq_len, model.data_type))
    asked = json.dumps([made_by, of_run, settings], sort_keys=True, default=str)
    return find_cache_folder() / FOLDER / blake3_hash(asked.encode()).hex()


def _ask(request: CheckRequest | MemoryRequest) -> CheckReply | MemoryReply:
    try:
        return trio.run(_ask_trainer, request)
    except TrainerError as error:
        raise ConfigError(str(error)) from error


async def _ask_trainer(request: CheckRequest | MemoryRequest) -> CheckReply | MemoryReply:
    trainer = TrainerProcess(limits=WatchdogLimits(start_s=START_S))
    try:
        if isinstance(request, CheckRequest):
            return await trainer.check(request)
        return await trainer.predict_memory(request)
    finally:
        await trainer.stop()
