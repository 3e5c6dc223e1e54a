"""RPC endpoints in memory that answer, fail and lag as told, behind the real client; time is trio's clock."""

import base64
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2
import trio
from solders.hash import Hash
from solders.transaction import Transaction

from psyche.backends.solana.cluster import Endpoint
from psyche.backends.solana.rpc.client import Rpc
from psyche.backends.solana.rpc.http import HttpTransport
from psyche.telemetry.types import Event

SLOT_S: Final = 0.4
HEIGHTS: Final = 150


@dataclass
class Refusal(Exception):
    """An error of JSON-RPC."""

    code: int
    message: str = "no"
    data: Any = None


@dataclass
class Events:
    """A sink that keeps what it gets."""

    told: list[Event] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        self.told.append(event)

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.told if isinstance(event, kind)]


@dataclass
class ScriptedEndpoint:
    """One endpoint. `fault` is None, or what it does instead of answering: raises it, or returns this response."""

    name: str
    answer: Callable[[str, list[Any]], Any]
    fault: httpx2.Response | Exception | str | None = None
    asked: list[tuple[str, float]] = field(default_factory=list)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(f"http://{self.name}:8899", f"ws://{self.name}:8900")

    async def respond(self, request: httpx2.Request) -> httpx2.Response:
        question = json.loads(await request.aread())
        self.asked.append((question["method"], trio.current_time()))
        await trio.sleep(0.01)
        match self.fault:
            case "stall":
                await trio.sleep_forever()
            case Exception():
                raise self.fault
            case httpx2.Response():
                return stream(self.fault.status_code, self.fault.content, self.fault.headers)
        try:
            reply = {"result": self.answer(question["method"], question["params"])}
        except Refusal as refusal:
            error = {"code": refusal.code, "message": refusal.message}
            reply = {"error": error if refusal.data is None else {**error, "data": refusal.data}}
        return stream(200, json.dumps({"jsonrpc": "2.0", "id": 1, **reply}).encode())


def stream(status: int, content: bytes, headers: Any = None) -> httpx2.Response:
    return httpx2.Response(status, stream=httpx2.ByteStream(content), headers=headers)


@asynccontextmanager
async def open_scripted(*endpoints: ScriptedEndpoint) -> AsyncGenerator[tuple[Rpc, Events]]:
    """The real client over these endpoints."""
    by_host = {one.name: one for one in endpoints}
    events = Events()

    async def respond(request: httpx2.Request) -> httpx2.Response:
        return await by_host[request.url.host].respond(request)

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(respond), timeout=None) as http:
        yield Rpc([one.endpoint for one in endpoints], HttpTransport(http, http), sink=events), events


@dataclass
class PaperChain:
    """A chain that takes transactions by time alone; nothing in them is carried out.

    `drop`: how many submissions vanish. `land_after_s`: how long a transaction takes to get into a block.
    """

    drop: int = 0
    land_after_s: float = 0.5
    trial: dict[str, Any] = field(default_factory=lambda: {"err": None, "unitsConsumed": 30_000, "logs": []})
    outcome: Any = None
    logs: list[str] = field(default_factory=list)  # of each transaction on record
    fees: list[int] = field(default_factory=list)
    lamports: int = 10**9
    sent: list[tuple[bytes, float]] = field(default_factory=list)
    trials: list[tuple[bytes, dict[str, Any]]] = field(default_factory=list)
    landed: dict[str, float] = field(default_factory=dict)  # signature to time
    hashes: dict[str, int] = field(default_factory=dict)  # block hash to the last height that takes it
    refuse: dict[str, Refusal] = field(default_factory=dict)

    def get_height(self, lag_slots: int = 0) -> int:
        return 1_000 + int(trio.current_time() / SLOT_S) - lag_slots

    def make_answers(self, lag_slots: int = 0) -> Callable[[str, list[Any]], Any]:
        """What an endpoint answers that is this far behind."""

        def answer(method: str, params: list[Any]) -> Any:  # noqa: PLR0911
            if method in self.refuse:
                raise self.refuse[method]
            height = self.get_height(lag_slots)
            context = {"context": {"slot": height}}
            match method:
                case "getLatestBlockhash":
                    text = str(Hash.new_unique())
                    self.hashes[text] = height + HEIGHTS
                    value = {"blockhash": text, "lastValidBlockHeight": height + HEIGHTS}
                    return {**context, "value": value}
                case "simulateTransaction":
                    self._check_slot(params[1], height)
                    self.trials.append((_decode(params[0]), params[1]))
                    return {**context, "value": self.trial}
                case "getRecentPrioritizationFees":
                    return [{"slot": 1, "prioritizationFee": fee} for fee in self.fees]
                case "getBalance":
                    return {**context, "value": self.lamports}
                case "sendTransaction":
                    return self._take(_decode(params[0]), params[1])
                case "getSignatureStatuses":
                    return {**context, "value": [self._find(one, height) for one in params[0]]}
                case "getBlockHeight" | "getSlot":
                    return height
                case "getTransaction":
                    return {"meta": {"logMessages": self.logs}}
            raise Refusal(-32601, "Method not found")

        return answer

    def _check_slot(self, config: dict[str, Any], height: int) -> None:
        if config.get("minContextSlot", 0) > height:
            raise Refusal(-32016, "Minimum context slot has not been reached", {"contextSlot": height})

    def _take(self, raw: bytes, config: dict[str, Any]) -> str:
        assert config["skipPreflight"], config
        assert config["maxRetries"] == 0, config
        self.sent.append((raw, trio.current_time()))
        transaction = Transaction.from_bytes(raw)
        signature = str(transaction.signatures[0])
        at = trio.current_time() + self.land_after_s
        if self.drop:
            self.drop -= 1
        elif 1_000 + int(at / SLOT_S) <= self.hashes[str(transaction.message.recent_blockhash)]:
            self.landed.setdefault(signature, at)
        return signature

    def _find(self, signature: str, height: int) -> Any:
        at = self.landed.get(signature)
        slot = 0 if at is None else 1_000 + int(at / SLOT_S)
        if at is None or slot > height:
            return None
        level = "finalized" if height - slot > 32 else "confirmed" if height > slot else "processed"
        return {"slot": slot, "err": self.outcome, "confirmationStatus": level}


def _decode(text: str) -> bytes:
    return base64.b64decode(text)
