"""The owner's commands to a running server: pause, resume, rates, allow list, earnings, status (`psyche server`)."""

import secrets
from collections.abc import Callable
from typing import Final, TypeVar

import trio

from psyche.backends.tcp.dial import ServerAddress, ask, dial
from psyche.core.state.limits import MAX_CLAIMS
from psyche.core.state.messages import Collect, Pause, Resume, SetRates
from psyche.errors import BackendError, WireError
from psyche.wire import backend as wire
from psyche.wire.access import Allow, Disallow
from psyche.wire.crypto import Identity
from psyche.wire.line.handshake import HandshakeError
from psyche.wire.nursery import open_plain_nursery

TIMEOUT_S: Final = 10.0
RETRY_S: Final = 1.0
SILENT_S: Final = 1.0  # after this a waiting person is told the reason
Say = Callable[[str], None]
_Found = TypeVar("_Found", wire.RunStatus, wire.AllowedKeys, wire.Earnings, wire.Members)


def _say_nothing(_text: str) -> None:
    pass


async def pause_run(
    address: ServerAddress, identity: Identity, timeout_s: float = TIMEOUT_S, say: Say = _say_nothing
) -> wire.RunStatus:
    """Pause the run: at once before its first round, else after the epoch's drain and Cooldown (P4).

    The command carries an op id, so that it takes effect once even if it is resent.

    Raises:
        NotOwner: `identity` is not an owner of the run.
        Halted: the run is paused or finished already.
        BackendError: the server could not be reached within `timeout_s`.
    """
    op_id = secrets.token_bytes(wire.OP_ID_BYTES)
    return await _carry_out(address, identity, wire.build_submit(Pause(), op_id=op_id), timeout_s, say)


async def resume_run(
    address: ServerAddress, identity: Identity, timeout_s: float = TIMEOUT_S, say: Say = _say_nothing
) -> wire.RunStatus:
    """Resume a paused run; all clients join again (P4).

    Raises:
        NotOwner: `identity` is not an owner of the run.
        CannotResume: the run is not paused.
        BackendError: the server could not be reached within `timeout_s`.
    """
    op_id = secrets.token_bytes(wire.OP_ID_BYTES)
    return await _carry_out(address, identity, wire.build_submit(Resume(), op_id=op_id), timeout_s, say)


async def set_rates(
    address: ServerAddress, identity: Identity, timeout_s: float = TIMEOUT_S, say: Say = _say_nothing, *,
    earning: int | None = None, slashing: int | None = None,
) -> wire.RunStatus:  # fmt: skip
    """Set the rates that epochs formed from now on pay and slash (M7); None leaves a rate unchanged.

    `earning` is shared among all credits of an epoch, `slashing` is what each ejected member loses.

    Raises:
        NotOwner: `identity` is no owner of the run.
        BackendError: the server could not be reached within `timeout_s`.
    """
    op_id = secrets.token_bytes(wire.OP_ID_BYTES)
    return await _carry_out(
        address, identity, wire.build_submit(SetRates(earning, slashing), op_id=op_id), timeout_s, say
    )


async def collect_earnings(
    address: ServerAddress, identity: Identity, timeout_s: float = TIMEOUT_S, say: Say = _say_nothing, *,
    signer: bytes | None = None,
) -> tuple[wire.Claim, ...]:  # fmt: skip
    """Take the earnings of `signer`, or of everybody, out of the record; return them by key (M11).

    The caller must pay the amounts. Each amount is taken once, even if the command is resent.

    Raises:
        NotOwner: `identity` is no owner of the run.
        BackendError: the server could not be reached within `timeout_s`; the message names the amounts that were
            requested and may or may not be collected.
    """
    question = wire.EarningsRequest()
    found = await _ask_until(address, identity, None, question, wire.Earnings, timeout_s, say)
    claims = tuple(claim for claim in found.earned if signer in (None, claim[0]))
    for start in range(0, len(claims), MAX_CLAIMS):
        part = claims[start : start + MAX_CLAIMS]
        command = wire.build_submit(Collect(part), op_id=secrets.token_bytes(wire.OP_ID_BYTES))
        try:
            await _ask_until(address, identity, command, question, wire.Earnings, timeout_s, say)
        except BackendError as error:
            named = ", ".join(f"{key.hex()} {amount}" for key, amount in claims[: start + len(part)])
            text = f"{error}; these may or may not be collected (see earnings_collected in the server's log): {named}"
            raise BackendError(text) from error
    return claims


async def allow_key(
    address: ServerAddress, identity: Identity, timeout_s: float = TIMEOUT_S, say: Say = _say_nothing, *,
    grantee: bytes, delegates: tuple[bytes, ...] = (),
) -> wire.RunStatus:  # fmt: skip
    """Allow a key and its delegates to join (M12); if they wait already, they join within seconds.

    Raises:
        NotOwner: `identity` is no owner of the run and not its join authority.
        BadRequest: the list is full.
        BackendError: the server could not be reached within `timeout_s`.
    """
    op_id = secrets.token_bytes(wire.OP_ID_BYTES)
    return await _carry_out(
        address, identity, wire.build_submit(Allow(grantee, delegates), op_id=op_id), timeout_s, say
    )


async def disallow_key(
    address: ServerAddress, identity: Identity, timeout_s: float = TIMEOUT_S, say: Say = _say_nothing, *, key: bytes
) -> wire.RunStatus:
    """Stop a key and its delegates from joining; a member stays until its epoch ends (M12).

    Raises:
        NotOwner: `identity` is no owner of the run and not its join authority.
        BadRequest: the list of disallowed keys is full.
        BackendError: the server could not be reached within `timeout_s`.
    """
    op_id = secrets.token_bytes(wire.OP_ID_BYTES)
    return await _carry_out(address, identity, wire.build_submit(Disallow(key), op_id=op_id), timeout_s, say)


async def get_allowed(
    address: ServerAddress, identity: Identity, timeout_s: float = TIMEOUT_S, say: Say = _say_nothing
) -> wire.AllowedKeys:
    """Return who may join.

    Raises:
        NotOwner: `identity` is no owner of the run and not its join authority.
        BackendError: the server could not be reached within `timeout_s`.
    """
    return await _ask_until(address, identity, None, wire.AllowedRequest(), wire.AllowedKeys, timeout_s, say)


async def get_run_status(
    address: ServerAddress, identity: Identity, timeout_s: float = TIMEOUT_S, say: Say = _say_nothing
) -> wire.RunStatus:
    """Return the run's status; anybody may ask. `say` is told the reason of a long wait.

    Raises:
        BackendError: the server refuses, or could not be reached within `timeout_s`.
    """
    return await _carry_out(address, identity, None, timeout_s, say)


async def ask_members(
    address: ServerAddress, identity: Identity, timeout_s: float = TIMEOUT_S, say: Say = _say_nothing
) -> wire.Members:
    """Return who takes part and what each client says of itself (K8); errors only if an owner asks.

    Raises:
        NotOwner: `identity` does not command the run, has no place in it and may not join it.
        BackendError: the server could not be reached within `timeout_s`.
    """
    return await _ask_until(address, identity, None, wire.MembersRequest(), wire.Members, timeout_s, say)


async def _carry_out(
    address: ServerAddress, identity: Identity, command: wire.RequestBody | None, timeout_s: float, say: Say
) -> wire.RunStatus:
    """Send a command until it is answered, then request the status."""
    return await _ask_until(address, identity, command, wire.StatusRequest(), wire.RunStatus, timeout_s, say)


async def _ask_until(
    address: ServerAddress, identity: Identity, command: wire.RequestBody | None, question: wire.RequestBody,
    kind: type[_Found], timeout_s: float, say: Say,
) -> _Found:  # fmt: skip
    where = f"server {address.host}:{address.port}"
    attempts = _Attempts(address, identity, command, question, problem=f"{where}: no answer")
    with trio.move_on_after(timeout_s):
        async with open_plain_nursery() as nursery:
            nursery.start_soon(_say_if_silent, attempts, timeout_s, say)
            answer = await attempts.run()
            nursery.cancel_scope.cancel()
        if not isinstance(answer, kind):
            raise WireError(f"the reply is not a {kind.__name__}")
        return answer
    raise BackendError(f"{attempts.problem}; gave up after {timeout_s:g} s")


async def _say_if_silent(attempts: "_Attempts", timeout_s: float, say: Say) -> None:
    await trio.sleep(SILENT_S)
    say(f"{attempts.problem}; trying for {timeout_s:g} s (Ctrl-C stops)")


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
        """Try until the server answers; meanwhile `problem` says why it has not.

        Raises:
            CoordinatorError, HandshakeError, RequestRefused: the server refused.
        """
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
