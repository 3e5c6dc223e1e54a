"""What a transaction caused, as the coordinator program says in the transaction's log.

A line `Program data: BASE64` counts only while the coordinator runs: any program can log these bytes. The lines of a
log that begin and end programs are the chain's own; what a program logs as text has `Program log: ` before it.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, get_args

from solders.pubkey import Pubkey

from psyche.backends.solana.interface.addresses import get_program_id
from psyche.backends.solana.interface.borsh import decode_value
from psyche.backends.solana.interface.idl import DISCRIMINATOR_BYTES, load_program
from psyche.core.state.state import RunState
from psyche.errors import WireError

MAX_DATA_CHARACTERS: Final = 1_024  # no event has as many
_BEGIN: Final = re.compile(r"Program (\w{32,44}) invoke \[(\d{1,2})\]")
_END: Final = re.compile(r"Program (\w{32,44}) (?:success|(failed): .*)", re.DOTALL)
_DATA: Final = "Program data: "


class CollectedEvent(NamedTuple):
    coordinator_account: Pubkey
    signer: Pubkey
    amount: int
    points: int  # all that the signer has collected

    def __str__(self) -> str:
        return f"{self.amount} points of {self.signer} were collected, {self.points} so far"


class EjectedEvent(NamedTuple):
    coordinator_account: Pubkey
    signer: Pubkey
    height: int
    epoch: int
    member: int

    def __str__(self) -> str:
        return (
            f"member {self.member}, {self.signer}, was ejected: it signed two results for height {self.height} "
            f"of epoch {self.epoch}"
        )


class JoinedEvent(NamedTuple):
    coordinator_account: Pubkey
    signer: Pubkey
    p2p: Pubkey

    def __str__(self) -> str:
        return f"wallet {self.signer} joined with the p2p key {bytes(self.p2p).hex()}"


class LeftRunEvent(NamedTuple):
    coordinator_account: Pubkey
    signer: Pubkey

    def __str__(self) -> str:
        return f"wallet {self.signer} gave up its slot"


class StateChangedEvent(NamedTuple):
    coordinator_account: Pubkey
    nonce: int
    step: int
    height: int
    epoch: int
    run_state: int

    def __str__(self) -> str:
        return f"the run is in {self.phase}, epoch {self.epoch}, height {self.height}, step {self.step}"

    @property
    def phase(self) -> str:
        """The name of the state; its number if this version does not know it."""
        known = self.run_state in RunState._value2member_map_
        return RunState(self.run_state).name.lower() if known else f"state {self.run_state}"


class WithdrewEvent(NamedTuple):
    coordinator_account: Pubkey
    sender: Pubkey

    def __str__(self) -> str:
        return f"{self.sender} withdrew"


ChainEvent: TypeAlias = CollectedEvent | EjectedEvent | JoinedEvent | LeftRunEvent | StateChangedEvent | WithdrewEvent


def get_event_name(event: ChainEvent | type[ChainEvent]) -> str:
    """The IDL's name of an event."""
    return (event if isinstance(event, type) else type(event)).__name__.removesuffix("Event")


EVENTS: Final[Mapping[str, Callable[..., ChainEvent]]] = {get_event_name(one): one for one in get_args(ChainEvent)}


def read_events(logs: Sequence[str]) -> tuple[ChainEvent, ...]:
    """The coordinator's events in the log of a transaction; none if it failed.

    A log may be cut off, and an endpoint may leave it out: nothing may depend on finding an event. What cannot be read
    as one is passed over.
    """
    running: list[str] = []
    coordinator = str(get_program_id("coordinator"))
    found: list[ChainEvent] = []
    for line in logs:
        if begin := _BEGIN.fullmatch(line):
            running.append(begin[1])
            if len(running) != int(begin[2]):
                break  # lines are missing: who runs is not known any more
        elif end := _END.fullmatch(line):
            if end[2]:
                return ()
            if not running or running.pop() != end[1]:
                break
        elif line.startswith(_DATA) and running and running[-1] == coordinator:
            found += _read_data(line.removeprefix(_DATA))
    return tuple(found)


def _read_data(text: str) -> Iterator[ChainEvent]:
    if len(text) > MAX_DATA_CHARACTERS:
        return
    try:
        raw = base64.b64decode(text, validate=True)
        if kind := load_program("coordinator").events.get(raw[:DISCRIMINATOR_BYTES]):
            values: dict[str, Any] = decode_value(kind.form, raw[DISCRIMINATOR_BYTES:], kind.name)
            yield EVENTS[kind.name](**values)
    except (binascii.Error, ValueError, WireError):
        return
