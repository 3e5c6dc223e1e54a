"""A local chain, opened: its slots pass, its ports answer, its state is kept."""

import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio
from solders.pubkey import Pubkey

from psyche.localchain.bank import Bank, begin_chain
from psyche.localchain.ledger import SAVE_EVERY_S, ChainFile, open_ledger
from psyche.localchain.machine import VirtualMachine, load_programs
from psyche.localchain.recorder import open_recorder
from psyche.localchain.rpc.hub import SubscriptionHub
from psyche.localchain.rpc.methods import make_methods
from psyche.localchain.rpc.web import make_http_app, make_socket_app
from psyche.wire.nursery import open_plain_nursery
from psyche.wire.web import bind_pair, format_host, serve_app

SLOT_MS: Final = 400  # of the chain itself
GENESIS_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class LocalChain:
    """A chain that is running. `http` takes calls, `ws` subscriptions."""

    http: str
    ws: str
    bank: Bank


@asynccontextmanager
async def open_local_chain(
    *,
    slot_ms: float = SLOT_MS,
    host: str = "127.0.0.1",
    port: int = 0,
    programs: Mapping[Pubkey, bytes] | None = None,
    state: Path | None = None,
    record: Path | None = None,
    unix_time: Callable[[], float] = time.time,
    is_skipped: Callable[[int], bool] = lambda _slot: False,
) -> AsyncGenerator[LocalChain]:
    """Run a local chain while the block runs.

    Args:
        slot_ms: how long a slot is; 0: slots follow each other when `bank.advance` is called.
        host: the address to listen on.
        port: for calls, the next one for subscriptions; 0: any two that are free.
        programs: the code of programs by address; None: the three of this project.
        state: the folder in which the chain is kept; None: nowhere.
        record: the file in which to record what becomes of runs, for `psyche dev replay`; None: nowhere.
        unix_time: the clock that programs see.
        is_skipped: which slots have no block.

    Raises:
        OSError: the ports cannot be listened on, or the folder not be written.
        ConfigError: the folder is in use or damaged, a program is missing, or the record is there already.
    """
    found = load_programs() if programs is None else programs
    with open_ledger(state) as ledger, ExitStack() as stack:
        bank = ledger.load(found, unix_time(), slot_ms) if ledger else None
        if bank is None:
            bank = Bank(VirtualMachine(found), begin_chain(os.urandom(GENESIS_BYTES), int(unix_time())))
            bank.advance(int(unix_time()))
        stack.enter_context(open_recorder(bank, record))
        listening, sockets = bind_pair(host, port)
        address, number = listening.getsockname()[:2]
        shown = format_host(address)
        chain = LocalChain(f"http://{shown}:{number}", f"ws://{shown}:{number + 1}", bank)
        try:
            async with (
                serve_app(make_http_app(make_methods(bank)), listening),
                serve_app(make_socket_app(SubscriptionHub(bank)), sockets),
                open_plain_nursery() as nursery,
            ):
                if slot_ms:
                    nursery.start_soon(_run_slots, bank, slot_ms / 1000, unix_time, is_skipped)
                if ledger:
                    nursery.start_soon(_keep, ledger, bank)
                yield chain
                nursery.cancel_scope.cancel()
        finally:
            if ledger:
                ledger.save(bank)


async def _run_slots(
    bank: Bank, slot_s: float, unix_time: Callable[[], float], is_skipped: Callable[[int], bool]
) -> None:
    due = trio.current_time()
    while True:
        due = max(due + slot_s, trio.current_time())  # a machine that was asleep does not catch up
        await trio.sleep_until(due)
        skipped = 0
        while is_skipped(bank.slot + 1 + skipped):
            skipped += 1
            due += slot_s
            await trio.sleep_until(due)
        bank.advance(int(unix_time()), skipped)


async def _keep(ledger: ChainFile, bank: Bank) -> None:
    while True:
        await trio.sleep(SAVE_EVERY_S)
        await ledger.save_changes(bank)
