"""The last replies to every client, kept for resends (K4)."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from psyche.wire.backend import Reply

REPLIES_PER_CLIENT: Final = 64
MAX_CACHED_CLIENTS: Final = 512  # all slots of the registry and as many strangers


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, and the journal record that must be on disk before it may be sent (K1)."""

    reply: Reply
    seq: int


class ReplyCache:
    """Replies by client key and request id; evicts a client's oldest reply, and the least recently active client."""

    def __init__(self) -> None:
        self._clients: OrderedDict[bytes, OrderedDict[int, Answer]] = OrderedDict()

    def get(self, key: bytes, request_id: int) -> Answer | None:
        """Return the earlier answer if it is still cached, else None."""
        return self._clients.get(key, OrderedDict()).get(request_id)

    def put(self, key: bytes, answer: Answer) -> None:
        """Cache an answer."""
        replies = self._clients.setdefault(key, OrderedDict())
        self._clients.move_to_end(key)
        replies[answer.reply.id] = answer
        while len(replies) > REPLIES_PER_CLIENT:
            replies.popitem(last=False)
        while len(self._clients) > MAX_CACHED_CLIENTS:
            self._clients.popitem(last=False)
