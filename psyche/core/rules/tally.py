"""The tally of a round's witness records: agreed root, digest and members (W5, C1, C2, C4, S3)."""

from psyche.core.state.bits import compute_at_least
from psyche.core.state.limits import U8_MAX
from psyche.core.state.state import ZERO32, Coordinator, Epoch, Round, RoundFlag, WitnessFlag, WitnessRecord
from psyche.core.state.timeline import get_attested_round, is_last_drain


def process_agreement(round_: Round, record: WitnessRecord) -> None:
    """Count the newest record (already appended) and store what q records agree on, once (W5).

    A zero root never wins, and a record without a digest does not count for one. Two sets cannot both win, since
    2q > n.
    """
    # once agreed it never changes: with 2q > n no other can win, and clients act on it at once (W5)
    if record.results_root != ZERO32 and not round_.flags & RoundFlag.ROOT:
        same = sum((r.results_root, r.held) == (record.results_root, record.held) for r in round_.witnesses)
        if same >= round_.quorum:
            round_.agreed_root, round_.agreed_held = record.results_root, record.held
            round_.flags |= RoundFlag.ROOT
    if record.flags & WitnessFlag.NO_DIGEST or round_.flags & RoundFlag.DIGEST:
        return
    vote = _get_digest_vote(record)
    if sum(_get_digest_vote(r) == vote for r in round_.witnesses) >= round_.quorum:  # S3
        round_.agreed_digest = record.state_digest
        round_.flags |= RoundFlag.DIGEST
        if record.flags & WitnessFlag.FULL_DIGEST:
            round_.flags |= RoundFlag.FULL


def _get_digest_vote(record: WitnessRecord) -> tuple[bytes, WitnessFlag]:
    return record.state_digest, record.flags & (WitnessFlag.FULL_DIGEST | WitnessFlag.NO_DIGEST)


def is_digest_agreed(state: Coordinator) -> bool:
    """Whether the running round has an agreed digest; the last drain round needs a full one (P3)."""
    needed = RoundFlag.DIGEST
    if is_last_drain(state.config, state.epoch, state.current.height):
        needed |= RoundFlag.FULL
    return state.current.flags & needed == needed


def is_round_agreed(state: Coordinator) -> bool:
    """Whether the round can close early: all records are in, or root and digest are agreed (T5)."""
    round_ = state.current
    if len(round_.witnesses) >= round_.witnesses_expected:
        return True
    needs_root = get_attested_round(state) is not None
    return is_digest_agreed(state) and (bool(round_.flags & RoundFlag.ROOT) or not needs_root)


def process_slots(round_: Round, attested: Round | None) -> None:
    """At close without an agreed root: take the members that q records hold; void if there is none (C2, C4)."""
    if attested is None or round_.flags & RoundFlag.ROOT:
        return
    round_.agreed_held = compute_at_least((r.held for r in round_.witnesses), round_.quorum, attested.members)
    if not round_.agreed_held:
        round_.flags |= RoundFlag.VOID  # C4: results were due, since an attested round always has data


def process_streaks(epoch: Epoch, round_: Round, *, attested: bool, agreed: bool) -> None:
    """Count consecutive void rounds and consecutive rounds without a digest (C4, S5)."""
    if attested:  # if nothing was due, void_streak stays as it is
        void = bool(round_.flags & RoundFlag.VOID)
        epoch.void_streak = min(epoch.void_streak + 1, U8_MAX) if void else 0
    epoch.digest_streak = 0 if agreed else min(epoch.digest_streak + 1, U8_MAX)
