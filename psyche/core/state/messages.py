"""Messages to the coordinator: one frozen dataclass per kind, with the allowed range of every field.

A message holds only the request; its time of arrival and its signer are in `Context`. The annotation of a field
gives its allowed values and its bytes (`psyche.core.encoding.bodies`). The handlers check what depends on the run's
state. `psyche.core.rules.apply.KINDS` lists all kinds in one table.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypeAlias

from psyche.core.committee.bloom import BLOOM_BYTES
from psyche.core.committee.seeds import Entropy
from psyche.core.state.limits import (
    BOOTSTRAP_BYTES,
    CLIENT_VERSION_BYTES,
    HASH_BYTES,
    MAX_BOOTSTRAP,
    MAX_CHALLENGES,
    MAX_CLAIMS,
    MAX_CLIENTS,
    METADATA_BYTES,
    RECONNECT_S,
    U16_MAX,
    U32_MAX,
)
from psyche.core.state.state import Checkpoint, Config, Metadata, Model, Progress, WitnessFlag


class Context(NamedTuple):
    """The time and the sender of a message that reached the coordinator."""

    now: int  # unix seconds, within 64 bits
    slot: int  # the chain's slot; a TCP server uses its clock (E1)
    sender: bytes  # 32-byte signer or p2p key with a checked signature; zeros for unsigned messages


class Between(NamedTuple):
    """A number from `low` to `high`, both included; None: the most that 64 bits hold."""

    low: int
    high: int | None = None


class Sized(NamedTuple):
    """A value of `low` to `high` bytes, characters or entries, depending on its type."""

    low: int
    high: int


U64: TypeAlias = Annotated[int, Between(0)]
Epoch: TypeAlias = Annotated[int, Between(0, U16_MAX)]
Height: TypeAlias = Annotated[int, Between(0, U32_MAX)]
Member: TypeAlias = Annotated[int, Between(0, MAX_CLIENTS - 1)]
Bitmap: TypeAlias = Annotated[int, Between(0, (1 << MAX_CLIENTS) - 1)]
Key: TypeAlias = Annotated[bytes, Sized(HASH_BYTES, HASH_BYTES)]
Claim: TypeAlias = tuple[Key, Annotated[int, Between(1)] | None]


class Message:
    """Any message to the coordinator."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Tick(Message):
    """Make the transition that time or the record requires (T2, T3).

    `entropy` is None while the armed slot has no hash yet, EXPIRED when the hash is no longer available, and
    otherwise its 32 bytes (E5, E6).
    """

    entropy: Annotated[Entropy, Sized(HASH_BYTES, HASH_BYTES)]


@dataclass(frozen=True, slots=True)
class Join(Message):
    """Ask for a place in the next formation; the sender is the signer. A repeat changes nothing (M1 to M3, M5)."""

    p2p: Key
    expires_unix: U64 = 0


@dataclass(frozen=True, slots=True)
class LeaveRun(Message):
    """Give up the sender's slot; a member of the running epoch withdraws with it (M4)."""


@dataclass(frozen=True, slots=True)
class Withdraw(Message):
    """Leave the running epoch; in WaitingForMembers, take back the join (M4; `member` is ignored there)."""

    epoch: Epoch
    member: Member


@dataclass(frozen=True, slots=True)
class WarmupWitness(Message):
    """Report ready in Warmup, with the full digest of the loaded weights (S8)."""

    epoch: Epoch
    member: Member
    digest: Key


@dataclass(frozen=True, slots=True)
class WitnessMessage(Message):
    """A witness's report on the attested round (W1); bitmaps are integers, bit i is member i."""

    epoch: Epoch
    height: Height
    member: Annotated[int, Between(0, U16_MAX)]  # W4 says which of its rules a wrong one breaks first
    flags: WitnessFlag
    at_s: Annotated[int, Between(0, U32_MAX)]
    held: Bitmap
    heard: Bitmap
    missing: Bitmap
    broadcast_bloom: Annotated[bytes, Sized(BLOOM_BYTES, BLOOM_BYTES)]
    results_root: Key
    state_digest: Key
    metadata: Annotated[bytes, Sized(0, METADATA_BYTES)] = b""  # never stored


@dataclass(frozen=True, slots=True)
class HealthCheck(Message):
    """Accuse a silent witness of the previous round; `height` is the running round's (H4)."""

    epoch: Epoch
    height: Height
    member: Member


@dataclass(frozen=True, slots=True)
class NameCheckpoint(Message):
    """Name a lasting source of the certified weights; `epoch` is the epoch that certified them (S10)."""

    epoch: Epoch
    digest: Key
    source: Checkpoint


@dataclass(frozen=True, slots=True)
class ReportEquivocation(Message):
    """Eject a member that signed two results for one round; the backend has checked both signatures (R7)."""

    epoch: Epoch
    height: Height
    member: Member


@dataclass(frozen=True, slots=True)
class ReportAudit(Message):
    """A verifier's first doubt about a member, or none; `height` is the round in which it was elected (V9).

    `target` and `piece` are NOBODY where it found nothing. `commitment` is that of the target's result, or of the
    verifier's own report.
    """

    epoch: Epoch
    height: Height
    member: Member
    target: Annotated[int, Between(0, U16_MAX)]
    piece: Annotated[int, Between(0, U16_MAX)]
    reason: Annotated[int, Between(0, U16_MAX)]  # an `AuditReason`
    commitment: Key


@dataclass(frozen=True, slots=True)
class JudgeChallenge(Message):
    """A juror's vote on an open challenge, by its number; `height` is the running round's (V12)."""

    epoch: Epoch
    height: Height
    member: Member
    challenge: Annotated[int, Between(0, MAX_CHALLENGES - 1)]
    guilty: Annotated[int, Between(0, 1)]


@dataclass(frozen=True, slots=True)
class Pause(Message):
    """Pause the run: at once before an epoch's first round, otherwise after its drain and Cooldown (P4)."""


@dataclass(frozen=True, slots=True)
class Resume(Message):
    """Resume a paused run, or start a new one; everybody must join again (P4)."""


@dataclass(frozen=True, slots=True)
class Recover(Message):
    """Shift the run's clocks after the coordinator was down for `gap_s` seconds (K2)."""

    gap_s: U64
    reconnect_s: U64 = RECONNECT_S


@dataclass(frozen=True, slots=True)
class ReclaimSlot(Message):
    """Free the slot that has been idle longest, at least a whole epoch (M4)."""


@dataclass(frozen=True, slots=True)
class SetRates(Message):
    """Set the earning and slashing rates of coming epochs; None leaves a rate unchanged (M7)."""

    earning: U64 | None = None
    slashing: U64 | None = None


@dataclass(frozen=True, slots=True)
class Collect(Message):
    """Take earnings out of the record in order to pay them: all of the claims, or none (M11).

    A claim is a pair of a signer and an amount; the amount None takes all earnings, even if there are none.
    """

    claims: Annotated[tuple[Claim, ...], Sized(1, MAX_CLAIMS)]


@dataclass(frozen=True, slots=True)
class Update(Message):
    """Change the owner's settings; None leaves a part unchanged (P9).

    `model` replaces the whole model, its sources of weights included: an update of, say, the learning rate must
    repeat the sources that are on record. `first_weights` is the full digest of the weights that the source has, for
    a run without certified ones (S11). `nonce` is that of the record from which the update was made: if the record
    has changed since, the update is refused.
    """

    config: Config | None = None
    model: Model | None = None
    progress: Progress | None = None
    metadata: Metadata | None = None
    bootstrap: Annotated[tuple[Annotated[str, Sized(0, BOOTSTRAP_BYTES)], ...], Sized(0, MAX_BOOTSTRAP)] | None = None
    first_weights: Annotated[bytes, Sized(HASH_BYTES, HASH_BYTES)] | None = None
    nonce: Annotated[int, Between(0)] | None = None

    @property
    def changes_training(self) -> bool:
        """Whether the update changes what members train: config, model, progress or the first weights."""
        return any(part is not None for part in (self.config, self.model, self.progress, self.first_weights))


@dataclass(frozen=True, slots=True)
class UpdateClientVersion(Message):
    """Set the client version that the run requires, while it is paused or new (P9)."""

    version: Annotated[str, Sized(0, CLIENT_VERSION_BYTES)]
