"""What the owner of a run does from outside: pause, resume, ask how it is (`psyche server pause|resume|status`)."""

import secrets
from typing import Final

import trio

from psyche.core.errors import CoordinatorError
from psyche.errors import BackendError, WireError
from psyche.server.dial import ServerAddress, ask, dial
from psyche.wire import backend as wire
from psyche.wire.crypto import Identity
from psyche.wire.handshake import HandshakeError

TIMEOUT_S: Final = 30.0
RETRY_S: Final = 1.0


async def pause_run(address: ServerAddress, identity: Identity, timeout_s: float = TIMEOUT_S) -> wire.RunStatus:
    """Pause the run: at once before its first round, else after the epoch's drain and Cooldown (P4).

    The command carries an op id, so that it takes effect once however often it has to be sent.

    Raises:
        NotOwner: `identity` is no owner of the run.
        Halted: it is paused or finished already.
        BackendError: the server could not be reached within `timeout_s`.
    """
    op_id = secrets.token_bytes(wire.OP_ID_BYTES)
    return await _carry_out(address, identity, wire.PauseRequest(op_id), timeout_s)


async def resume_run(address: ServerAddress, identity: Identity, timeout_s: float = TIMEOUT_S) -> wire.RunStatus:
    """Let a paused run go on; everybody joins again (P4).

    Raises:
        NotOwner: `identity` is no owner of the run.
        CannotResume: it is not paused.
        BackendError: the server could not be reached within `timeout_s`.
    """
    op_id = secrets.token_bytes(wire.OP_ID_BYTES)
    return await _carry_out(address, identity, wire.ResumeRequest(op_id), timeout_s)


async def get_run_status(address: ServerAddress, identity: Identity, timeout_s: float = TIMEOUT_S) -> wire.RunStatus:
    """How the run is; anybody may ask.

    Raises:
        BackendError: the server could not be reached within `timeout_s`, or refuses.
    """
    return await _carry_out(address, identity, None, timeout_s)


async def _carry_out(
    address: ServerAddress, identity: Identity, command: wire.RequestBody | None, timeout_s: float
) -> wire.RunStatus:
    """Send a command until it is answered, then ask for the status."""
    problem = "no answer"
    command_id = secrets.randbits(62)  # kept over resends (K4)
    with trio.move_on_after(timeout_s):
        while True:
            try:
                frames, _ = await dial(address, identity)
                try:
                    if command is not None:
                        await ask(frames, wire.Request(command_id, command))
                    status = (await ask(frames, wire.Request(command_id + 1, wire.StatusRequest()))).body
                finally:
                    await frames.aclose()
                if not isinstance(status, wire.RunStatus):
                    raise WireError("the reply to status is none")
            except (CoordinatorError, HandshakeError, wire.RequestRefused):
                raise
            except (BackendError, WireError) as error:
                problem = str(error)
                await trio.sleep(RETRY_S)
            else:
                return status
    raise BackendError(f"server {address.host}:{address.port}: gave up after {timeout_s:g} s: {problem}")
