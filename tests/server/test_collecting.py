"""`collect` on the server: earnings leave the record once, to whoever owns the run (M11, K3)."""

from kits.server import CLIENTS, OWNER, START_UNIX, MemoryDisk, RunFile, build_handler, build_restarted

from psyche.core.encoding.account import encode_state
from psyche.core.rules.apply import apply
from psyche.core.state.messages import Collect, Join
from psyche.server.handler import CoordinatorHandler
from psyche.wire import backend as wire

OP = b"collect-number-1"
A, B = CLIENTS[0].public, CLIENTS[1].public


def build_earned(disk: MemoryDisk) -> CoordinatorHandler:
    """A run whose first two participants have joined, and earned 300 and 70."""
    state = RunFile().build_state()
    for key, earned in ((A, 300), (B, 70)):
        apply(state, START_UNIX, 0, key, Join(key))
        state.registry.slots[-1].earned = earned
    return build_handler(state, disk)


def ask(handler: CoordinatorHandler, number: int, body: wire.RequestBody, sender: bytes = OWNER.public) -> wire.Reply:
    return handler.handle(START_UNIX, sender, wire.Request(number, body)).reply


def get_earned(handler: CoordinatorHandler) -> tuple[wire.Claim, ...]:
    body = ask(handler, 999, wire.EarningsRequest()).body
    assert isinstance(body, wire.Earnings)
    return body.earned


def test_m11_the_owner_sees_and_takes_what_was_earned() -> None:
    handler = build_earned(MemoryDisk())
    assert get_earned(handler) == ((A, 300), (B, 70))
    assert ask(handler, 1, wire.build_submit(Collect(((A, 300), (B, 50))), op_id=OP)).code == ""
    assert get_earned(handler) == ((B, 20),)


def test_m11_k3_a_resend_takes_nothing_more_before_and_after_a_restart() -> None:
    disk = MemoryDisk()
    handler = build_earned(disk)
    request = wire.build_submit(Collect(((A, 100),)), op_id=OP)
    assert ask(handler, 1, request).code == ask(handler, 2, request).code == ""
    assert get_earned(handler) == ((A, 200), (B, 70))
    handler.journal.flush()
    again = build_restarted(disk)
    assert encode_state(again.state) == encode_state(handler.state)
    assert ask(again, 3, request).code == ""
    assert get_earned(again) == ((A, 200), (B, 70))
