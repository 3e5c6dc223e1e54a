"""Engines: programs that write text, each a child on a loopback port which ends with this process."""

import json
import secrets
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import httpx2
import trio

from psyche.errors import PsycheError
from psyche.serving.gguf import find_gguf, make_gguf
from psyche.serving.model import ServedModel
from psyche.serving.requests import Asked, Chat, Completion, Cutter, read_choice
from psyche.serving.settings import ServeSettings
from psyche.testnet.companion import keep_small
from psyche.testnet.free_port import choose_port
from psyche.testnet.process import Child, describe_exit_status
from psyche.wire.nursery import open_plain_nursery
from psyche.wire.web import Refused

START_S: Final = 600.0  # large models take minutes to load
ASK_AGAIN_S: Final = 0.25
PAGE_TOKENS: Final = 256  # of the cache for a batch, as transformers divides it
LEAST_PAGES: Final = 64
LONG_TOKENS: Final = 1 << 16  # of texts that are reckoned with, in models without a longest one
# A child reads nothing from the network, tells nobody of its use, has no page, and keeps no old prompts in memory.
_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1",
    "LLAMA_ARG_UI": "0", "LLAMA_ARG_CACHE_RAM": "0",
}  # fmt: skip
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "LLAMA_ARG_THREADS": "1"}
_MAX_SEED: Final = (1 << 32) - 1  # to llama-server, this one means any


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer; the last one says why it ends, and how many tokens it has."""

    text: str
    reason: str = ""
    tokens: int = 0


class Engine:
    """Writes with one model. It ends with `running`; of an engine that is retired, that is when its last answer is."""

    def __init__(self, model: ServedModel, settings: ServeSettings, folder: Path) -> None:
        self.model = model
        self._settings = settings
        self._folder = folder
        self._output = folder / f"engine-{secrets.token_hex(4)}.log"
        self._port = choose_port()
        self._key = secrets.token_hex(16)  # for engines that ask for one: other users of this machine have none
        self._turns = trio.CapacityLimiter(settings.at_once)
        self._users = 0
        self._retired, self._unused = trio.Event(), trio.Event()
        self.ended = trio.Event()
        self.started_unix = int(time.time())

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Start the program, and wait until it has answered a trial request; kill it at the end.

        Raises:
            PsycheError: it ends, before the block or in it, or does not answer.
        """
        threads = _ONE_THREAD if self.model.is_small else {}
        keys = {"VLLM_API_KEY": self._key, "LLAMA_API_KEY": self._key}
        weights = self.model.folder
        if self._settings.engine == "llama-server":
            found = find_gguf(self.model.folder)
            weights = found or await make_gguf(self.model, self._settings, self._folder, self._output)
        argv = make_command(self.model, self._settings, self._port, weights)
        child = Child("engine", argv, output=self._output, env={**_ENVIRONMENT, **threads, **keys})
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{self._port}", headers={"authorization": f"Bearer {self._key}"}, verify=False,
            trust_env=False, timeout=self._settings.idle_s, limits=limits,
        )  # fmt: skip
        try:
            async with self._client, open_plain_nursery() as nursery:
                nursery.start_soon(self._watch, child)
                nursery.start_soon(keep_small, self._output)
                await self._try()
                yield
                nursery.cancel_scope.cancel()
        finally:
            await child.end()

    async def _watch(self, child: Child) -> None:
        code = await child.wait()
        said = "\n  ".join(child.get_last_lines(8))
        raise PsycheError(f"the engine of {self.model.id} has ended, {describe_exit_status(code)}:\n  {said}")

    async def _try(self) -> None:
        with trio.move_on_after(START_S):
            await self._wait_up()
            trial = Completion(prompt="a", temperature=self._settings.temperature if self._settings.batch else 0.0)
            try:
                prompt, _ = await trio.to_thread.run_sync(self.model.measure, trial)
                async with aclosing(self.write(trial, prompt, 1)) as pieces:
                    async for _ in pieces:
                        pass
            except Refused as error:
                raise PsycheError(f"the engine of {self.model.id} fails at a trial request: {error}") from error
            return
        raise PsycheError(f"the engine of {self.model.id} does not answer {START_S:.0f} s after its start")

    async def _wait_up(self) -> None:
        while True:
            try:
                if (await self._client.get("/health")).status_code == 200:
                    return
            except httpx2.HTTPError:
                pass
            await trio.sleep(ASK_AGAIN_S)

    # --- answers ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def enter(self, asked: Asked) -> AsyncGenerator[tuple[list[int], int]]:
        """Measure a request, and wait for its turn; gives its tokens, and how many its answer may have at most.

        Raises:
            Refused: there is no room for it, in the model or in the queue.
        """
        if self._users >= self._settings.at_once + self._settings.queue:
            raise Refused(429, "as many requests as there may be are waiting; try again later")
        self._users += 1
        try:
            measured = await trio.to_thread.run_sync(self.model.measure, asked)
            async with self._turns:
                yield measured
        finally:
            self._users -= 1
            if not self._users:
                self._unused.set()

    async def write(self, asked: Asked, prompt: list[int], tokens: int) -> AsyncGenerator[Piece]:
        """Write the answer to a request of these tokens, piece by piece.

        Raises:
            Refused: the engine fails.
        """
        is_chat = isinstance(asked, Chat) and self._settings.engine == "transformers"
        path = "/v1/chat/completions" if is_chat else "/v1/completions"
        cutter, reason, count = Cutter(asked.stops), "", 0
        try:
            async with self._client.stream("POST", path, json=self._make_body(asked, prompt, tokens)) as response:
                if response.status_code != 200:
                    said = (await response.aread())[:512].decode(errors="replace")
                    raise Refused(502, f"the engine refuses the request: {said}")
                async with aclosing(cast("AsyncGenerator[str]", response.aiter_lines())) as lines:
                    async for line in lines:
                        text, reason, count = _read_line(line, reason, count)
                        text, is_cut = cutter.take(text)
                        if text:
                            yield Piece(text)
                        if is_cut:
                            yield Piece("", "stop", count)
                            return
        except httpx2.TimeoutException:
            raise Refused(504, f"the engine has said nothing for {self._settings.idle_s:.0f} s") from None
        except httpx2.HTTPError as error:
            raise Refused(502, f"the engine has broken off: {type(error).__name__}") from None
        if not reason:
            raise Refused(502, "the engine has broken off in the midst of the answer")
        yield Piece(cutter.finish(), reason, count)

    def _make_body(self, asked: Asked, prompt: list[int], tokens: int) -> dict[str, Any]:
        what: dict[str, Any] = {"model": str(self.model.folder), "stream": True}
        if asked.seed is not None:
            what["seed"] = asked.seed % _MAX_SEED
        usual = self._settings.temperature if self._settings.is_sampling_fixed else 1.0
        temperature = usual if asked.temperature is None else asked.temperature
        top_p = 1.0 if asked.top_p is None else asked.top_p
        if self._settings.engine != "transformers":
            # The tokens themselves: these programs have tokenizers and templates of their own, which add a BOS or take
            # a part of the answer for thoughts. And all that they would sample by otherwise, or end at.
            return what | {
                "prompt": prompt, "max_tokens": tokens, "temperature": temperature, "top_p": top_p, "top_k": 0,
                "min_p": 0, "stop_token_ids": self.model.ends, "stream_options": {"include_usage": True},
            }  # fmt: skip
        what |= {"messages": asked.turns} if isinstance(asked, Chat) else {"prompt": getattr(asked, "prompt", "")}
        # All of it: of the single fields transformers would not sample at a temperature, and of a model's own
        # configuration it would take top_k.
        how: dict[str, Any] = {"max_new_tokens": tokens, "do_sample": temperature > 0, "eos_token_id": self.model.ends}
        if temperature > 0:
            how |= {"temperature": temperature, "top_p": top_p, "top_k": 0}
        return what | {"generation_config": json.dumps(how)}

    # --- the end ----------------------------------------------------------------------------------

    def retire(self) -> None:
        """No new request comes: the engine ends when its last answer does."""
        self._retired.set()
        if not self._users:
            self._unused.set()

    async def wait_unused(self) -> None:
        await self._retired.wait()
        if self._users:
            self._unused = trio.Event()
            with trio.move_on_after(self._settings.deadline_s):
                await self._unused.wait()


def _read_line(line: str, reason: str, count: int) -> tuple[str, str, int]:
    """The text in a line of a stream, why the answer ends, and its tokens, as far as they are known."""
    kind, _, data = line.partition(":")
    if kind != "data" or data.strip() in ("", "[DONE]"):
        return "", reason, count
    try:
        event = json.loads(data)
        if "error" in event:
            raise Refused(502, f"the engine fails: {str(event['error'])[:512]}")
        text, ended = read_choice(event)
        count = (event.get("usage") or {}).get("completion_tokens") or count
    except (ValueError, TypeError, AttributeError) as error:
        raise Refused(502, "the engine's answer is of another form") from error
    return text, ended or reason, count


def make_command(model: ServedModel, settings: ServeSettings, port: int, weights: Path) -> Sequence[str]:
    where = ["--host", "127.0.0.1", "--port", str(port)]
    match settings.engine:
        case "transformers":
            command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(model.folder), *where]
            command += ["--device", settings.device, "--log-level", "error"]
            if settings.batch:  # its cache would take all memory that there is
                pages = max(LEAST_PAGES, settings.parallel * (2 + min(model.positions, LONG_TOKENS) // PAGE_TOKENS))
                command += ["--continuous-batching", "--cb-num-blocks", str(pages)]
        case "vllm":
            command = [settings.find_command(), "serve", str(model.folder), *where, "--generation-config", "vllm"]
            command += ["--max-num-seqs", str(settings.parallel)]
            if model.is_copy and settings.swap == "both":  # it takes all memory that it may, and the next one as much
                command += ["--gpu-memory-utilization", "0.45"]
        case "llama-server":
            context = settings.parallel * model.positions
            command = [settings.find_command(), "-m", str(weights), *where, "--parallel", str(settings.parallel)]
            command += ["--ctx-size", str(context if context < 1 << 24 else 0)]
    return [*command, *settings.split_engine_args()]  # last, where they count instead of those before
