"""A client's weights: where they come from, whether they are the agreed ones, where they are kept."""

from enum import StrEnum

from psyche.telemetry.types.base import INFO, WARNING, Event, Hex


class WeightSource(StrEnum):
    """Where weights come from."""

    OWN_SNAPSHOT = "own snapshot"
    ON_RECORD = "checkpoint on record"
    CONFIGURED = "configured source"
    PEERS = "peers"


class ModelFetch(Event):
    """The client fetches weights from peers."""

    bytes: int
    total: int


class SourceRefused(Event, level=WARNING):
    """A peer showed a model that is not on record; the client does not ask it again."""

    peer: Hex
    digest: Hex
    reason: str


class PlaceFailed(Event, level=WARNING):
    """A place on record did not give the weights; the client takes them from another one or from peers."""

    place: str
    reason: str


class ModelFilesDiffer(Event, level=WARNING):
    """The client's model folder differs from the run's: which files, and what to do."""

    path: str
    files: str
    hint: str


class ModelLoaded(Event, level=INFO):
    """The trainer has loaded the weights."""

    source: WeightSource
    digest: Hex
    parameters: int


class ModelAdapted(Event, level=INFO):
    """The trainer does otherwise than the model's config.json says (AR5, AR7), or than its options say."""

    change: str


class LoadFailed(Event, level=WARNING):
    """The trainer could not load the weights."""

    reason: str


class WarmupReady(Event, level=INFO):
    """The client has put its ready message on record."""

    epoch: int
    digest: Hex


class Digest(Event):
    """The client's digest of a round, and whether it is the one on record."""

    height: int
    digest: Hex
    agreed: bool


class ReadyDiffers(Event):
    """A peer says that it has different weights."""

    member: int
    height: int
    digest: Hex
    own: Hex


class Diverged(Event, level=WARNING):
    """The client's weights are not the agreed ones."""

    height: int
    digest: Hex
    agreed: Hex


class Healing(Event, level=INFO):
    """The client replays the epoch, or fetches the tensors that differ."""

    reason: str
    height: int


class Compared(Event):
    """How many tensors differ from the agreed weights."""

    height: int
    tensors: int
    differing: int


class Healed(Event, level=INFO):
    """The client holds the agreed weights again."""

    height: int


class Evidence(Event):
    """A replay contradicts what was agreed; also in a file of the data folder."""

    digests: dict[int, Hex]
    reason: str


class SnapshotWritten(Event, level=INFO):
    """The client can resume from this snapshot."""

    path: str
    bytes: int
    digest: Hex


class CheckpointShared(Event):
    """The certified weights lie in a lasting place, and the record names it."""

    epoch: int
    step: int
    digest: Hex
    path: str


class Exported(Event, level=INFO):
    """The client has written a model folder for users."""

    path: str
    bytes: int
    step: int
