"""What the owner of a run does from outside: pause, resume, set rates, ask how it is (`psyche server`)."""

import secrets
from collections.abc import Callable
from typing import Final

import trio

from psyche.core.errors import CoordinatorError
from psyche.errors import BackendError, PsycheError, WireError
from psyche.server.dial import ServerAddress, ask, dial
from psyche.wire import backend as wire
from psyche.wire.crypto import Identity
from psyche.wire.handshake import HandshakeError

TIMEOUT_S: Final = 10.0
RETRY_S: Final = 1.0
SILENT_S: Final = 1.0  # a person who waits for longer wants to know for what
Say = Callable[[str], None]


def _say_nothing(_text: str) -> None:
    pass


async def pause_run(
    address: ServerAddress, identity: Identity, timeout_s: float = TIMEOUT_S, say: Say = _say_nothing
) -> wire.RunStatus:
    """Pause the run: at once before its first round, else after the epoch's drain and Cooldown (P4).

    The command carries an op id, so that it takes effect once however often it has to be sent.

    Raises:
        NotOwner: `identity` is no owner of the run.
        Halted: it is paused or finished already.
        BackendError: the server could not be reached within `timeout_s`.
    """
    op_id = secrets.token_bytes(wire.OP_ID_BYTES)
    return await _carry_out(address, identity, wire.PauseRequest(op_id), timeout_s, say)


async def resume_run(
    address: ServerAddress, identity: Identity, timeout_s: float = TIMEOUT_S, say: Say = _say_nothing
) -> wire.RunStatus:
    """Let a paused run go on; everybody joins again (P4).

    Raises:
        NotOwner: `identity` is no owner of the run.
        CannotResume: it is not paused.
        BackendError: the server could not be reached within `timeout_s`.
    """
    op_id = secrets.token_bytes(wire.OP_ID_BYTES)
    return await _carry_out(address, identity, wire.ResumeRequest(op_id), timeout_s, say)


async def set_rates(
    address: ServerAddress, identity: Identity, timeout_s: float = TIMEOUT_S, say: Say = _say_nothing, *,
    earning: int | None = None, slashing: int | None = None,
) -> wire.RunStatus:  # fmt: skip
    """Set what epochs that form from now on pay and slash (M7); None leaves a rate as it is.

    `earning` is shared among all credits of an epoch, `slashing` is what each ejected member loses.

    Raises:
        NotOwner: `identity` is no owner of the run.
        BackendError: the server could not be reached within `timeout_s`.
    """
    op_id = secrets.token_bytes(wire.OP_ID_BYTES)
    return await _carry_out(address, identity, wire.RatesRequest(op_id, earning, slashing), timeout_s, say)


async def get_run_status(
    address: ServerAddress, identity: Identity, timeout_s: float = TIMEOUT_S, say: Say = _say_nothing
) -> wire.RunStatus:
    """How the run is; anybody may ask. `say` hears it where the answer is long in coming.

    Raises:
        BackendError: the server could not be reached within `timeout_s`, or refuses.
    """
    return await _carry_out(address, identity, None, timeout_s, say)


async def _carry_out(
    address: ServerAddress, identity: Identity, command: wire.RequestBody | None, timeout_s: float, say: Say
) -> wire.RunStatus:
    """Send a command until it is answered, then ask for the status."""
    where = f"server {address.host}:{address.port}"
    attempts = _Attempts(address, identity, command, problem=f"{where}: no answer")
    with trio.move_on_after(timeout_s):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_say_if_silent, attempts, timeout_s, say)
            await attempts.run()
            nursery.cancel_scope.cancel()
        return attempts.get_status()
    raise BackendError(f"{attempts.problem}; gave up after {timeout_s:g} s")


async def _say_if_silent(attempts: "_Attempts", timeout_s: float, say: Say) -> None:
    await trio.sleep(SILENT_S)
    say(f"{attempts.problem}; trying for {timeout_s:g} s (Ctrl-C stops)")


class _Attempts:
    """One command, sent until the server has answered it or refuses it."""

    def __init__(
        self, address: ServerAddress, identity: Identity, command: wire.RequestBody | None, problem: str
    ) -> None:
        self.problem = problem
        self._address, self._identity, self._command = address, identity, command
        self._command_id = secrets.randbits(62)  # kept over resends (K4)
        self._outcome: wire.RunStatus | PsycheError | None = None

    async def run(self) -> None:
        """Try until there is an outcome; `problem` says why there is none yet."""
        while self._outcome is None:
            try:
                self._outcome = await self._try_once()
            except (CoordinatorError, HandshakeError, wire.RequestRefused) as error:
                self._outcome = error
            except (BackendError, WireError) as error:
                self.problem = str(error)
                await trio.sleep(RETRY_S)

    def get_status(self) -> wire.RunStatus:
        """What the server said.

        Raises:
            PsycheError: it refused.
        """
        assert self._outcome is not None, "run comes first"
        if isinstance(self._outcome, PsycheError):
            raise self._outcome
        return self._outcome

    async def _try_once(self) -> wire.RunStatus:
        frames, _ = await dial(self._address, self._identity)
        try:
            if self._command is not None:
                await ask(frames, wire.Request(self._command_id, self._command))
            status = (await ask(frames, wire.Request(self._command_id + 1, wire.StatusRequest()))).body
        finally:
            await frames.aclose()
        if not isinstance(status, wire.RunStatus):
            raise WireError("the reply to status is none")
        return status
