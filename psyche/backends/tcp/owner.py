"""An owner's connections to a TCP server: commands, status, record, allow list, earnings (`psyche run`)."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import trio

from psyche.backends.port import Build, build_in_thread
from psyche.backends.tcp.dial import ServerAddress, ask, dial
from psyche.backends.tcp.push import read_full
from psyche.core.encoding.account import decode_state
from psyche.core.state.limits import MAX_CLAIMS
from psyche.core.state.messages import Collect
from psyche.core.state.state import Coordinator
from psyche.errors import BackendError, HandshakeError, WireError
from psyche.wire import backend as wire
from psyche.wire.backend import AnyMessage
from psyche.wire.crypto import Identity
from psyche.wire.history import HistoryPoint
from psyche.wire.nursery import open_plain_nursery

TIMEOUT_S: Final = 10.0
RETRY_S: Final = 1.0
SILENT_S: Final = 1.0  # after this a waiting person is told the reason
Say = Callable[[str], None]
_Found = TypeVar("_Found", wire.RunStatus, wire.AllowedKeys, wire.Earnings, wire.Members, wire.FullState, wire.History)


@dataclass(frozen=True)
class TcpAdministration:
    """A run on a TCP server, as its owner reaches it."""

    address: ServerAddress  # where the server is
    identity: Identity  # the key that asks: an owner's, or anybody's for what anybody may ask
    timeout_s: float = TIMEOUT_S  # how long to try a server that does not answer
    say: Say = lambda _text: None  # is told the reason of a long wait, once

    async def get_status(self) -> wire.RunStatus:
        return await self._ask(None, wire.StatusRequest(), wire.RunStatus)

    async def get_record(self) -> Coordinator:
        answer = await self._ask(None, wire.RecordRequest(), wire.FullState)
        return decode_state(read_full(answer))

    async def get_members(self) -> wire.Members:
        return await self._ask(None, wire.MembersRequest(), wire.Members)

    async def get_history(self, after_step: int = 0) -> tuple[HistoryPoint, ...]:
        return (await self._ask(None, wire.HistoryRequest(after_step), wire.History)).points

    async def command(self, message: AnyMessage | Build) -> wire.RunStatus:
        if callable(message):
            message = await build_in_thread(message, await self.get_record())
        return await self._ask(_build_command(message), wire.StatusRequest(), wire.RunStatus)

    def name_key(self, key: bytes) -> str:
        return key.hex()

    async def collect(self, signer: bytes | None = None) -> tuple[wire.Claim, ...]:
        question = wire.EarningsRequest()
        found = await self._ask(None, question, wire.Earnings)
        claims = tuple(claim for claim in found.earned if signer in (None, claim[0]))
        for start in range(0, len(claims), MAX_CLAIMS):
            part = claims[start : start + MAX_CLAIMS]
            try:
                await self._ask(_build_command(Collect(part)), question, wire.Earnings)
            except BackendError as error:
                named = ", ".join(f"{self.name_key(key)} {amount}" for key, amount in claims[: start + len(part)])
                text = (
                    f"{error}; these may or may not be collected (see earnings_collected in the server's log): {named}"
                )
                raise BackendError(text) from error
        return claims

    async def get_allowed(self) -> wire.AllowedKeys:
        return await self._ask(None, wire.AllowedRequest(), wire.AllowedKeys)

    async def _ask(self, command: wire.RequestBody | None, question: wire.RequestBody, kind: type[_Found]) -> _Found:
        """Send a command until it is answered, then the question; return the answer."""
        number = secrets.randbits(62)  # the same on every resend (K4)
        requests = [wire.Request(number + place, body) for place, body in enumerate((command, question)) if body]
        problem = f"server {self.address.host}:{self.address.port}: no answer"

        async def say_if_silent() -> None:
            await trio.sleep(SILENT_S)
            self.say(f"{problem}; trying for {self.timeout_s:g} s (Ctrl-C stops)")

        with trio.move_on_after(self.timeout_s):
            async with open_plain_nursery() as nursery:
                nursery.start_soon(say_if_silent)
                while True:
                    try:
                        answer = await self._ask_once(requests)
                    except (HandshakeError, wire.RequestRefused):
                        raise
                    except (BackendError, WireError) as error:
                        problem = str(error)
                        await trio.sleep(RETRY_S)
                    else:
                        break
                nursery.cancel_scope.cancel()
            if not isinstance(answer, kind):
                raise WireError(f"the reply is not a {kind.__name__}")
            return answer
        raise BackendError(f"{problem}; gave up after {self.timeout_s:g} s")

    async def _ask_once(self, requests: Sequence[wire.Request]) -> object:
        frames = (await dial(self.address, self.identity)).frames
        try:
            replies = [await ask(frames, request) for request in requests]
        finally:
            await frames.aclose()
        if replies[-1].body is None:
            raise WireError("the reply is empty")
        return replies[-1].body


def _build_command(message: AnyMessage) -> wire.SubmitRequest:
    return wire.build_submit(message, op_id=secrets.token_bytes(wire.OP_ID_BYTES))
