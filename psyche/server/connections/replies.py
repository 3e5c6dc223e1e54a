"""The last replies to every client, kept for resends (K4)."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from psyche.wire.backend import Reply

REPLIES_PER_CLIENT: Final = 64
MAX_CACHED_CLIENTS: Final = 512  # every slot of the registry and as many visitors


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, and the journal record that must be on disk before anybody may see it (K1)."""

    reply: Reply
    seq: int


class ReplyCache:
    """Replies by client key and request id; the oldest of a client, and the client longest silent, go first."""

    def __init__(self) -> None:
        self._clients: OrderedDict[bytes, OrderedDict[int, Answer]] = OrderedDict()

    def get(self, key: bytes, request_id: int) -> Answer | None:
        """The answer given before, if it is still kept."""
        return self._clients.get(key, OrderedDict()).get(request_id)

    def put(self, key: bytes, answer: Answer) -> None:
        """Keep an answer."""
        replies = self._clients.setdefault(key, OrderedDict())
        self._clients.move_to_end(key)
        replies[answer.reply.id] = answer
        while len(replies) > REPLIES_PER_CLIENT:
            replies.popitem(last=False)
        while len(self._clients) > MAX_CACHED_CLIENTS:
            self._clients.popitem(last=False)
