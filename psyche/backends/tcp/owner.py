"""An owner's connections to a TCP server: commands, status, record, allow list, earnings (`psyche run`)."""

import secrets
from collections.abc import Callable
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
from psyche.errors import BackendError, WireError
from psyche.wire import backend as wire
from psyche.wire.crypto import Identity
from psyche.wire.line.handshake import HandshakeError
from psyche.wire.messages import AnyMessage
from psyche.wire.nursery import open_plain_nursery

TIMEOUT_S: Final = 10.0
RETRY_S: Final = 1.0
SILENT_S: Final = 1.0  # after this a waiting person is told the reason
Say = Callable[[str], None]
_Found = TypeVar("_Found", wire.RunStatus, wire.AllowedKeys, wire.Earnings, wire.Members, wire.FullState)


def _say_nothing(_text: str) -> None:
    pass


@dataclass(frozen=True)
class TcpAdministration:
    """A run on a TCP server, as its owner reaches it.

    Args:
        address: where the server is.
        identity: the key that asks: an owner's, or anybody's for what anybody may ask.
        timeout_s: how long to try a server that does not answer.
        say: is told the reason of a long wait, once.
    """

    address: ServerAddress
    identity: Identity
    timeout_s: float = TIMEOUT_S
    say: Say = _say_nothing

    async def get_status(self) -> wire.RunStatus:
        return await self._ask(None, wire.StatusRequest(), wire.RunStatus)

    async def get_record(self) -> Coordinator:
        answer = await self._ask(None, wire.RecordRequest(), wire.FullState)
        return decode_state(read_full(answer))

    async def get_members(self) -> wire.Members:
        return await self._ask(None, wire.MembersRequest(), wire.Members)

    async def command(self, message: AnyMessage | Build) -> wire.RunStatus:
        """Carry out a command; it carries an op id, so that it takes effect once even if it is resent (K3)."""
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
        where = f"server {self.address.host}:{self.address.port}"
        attempts = _Attempts(self.address, self.identity, command, question, problem=f"{where}: no answer")
        with trio.move_on_after(self.timeout_s):
            async with open_plain_nursery() as nursery:
                nursery.start_soon(self._say_if_silent, attempts)
                answer = await attempts.run()
                nursery.cancel_scope.cancel()
            if not isinstance(answer, kind):
                raise WireError(f"the reply is not a {kind.__name__}")
            return answer
        raise BackendError(f"{attempts.problem}; gave up after {self.timeout_s:g} s")

    async def _say_if_silent(self, attempts: "_Attempts") -> None:
        await trio.sleep(SILENT_S)
        self.say(f"{attempts.problem}; trying for {self.timeout_s:g} s (Ctrl-C stops)")


def _build_command(message: AnyMessage) -> wire.SubmitRequest:
    return wire.build_submit(message, op_id=secrets.token_bytes(wire.OP_ID_BYTES))


class _Attempts:
    """One command and the request after it, resent until the server has answered both or refuses."""

    def __init__(
        self, address: ServerAddress, identity: Identity, command: wire.RequestBody | None,
        question: wire.RequestBody, problem: str,
    ) -> None:  # fmt: skip
        self.problem = problem
        self._address, self._identity, self._command = address, identity, command
        self._question = question
        self._command_id = secrets.randbits(62)  # the same on every resend (K4)

    async def run(self) -> object:
        while True:
            try:
                return await self._try_once()
            except (HandshakeError, wire.RequestRefused):
                raise
            except (BackendError, WireError) as error:
                self.problem = str(error)
                await trio.sleep(RETRY_S)

    async def _try_once(self) -> object:
        frames = (await dial(self._address, self._identity)).frames
        try:
            if self._command is not None:
                await ask(frames, wire.Request(self._command_id, self._command))
            answer = (await ask(frames, wire.Request(self._command_id + 1, self._question))).body
        finally:
            await frames.aclose()
        if answer is None:
            raise WireError("the reply is empty")
        return answer
