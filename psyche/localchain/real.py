"""A validator of Solana's own tools on this machine, with this project's programs in place."""

import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
import trio

from psyche.backends.solana.interface.idl import NAMES, find_file
from psyche.errors import BackendError, ConfigError
from psyche.wire.web import bind_pair

VALIDATOR: Final = "solana-test-validator"
SURFPOOL: Final = "surfpool"
START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 0.25
_TICK_MS: Final = 6.25  # of Solana; a slot is a number of them
_SHOWN_LINES: Final = 12


@dataclass(frozen=True, slots=True)
class RealChain:
    """A validator that answers. `tool` is the program behind it."""

    tool: str
    http: str
    ws: str

    async def call(self, method: str, *params: Any) -> Any:
        """Call the validator.

        Raises:
            BackendError: it refuses, or does not answer.
        """
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        try:
            async with httpx2.AsyncClient(trust_env=False, timeout=30.0) as http:
                reply = (await http.post(self.http, json=request)).json()
        except (httpx2.HTTPError, ValueError) as error:
            raise BackendError(f"{self.tool} at {self.http} does not answer: {error!r}") from error
        if not isinstance(reply, dict) or "result" not in reply:
            raise BackendError(f"{self.tool} refuses {method}: {reply}")
        return reply["result"]

    async def fund(self, key: str, lamports: int) -> None:
        """Fill an account up; returns once it has that many lamports.

        Raises:
            BackendError: the validator does not give them.
        """
        options = {"commitment": "confirmed"}
        missing = lamports - (await self.call("getBalance", key, options))["value"]
        if missing > 0:
            await self.call("requestAirdrop", key, missing)
        with trio.move_on_after(START_TIMEOUT_S):
            while True:
                if (await self.call("getBalance", key, options))["value"] >= lamports:
                    return
                await trio.sleep(_POLL_S)
        raise BackendError(f"{self.tool} has not given {lamports} lamports to {key} in {START_TIMEOUT_S:.0f} s")


def find_tool() -> tuple[str, str]:
    """The validator on the path: its name and its file.

    Raises:
        ConfigError: there is none.
    """
    for tool in (VALIDATOR, SURFPOOL):
        if path := shutil.which(tool):
            return tool, path
    raise ConfigError(
        f"--validator real: neither {VALIDATOR} nor {SURFPOOL} is on the path; install Solana's tools "
        "(https://solana.com/docs/intro/installation), or leave --validator out for the chain that comes with psyche"
    )


@asynccontextmanager
async def open_real_chain(
    *, slot_ms: int, host: str = "127.0.0.1", port: int = 0, state: Path | None = None, reset: bool = False
) -> AsyncGenerator[RealChain]:
    """Run a validator while the block runs; arguments as for `open_local_chain`. `reset`: begin the chain anew.

    Raises:
        ConfigError: there is none on the path, it does not start, or it has not the programs.
    """
    tool, path = find_tool()
    if tool == SURFPOOL and state is not None:
        raise ConfigError(f"--ledger: {SURFPOOL} keeps no chain on disk; leave it out, or install {VALIDATOR}")
    number = port or _find_ports(host)
    shown = "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104
    chain = RealChain(tool, f"http://{shown}:{number}", f"ws://{shown}:{number + 1}")
    with tempfile.TemporaryDirectory(prefix="psyche-validator-") as temporary:
        folder = Path(temporary)
        build = _build_validator if tool == VALIDATOR else _build_surfpool
        command = build(path, host, number, slot_ms, state or folder / "ledger")
        command += ["--reset"] if reset else []
        with (folder / "log").open("wb") as log:
            process = await trio.lowlevel.open_process(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder
            )
            try:
                await _wait_until_it_answers(chain, process, folder / "log")
                await _place_programs(chain)
                yield chain
            finally:
                await _stop(process)


def _find_ports(host: str) -> int:
    first, second = bind_pair(host, 0)
    with first, second:
        return first.getsockname()[1]


def _build_validator(path: str, host: str, port: int, slot_ms: int, ledger: Path) -> list[str]:
    programs = [part for name, key in NAMES.items() for part in ("--bpf-program", str(key), str(_find_code(name)))]
    ticks = max(1, round(slot_ms / _TICK_MS))
    return [
        path, "--quiet", "--ledger", str(ledger.absolute()), "--bind-address", host, "--rpc-port", str(port),
        "--faucet-port", str(_find_port(host)), "--ticks-per-slot", str(ticks), *programs,
    ]  # fmt: skip


def _build_surfpool(path: str, host: str, port: int, slot_ms: int, _ledger: Path) -> list[str]:
    return [
        path, "start", "--offline", "--no-tui", "--no-studio", "--no-deploy", "--host", host, "--port", str(port),
        "--ws-port", str(port + 1), "--slot-time", str(slot_ms),
    ]  # fmt: skip


def _find_code(name: str) -> Path:
    return find_file(f"psyche_{name}.so")


def _find_port(host: str) -> int:
    with socket.socket() as bound:
        bound.bind((host, 0))
        return bound.getsockname()[1]


async def _wait_until_it_answers(chain: RealChain, process: trio.Process, log: Path) -> None:
    with trio.move_on_after(START_TIMEOUT_S):
        while process.poll() is None:
            with suppress(BackendError):
                await chain.call("getHealth")
                return
            await trio.sleep(_POLL_S)
    ended = "does not answer" if process.poll() is None else f"ended with {process.returncode}"
    raise ConfigError("\n  ".join([f"{chain.tool} {ended}; its last lines:", *_read_end(log)]))


def _read_end(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:]


async def _place_programs(chain: RealChain) -> None:
    """Check that the programs are there; surfpool takes them by a call of its own."""
    for name, key in NAMES.items():
        if chain.tool == SURFPOOL:
            await chain.call("surfnet_writeProgram", str(key), _find_code(name).read_bytes().hex(), 0)
        options = {"encoding": "base64", "dataSlice": {"offset": 0, "length": 0}, "commitment": "processed"}
        found = await chain.call("getAccountInfo", str(key), options)
        if found["value"] is None or not found["value"]["executable"]:
            raise ConfigError(
                f"the {name} is not on this chain: its --ledger was begun without this project's programs; start with "
                "--reset, or name another folder"
            )


async def _stop(process: trio.Process) -> None:
    process.terminate()
    with trio.CancelScope(shield=True):  # pyright: ignore[reportCallIssue]
        with trio.move_on_after(STOP_TIMEOUT_S):
            await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
