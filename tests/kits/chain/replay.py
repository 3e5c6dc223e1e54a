"""A second look at a chain in a box: core carries out all that lands for runs, and must come to the same bytes.

replay = ChainReplay(chain.bank)   # before the first run is made
...
replay.get_state(account)          # what core makes of the run so far
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import base58
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction
from twins.bodies import decode_body

from psyche.chain.addresses import COORDINATOR
from psyche.chain.discriminators import DISCRIMINATOR_BYTES, get_discriminator
from psyche.core.committee.seeds import EXPIRED, Entropy
from psyche.core.encoding.account import encode_model, encode_state
from psyche.core.encoding.tables import CHECKPOINT, CONFIG, MODEL
from psyche.core.rules.apply import KINDS, apply
from psyche.core.state import messages as msg
from psyche.core.state.messages import Message
from psyche.core.state.state import Coordinator, RunState
from psyche.localchain.bank import SLOT_HASHES, Bank, CompleteSlot
from psyche.localchain.history import LandedTransaction
from psyche.localchain.transactions import take_message

_NUMBERS: Final = {kind.name: kind.number for kind in KINDS}
_BY_BODY: Final = {  # instructions whose body is that of a kind of messages
    "withdraw": "withdraw", "leave_run": "leave", "warmup_witness": "warmup_witness", "witness": "witness",
    "health_check": "health_check", "checkpoint": "checkpoint", "report_equivocation": "report_equivocation",
    "set_future_epoch_rates": "set_rates", "reclaim_slot": "reclaim_slot",
    "update_client_version": "update_client_version",
}  # fmt: skip
_OTHERS: Final = ("init_coordinator", "free_coordinator", "join_run", "tick", "set_paused", "update", "collect")
_PLACES: Final = {"join_run": 4, "free_coordinator": 3}  # of the coordinator account; else the third
_NAMES: Final = {get_discriminator("global", name): name for name in (*_BY_BODY, *_OTHERS)}
_HEAD_BYTES: Final = MODEL.size - 3 * CHECKPOINT.size  # of a model: what an update brings
_SOURCE: Final = slice(20, 156)  # the first source of weights in a model


@dataclass(frozen=True)
class Call:
    """An instruction of the coordinator program that took effect, and where the chain stood."""

    name: str
    body: bytes
    keys: tuple[Pubkey, ...]
    slot: int
    now: int

    @property
    def account(self) -> Pubkey:
        return self.keys[_PLACES.get(self.name, 2)]


class ChainReplay:
    """Replays every run that begins on a bank from now on; `checked` counts slots of which each account was compared.

    Raises, in `bank.advance`:
        AssertionError: an account differs from what core makes of the chain's instructions.
    """

    def __init__(self, bank: Bank) -> None:
        self.bank, self.checked, self.calls = bank, 0, 0
        self._states: dict[Pubkey, Coordinator] = {}
        clocks = bank.get_clocks()
        self._hashes = deque(reversed(clocks.slot_hashes), maxlen=SLOT_HASHES)  # oldest first
        bank.on_block.append(self._check)

    def get_state(self, account: Pubkey) -> Coordinator:
        """The state of a run as core has it."""
        return self._states[account]

    def _check(self, block: CompleteSlot) -> None:
        for record in block.records:
            if record.status.error is None:
                for call in _list_calls(record):
                    self._carry_out(call)
        for account, state in self._states.items():
            on_chain = self.bank.get_account(account)
            same = on_chain is not None and bytes(on_chain.data) == encode_state(state)
            assert same, f"slot {block.slot}: account {account} at nonce {state.nonce} is not what core makes of it"
            self.checked += 1
        self._hashes.append((block.slot, bytes(self.bank.get_slot_hash())))

    def _carry_out(self, call: Call) -> None:
        self.calls += 1
        if call.name == "init_coordinator":
            self._states[call.account] = _begin(call)
        elif call.name == "free_coordinator":
            del self._states[call.account]
        else:
            state = self._states[call.account]
            apply(state, call.now, call.slot, bytes(call.keys[0]), self._read(state, call))

    def _read(self, state: Coordinator, call: Call) -> Message:
        special: dict[str, Callable[[], Message]] = {
            "tick": lambda: msg.Tick(self._find_entropy(state)),
            "join_run": lambda: msg.Join(bytes(call.keys[1]), int.from_bytes(call.body, "little")),
            "set_paused": lambda: msg.Pause() if call.body == b"\1" else msg.Resume(),
            "update": lambda: decode_body(_NUMBERS["update"], _complete(state, call.body)),
            "collect": lambda: msg.Collect(((call.body, None),)),
        }
        if call.name in special:
            return special[call.name]()
        return decode_body(_NUMBERS[_BY_BODY[call.name]], call.body)

    def _find_entropy(self, state: Coordinator) -> Entropy:
        """The hash of the first recorded slot from the armed one on (E2)."""
        armed = state.current.entropy_slot
        if state.run_state not in (RunState.WARMUP, RunState.ROUND_WITNESS) or not armed:
            return None
        later = next((raw for slot, raw in self._hashes if slot >= armed), None)
        is_cut = len(self._hashes) == SLOT_HASHES and self._hashes[0][0] > armed
        return EXPIRED if later is not None and is_cut else later


def _list_calls(record: LandedTransaction) -> Iterator[Call]:
    """The coordinator's instructions in the order in which they ran, those of other programs included."""
    inner = {one["index"]: one["instructions"] for one in record.inner}
    message = take_message(VersionedTransaction.from_bytes(record.raw))
    for index, outer in enumerate(message.instructions):
        yield from _read_call(record, outer.program_id_index, bytes(outer.accounts), bytes(outer.data))
        for one in inner.get(index, []):
            data = base58.b58decode(one["data"])
            yield from _read_call(record, one["programIdIndex"], bytes(one["accounts"]), data)


def _read_call(record: LandedTransaction, program: int, accounts: bytes, data: bytes) -> Iterator[Call]:
    name = _NAMES.get(data[:DISCRIMINATOR_BYTES])
    if record.keys[program] == COORDINATOR and name is not None:
        keys = tuple(record.keys[number] for number in accounts)
        yield Call(name, data[DISCRIMINATOR_BYTES:], keys, record.status.slot, record.unix)


def _begin(call: Call) -> Coordinator:
    texts = call.body[64:]  # behind both authorities
    length = int.from_bytes(texts[:4], "little")
    run_id, version = texts[4 : 4 + length], texts[8 + length :]
    where = max(call.now, 0).to_bytes(8, "little") + call.slot.to_bytes(8, "little")
    uid = sha256(bytes(call.account) + run_id + where).digest()
    return Coordinator(run_id=run_id.decode(), run_uid=uid, client_version=version.decode())


def _complete(state: Coordinator, body: bytes) -> bytes:
    """An update with a whole model: the further sources of weights stay if the first one stays."""
    tag = 1 + (CONFIG.size if body[0] else 0)
    if not body[tag]:
        return body
    head, rest = body[tag + 1 : tag + 1 + _HEAD_BYTES], body[tag + 1 + _HEAD_BYTES :]
    old = encode_model(state.model)
    spares = old[_HEAD_BYTES:] if head[_SOURCE] == old[_SOURCE] else bytes(MODEL.size - _HEAD_BYTES)
    return body[: tag + 1] + head + spares + rest
