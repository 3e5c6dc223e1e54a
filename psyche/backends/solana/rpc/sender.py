"""Bringing a transaction onto the chain: tried first, sent again as it is until it is on record or cannot get there."""

import base64
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import trio
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair

from psyche.backends.solana.amounts import LAMPORTS_PER_SIGNATURE, LAMPORTS_PER_SOL
from psyche.backends.solana.cluster import Endpoint
from psyche.backends.solana.interface.events import ChainEvent, read_events
from psyche.backends.solana.interface.failures import WalletEmpty, read_failure
from psyche.backends.solana.member.link import TransactionExpired
from psyche.backends.solana.rpc import replies
from psyche.backends.solana.rpc.client import CONFIRMED, NoEndpoint, Rpc
from psyche.backends.solana.rpc.replies import Blockhash, SignatureStatus, SimulationReply
from psyche.backends.solana.rpc.transaction import (
    Budget,
    FeePolicy,
    TransactionDraft,
    choose_loaded,
    choose_units,
)
from psyche.backends.solana.rpc.transport import RequestFailed, RpcRefused
from psyche.errors import BackendError
from psyche.telemetry import types
from psyche.wire.nursery import open_plain_nursery

RESEND_S: Final = 2.0
FIRST_POLL_S: Final = 0.1
MAX_POLL_S: Final = 0.5
POLL_FACTOR: Final = 1.3
WATCHED_POLL_S: Final = 1.5  # where the caller sees by itself what landed; its question is for what did not
POLL_TIMEOUT_S: Final = 1.5
BLOCK_S: Final = 20.0  # for which a block hash is used again; at 0.4 s a slot it counts for 60 s
BLOCK_SLOTS: Final = 60  # the same where slots are shorter; it counts for 150 blocks
FEES_S: Final = 20.0  # for which it is believed what others pay
EVENT_LOOKS: Final = 4
EVENTS_S: Final = 1.5  # for the log of a transaction that is on record
HEIGHT_S: Final = 2.0  # between questions for the block height
PATIENCE_S: Final = 90.0
MAX_FEE_KEYS: Final = 32  # of getRecentPrioritizationFees; the method takes 128
MAX_STATUSES: Final = 32  # of getSignatureStatuses; the method takes 256


class Unconfirmed(BackendError):
    """No endpoint says whether a transaction is on record; it may still get there."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    signature: str
    slot: int
    fee_lamports: int
    units: int  # that its trial took
    events: tuple[ChainEvent, ...] = ()  # what it caused, if its endpoint told


@dataclass(slots=True, eq=False)
class _Pending:
    """A signed transaction under way. `is_eventful`: its trial had events, so its log is worth a question."""

    signature: str
    raw: str  # base64
    size_bytes: int
    last_height: int
    budget: Budget
    draft: TransactionDraft
    units: int
    is_eventful: bool
    started: float
    turn: int = 0  # counts questions, which go to the endpoints in turn
    sent: int = 0
    next_send: float = 0.0
    next_height: float = 0.0
    looked: float = 0.0  # when its status was asked for last, with those of others
    status: SignatureStatus | None = None
    answered: float = 0.0  # when an endpoint last said anything
    is_accepted: bool = False


class TransactionSender:
    """Sends transactions that one wallet pays for. Several may be under way at once.

    `is_watched`: the caller follows what transactions change, so few questions are asked, and none for events; it is
    never told `Unconfirmed`, as others are when no endpoint has answered for `PATIENCE_S`.
    """

    def __init__(self, rpc: Rpc, payer: Keypair, fees: FeePolicy | None = None, *, is_watched: bool = False) -> None:
        self.rpc = rpc
        self.payer = payer
        self._fees = fees or FeePolicy()
        self._is_watched = is_watched
        self._all_pending: list[_Pending] = []  # under way
        self._tried: dict[Hashable, SimulationReply] = {}
        self._block: tuple[float, int, Blockhash] | None = None  # when it was found, of which slot or later
        self._uses = 0  # of that hash: the same message with it again would be the same transaction, which counts once
        self._recent: dict[tuple[str, ...], tuple[float, list[int]]] = {}  # fees, and when they were asked for

    async def send(
        self,
        instructions: Sequence[Instruction],
        signers: Sequence[Keypair] = (),
        *,
        is_wanted: Callable[[], bool] = lambda: True,
        finalized: bool = False,
        min_slot: int | None = None,
        slot: int = 0,
        kind: Hashable = None,
    ) -> Confirmed:
        """Carry out instructions in one transaction; return once it is confirmed, or finalized.

        `is_wanted` is asked before each new signature. A trial counts only on an endpoint that has got to `min_slot`.
        `kind`: the caller has tried the instructions itself, so that of one kind only the first is tried on the chain.
        `slot`: the chain's, as far as the caller knows.

        Raises:
            CoordinatorError: the coordinator refuses.
            TransactionFailed: another program refuses, the wallet is empty, or the transaction is too large.
            TransactionExpired: it is not wanted any more, and cannot get onto the chain.
            Unconfirmed: the endpoints have not answered for long.
            NoEndpoint: they did not answer before anything was sent.
        """
        draft = TransactionDraft(self.payer, tuple(instructions), tuple(signers))
        expired = 0
        while True:
            pending = await self._prepare(draft, expired, min_slot, slot, kind)
            if not is_wanted():
                raise TransactionExpired("the transaction came too late and was not sent")
            self.rpc.sink.emit(
                types.TransactionSent(
                    signature=pending.signature, attempt=expired, bytes=pending.size_bytes, units=pending.budget.units,
                    priority_lamports=pending.budget.priority_lamports, last_height=pending.last_height,
                )
            )  # fmt: skip
            status = await self._deliver(pending, "finalized" if finalized else CONFIRMED)
            seconds = trio.current_time() - pending.started
            if status is not None:
                if status.err is not None:
                    self._tried.pop(kind, None)
                return await self._finish(pending, status, seconds)
            self.rpc.sink.emit(types.TransactionExpired(signature=pending.signature, attempt=expired, seconds=seconds))
            expired += 1
            if not is_wanted():
                raise TransactionExpired(f"transaction {pending.signature} did not get onto the chain in time")

    # --- before it is sent ----------------------------------------------------------------------------------

    async def _prepare(
        self, draft: TransactionDraft, expired: int, min_slot: int | None, slot: int, kind: Hashable
    ) -> _Pending:
        found: dict[str, Any] = {}
        is_known = kind in self._tried and not expired
        async with open_plain_nursery() as nursery:  # nothing of this needs another part of it

            async def try_it() -> None:
                found["trial"] = self._tried[kind] if is_known else await self._try(draft, min_slot)

            async def find_block() -> None:
                found["block"] = await self._find_block(min_slot, slot, is_new=expired > 0)

            async def find_fees() -> None:
                found["fees"] = await self._find_fees(draft)

            for task in (try_it, find_block, find_fees):
                nursery.start_soon(task)
        trial: SimulationReply = found["trial"]
        block: Blockhash = found["block"]
        if kind is not None:
            self._tried[kind] = trial
        units = choose_units(trial.units or 0, is_tried=not is_known) + self._uses
        price = self._fees.choose_price(found["fees"], units, expired)
        budget = Budget(units, price, choose_loaded(trial.loaded_bytes or 0))
        if trial.lamports is not None and trial.lamports < budget.priority_lamports:
            raise await self._explain_empty(draft, f"{budget.priority_lamports} lamports of priority fee are lacking")
        transaction = draft.sign(budget, block.hash)
        raw = bytes(transaction)
        return _Pending(
            str(transaction.signatures[0]), base64.b64encode(raw).decode(), len(raw), block.last_height, budget, draft,
            trial.units or 0, not self._is_watched and bool(read_events(trial.logs or ())), trio.current_time(),
            next_height=trio.current_time() + HEIGHT_S, answered=trio.current_time(),
            looked=trio.current_time() if self._is_watched else 0.0,
        )  # fmt: skip

    async def _find_block(self, min_slot: int | None, slot: int, *, is_new: bool) -> Blockhash:
        now = trio.current_time()
        if self._block is not None and self._is_watched and not is_new:
            found_at, since, block = self._block
            if now - found_at <= BLOCK_S and slot - since <= BLOCK_SLOTS:
                self._uses += 1
                return block
        self._uses = 0
        block = await self.rpc.get_blockhash(min_slot)
        self._block = now, slot, block
        return block

    async def _try(self, draft: TransactionDraft, min_slot: int | None) -> SimulationReply:
        """Try the transaction without effect, which costs nothing: what fails here is never sent."""
        budget = Budget()
        draft.sign(replace(budget, price=1), Hash.default())  # its size is checked with all that it can hold
        raw = base64.b64encode(bytes(draft.sign(budget, Hash.default()))).decode()
        config: dict[str, Any] = {
            "encoding": "base64", "commitment": CONFIRMED, "sigVerify": False, "replaceRecentBlockhash": True,
            "accounts": {"encoding": "base64", "addresses": [str(self.payer.pubkey())]},
        }  # fmt: skip
        if min_slot is not None:
            config["minContextSlot"] = min_slot
        try:
            trial: SimulationReply = (await self.rpc.read(READ_TRIAL, "simulateTransaction", raw, config)).value
        except RpcRefused as refusal:
            if not isinstance(refusal.data, dict) or refusal.data.get("err") is None:
                raise
            trial = replies.read_as(SimulationReply, refusal.data, "simulateTransaction")
        if trial.err is not None:
            failure = read_failure(trial.err, trial.logs or (), draft.list_programs(budget))
            raise await self._explain_empty(draft, str(failure)) if isinstance(failure, WalletEmpty) else failure
        return trial

    async def _explain_empty(self, draft: TransactionDraft, reason: str) -> WalletEmpty:
        lamports = await self.rpc.get_balance(self.payer.pubkey())
        fee = draft.count_signatures() * LAMPORTS_PER_SIGNATURE
        return WalletEmpty(
            f"wallet {self.payer.pubkey()} has {lamports / LAMPORTS_PER_SOL:.9f} SOL on this cluster; "
            f"the signatures cost {fee / LAMPORTS_PER_SOL:.9f}: {reason}"
        )

    async def _find_fees(self, draft: TransactionDraft) -> list[int]:
        keys = draft.list_writable()[:MAX_FEE_KEYS]
        asked, fees = self._recent.get(tuple(keys), (-FEES_S, []))
        if trio.current_time() - asked < FEES_S:
            return fees
        try:
            fees = await self.rpc.read(replies.read_fees, "getRecentPrioritizationFees", keys)
        except (NoEndpoint, RpcRefused):
            fees = []  # not every endpoint knows; then the first attempt pays nothing
        self._recent = {tuple(keys): (trio.current_time(), fees)}
        return fees

    # --- under way ------------------------------------------------------------------------------------------

    async def _deliver(self, pending: _Pending, level: str) -> SignatureStatus | None:
        """Send until the transaction has got to `level`; None if it cannot get onto the chain any more."""
        self._all_pending.append(pending)
        try:
            return await self._carry(pending, level)
        finally:
            self._all_pending.remove(pending)

    async def _carry(self, pending: _Pending, level: str) -> SignatureStatus | None:
        poll_s = WATCHED_POLL_S if self._is_watched else FIRST_POLL_S
        async with open_plain_nursery() as nursery:
            while True:
                now = trio.current_time()
                if now >= pending.next_send:
                    pending.next_send = now + RESEND_S
                    nursery.start_soon(self._submit, pending)
                endpoint = self._take_turn(pending)
                status = await self._look(pending, endpoint, poll_s)
                if status is not None and _has_reached(status, level):
                    nursery.cancel_scope.cancel()
                    return status
                if status is None and await self._is_over(pending, endpoint):
                    nursery.cancel_scope.cancel()
                    return None
                self._check_patience(pending)
                await trio.sleep(poll_s)
                poll_s = max(poll_s, min(MAX_POLL_S, poll_s * POLL_FACTOR))

    async def _submit(self, pending: _Pending) -> None:
        """Hand the transaction to one endpoint, another one each time; if that fails, to the next."""
        config = {
            "encoding": "base64", "skipPreflight": True, "maxRetries": 0, "preflightCommitment": CONFIRMED,
        }  # fmt: skip
        awake = self._list_awake()
        start = pending.sent % len(awake)
        pending.sent += 1
        refusal: RpcRefused | None = None
        for endpoint in dict.fromkeys((*awake[start:], *awake[:start], *self.rpc.endpoints)):
            try:
                await self.rpc.read_one(endpoint, str, "sendTransaction", pending.raw, config)
            except RequestFailed:
                continue
            except RpcRefused as error:
                # Whatever an endpoint has against the state, another one may have taken it: only the status tells.
                refusal = error if error.data is None else refusal
                continue
            pending.is_accepted = True
            return
        if refusal is not None and not pending.is_accepted:
            raise refusal

    def _take_turn(self, pending: _Pending) -> Endpoint:
        awake = self._list_awake()
        pending.turn += 1
        return awake[pending.turn % len(awake)]

    def _list_awake(self) -> list[Endpoint]:
        return [one for one in self.rpc.endpoints if not self.rpc.is_resting(one)] or list(self.rpc.endpoints)

    async def _look(self, pending: _Pending, endpoint: Endpoint, poll_s: float) -> SignatureStatus | None:
        """Ask for the status, and at once for those of all others that are under way."""
        if trio.current_time() - pending.looked < poll_s / 2:
            return pending.status
        together = self._all_pending[:MAX_STATUSES] if pending in self._all_pending[:MAX_STATUSES] else [pending]
        for one in together:
            one.looked, one.status = trio.current_time(), None
        with trio.move_on_after(POLL_TIMEOUT_S):
            try:
                found = await self._ask_statuses(together, endpoint, history=False)
            except RequestFailed:
                return None
            for one, status in zip(together, found, strict=True):
                one.answered, one.status = trio.current_time(), status
        return pending.status

    async def _ask_statuses(
        self, several: Sequence[_Pending], endpoint: Endpoint, *, history: bool
    ) -> list[SignatureStatus | None]:
        signatures, config = [one.signature for one in several], {"searchTransactionHistory": history}
        read = partial(replies.read_statuses, count=len(several))
        return await self.rpc.read_one(endpoint, read, "getSignatureStatuses", signatures, config)

    async def _is_over(self, pending: _Pending, endpoint: Endpoint) -> bool:
        """Whether an endpoint has got past the transaction's last block without it.

        Only then may the same thing be signed again: before that, both could get onto the chain.
        """
        now = trio.current_time()
        if now < pending.next_height:
            return False
        pending.next_height = now + HEIGHT_S / len(self.rpc.endpoints)
        with trio.move_on_after(POLL_TIMEOUT_S):
            try:
                height = await self.rpc.read_one(endpoint, READ_HEIGHT, "getBlockHeight", {"commitment": CONFIRMED})
                # Asked after that, the same endpoint has seen every block that counts.
                return height > pending.last_height and not any(
                    await self._ask_statuses([pending], endpoint, history=True)
                )
            except RequestFailed:
                return False
        return False

    def _check_patience(self, pending: _Pending) -> None:
        silent_s = trio.current_time() - pending.answered
        if silent_s > PATIENCE_S and not self._is_watched:
            raise Unconfirmed(
                f"no RPC endpoint has answered for {silent_s:.0f} s: transaction {pending.signature} may or may not be "
                "on record; look it up before you send it again"
            )

    async def _finish(self, pending: _Pending, status: SignatureStatus, seconds: float) -> Confirmed:
        fee = pending.draft.count_signatures() * LAMPORTS_PER_SIGNATURE + pending.budget.priority_lamports
        self.rpc.sink.emit(
            types.TransactionConfirmed(
                signature=pending.signature, slot=status.slot, seconds=round(seconds, 3), fee_lamports=fee
            )
        )
        if status.err is None:
            events = await self._find_events(pending) if pending.is_eventful else ()
            return Confirmed(pending.signature, status.slot, fee, pending.units, events)
        logs = await self._find_logs(pending.signature)
        raise read_failure(status.err, logs, pending.draft.list_programs(pending.budget))

    async def _find_events(self, pending: _Pending) -> tuple[ChainEvent, ...]:
        """What the transaction caused in truth: its trial was before others. None if no endpoint tells soon."""
        with trio.move_on_after(EVENTS_S):
            for _ in range(EVENT_LOOKS):  # the first one may have asked an endpoint that is behind
                if events := read_events(await self._find_logs(pending.signature)):
                    return events
                await trio.sleep(EVENTS_S / EVENT_LOOKS)
        return ()

    async def _find_logs(self, signature: str) -> Sequence[str]:
        config = {"encoding": "base64", "commitment": CONFIRMED, "maxSupportedTransactionVersion": 0}
        try:
            reply = await self.rpc.call("getTransaction", signature, config)
        except (NoEndpoint, RpcRefused):
            return ()
        match reply:
            case {"meta": {"logMessages": logs}}:
                return tuple(map(str, logs)) if isinstance(logs, list) else ()
        return ()


def _has_reached(status: SignatureStatus, level: str) -> bool:
    return status.level in (level, "finalized")


READ_HEIGHT: Final = replies.reads(replies.U64, "getBlockHeight")
READ_TRIAL: Final = replies.reads(replies.Answer[SimulationReply], "simulateTransaction")
