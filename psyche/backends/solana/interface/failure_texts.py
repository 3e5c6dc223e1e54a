"""The sentences for errors of the chain and its own programs, and of Anchor, by number or by the chain's name.

Those of our programs stand in the programs' IDLs.
"""

from typing import Final, NamedTuple


class NumberRange(NamedTuple):
    """A range of error numbers that Anchor gives to one kind of fault."""

    first: int
    last: int
    text: str


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
ANCHOR_KINDS: Final = (
    NumberRange(100, 999, "the program cannot read the instruction; use the version that the program was built for"),
    NumberRange(1_000, 1_999, "the program refuses a call of its own; use the version that the program was built for"),
    NumberRange(2_000, 2_999, "an account breaks a rule of the instruction; check run id, wallet and addresses"),
    NumberRange(3_000, 3_999, "an account is missing or of another kind; check run id, cluster and addresses"),
    NumberRange(4_000, 5_999, "the program cannot run as it is deployed; check the cluster"),
)
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
