"""The sentences for errors of transactions, by program and number or by the chain's name.

Names and sentences of our programs are those of their IDLs, without the numbers of rules; `tests/chain` compares them.
"""

from typing import Final, NamedTuple


class NumberRange(NamedTuple):
    """A range of error numbers that Anchor gives to one kind of fault."""

    first: int
    last: int
    text: str


# Of our programs: by program and number, name and sentence.
OWN: Final[dict[str, dict[int, tuple[str, str]]]] = {
    "coordinator": {
        6_000: ("Halted", "The run is new, finished or paused; wait until its owner resumes it"),
        6_001: ("InvalidRunState", "The message is not allowed in the run's current state; read the account again"),
        6_002: (
            "WrongRound",
            "The message names an epoch and round that are not running; read the account again",
        ),
        6_003: ("NoActiveRound", "The round does not exist yet or no longer exists"),
        6_004: (
            "UnknownMember",
            "There is no such member, or none of its keys signed; sign with the wallet or p2p key that joined",
        ),
        6_005: (
            "InvalidWitness",
            "The sender is not an elected witness of this round, or its report breaks a rule",
        ),
        6_006: ("InvalidBloom", "The bloom filter has more bits set than its items can set"),
        6_007: ("DuplicateWitness", "The member has already reported on this round, or is ready already"),
        6_008: ("WitnessesFull", "All witness records of the round are in"),
        6_009: ("DigestMismatch", "The digest differs from the one on record; load the certified weights"),
        6_010: (
            "TooManyCandidates",
            "A fifth digest competes for the start of the run; load the configured weights",
        ),
        6_011: ("InvalidHealthCheck", "The record does not support the accusation"),
        6_012: (
            "InvalidCheckpoint",
            "The checkpoint cannot be recorded as a source: its kind, its name or a repetition",
        ),
        6_013: (
            "InvalidWithdraw",
            "There is nothing to withdraw: the member is not Healthy, or has no join to take back",
        ),
        6_014: ("InvalidCommitteeSelection", "The numbers of an election contradict each other"),
        6_015: ("CannotResume", "The run is neither paused nor new, so it cannot be resumed"),
        6_016: ("InvalidJoin", "The join breaks a rule: its key is zero, or another slot holds the p2p key"),
        6_017: ("ClientsFull", "No slot is free; free an idle one by reclaim_slot"),
        6_018: ("StakeTooLow", "The slot's stake is below the run's min_stake"),
        6_019: ("Banned", "The signer was ejected from this run"),
        6_020: ("InvalidEvidence", "The member is ejected already"),
        6_021: ("CannotUpdate", "The setting cannot change while the run is going; pause it first"),
        6_022: ("InvalidCollection", "The earnings cannot be collected"),
        6_023: ("ConfigRefused", "The run's settings break a rule; psyche validate-config names key and rule"),
        6_100: (
            "Malformed",
            "The instruction's data are not what its kind requires: length, option byte, text, flag or kind",
        ),
        6_101: (
            "CoordinatorAccountIncorrectSize",
            "A coordinator account has 165,192 bytes; create it with exactly that many",
        ),
        6_102: ("UnsupportedVersion", "The account has another version of the layout; use the program that made it"),
        6_103: ("CoordinatorAccountNotEmpty", "The account is not empty; create a fresh one in the same transaction"),
        6_104: (
            "InvalidTexts",
            "A run id has 1 to 32 bytes and a client version at most 96, both without a zero byte",
        ),
        6_105: ("NotOwner", "Only the run's main authority may do this; sign with its key"),
        6_106: ("CloseCoordinatorNotHalted", "The run is going; pause it before freeing it"),
        6_107: ("UncollectedEarnings", "A slot still holds earnings; collect them before freeing the run"),
        6_108: (
            "NotAuthorized",
            "The authorization does not allow this wallet to join; ask the run's join authority for an active one",
        ),
        6_109: ("RegistryNotFull", "A slot is free, so none is reclaimed"),
        6_110: (
            "MissingEvidence",
            "The instruction before this one must be of the ed25519 program, with the two signed results",
        ),
        6_111: ("UnprovenEvidence", "The two results do not prove this member guilty in this round and run"),
        6_112: ("SlotHashesUnreadable", "The chain's slot hashes cannot be read"),
        6_113: ("RunNotFreed", "The run is not freed yet; its earned points may still grow"),
    },
    "authorizer": {
        6_000: ("AuthorizationActiveIsTrue", "The authorization is active: turn it off before closing it"),
        6_001: (
            "AuthorizationClosingConditionsNotReachedYet",
            "The authorization has delegates: it can be closed 30 days after the grantor's last update",
        ),
        6_002: ("SignerIsNotGrantor", "The signer is not the grantor of this authorization"),
        6_003: ("SignerIsNotGrantee", "The signer is not the grantee of this authorization"),
        6_004: ("ScopeLengthIsInvalid", "The scope must have 1 to 32 bytes"),
        6_005: ("DelegatesAreTooMany", "An authorization has at most 256 delegates: remove some first"),
        6_006: ("DelegateIsZero", "The all-zero key cannot be a delegate"),
    },
    "treasurer": {
        6_000: ("SignerIsNotMainAuthority", "Only the run's owner may do this: sign with its main authority"),
        6_001: ("SignerMayNotClaim", "Only the member or the run's owner may claim the member's points"),
        6_002: (
            "PointsAreNotClaimable",
            "These points are more than the member has earned, collected and not yet been paid for",
        ),
        6_003: (
            "CollateralIsInsufficient",
            "The run's token account holds less: claim less, or wait until it is topped up",
        ),
        6_004: (
            "CollateralIsOwed",
            "The rest is owed to members: withdraw at most what the run's token account holds beyond that",
        ),
        6_005: ("PointsAreOwed", "Members have points to claim: pay them before closing the run"),
        6_006: ("EarnedPointsAreForeign", "The earned points are not those of this member in this run"),
        6_007: (
            "ParticipantIsOfFormerRun",
            "The record is of an earlier run at this address: close it, then make a new one",
        ),
        6_008: ("RunIsNotClosed", "The record is needed as long as its run is there"),
        6_009: ("MintIsForeign", "The token account is of another mint than the run's"),
        6_010: (
            "UserCollateralIsNotOwn",
            "The token account does not belong to the member, or somebody else may spend from it",
        ),
        6_011: (
            "UserCollateralIsNotAssociated",
            (
                "The owner can pay a member only to its associated token account, "
                "unless that one is frozen or not its own any more"
            ),
        ),
        6_012: ("TotalOverflow", "A total would exceed 64 bits"),
    },
}
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
