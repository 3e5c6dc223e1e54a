"""The layout of signed gossip: tags, the common prefix, and the bodies (`docs/protocol-reference.md` R2)."""

from typing import Final

from psyche.core.encoding.fields import bitmap, flags, raw, u16, u32, up_to
from psyche.core.encoding.records import FieldLayout, RecordLayout
from psyche.core.state.gossip import Finished, GossipBody, Leave, Ready, ReadyFlag, Result
from psyche.core.state.limits import MAX_CLIENTS, SIGNED_BYTES

RESULT_TAG: Final = b"psyche/result/1"
TAGS: Final[dict[bytes, type[GossipBody]]] = {
    RESULT_TAG: Result,
    b"psyche/ready/1": Ready,
    b"psyche/finished/1": Finished,
    b"psyche/leave/1": Leave,
}
# follows the tag in every message
PREFIX: Final = FieldLayout(
    "Gossip", [raw("run_uid"), u16("epoch"), u32("height"), up_to(MAX_CLIENTS - 1, u16("member"))], is_aligned=False
)
READY: Final = RecordLayout(Ready, [raw("digest"), flags("flags", ReadyFlag)])
# the signed part of each body; a Finished may carry a Ready after it
BODIES: Final[dict[type[GossipBody], FieldLayout]] = {
    Result: FieldLayout("Result", [raw("commitment")]),
    Ready: READY,
    Finished: FieldLayout("Finished", [bitmap("held"), raw("results_root"), bitmap("seen")]),
    Leave: FieldLayout("Leave", []),
}

assert len(RESULT_TAG) + PREFIX.size + BODIES[Result].size == SIGNED_BYTES, "R2: exactly 87 bytes are signed"
