"""Evidence of equivocation (R7): two signed results of one member over one round, with different commitments."""

from psyche.core.state.errors import InvalidEvidence
from psyche.core.state.gossip import Gossip, Result
from psyche.core.state.messages import ReportEquivocation
from psyche.core.state.state import Coordinator
from psyche.errors import WireError
from psyche.wire.gossip import decode_gossip, is_signed_by


def check_report(state: Coordinator, report: ReportEquivocation, evidence: tuple[bytes, bytes] | None) -> None:
    """Check, before a report is submitted to the run, that its evidence proves the named member guilty.

    Raises:
        InvalidEvidence: there are no two different results of one member of this epoch for one round, both signed by
            its key, or they are of another member or round than the report.
    """
    if evidence is None:
        raise InvalidEvidence("a report must come with two signed results")
    one, other = map(_read, evidence)
    named = (one.run_uid, one.epoch, one.height, one.member)
    if named != (other.run_uid, other.epoch, other.height, other.member):
        raise InvalidEvidence("the two results are not of one member for one round")
    if one.run_uid != state.run_uid or one.epoch != state.progress.epoch:
        raise InvalidEvidence("the results are of another run or epoch")
    if one.member >= len(state.clients):
        raise InvalidEvidence(f"member {one.member} does not exist")
    if _get_commitment(one) == _get_commitment(other):
        raise InvalidEvidence("both results have the same commitment")
    key = state.clients[one.member].p2p
    if not (is_signed_by(one, key) and is_signed_by(other, key)):
        raise InvalidEvidence("a result is not signed by the member's key")
    if named[1:] != (report.epoch, report.height, report.member):
        raise InvalidEvidence("the results are of another round or member than the report")


def _read(raw: bytes) -> Gossip:
    try:
        message = decode_gossip(raw)
    except WireError as error:
        raise InvalidEvidence(f"evidence: {error}") from error
    if not isinstance(message.body, Result):
        raise InvalidEvidence("only results can be evidence")
    return message


def _get_commitment(message: Gossip) -> bytes:
    assert isinstance(message.body, Result), "checked when it was read"
    return message.body.commitment
