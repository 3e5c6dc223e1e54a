"""The numbers that programs refuse with: Anchor's, which say what check of an account failed, and their own."""

from enum import IntEnum


class Anchor(IntEnum):
    UNKNOWN_INSTRUCTION = 101
    NOT_UNDERSTOOD = 102
    NOT_WRITABLE = 2_000
    BROKEN_LINK = 2_001  # an account that another one does not name
    NOT_SIGNED = 2_002
    BAD_OWNER = 2_004
    BAD_SEEDS = 2_006
    BAD_CLOSE = 2_011
    BAD_ADDRESS = 2_012
    NOT_ZERO = 2_013
    DUPLICATE = 2_040
    WRONG_KIND = 3_002
    NO_ACCOUNT = 3_003  # its bytes are too few for one of the kind
    MISSING = 3_005
    NOT_MUTABLE = 3_006
    WRONG_OWNER = 3_007
    WRONG_PROGRAM = 3_008
    NOT_SIGNER = 3_010
    EMPTY = 3_012


CoordinatorError = IntEnum(
    "CoordinatorError",
    "MALFORMED WRONG_SIZE WRONG_VERSION NOT_EMPTY INVALID_TEXTS NOT_OWNER NOT_HALTED UNCOLLECTED NOT_AUTHORIZED "
    "NOT_FULL NO_EVIDENCE UNPROVEN UNREADABLE_SLOTS NOT_FREED",
    start=6_100,
)
AuthorizerError = IntEnum(
    "AuthorizerError", "ACTIVE TOO_EARLY NOT_GRANTOR NOT_GRANTEE SCOPE_LENGTH TOO_MANY ZERO_DELEGATE", start=6_000
)
TreasurerError = IntEnum(
    "TreasurerError",
    "NOT_OWNER MAY_NOT_CLAIM NOT_CLAIMABLE TOO_LITTLE OWED_TO_MEMBERS POINTS_OWED FOREIGN_POINTS FORMER_RUN NOT_CLOSED "
    "FOREIGN_MINT NOT_OWN NOT_ASSOCIATED TOO_MUCH",
    start=6_000,
)
