"""JSON-RPC: from the bytes of a request to the bytes of the reply, whatever the request is."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from psyche.localchain.rpc.errors import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    UNKNOWN_METHOD,
    CallError,
)
from psyche.localchain.rpc.params import Params

MAX_REQUEST_BYTES: Final = 50 << 10
MAX_BATCH: Final = 100
MAX_BATCH_BYTES: Final = 128 << 20  # of replies to one batch
Method = Callable[[Params], Any]
_NOTHING: Final = object()

logger = logging.getLogger(__name__)


def answer_body(methods: Mapping[str, Method], body: bytes | str) -> bytes | None:
    """Answer a request, or a batch of them; None if it wants no answer."""
    try:
        request = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return _encode(describe_error(None, CallError(PARSE_ERROR, "Parse error")))
    if not isinstance(request, list):
        return answer_one(methods, request)
    if not request or len(request) > MAX_BATCH:
        error = CallError(INVALID_REQUEST, f"Invalid request: a batch has 1 to {MAX_BATCH} calls")
        return _encode(describe_error(None, error))
    replies: list[bytes] = []
    for call in request:
        if sum(map(len, replies)) > MAX_BATCH_BYTES:
            error = CallError(INTERNAL_ERROR, "the replies to this batch are too large: send smaller batches")
            replies.append(_encode(describe_error(None, error)))
            break
        reply = answer_one(methods, call)
        if reply is not None:
            replies.append(reply)
    return b"[" + b",".join(replies) + b"]" if replies else None


def answer_one(methods: Mapping[str, Method], call: Any) -> bytes | None:
    """Answer one call; None if it has no id: then nobody waits."""
    try:
        name, raw_params, identity = _read_call(call)
    except CallError as error:
        return _encode(describe_error(None, error))
    try:
        reply = {"jsonrpc": "2.0", "result": _carry_out(methods, name, raw_params), "id": identity}
    except CallError as error:
        reply = describe_error(identity, error)
    return None if identity is _NOTHING else _encode(reply)


def _read_call(call: Any) -> tuple[str, Any, Any]:
    if not isinstance(call, dict):
        raise CallError(INVALID_REQUEST, "Invalid request: expected an object")
    name, identity = call.get("method"), call.get("id", _NOTHING)
    if not isinstance(name, str) or call.get("jsonrpc", "2.0") != "2.0":
        raise CallError(INVALID_REQUEST, "Invalid request")
    if identity is not _NOTHING and identity is not None and not isinstance(identity, str | int | float):
        raise CallError(INVALID_REQUEST, "Invalid request: id is a number, a string or null")
    return name, call.get("params"), identity


def _carry_out(methods: Mapping[str, Method], name: str, raw_params: Any) -> Any:
    method = methods.get(name)
    if method is None:
        raise CallError(UNKNOWN_METHOD, "Method not found")
    try:
        return method(Params(raw_params))
    except CallError:
        raise
    except Exception as error:  # whatever it is, it must not end the chain
        logger.exception("a call of %s failed", name)
        raise CallError(INTERNAL_ERROR, f"Internal error: {type(error).__name__}: {error}") from error


def describe_error(identity: Any, error: CallError) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "error": error.describe(), "id": identity}


def _encode(reply: dict[str, Any]) -> bytes:
    return msgspec.json.encode(reply)
