"""A run on a chain as one wallet reaches it: its account as endpoints show it, the chain's time, and messages."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import trio
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.accounts import RUN_STATE
from psyche.backends.solana.interface.coordinator import (
    ChainRun,
    SignedResult,
    UserMessage,
    build_equivocation_report,
    build_join_run,
    build_user_message,
)
from psyche.backends.solana.interface.failures import ProgramRefused
from psyche.backends.solana.member.link import ChainTime, Reading, TransactionExpired
from psyche.backends.solana.rpc.client import NoEndpoint, Rpc
from psyche.backends.solana.rpc.sender import TransactionSender
from psyche.backends.solana.rpc.transaction import FeePolicy
from psyche.backends.solana.rpc.watch import AccountWatch
from psyche.backends.waits import opens
from psyche.core.encoding.account import decode_state
from psyche.core.state.gossip import Evidence
from psyche.core.state.limits import STATE_BYTES
from psyche.core.state.messages import Join, Message, ReportEquivocation
from psyche.errors import BackendError
from psyche.wire.backend import NotAllowed
from psyche.wire.crypto import Identity
from psyche.wire.gossip import decode_gossip, get_signed_bytes
from psyche.wire.ports import Proof

TIME_S: Final = 12.0  # after which it is asked for again
LEAST_S: Final = 2.0  # between two answers that show how fast slots pass


@dataclass(slots=True)
class ChainClock:
    """Estimates the chain's time: a little late rather than early. `now_s` is a clock that only moves forward."""

    _time: ChainTime | None = None
    _at_s: float = 0.0
    _rate: float = 0.0  # slots a second; 0: not known yet
    _slot: int = 0  # the newest that an endpoint has shown
    _slot_at_s: float = 0.0

    def set(self, time: ChainTime, now_s: float) -> None:
        if self._time is not None and now_s - self._at_s >= LEAST_S:
            self._rate = max(0.0, (time.slot - self._time.slot) / (now_s - self._at_s))
        if self._time is None or now_s - self._at_s >= LEAST_S:
            self._time, self._at_s = time, now_s
        self._slot, self._slot_at_s = time.slot, now_s

    def note_slot(self, slot: int, now_s: float) -> None:
        if slot > self._slot:
            self._slot, self._slot_at_s = slot, now_s

    def estimate_slot(self, now_s: float) -> int:
        """The slot that the most advanced endpoint shows now."""
        return self._slot + int((now_s - self._slot_at_s) * self._rate)

    def estimate(self, now_s: float) -> ChainTime | None:
        if self._time is None or not self._rate or now_s - self._at_s > TIME_S:
            return None
        return ChainTime(self.estimate_slot(now_s), self._time.unix + int(now_s - self._at_s))


# After no endpoint has answered: as often as a client asks whose tick is due. In simulated runs whose endpoints refuse
# six requests of ten, rounds of 20 s take 26 s if clients wait for 2 s.
AGAIN_S: Final = 0.5
_NO_PERMISSION: Final = frozenset({("coordinator", 6_108), ("coordinator", 2_004)})  # not active; closed, or never made


class RpcLink:
    """A run, as one wallet and p2p key reach it. `run` must be running while it is used (or use `open_link`).

    Everything retries by itself; BackendError means that it gave up for good. `identity` signs joins too (M1);
    `authorization` is the account that allows the wallet to join.
    """

    def __init__(
        self, rpc: Rpc, run: ChainRun, wallet: Keypair, identity: Identity, authorization: Pubkey, *,
        fees: FeePolicy | None = None,
    ) -> None:  # fmt: skip
        self._rpc = rpc
        self._run = run
        self._user = wallet.pubkey()
        self.wallet = bytes(self._user)  # which joins and pays
        self.p2p = identity.public
        self._session = Keypair.from_seed(identity.seed)
        self._authorization = authorization
        self._sender = TransactionSender(rpc, wallet, fees, is_watched=True)
        self._clock = ChainClock()
        self._watch = AccountWatch(rpc, run.account, RUN_STATE, STATE_BYTES)
        self._newest: Reading | None = None  # of those that were handed out

    async def run(self) -> None:
        await self._watch.run()

    async def readings(self) -> AsyncGenerator[Reading, None]:
        """Receive readings of all endpoints as they arrive: not merged, repeated and out of order."""
        async with aclosing(self._watch.readings()) as readings:
            async for reading in readings:
                if self._newest is None or reading.slot >= self._newest.slot:
                    self._newest = reading
                self._clock.note_slot(reading.slot, trio.current_time())
                yield reading

    async def get_newest_slot(self) -> int:
        """Return the highest slot of all endpoints, once one has answered and the others had time to.

        A reading of this slot or a later one is no older than this call (M9).
        """
        while True:
            try:
                return await self._rpc.get_newest_slot()
            except NoEndpoint:
                await trio.sleep(AGAIN_S)

    async def get_time(self) -> ChainTime:
        """Return the chain's time as the most advanced endpoint knows it, or knew it up to `TIME_S` ago."""
        while (time := self._clock.estimate(trio.current_time())) is None:
            try:
                time = ChainTime(*await self._rpc.get_clock())
            except NoEndpoint:
                await trio.sleep(AGAIN_S)
            else:
                self._clock.set(time, trio.current_time())
                break
        return time

    async def send(
        self, messages: Sequence[Message], proof: Proof = None, *, is_wanted: Callable[[], bool] = lambda: True
    ) -> int:
        """Carry out messages in one transaction, in their order; return its slot once it is confirmed.

        The same transaction is sent again until it is confirmed or its block height has passed. Then `is_wanted` is
        asked, and if it says yes a new one is signed.

        Raises:
            CoordinatorError: the program refuses one of the messages; nothing has changed.
            TransactionExpired: `is_wanted` said no.
            BackendError: it cannot be sent at all, for example because the wallet is empty.
        """
        instructions = [one for message in messages for one in self._build(message, proof)]
        signers = [self._session] if any(isinstance(message, Join) for message in messages) else []
        while True:
            # A trial on an endpoint that is behind what was shown here would refuse wrongly.
            min_slot = None if self._newest is None else self._newest.slot
            slot, kind = self._clock.estimate_slot(trio.current_time()), _get_kind(messages)
            try:
                landed = await self._sender.send(
                    instructions, signers, is_wanted=is_wanted, min_slot=min_slot, slot=slot, kind=kind
                )
            except NoEndpoint:  # nothing was sent
                await trio.sleep(AGAIN_S)
                if not is_wanted():
                    raise TransactionExpired("no endpoint answered while the message was wanted") from None
            except ProgramRefused as error:
                if signers and (error.program, error.number) in _NO_PERMISSION:
                    raise NotAllowed(f"wallet {self._user} may not join this run yet: {error}") from error
                raise
            else:
                return landed.slot

    def _build(self, message: Message, proof: Proof) -> Sequence[Instruction]:
        if isinstance(message, Join):
            assert message.p2p == self.p2p, "a client joins with its own key"
            return [
                build_join_run(self._run, self._user, self._session.pubkey(), self._authorization, message.expires_unix)
            ]
        if isinstance(message, ReportEquivocation):
            return self._build_report(message, proof)
        if not isinstance(message, UserMessage):
            raise BackendError(f"{type(message).__name__} is no message of a client")
        return [build_user_message(self._run, self._user, message)]

    def _build_report(self, message: ReportEquivocation, proof: Proof) -> Sequence[Instruction]:
        assert isinstance(proof, Evidence), "a report has evidence"
        if self._newest is None:
            raise BackendError("the record is not known yet, and with it the key of who is reported")
        accused = decode_state(self._newest.raw).clients[message.member].p2p
        signed = (_read_result(proof.first), _read_result(proof.second))
        return build_equivocation_report(self._run, self._user, message, Pubkey(accused), signed)


def _get_kind(messages: Sequence[Message]) -> tuple[type[Message], ...] | None:
    """What the client has just tried on its copy of the record; None if programs or evidence have a say, too."""
    kind = tuple(type(message) for message in messages)
    return None if Join in kind or ReportEquivocation in kind else kind


def _read_result(raw: bytes) -> SignedResult:
    message = decode_gossip(raw)
    return SignedResult(get_signed_bytes(message), message.signature)


open_link: Final = opens(RpcLink)
