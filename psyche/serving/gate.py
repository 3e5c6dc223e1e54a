"""The gate: four routes, and nothing of a request reaches an engine, or a log, that was not judged before."""

import hmac
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import msgspec
import trio

from psyche.serving.engine import Engine, Piece
from psyche.serving.requests import Asked, Chat, Completion, read_request
from psyche.serving.settings import ServeSettings, read_keys
from psyche.wire.nursery import open_plain_nursery
from psyche.wire.web import Message, Receive, Refused, Send, check_caller, get_own_names

MAX_BODY_BYTES: Final = 1 << 20
BODY_S: Final = 20.0  # for the body of a request
RETRY_AFTER_S: Final = 5
ROUTES: Final = {
    "/health": "GET", "/v1/models": "GET", "/v1/completions": "POST", "/v1/chat/completions": "POST",
}  # fmt: skip
Values = dict[str, Any]
logger = logging.getLogger(__name__)


class Gate:
    """Answers with `engine`, the one that new requests go to; None while `problem` is why there is none."""

    def __init__(self, settings: ServeSettings) -> None:
        self.engine: Engine | None = None
        self.problem = "the engine is starting"
        self._settings = settings
        self._keys = read_keys(settings.api_key_file)
        self._names = get_own_names(settings.host)

    async def app(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close"})
        elif scope["type"] == "http":
            answer = _Answer(send)
            try:
                await self._answer(scope, receive, answer)
            except Refused as error:
                await answer.refuse(error)
            except Exception as error:  # a request must not end the others; what is logged names no value of it
                logger.exception("a request failed", exc_info=error)
                await answer.refuse(Refused(500, "this server has failed at the request; its log says where"))

    async def _answer(self, scope: Message, receive: Receive, answer: "_Answer") -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        path, method = scope["path"], scope["method"]
        if path not in ROUTES:
            raise Refused(404, f"there is no such route; those are {', '.join(ROUTES)}")
        if method != ROUTES[path]:
            raise Refused(405, f"{path} takes {ROUTES[path]} alone")
        if not self._keys:  # a page of a stranger's may have led a browser here, but it knows no key
            check_caller(headers, self._names, "this server", "--host")
        if path == "/health":
            await answer.write_json({"status": "ok", "model": self._get_engine().model.id})
            return
        self._check_key(headers.get("authorization", ""))
        if path == "/v1/models":
            await answer.write_json({"object": "list", "data": [_describe(self._get_engine())]})
            return
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(415, "Content-Type: must be application/json", "Content-Type")
        raw = await _read_body(headers, receive)
        asked = read_request(raw, Chat if "chat" in path else Completion)
        self._check_sampling(asked)
        with trio.move_on_after(self._settings.deadline_s) as scope_:
            async with _until_gone(receive):
                await self._write(asked, answer)
        if scope_.cancelled_caught:
            raise Refused(504, f"no whole answer within {self._settings.deadline_s:.0f} s; ask for fewer tokens")

    def _check_key(self, said: str) -> None:
        given = said.removeprefix("Bearer ").encode("latin-1")
        if self._keys and not any(hmac.compare_digest(given, key) for key in self._keys):
            raise Refused(401, "Authorization: must be `Bearer KEY`, with a key of this server's", "Authorization")

    def _check_sampling(self, asked: Asked) -> None:
        if not self._settings.is_sampling_fixed:
            return
        said = {"temperature": asked.temperature, "top_p": asked.top_p, "seed": asked.seed}
        usual = {"temperature": self._settings.temperature, "top_p": 1.0}
        wrong = [name for name, value in said.items() if value is not None and value != usual.get(name)]
        if wrong:
            raise Refused(
                400, f"{', '.join(wrong)}: this server writes answers together, all at temperature "
                f"{self._settings.temperature:g}; leave it out", wrong[0],
            )  # fmt: skip

    def _get_engine(self) -> Engine:
        if self.engine is None:
            raise Refused(503, f"{self.problem}; try again later")
        return self.engine

    async def _write(self, asked: Asked, answer: "_Answer") -> None:
        engine = self._get_engine()
        model = engine.model
        if asked.model not in ("", model.id, model.run):
            raise Refused(404, f"model: this server has {model.id}; {model.run} names whatever is the newest", "model")
        async with engine.enter(asked) as (prompt, tokens):
            form = _Form(engine, asked, len(prompt))
            async with aclosing(engine.write(asked, prompt, tokens)) as pieces:
                if asked.stream:
                    await answer.stream(form, pieces)
                else:
                    await answer.write_json(form.write_whole([piece async for piece in pieces]), engine)


def _describe(engine: Engine) -> Values:
    model = engine.model
    return {
        "id": model.id, "object": "model", "created": engine.started_unix, "owned_by": model.run, "step": model.step,
        "digest": model.digest, "max_model_len": model.positions, "has_chat_template": bool(model.template),
    }  # fmt: skip


class _Form:
    """OpenAI's forms of an answer."""

    def __init__(self, engine: Engine, asked: Asked, prompt_tokens: int) -> None:
        self.engine = engine
        self._is_chat = isinstance(asked, Chat)
        self._has_usage = asked.stream_options.include_usage
        self._prompt_tokens = prompt_tokens
        self._common = {
            "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{secrets.token_hex(12)}", "created": int(time.time()),
            "model": engine.model.id, "digest": engine.model.digest,
        }  # fmt: skip

    def write_whole(self, pieces: list[Piece]) -> Values:
        text = "".join(piece.text for piece in pieces)
        shown = {"message": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
        choice = {"index": 0, "logprobs": None, "finish_reason": pieces[-1].reason, **shown}
        kind = "chat.completion" if self._is_chat else "text_completion"
        return {**self._common, "object": kind, "choices": [choice], "usage": self._count(pieces[-1], text)}

    async def write_parts(self, pieces: AsyncGenerator[Piece]) -> AsyncGenerator[Values]:
        text = ""
        async for piece in pieces:
            delta = {"content": piece.text} | ({} if text else {"role": "assistant"})
            shown = {"delta": delta if piece.text else {}} if self._is_chat else {"text": piece.text}
            text += piece.text
            yield self._write_part([{"index": 0, "logprobs": None, "finish_reason": piece.reason or None, **shown}])
            if piece.reason and self._has_usage:
                yield self._write_part([]) | {"usage": self._count(piece, text)}

    def _write_part(self, choices: list[Values]) -> Values:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return {**self._common, "object": kind, "choices": choices}

    def _count(self, last: Piece, text: str) -> Values:
        tokens = last.tokens or len(self.engine.model.tokenizer.encode(text, add_special_tokens=False))
        total = self._prompt_tokens + tokens
        return {"prompt_tokens": self._prompt_tokens, "completion_tokens": tokens, "total_tokens": total}


class _Answer:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._has_begun = False

    async def write_json(self, values: Values, engine: Engine | None = None, status: int = 200) -> None:
        body = msgspec.json.encode(values)
        more = [(b"content-length", b"%d" % len(body)), *_name_weights(engine)]
        if status in (429, 503):
            more.append((b"retry-after", b"%d" % RETRY_AFTER_S))
        await self._begin(status, "application/json", more)
        await self._send({"type": "http.response.body", "body": body})

    async def stream(self, form: _Form, pieces: AsyncGenerator[Piece]) -> None:
        async with aclosing(form.write_parts(pieces)) as parts:
            async for part in parts:
                if not self._has_begun:
                    await self._begin(200, "text/event-stream", _name_weights(form.engine))
                await self._say(msgspec.json.encode(part))
        await self._say(b"[DONE]", is_last=True)

    async def refuse(self, error: Refused) -> None:
        """Say why there is no answer; of one that has begun, why it ends here."""
        kind = "invalid_request_error" if error.status < 500 else "server_error"
        values = {"error": {"message": str(error), "type": kind, "param": error.field, "code": error.status}}
        if self._has_begun:
            await self._say(msgspec.json.encode(values), is_last=True)
        else:
            await self.write_json(values, status=error.status)

    async def _begin(self, status: int, kind: str, more: Iterable[tuple[bytes, bytes]]) -> None:
        self._has_begun = True
        headers = [
            (b"content-type", kind.encode()), (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"),
        ]  # fmt: skip
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *more]})

    async def _say(self, data: bytes, *, is_last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": b"data: %s\n\n" % data, "more_body": not is_last})


def _name_weights(engine: Engine | None) -> list[tuple[bytes, bytes]]:
    return [] if engine is None else [(b"psyche-digest", engine.model.digest.encode())]


async def _read_body(headers: dict[str, str], receive: Receive) -> bytes:
    too_long = Refused(413, f"the body has more than {MAX_BODY_BYTES:,} bytes")
    said = headers.get("content-length", "0")
    if said.isascii() and said.isdigit() and int(said) > MAX_BODY_BYTES:
        raise too_long
    body = bytearray()
    with trio.move_on_after(BODY_S):
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > MAX_BODY_BYTES:
                raise too_long
            if not message.get("more_body"):
                return bytes(body)
    raise Refused(408, f"the body has not come within {BODY_S:.0f} s")


@asynccontextmanager
async def _until_gone(receive: Receive) -> AsyncGenerator[None]:
    """Cancel the block when nobody is there any more to read the answer."""
    async with open_plain_nursery() as nursery:

        async def wait() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            nursery.cancel_scope.cancel()

        nursery.start_soon(wait)
        yield
        nursery.cancel_scope.cancel()
