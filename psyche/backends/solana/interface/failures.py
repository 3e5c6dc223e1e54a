"""Why a transaction failed, as errors that say what to do: those of the programs by number, those of the chain by name.

Errors come as JSON, for example `{"InstructionError": [1, {"Custom": 6002}]}`.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM
from solders.token import ID as TOKEN

from psyche.backends.solana.interface.addresses import ProgramIds, get_program_ids
from psyche.backends.solana.interface.failure_texts import ANCHOR, ANCHOR_KINDS, CHAIN, INSTRUCTION, PROGRAMS
from psyche.backends.solana.interface.idl import load_program
from psyche.core.state.errors import REFUSALS, CoordinatorError
from psyche.errors import BackendError

REFUSAL_BASE: Final = 6_000  # errors of a program's own start here
_FAILED_LINE: Final = re.compile(r"Program (\w{32,44}) failed: ")
_ANCHOR_LINE: Final = re.compile(r"AnchorError (?:caused by account: (\w+)\.)?.*Error Number: (\d+)\.")
_RULES: Final = re.compile(r" \((?:[A-Z]\d+(?:, | to )?)+\)")  # in an IDL's sentence, for those who write programs
_EMPTY: Final = frozenset({"AccountNotFound", "InsufficientFundsForFee", "InsufficientFundsForRent"})


class TransactionFailed(BackendError):
    """A transaction failed for a reason that no rule of the protocol gives; the text says what to do.

    `reason` is the chain's own name of it, empty if there is none.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason


class WalletEmpty(TransactionFailed): ...


class ProgramRefused(TransactionFailed):
    """A program refused an instruction for a reason of its own; `program` is its name, `number` the error's."""

    def __init__(self, program: str, number: int, name: str, text: str) -> None:
        super().__init__(f"{program}: {text} ({name}, {number})", name)
        self.program = program
        self.number = number


class _Failure(NamedTuple):
    program: Pubkey | None
    number: int
    account: str  # that the program's log names


def read_failure(
    error: Any, logs: Sequence[str] = (), programs: Sequence[Pubkey] = ()
) -> CoordinatorError | TransactionFailed:
    """Build the error to raise for a failed transaction.

    Args:
        error: as JSON, of an RPC's answer; anything else is told as it is.
        logs: of the transaction: they tell whether a program failed that another one called.
        programs: of its instructions, in their order.
    """
    match error:
        case {"InstructionError": [int(place), {"Custom": int(number)}]}:
            return _read_custom(_find_failure(place, number, logs, programs))
        case {"InstructionError": [int(place), str(name)]}:
            return _read_instruction(place, name, programs)
        case str(name):
            return _read_chain(name)
        case {"InsufficientFundsForRent": _}:
            return _read_chain("InsufficientFundsForRent")
        case _:
            return TransactionFailed(f"the chain does not take the transaction: {str(error)[:200]}")


def _find_failure(place: int, number: int, logs: Sequence[str], programs: Sequence[Pubkey]) -> _Failure:
    """The program that failed is the first one that the logs name: a called one fails before its caller does."""
    program = programs[place] if 0 <= place < len(programs) else None
    account = ""
    for line in logs:
        if found := _ANCHOR_LINE.search(line):
            account = (found[1] or "") if int(found[2]) == number else ""
        if found := _FAILED_LINE.match(line):
            named = _read_key(found[1])
            return _Failure(program if named is None else named, number, account)
    return _Failure(program, number, account)


def _read_key(text: str) -> Pubkey | None:
    try:
        return Pubkey.from_string(text)
    except ValueError:
        return None


def _name_program(program: Pubkey | None) -> str:
    ours = {address: name for name, address in get_program_ids()._asdict().items()}
    return {**ours, SYSTEM: "system", TOKEN: "token", None: "a program"}.get(program, str(program))


def _read_custom(failure: _Failure) -> CoordinatorError | TransactionFailed:
    program, number, account = failure
    name = _name_program(program)
    if name in ProgramIds._fields and (known := load_program(name).errors.get(number)):
        text = _RULES.sub("", known[1])
        refusal = REFUSALS.get(number - REFUSAL_BASE) if name == "coordinator" else None
        return refusal(text) if refusal else ProgramRefused(name, number, known[0], text)
    if name in PROGRAMS and number in PROGRAMS[name]:
        kind = WalletEmpty if (name, number) == ("system", 1) else TransactionFailed
        return kind(PROGRAMS[name][number], f"{name} {number}")
    if number < REFUSAL_BASE:
        about = f" (account {account})" if account else ""
        title, text = ANCHOR.get(number) or next(
            (("", kind.text) for kind in ANCHOR_KINDS if kind.first <= number <= kind.last), ("", "")
        )
        if text:
            return ProgramRefused(name, number, title or "Anchor", f"{text}{about}")
    return ProgramRefused(
        name, number, "unknown", "refused for a reason that this version does not know; update Psyche"
    )


def _read_instruction(place: int, reason: str, programs: Sequence[Pubkey]) -> TransactionFailed:
    program = programs[place] if 0 <= place < len(programs) else None
    name = _name_program(program)
    text = INSTRUCTION.get(reason, "the program stopped; if it happens again, report it with the command you ran")
    kind = WalletEmpty if reason == "InsufficientFunds" else TransactionFailed
    return kind(f"{name}: {text} ({reason})", reason)


def _read_chain(reason: str) -> TransactionFailed:
    text = CHAIN.get(reason, "the chain does not take the transaction; try again, and if it stays so, report it")
    kind = WalletEmpty if reason in _EMPTY else TransactionFailed
    return kind(f"{text} ({reason})", reason)
