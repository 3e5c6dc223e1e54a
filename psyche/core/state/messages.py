"""Messages to the coordinator: one frozen dataclass each, and what their fields may hold.

A message says what is asked; when it came and who signed it stands beside it (`Context`). The annotation of a
field is the rule that whoever reads a message from outside must hold it to before it is used (`wire.messages`);
what the state of the run allows is the rule's to say. `core.rules.apply.KINDS` has all of them in one table.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypeAlias

from psyche.core.committee.seeds import Entropy
from psyche.core.state.limits import (
    BOOTSTRAP_BYTES,
    CLIENT_VERSION_BYTES,
    HASH_BYTES,
    LOCAL_PATH_BYTES,
    MAX_BOOTSTRAP,
    MAX_CLAIMS,
    MAX_CLIENTS,
    RECONNECT_S,
    U16_MAX,
    U32_MAX,
)
from psyche.core.state.state import Checkpoint, Config, Metadata, Model, Progress, WitnessFlag


class Context(NamedTuple):
    """When a message reaches the coordinator, and from whom."""

    now: int  # unix seconds, within 64 bits
    slot: int  # of the chain; on TCP the clock (E1)
    sender: bytes  # 32-byte signer or p2p key whose signature was checked; zeros where nobody signs


class Between(NamedTuple):
    """A number from `low` to `high`, both included; None: as far as 64 bits go."""

    low: int
    high: int | None = None


class Sized(NamedTuple):
    """Bytes, a text or a list of `low` to `high` bytes, characters or entries."""

    low: int
    high: int


U63: TypeAlias = Annotated[int, Between(0, (1 << 63) - 1)]
Epoch: TypeAlias = Annotated[int, Between(0, U16_MAX)]
Height: TypeAlias = Annotated[int, Between(0, U32_MAX)]
Member: TypeAlias = Annotated[int, Between(0, MAX_CLIENTS - 1)]
Key: TypeAlias = Annotated[bytes, Sized(HASH_BYTES, HASH_BYTES)]
Claim: TypeAlias = tuple[Key, Annotated[int, Between(1)] | None]


@dataclass(frozen=True, slots=True)
class Tick:
    """Do what time or the record demands (T2, T3).

    `entropy` is None while the armed slot has no hash yet, EXPIRED when it can no longer be had, else its
    32 bytes (E5, E6).
    """

    entropy: Annotated[Entropy, Sized(HASH_BYTES, HASH_BYTES)]


@dataclass(frozen=True, slots=True)
class Join:
    """Ask for a place in the next formation; the sender is the signer. A repeat changes nothing (M1 to M3, M5)."""

    p2p: Key
    expires_unix: U63 = 0


@dataclass(frozen=True, slots=True)
class LeaveRun:
    """Give up the sender's slot; a member of the running epoch withdraws with it (M4)."""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Leave the running epoch; in WaitingForMembers take the join back (M4, `member` is not read there)."""

    epoch: Epoch
    member: Member


@dataclass(frozen=True, slots=True)
class WarmupWitness:
    """Say which weights are loaded: ready (S8)."""

    epoch: Epoch
    member: Member
    digest: Key


@dataclass(frozen=True, slots=True)
class WitnessMessage:
    """A witness's report on the attested round (W1); bitmaps are integers, bit i is member i.

    Its bytes are those of `core.encoding.account.encode_witness` everywhere.
    """

    epoch: int
    height: int
    member: int
    flags: WitnessFlag
    at_s: int
    held: int
    heard: int
    missing: int
    broadcast_bloom: bytes  # 320 bytes
    results_root: bytes
    state_digest: bytes
    metadata: bytes = b""  # at most 256 bytes, never stored


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """Accuse a silent witness of the round before `height`, the running one (H4)."""

    epoch: Epoch
    height: Height
    member: Member


@dataclass(frozen=True, slots=True)
class NameCheckpoint:
    """Name a lasting source of the certified weights; `epoch` is the one that certified them (S10)."""

    epoch: Epoch
    digest: Key
    source: Annotated[Checkpoint, Sized(0, LOCAL_PATH_BYTES)]  # the size is that of its texts


@dataclass(frozen=True, slots=True)
class ReportEquivocation:
    """Eject a member that signed two results for one round; the home has checked both signatures (R7)."""

    epoch: Epoch
    height: Height
    member: Member


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause at once before the first round, else after the epoch's drain and Cooldown (P4)."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on; everybody joins again. The first resume starts a run (P4)."""


@dataclass(frozen=True, slots=True)
class Recover:
    """The home was away for `gap_s` seconds: move the run's clocks (K2)."""

    gap_s: U63
    reconnect_s: U63 = RECONNECT_S


@dataclass(frozen=True, slots=True)
class ReclaimSlot:
    """Free the slot that has been idle longest, for a whole epoch at least (M4)."""


@dataclass(frozen=True, slots=True)
class SetRates:
    """Set what the coming epochs pay and slash; None leaves a rate as it is (M7)."""

    earning: U63 | None = None
    slashing: U63 | None = None


@dataclass(frozen=True, slots=True)
class Collect:
    """Take earnings out of the record, for whoever pays them: all of the claims, or none (M11).

    A claim is a signer and how much; None takes all there is, which may be nothing.
    """

    claims: Annotated[tuple[Claim, ...], Sized(1, MAX_CLAIMS)]


@dataclass(frozen=True, slots=True)
class Update:
    """Change what the owner has set; None leaves a part as it is (P9).

    `model` is the whole model with its sources of weights: whoever changes a learning rate hands over
    the sources that are on record.
    """

    config: Config | None = None
    model: Model | None = None
    progress: Progress | None = None
    metadata: Metadata | None = None
    bootstrap: Annotated[tuple[Annotated[str, Sized(0, BOOTSTRAP_BYTES)], ...], Sized(0, MAX_BOOTSTRAP)] | None = None

    @property
    def changes_training(self) -> bool:
        """Whether it touches what members compute with."""
        return any(part is not None for part in (self.config, self.model, self.progress))


@dataclass(frozen=True, slots=True)
class UpdateClientVersion:
    """Ask for another version of the client, while the run is paused or new (P9)."""

    version: Annotated[str, Sized(0, CLIENT_VERSION_BYTES)]


Message: TypeAlias = (
    Tick | Join | LeaveRun | Withdraw | WarmupWitness | WitnessMessage | HealthCheck | NameCheckpoint
    | ReportEquivocation | Pause | Resume | Recover | ReclaimSlot | SetRates | Collect | Update | UpdateClientVersion
)  # fmt: skip
