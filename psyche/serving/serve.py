"""Serves a model, or the newest weights of a run: starts engines, and hands requests over from one to the next."""

import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from psyche.errors import PsycheError
from psyche.serving.engine import Engine
from psyche.serving.following import Follower
from psyche.serving.gate import Gate
from psyche.serving.model import ServedModel
from psyche.serving.settings import ServeSettings
from psyche.testnet.scratch import Scratch
from psyche.wire.nursery import open_plain_nursery
from psyche.wire.web import bind, format_host, serve_app

LOOK_EVERY_S: Final = 1.0
REMOVE_S: Final = 30.0
Say = Callable[[str], None]


async def serve_folder(model: ServedModel, settings: ServeSettings, say: Say) -> None:
    """Serve a model until cancelled."""

    async def give() -> AsyncGenerator[ServedModel]:
        yield model

    scratch = Scratch()
    try:
        await _serve(give(), settings, scratch.path, say)
    finally:
        scratch.remove()


async def serve_run(data_dir: Path, events: Path | None, settings: ServeSettings, say: Say) -> None:
    """Serve the certified weights of a client, always the newest, until cancelled."""
    scratch = Scratch(data_dir)  # where there is room for weights
    try:
        follower = Follower(data_dir, events, scratch.path)

        async def give() -> AsyncGenerator[ServedModel]:
            told = ""
            while True:
                try:
                    found = await trio.to_thread.run_sync(follower.find)
                    if found is not None:
                        yield found
                except (PsycheError, OSError) as error:
                    if told != (told := str(error)):
                        say(f"weights that cannot be served: {error}; looking again")
                await trio.sleep(LOOK_EVERY_S)

        await _serve(give(), settings, scratch.path, say)
    finally:
        scratch.remove()


async def _serve(models: AsyncGenerator[ServedModel], settings: ServeSettings, scratch: Path, say: Say) -> None:
    gate = Gate(settings)
    listening = bind(settings.host, settings.port)
    async with open_plain_nursery() as nursery, serve_app(gate.app, listening), aclosing(models):
        say(f"serving at http://{format_host(settings.host)}:{listening.getsockname()[1]}/v1")
        fleet = _Fleet(gate, settings, scratch, nursery, say)
        async for model in models:
            await fleet.change(model)
        await trio.sleep_forever()


class _Fleet:
    """The engine that the gate asks, and older ones which still write."""

    def __init__(self, gate: Gate, settings: ServeSettings, scratch: Path, nursery: trio.Nursery, say: Say) -> None:
        self._gate = gate
        self._settings = settings
        self._scratch = scratch
        self._nursery = nursery
        self._say = say

    async def change(self, model: ServedModel) -> None:
        """Let new requests go to another model once it has answered; where it cannot, the old one stays."""
        self._say(f"{model.id}: the engine is starting")
        engine, old = Engine(model, self._settings, self._scratch), self._gate.engine
        if old is not None and self._settings.swap == "stop":
            self._gate.engine, self._gate.problem = None, "the weights are being changed"
            old.retire()
            await old.ended.wait()
        try:
            await self._nursery.start(self._run, engine)  # pyright: ignore[reportArgumentType]
        except PsycheError as error:
            if self._gate.engine is None:
                raise
            self._say(f"{error}\n{self._gate.engine.model.id} goes on")
            return
        self._gate.engine = engine
        self._say(f"{model.id}: answers now")
        if old is not None:
            old.retire()

    async def _run(self, engine: Engine, *, task_status: Any) -> None:
        try:
            async with engine.running():
                task_status.started()
                await engine.wait_unused()
        finally:
            engine.ended.set()
            if engine.model.is_copy:
                with trio.move_on_after(REMOVE_S) as scope:
                    scope.shield = True
                    await trio.to_thread.run_sync(partial(shutil.rmtree, engine.model.folder, ignore_errors=True))
