"""A second look at runs on a chain: core carries out the coordinator's instructions, and must come to the same bytes.

replay = RunReplay(slot_hashes)    # where a record of a chain begins
replay.add_slot(slot, hash)        # each complete slot
replay.carry_out(call)             # each instruction that took effect; raises what differs
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby
from typing import Final

from solders.pubkey import Pubkey

from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.encoding.tables import ACCOUNT
from psyche.core.rules.apply import apply
from psyche.core.rules.rounds import RECORDED_SLOTS
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.state import Coordinator
from psyche.errors import PsycheError, WireError
from psyche.localchain.coordinator_calls import CoordinatorCall

SHOWN_FIELDS: Final = 12
SHOWN_BYTES: Final = 16


class ReplayDifference(PsycheError):
    """An account is not what core makes of the chain's instructions."""


@dataclass(frozen=True)
class ChainCall(CoordinatorCall):
    """An instruction that took effect.

    Args:
        slot, now: where the chain stood; `now` in unix seconds.
        after: the run's account after it; empty: it is gone; None: nobody has seen it.
        signature: of its transaction.
    """

    slot: int = 0
    now: int = 0
    after: bytes | None = None
    signature: str = ""


@dataclass
class ReplayedRun:
    """A run as core has it. `state` is None once the run is closed."""

    run_id: str
    account: Pubkey
    state: Coordinator | None
    first_nonce: int = 0
    nonce: int = 0
    compared: int = 0
    unseen: int = 0
    calls: Counter[str] = field(default_factory=Counter[str])


class RunReplay:
    """Replays every run of a chain. `slot_hashes` are those that programs can read at the start, oldest first."""

    def __init__(self, slot_hashes: Iterable[tuple[int, bytes]]) -> None:
        self.runs: dict[Pubkey, ReplayedRun] = {}
        self._closed: list[ReplayedRun] = []
        self._hashes = deque(slot_hashes, maxlen=RECORDED_SLOTS)

    def get_runs(self) -> list[ReplayedRun]:
        """All runs, closed ones first."""
        return [*self._closed, *self.runs.values()]

    def add_slot(self, slot: int, raw: bytes) -> None:
        """A slot is complete, and programs can read its hash."""
        self._hashes.append((slot, raw))

    def add_run(self, account: Pubkey, raw: bytes) -> None:
        """A run that was there before the record begins; WireError if it is none."""
        state = decode_state(raw)
        self.runs[account] = ReplayedRun(state.run_id, account, state, state.nonce, state.nonce)

    def carry_out(self, call: ChainCall) -> None:
        """Carry out an instruction, and compare the run's account.

        Raises:
            ReplayDifference: it is another than core makes of it, or core refuses the instruction.
        """
        run = self._find(call)
        run.calls[call.name] += 1
        where = f"run {run.run_id!r}, instruction {run.calls.total()}, {call.name} in slot {call.slot}"
        where += f", transaction {call.signature}"
        try:
            self._apply(run, call)
        except (CoordinatorError, WireError) as error:
            raise ReplayDifference(f"{where}: the chain took it, and core refuses it: {error}") from error
        made = b"" if run.state is None else encode_state(run.state)
        if call.after is None:
            run.unseen += 1
        elif call.after != made:
            lines = [f"{where}, after nonce {run.nonce}:", *describe_difference(call.after, made)]
            raise ReplayDifference("\n".join(lines))
        else:
            run.compared += 1
        run.nonce = run.nonce if run.state is None else run.state.nonce

    def _find(self, call: ChainCall) -> ReplayedRun:
        if not call.name:
            raise ReplayDifference(f"slot {call.slot}: an instruction that this version does not know")
        if call.name == "init_coordinator":
            state = _begin(call)
            self.runs[call.account] = ReplayedRun(state.run_id, call.account, state)
        if call.account not in self.runs:
            raise ReplayDifference(f"slot {call.slot}: {call.name} of account {call.account}, whose run never began")
        return self.runs[call.account]

    def _apply(self, run: ReplayedRun, call: ChainCall) -> None:
        if call.name == "free_coordinator":
            run.state = None
            self._closed.append(self.runs.pop(call.account))
        elif call.name != "init_coordinator":
            assert run.state is not None, "closed runs are in another list"
            apply(run.state, call.now, call.slot, bytes(call.keys[0]), call.read_message(run.state, self._hashes))


def describe_difference(on_chain: bytes, made: bytes) -> list[str]:
    """How an account differs from what core makes of it, a line for each field."""
    if len(on_chain) != len(made):
        return [f"  the account has {len(on_chain):,} bytes on the chain, and {len(made):,} in core"]
    found = list(_find_fields(on_chain, made))
    lines: list[str] = []
    for name, start, end in found[:SHOWN_FIELDS]:
        shown = slice(start, min(end, start + SHOWN_BYTES))
        lines.append(f"  {name}: {on_chain[shown].hex()} on the chain, {made[shown].hex()} in core")
    return lines if len(found) <= SHOWN_FIELDS else [*lines, f"  and {len(found) - SHOWN_FIELDS:,} fields more"]


def _find_fields(on_chain: bytes, made: bytes) -> Iterator[tuple[str, int, int]]:
    """The fields that differ, each with the first byte that does and the end of the last one."""
    places = (at for at, pair in enumerate(zip(on_chain, made, strict=True)) if pair[0] != pair[1])
    for name, found in groupby(places, ACCOUNT.locate):
        offsets = list(found)
        yield name, offsets[0], offsets[-1] + 1


def _begin(call: ChainCall) -> Coordinator:
    params = call.read_arguments()["params"]
    where = max(call.now, 0).to_bytes(8, "little") + call.slot.to_bytes(8, "little")
    uid = sha256(bytes(call.account) + params["run_id"].encode() + where).digest()
    return Coordinator(run_id=params["run_id"], run_uid=uid, client_version=params["client_version"])
