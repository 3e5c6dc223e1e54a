"""Every size and count of the protocol, with the reason for it."""

from typing import Final

MAX_CLIENTS: Final = 256  # members of an epoch and slots of the registry: bitmaps of 32 bytes
MAX_WITNESSES: Final = 32  # records of a round: as many as one transaction can compare
STORED_ROUNDS: Final = 4  # ring of rounds: overlap needs three, plus one for late readers
MAX_AUDITS: Final = 32  # audits of a round
MAX_CHALLENGES: Final = 16  # open challenges of a run
FALSE_CHALLENGE_LIMIT: Final = 2  # accusations that a jury finds false, until the accuser is ejected (V12)
MAX_CLAIMS: Final = 64  # claims of one collection, which must fit into one record of a TCP server's journal
MAX_START_CANDIDATES: Final = 4  # digests that compete for `certified` in a first Warmup

BLOOM_BITS: Final = 2_560
BLOOM_HASHES: Final = 7
BLOOM_BIT_CAP: Final = 1_400  # 256 items set 1,289 bits on average; a filter with more than this is a lie

EVICT_AFTER_ROUNDS: Final = 2
LATE_LIMIT_ROUNDS: Final = 3
GOOD_STREAK_ROUNDS: Final = 8
LONGEST_STRIKE_EPOCHS: Final = 4  # H5
LONGEST_PROBATION_EPOCHS: Final = 64  # M10
STRAGGLER_PERCENT: Final = 150
VOID_LIMIT_ROUNDS: Final = 2
DIGEST_LIMIT_ROUNDS: Final = 2
BEHIND_LIMIT_ROUNDS: Final = 2
MAX_INNER_STEPS: Final = 2_048  # with 256 members, sums of weighted values in units of 2^-32 stay below 2^53
MAX_OUTER_RATE: Final = 16
FULL_DIGEST_EVERY_HEIGHTS: Final = 64
WITNESS_SILENCE_LIMIT: Final = 2
WARMUP_FAILURE_LIMIT: Final = 2
WARMUP_FAILURE_LIMIT_OLD_CHECKPOINT: Final = 10
MIN_STRAGGLER_SLACK_S: Final = 2
FOLLOW_WINDOW_S: Final = 5  # W6(b): a witness that follows a root may leave out payloads that arrived this recently

HASH_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
SHUFFLE_ROUNDS: Final = 90  # swap-or-not
RUN_ID_BYTES: Final = 32
NAME_BYTES: Final = 64
DESCRIPTION_BYTES: Final = 280
CLIENT_VERSION_BYTES: Final = 96
STRING_BYTES: Final = 64
URL_BYTES: Final = 192
LOCAL_PATH_BYTES: Final = 128
METADATA_BYTES: Final = 256  # witness metadata, never stored
HEADER_BYTES: Final = 448
SIGNED_BYTES: Final = 87
NO_UPLOADER: Final = 65_535
NOBODY: Final = 65_535  # the target and the piece of a verifier that found nothing
STATE_BYTES: Final = 165_192
MAX_ADDRESSES: Final = 8
MAX_BOOTSTRAP: Final = 4  # addresses of a run's nodes on record
BOOTSTRAP_BYTES: Final = 128  # length of one address
MAX_COOLDOWN_SOURCES: Final = 4  # sources of weights that the record keeps (S10)
MAX_MESSAGE_BYTES: Final = 4_096  # gossip
FULL_DIGEST_MAX_PARAMETERS: Final = 100_000_000
U8_MAX: Final = 255  # counters on record saturate instead of wrapping
U16_MAX: Final = 65_535
U32_MAX: Final = (1 << 32) - 1
U64_MAX: Final = (1 << 64) - 1
MAX_DATA_INDEX: Final = (1 << 63) - 1  # samples; a run that could exceed this is refused
MAX_HEIGHT: Final = U32_MAX - 1  # the record also holds height + 1
MAX_EPOCH_ROUNDS: Final = 1 << 31  # rounds with data; drain rounds and their repetitions come on top
MAX_NONCE: Final = 1 << 62  # a million changes a second for 146,000 years
MAX_TIME_S: Final = U32_MAX  # the longest time-out of a configuration: 136 years
RECONNECT_S: Final = 15  # a lost connection counts as absence only after this time (H6, K2)
