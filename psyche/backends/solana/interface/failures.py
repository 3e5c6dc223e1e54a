"""Why a transaction failed, as errors that say what to do: those of the programs by number, those of the chain by name.

Errors come as JSON, for example `{"InstructionError": [1, {"Custom": 6002}]}`. The sentences for errors of our own
programs stand in the programs' IDLs.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM
from solders.token import ID as TOKEN

from psyche.backends.solana.interface.addresses import ProgramIds, get_program_ids
from psyche.backends.solana.interface.idl import load_program
from psyche.core.state.errors import REFUSALS, CoordinatorError
from psyche.errors import BackendError

_UPDATE: Final = "the program was called with other accounts than it expects; use the same version as the program"
# Of programs that are part of the chain.
PROGRAMS: Final[dict[str, dict[int, str]]] = {
    "system": {
        0: "the account exists already; take a new key for it",
        1: "the wallet has too few lamports for the deposit; send it some",
        2: "the account cannot belong to this program; report this error",
        3: "the account would be larger than the chain allows; report this error",
        4: "the account's address does not follow from its seeds; report this error",
        5: "the address was made with other seeds; report this error",
    },
    "token": {
        0: "the token account has too few lamports for its deposit; send it some",
        1: "the token account holds fewer tokens than that; pay less, or top it up",
        2: "this is no mint; name the address of the token",
        3: "the token account is of another token; name one of the same token",
        4: "the token account belongs to another wallet; sign with its owner",
        17: "the token account is frozen; ask the issuer of the token",
    },
}
# Anchor's numbers that users meet, with Anchor's names.
ANCHOR: Final[dict[int, tuple[str, str]]] = {
    101: (
        "InstructionFallbackNotFound",
        "the program does not know this instruction; use the version it was built for",
    ),
    102: ("InstructionDidNotDeserialize", "the program cannot read the instruction; use the version it was built for"),
    2_000: ("ConstraintMut", _UPDATE),
    2_001: ("ConstraintHasOne", "an account belongs to another run or key than the others; check run id and wallet"),
    2_002: ("ConstraintSigner", "a signature is missing; sign with the key that the command asks for"),
    2_003: ("ConstraintRaw", "an account is not the one that belongs here; check run id and addresses"),
    2_004: ("ConstraintOwner", "an account belongs to another program; check the addresses"),
    2_006: ("ConstraintSeeds", "an account's address does not follow from the run; check run id, owner and index"),
    2_012: ("ConstraintAddress", "an account is not the one that the run names; check run id and addresses"),
    2_014: ("ConstraintTokenMint", "the token account is of another token; name one of the run's token"),
    2_015: ("ConstraintTokenOwner", "the token account belongs to another wallet; name one of the right owner"),
    3_001: ("AccountDiscriminatorNotFound", "an account is empty; check that the run exists on this cluster"),
    3_002: ("AccountDiscriminatorMismatch", "an account is of another kind; check the addresses"),
    3_003: ("AccountDidNotDeserialize", "an account cannot be read; use the version that the program was built for"),
    3_007: ("AccountOwnedByWrongProgram", "an account belongs to another program; check the cluster and the addresses"),
    3_008: ("InvalidProgramId", "another program stands where one of ours belongs; check the cluster"),
    3_010: ("AccountNotSigner", "a signature is missing; sign with the key that the command asks for"),
    3_012: ("AccountNotInitialized", "an account does not exist; check run id and cluster, or create it first"),
    4_100: (
        "DeclaredProgramIdMismatch",
        "the program lies at another address than it was built for; check the cluster",
    ),
}
# Other numbers by the kind of fault to which Anchor gives a range.
ANCHOR_KINDS: Final = {
    range(100, 1_000): "the program cannot read the instruction; use the version that the program was built for",
    range(1_000, 2_000): "the program refuses a call of its own; use the version that the program was built for",
    range(2_000, 3_000): "an account breaks a rule of the instruction; check run id, wallet and addresses",
    range(3_000, 4_000): "an account is missing or of another kind; check run id, cluster and addresses",
    range(4_000, 6_000): "the program cannot run as it is deployed; check the cluster",
}
# Of an instruction, by the chain's name.
INSTRUCTION: Final = {
    "ComputationalBudgetExceeded": "the instruction needs more compute units than it got; try again",
    "ProgramFailedToComplete": "the program stopped; try again, and if it stays so, report it",
    "MissingRequiredSignature": "a signature is missing; sign with the key that the command asks for",
    "InsufficientFunds": "the wallet has too few lamports; send it some",
    "UnsupportedProgramId": "the program is not deployed on this cluster; check --rpc",
    "IncorrectProgramId": "another program stands where one of ours belongs; check the cluster",
    "InvalidAccountOwner": "an account belongs to another program; check the cluster and the addresses",
    "AccountAlreadyInitialized": "the account exists already; take a new key for it",
    "UninitializedAccount": "an account does not exist; check run id and cluster, or create it first",
    "InvalidInstructionData": "the program cannot read the instruction; use the version that the program was built for",
}
# Of a whole transaction, by the chain's name.
CHAIN: Final = {
    "AccountNotFound": "the wallet has no lamports on this cluster; send it some",
    "InsufficientFundsForFee": "the wallet has too few lamports for the fee; send it some",
    "InsufficientFundsForRent": "too few lamports would be left for the deposit of an account; send the wallet some",
    "ProgramAccountNotFound": "the program is not deployed on this cluster; check --rpc",
    "InvalidProgramForExecution": "the program is not deployed on this cluster; check --rpc",
    "InvalidAccountForFee": "the wallet is no plain account, so it cannot pay fees; take another one",
    "SignatureFailure": "a signature is wrong; report this error",
    "MaxLoadedAccountsDataSizeExceeded": "the accounts are larger than the transaction says; report this error",
    "AccountInUse": "the chain is busy with one of the accounts; try again",
    "WouldExceedMaxAccountCostLimit": "the chain is busy with one of the accounts; try again",
    "WouldExceedMaxBlockCostLimit": "the chain is busy; try again",
    "ClusterMaintenance": "the cluster is being maintained; try again later",
}


REFUSAL_BASE: Final = 6_000  # errors of a program's own start here
_FAILED_LINE: Final = re.compile(r"Program (\w{32,44}) failed: ")
_ANCHOR_LINE: Final = re.compile(r"AnchorError (?:caused by account: (\w+)\.)?.*Error Number: (\d+)\.")
# The rules that sentences of the coordinator's IDL name, for those who write programs; a test holds the table to it.
RULES: Final = {
    6_002: "T7", 6_005: "W4", 6_006: "W4", 6_007: "K3", 6_009: "S8, S10", 6_010: "S8", 6_011: "H4", 6_012: "S10",
    6_013: "M4", 6_016: "M1, M2", 6_017: "M4", 6_018: "M5", 6_019: "M6", 6_020: "R7", 6_021: "P9", 6_022: "M11",
    6_024: "V9", 6_025: "V12", 6_110: "R7", 6_111: "R7",
}  # fmt: skip
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
        if name != "coordinator":
            return ProgramRefused(name, number, *known)
        text = known[1].replace(f" ({RULES.get(number)})", "")
        refusal = REFUSALS.get(number - REFUSAL_BASE)
        return refusal(text) if refusal else ProgramRefused(name, number, known[0], text)
    if name in PROGRAMS and number in PROGRAMS[name]:
        kind = WalletEmpty if (name, number) == ("system", 1) else TransactionFailed
        return kind(PROGRAMS[name][number], f"{name} {number}")
    if number < REFUSAL_BASE:
        about = f" (account {account})" if account else ""
        told = ANCHOR.get(number) or next(
            (("Anchor", text) for kind, text in ANCHOR_KINDS.items() if number in kind), None
        )
        if told:
            return ProgramRefused(name, number, told[0], f"{told[1]}{about}")
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
