"""The enumerations of the state; their values are part of the encoding."""

from enum import IntEnum, IntFlag
from typing import Final


class RunState(IntEnum):
    UNINITIALIZED = 0
    WAITING_FOR_MEMBERS = 1
    WARMUP = 2
    ROUND_TRAIN = 3
    ROUND_WITNESS = 4
    COOLDOWN = 5
    FINISHED = 6
    PAUSED = 7


class ClientState(IntEnum):
    HEALTHY = 0
    DROPPED = 1
    WITHDRAWN = 2
    EJECTED = 3


class SlotState(IntEnum):
    FREE = 0
    JOINED = 1
    LEAVING = 2
    BANNED = 3
    LEFT = 4  # given up, but the strikes or waits of its signer stay on record (H5, M10)


class AuditStatus(IntEnum):
    """What became of a verifier's audits (V9)."""

    PASSED = 0  # it names nobody
    DOUBTED = 1  # it names a member, and no challenge was opened
    CHALLENGED = 2


class AuditReason(IntEnum):
    """Why a verifier names a member (V10, V11). All but UNCLEAR accuse it."""

    NONE = 0
    UNCLEAR = 1  # a piece is neither right nor clearly wrong
    GRADIENT = 2  # a piece is not the gradient of its samples at the round's weights
    REPEATED = 3  # pieces were unclear too often
    SIGNS = 4  # the payload does not agree with the gradient
    WITHHELD = 5  # the opening was not served
    PATHS = 6  # opened chunks are not under the momentum root
    MOMENTUM = 7  # the momentum before is not that of the result before
    SELECTION = 8  # the payload is not what the momentum after gives
    LINK = 9  # the momentum grew by something else than the gradient


class ChallengeState(IntEnum):
    """The state of an entry of the table of challenges (V12)."""

    FREE = 0
    OPEN = 1
    UNDECIDED = 2  # no quorum of its jury decided in time


class Role(IntEnum):
    VERIFIER = 0
    TRAINER = 1


class StopReason(IntEnum):
    """Why an epoch ends (P1)."""

    NONE = 0
    EPOCH_LENGTH = 1
    TOTAL_STEPS = 2
    PAUSE = 3
    MIN_CLIENTS = 4
    MASS_DROP = 5  # H3
    NO_DIGEST = 6  # S5
    VOID = 7  # P7


class ClientFlag(IntFlag):
    READY = 1
    DIVERGED = 2
    NEWCOMER = 4
    PROBATION = 8  # M10: no credit yet, in an epoch led by members that have some
    CANDIDATE_LOW = 16  # S8: these two bits say which start candidate the member showed
    CANDIDATE_HIGH = 32


class WitnessFlag(IntFlag):
    COMPLETE = 1
    FULL_DIGEST = 2
    NO_DIGEST = 4


class RoundFlag(IntFlag):
    DRAIN = 1
    ROOT = 2
    DIGEST = 4
    FULL = 8
    VOID = 16
    CLOSED = 32
    BY_TIMEOUT = 64


class Architecture(IntEnum):
    HF_LLAMA = 0
    HF_DEEPSEEK = 1
    HF_AUTO = 2
    TORCHTITAN = 3


class DataType(IntEnum):
    PRETRAINING = 0
    FINETUNING = 1


class TokenSize(IntEnum):
    """The size of one token id in a data file; encoded as 0 for two bytes and 1 for four."""

    TWO_BYTES = 0
    FOUR_BYTES = 1


class CheckpointKind(IntEnum):
    EPHEMERAL = 0
    DUMMY = 1
    HUB = 2
    P2P = 3
    GCS = 4
    P2P_GCS = 5
    LOCAL = 6


class DataLocationKind(IntEnum):
    DUMMY = 0
    SERVER = 1
    LOCAL = 2
    HTTP = 3
    WEIGHTED_HTTP = 4
    PREPROCESSED = 5


class HttpLocationKind(IntEnum):
    SINGLE_URL = 0
    NUMBERED_FILES = 1
    GCP = 2


class ScheduleKind(IntEnum):
    CONSTANT = 0
    LINEAR = 1
    COSINE = 2
    WARMUP_STABLE_DECAY = 3


class OptimizerKind(IntEnum):
    DUMMY = 0
    ADAMW = 1
    DISTRO = 2
    LOCAL_STEPS = 3


class InnerOptimizer(IntEnum):
    """What local steps train with between exchanges; `ANEW`: its state is zero at the start of each round."""

    ADAMW = 0
    MUON = 1
    ADAMW_ANEW = 2
    MUON_ANEW = 3


class Lookahead(IntEnum):
    """What DisTrO's look-ahead step follows (V4)."""

    MOMENTUM = 0
    OWN = 1  # the own result in flight, which everybody has


ANEW: Final = (InnerOptimizer.ADAMW_ANEW, InnerOptimizer.MUON_ANEW)
MUON: Final = (InnerOptimizer.MUON, InnerOptimizer.MUON_ANEW)
