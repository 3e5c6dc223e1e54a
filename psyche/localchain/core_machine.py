"""Transactions without a virtual machine: `psyche.core` carries out the coordinator's instructions.

It is fast, and gives the same for the same input. It knows runs and lamports; there are no other programs, every wallet
may join, and signatures are not checked but for those of evidence.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from solders.account import Account
from solders.compute_budget import ID as COMPUTE_BUDGET
from solders.hash import Hash
from solders.message import Message as TransactionMessage
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM
from solders.transaction import VersionedTransaction

from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.backends.solana.interface.coordinator import ED25519
from psyche.backends.solana.member.view import copy_record
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.encoding.gossip import BODIES, PREFIX, RESULT_TAG
from psyche.core.rules.apply import BY_TYPE, Sender, apply
from psyche.core.rules.rounds import RECORDED_SLOTS
from psyche.core.state.errors import REFUSALS, CoordinatorError
from psyche.core.state.gossip import Gossip, Result
from psyche.core.state.limits import MAX_CLIENTS, SIGNED_BYTES
from psyche.core.state.messages import Join, Message, ReclaimSlot, ReportEquivocation
from psyche.core.state.state import Coordinator, SlotState
from psyche.errors import WireError
from psyche.localchain.blocks import Effect
from psyche.localchain.coordinator_calls import CoordinatorCall
from psyche.localchain.machine import Execution
from psyche.localchain.transactions import compute_fee, take_message
from psyche.wire.crypto import verify

UNITS: Final = 50_000  # that every transaction counts for
RUN_LAMPORTS: Final = 1_150_000_000  # of a run's account: about what a chain asks for
REFUSAL_BASE: Final = 6_000
# The programs' own refusals, as their IDLs number them.
UNKNOWN_CALL, MALFORMED, NOT_OWNER, NOT_FULL, UNPROVEN, NOT_SIGNER = 101, 6_100, 6_105, 6_109, 6_111, 3_010
_NUMBERS: Final = {kind: REFUSAL_BASE + number for number, kind in REFUSALS.items()}
_HEAD_BYTES, _ENTRY_BYTES = 2, 14  # of what the ed25519 program checks


class _Refused(Exception):
    """A program refuses an instruction; the argument is the error's number."""


class _Run:
    """A run, and its account's bytes, which are encoded when somebody wants them."""

    def __init__(self, owner: bytes, state: Coordinator) -> None:
        self.owner, self.state = owner, state
        self._raw: bytes | None = None

    @property
    def raw(self) -> bytes:
        if self._raw is None:
            self._raw = encode_state(self.state)
        return self._raw

    def restore(self, raw: bytes) -> None:
        self.state, self._raw = decode_state(raw), raw

    def note_change(self) -> None:
        self._raw = None


class CoreMachine:
    """A `Machine` over the state machine; `on_effect` is called with each message that takes effect."""

    def __init__(self) -> None:
        self.on_effect: list[Callable[[Effect], None]] = []
        self._runs: dict[Pubkey, _Run] = {}
        self._accounts: dict[Pubkey, Account] = {}
        self._slot, self._unix = 0, 0
        self._recorded: deque[tuple[int, bytes]] = deque(maxlen=RECORDED_SLOTS)  # oldest first

    def add_run(self, key: Pubkey, owner: bytes, state: Coordinator) -> None:
        """Begin a run as it is; the state is owned from now on, and `owner` is the wallet that may command it."""
        self._runs[key] = _Run(owner, state)

    def read_run(self, key: Pubkey) -> bytes:
        """The account's bytes, the same object until they change; empty if the run is gone."""
        run = self._runs.get(key)
        return b"" if run is None else run.raw

    def get_account(self, key: Pubkey) -> Account | None:
        if key in self._runs:
            return Account(RUN_LAMPORTS, self._runs[key].raw, COORDINATOR)
        return self._accounts.get(key)

    def get_lamports(self, key: Pubkey) -> int:
        account = self._accounts.get(key)
        return RUN_LAMPORTS if key in self._runs else 0 if account is None else account.lamports

    def put_account(self, key: Pubkey, account: Account) -> None:
        if key not in self._runs:
            self._accounts[key] = account
        elif account.owner == COORDINATOR:
            self._runs[key].restore(bytes(account.data))
        else:
            del self._runs[key]

    def get_program_accounts(self, program: Pubkey) -> list[tuple[Pubkey, Account]]:
        keys = (*self._runs, *self._accounts)
        return [(key, one) for key in keys if (one := self.get_account(key)) is not None and one.owner == program]

    def get_deposit(self, size_bytes: int) -> int:
        return 6_960 * (size_bytes + 128)

    def begin_slot(self, slot: int, unix: int, slot_hashes: Sequence[tuple[int, Hash]]) -> None:
        self._slot, self._unix = slot, unix
        if slot_hashes and (not self._recorded or self._recorded[-1][0] < slot_hashes[0][0]):
            newest, hash_ = slot_hashes[0]
            self._recorded.append((newest, bytes(hash_)))

    def execute(self, transaction: VersionedTransaction) -> Execution:
        message = take_message(transaction)
        payer, fee = message.account_keys[0], compute_fee(message)
        lamports = self.get_lamports(payer)
        if lamports < fee:
            return Execution("InsufficientFundsForFee" if lamports else "AccountNotFound")
        self._accounts[payer] = Account(lamports - fee, b"", SYSTEM)
        effects: list[Effect] = []
        error = self._carry_out(transaction, self._runs, effects)
        for effect in effects if error is None else ():
            for tell in self.on_effect:
                tell(effect)
        return Execution(error, units=UNITS, inner=[])

    def simulate(self, transaction: VersionedTransaction, *, is_verified: bool) -> Execution:
        del is_verified
        return self.simulate_on({key: run.raw for key, run in self._runs.items()}, transaction)

    def simulate_on(self, accounts: Mapping[Pubkey, bytes], transaction: VersionedTransaction) -> Execution:
        """Try a transaction on runs that have these accounts."""
        runs = {key: _Run(self._runs[key].owner, copy_record(raw)) for key, raw in accounts.items()}
        return Execution(self._carry_out(transaction, runs, []), units=UNITS, inner=[])

    def _carry_out(
        self, transaction: VersionedTransaction, runs: Mapping[Pubkey, _Run], effects: list[Effect]
    ) -> dict[str, Any] | None:
        """Carry out all instructions of a transaction, or none; return its error."""
        message = take_message(transaction)
        keys, calls = message.account_keys, list[tuple[int, CoordinatorCall]]()
        for place, one in enumerate(message.instructions):
            if keys[one.program_id_index] == COORDINATOR:
                found = CoordinatorCall(bytes(one.data), tuple(keys[at] for at in bytes(one.accounts)))
                calls.append((place, found))
            elif keys[one.program_id_index] not in (COMPUTE_BUDGET, ED25519):
                return {"InstructionError": [place, "UnsupportedProgramId"]}
        before: tuple[_Run, bytes] | None = None
        for place, call in calls:
            try:
                run = _find_run(call, runs)
                if before is None and len(calls) > 1:
                    before = run, run.raw
                effects += self._apply(run, call, message, place, bytes(transaction.signatures[0]))
            except (CoordinatorError, WireError, _Refused) as error:
                if before is not None:
                    before[0].restore(before[1])
                return {"InstructionError": [place, {"Custom": _find_number(error)}]}
        return None

    def _apply(
        self, run: _Run, call: CoordinatorCall, transaction: TransactionMessage | MessageV0, place: int,
        signature: bytes,
    ) -> list[Effect]:  # fmt: skip
        message, sender = call.read_message(run.state, self._recorded), bytes(call.keys[0])
        _check(run, message, sender, transaction, place)
        if not apply(run.state, self._unix, self._slot, sender, message):
            return []
        run.note_change()
        return [Effect(message, sender, self._slot, self._unix, signature)]


def _find_run(call: CoordinatorCall, runs: Mapping[Pubkey, _Run]) -> _Run:
    if not call.name or call.name in ("init_coordinator", "free_coordinator", "collect"):
        raise _Refused(UNKNOWN_CALL)
    if call.account not in runs:
        raise _Refused(MALFORMED)
    return runs[call.account]


def _find_number(error: Exception) -> int:
    if isinstance(error, _Refused):
        return error.args[0]
    return _NUMBERS.get(type(error), MALFORMED)  # type: ignore[arg-type]


def _check(run: _Run, message: Message, sender: bytes, transaction: TransactionMessage | MessageV0, place: int) -> None:
    """What the programs check before the rules do: who signed, and what was proven."""
    if BY_TYPE[type(message)].sender is Sender.OWNER and sender != run.owner:
        raise _Refused(NOT_OWNER)
    if isinstance(message, ReclaimSlot) and _has_room(run.state):
        raise _Refused(NOT_FULL)
    if isinstance(message, Join):
        signers = transaction.account_keys[: transaction.header.num_required_signatures]
        if Pubkey(message.p2p) not in signers:
            raise _Refused(NOT_SIGNER)  # M1
    if isinstance(message, ReportEquivocation):
        before = transaction.instructions[place - 1] if place else None
        is_check = before is not None and transaction.account_keys[before.program_id_index] == ED25519
        if before is None or not is_check or not _is_proven(run.state, message, bytes(before.data)):
            raise _Refused(UNPROVEN)  # R7


def _has_room(state: Coordinator) -> bool:
    slots = state.registry.slots
    return len(slots) < MAX_CLIENTS or any(slot.state is SlotState.FREE for slot in slots)


def _is_proven(state: Coordinator, report: ReportEquivocation, checked: bytes) -> bool:
    """R7: the member signed two results of the round, with different commitments."""
    if checked[:1] != b"\2" or report.member >= len(state.clients):
        return False
    named = Gossip(state.run_uid, report.epoch, report.height, report.member, Result(bytes(32), b""), b"")
    head = RESULT_TAG + PREFIX.write(named)
    assert len(head) + BODIES[Result].size == SIGNED_BYTES
    key, messages = state.clients[report.member].p2p, list[bytes]()
    for number in range(2):
        entry = checked[_HEAD_BYTES + number * _ENTRY_BYTES :][:_ENTRY_BYTES]
        signature_at, _, key_at, _, message_at, size, _ = (
            int.from_bytes(entry[at : at + 2], "little") for at in range(0, _ENTRY_BYTES, 2)
        )
        message, signature = checked[message_at:][:size], checked[signature_at:][:64]
        if checked[key_at:][:32] != key or not message.startswith(head) or not verify(key, message, signature):
            return False
        messages.append(message)
    return messages[0] != messages[1]
