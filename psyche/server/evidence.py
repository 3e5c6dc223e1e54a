"""Evidence of equivocation (R7): two signed results of one member over one round, with different commitments."""

from psyche.core.errors import InvalidEvidence
from psyche.core.messages import Gossip, Result
from psyche.core.state import Coordinator
from psyche.errors import WireError
from psyche.wire.gossip import decode_gossip, is_signed_by
from psyche.wire.repeats import is_ejected


def check_evidence(state: Coordinator, first: bytes, second: bytes) -> tuple[int, int, int]:
    """The (epoch, height, member) that two gossip messages convict.

    Raises:
        InvalidEvidence: they are no two different results of one member of this epoch for one round,
            or not both signed by its key.
    """
    one, other = _read(first), _read(second)
    named = (one.run_uid, one.epoch, one.height, one.member)
    if named != (other.run_uid, other.epoch, other.height, other.member):
        raise InvalidEvidence("the two results are not of one member for one round (R7)")
    if one.run_uid != state.run_uid or one.epoch != state.progress.epoch:
        raise InvalidEvidence("the results are of another run or epoch (R7)")
    if one.member >= len(state.clients):
        raise InvalidEvidence(f"member {one.member} does not exist (R7)")
    if _get_commitment(one) == _get_commitment(other):
        raise InvalidEvidence("both results have the same commitment (R7)")
    key = state.clients[one.member].p2p
    if not (is_signed_by(one, key) and is_signed_by(other, key)):
        raise InvalidEvidence("a result is not signed by the member's key (R7)")
    return one.epoch, one.height, one.member


def is_evidence_on_record(state: Coordinator, first: bytes, second: bytes) -> bool:
    """Whether the member that the evidence convicts is ejected already."""
    try:
        epoch, _, member = check_evidence(state, first, second)
    except InvalidEvidence:
        return False
    return is_ejected(state, epoch, member)


def _read(raw: bytes) -> Gossip:
    try:
        message = decode_gossip(raw)
    except WireError as error:
        raise InvalidEvidence(f"evidence: {error}") from error
    if not isinstance(message.body, Result):
        raise InvalidEvidence("only results can be evidence (R7)")
    return message


def _get_commitment(message: Gossip) -> bytes:
    assert isinstance(message.body, Result), "checked when it was read"
    return message.body.commitment
