"""The allow list of a TCP backend: the settings of run.toml plus the changes by its owner's commands.

It belongs to the backend and is not part of the run's state; the journal and its snapshots keep the changes.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec

from psyche.wire import backend as wire
from psyche.wire.access import MAX_KEYS, MAX_WAITING, NOBODY, Access, AccessMessage, Allow, Authorization
from psyche.wire.msgpack import decode_msgpack

WAITING_SHOWN_S: Final = 600  # a client that is refused asks again at least every 10 s
_Granted = dict[bytes, tuple[bytes, ...]]


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    granted: dict[wire.Key, tuple[wire.Key, ...]]
    denied: Annotated[tuple[wire.Key, ...], msgspec.Meta(max_length=MAX_KEYS)]


@dataclass(frozen=True, slots=True)
class FirstKeys:
    """The keys that have priority over unauthenticated peers, as a container for `in`: there may be thousands."""

    authorized: frozenset[bytes]
    commanders: frozenset[bytes]
    holders: frozenset[bytes]  # of slots

    def __contains__(self, key: bytes) -> bool:
        return key in self.authorized or key in self.commanders or key in self.holders


@dataclass(slots=True)
class AccessChanges:
    """The changes by commands: delegates by grantee, and the disallowed keys."""

    granted: _Granted = field(default_factory=dict[bytes, tuple[bytes, ...]])
    denied: set[bytes] = field(default_factory=set[bytes])

    def change(self, message: AccessMessage) -> None:
        """Carry out a command: new delegates are added to the present ones, and with a grantee go its delegates."""
        if isinstance(message, Allow):
            delegates = (*self.granted.get(message.grantee, ()), *message.delegates)
            self.granted[message.grantee] = tuple(dict.fromkeys(delegates))
            self.denied -= {message.grantee, *message.delegates}
            return
        self.granted.pop(message.key, None)
        for grantee, delegates in self.granted.items():
            self.granted[grantee] = tuple(one for one in delegates if one != message.key)
        self.denied.discard(message.forgotten or b"")  # which makes room
        self.denied.add(message.key)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(_Stored(self.granted, tuple(sorted(self.denied))))


def decode_changes(raw: bytes) -> AccessChanges:
    """Decode the changes in a snapshot; a run's first one has no bytes of them."""
    if not raw:
        return AccessChanges()
    stored = decode_msgpack(msgspec.msgpack.Decoder(_Stored), raw, "snapshot: the allow list cannot be read")
    return AccessChanges(dict(stored.granted), set(stored.denied))


class AllowList:
    """Who may join now: by the settings of run.toml, and the changes by commands.

    The server's key is the join authority if run.toml names none.
    """

    def __init__(self, access: Access, changes: AccessChanges, server: bytes) -> None:
        self.changes = changes
        self.is_open: Final = access.is_open
        self.join_authority: Final = access.join_authority or server
        self._base = access
        self._refused: OrderedDict[bytes, int] = OrderedDict()  # key -> Unix seconds, the last one at the end
        self.keys: frozenset[bytes] = frozenset()  # all authorized keys
        self.refresh()

    def refresh(self) -> None:
        self.keys = frozenset(key for one in self.get_authorizations() for key in (one.grantee, *one.delegates))

    def get_authorizations(self) -> tuple[Authorization, ...]:
        merged: _Granted = {}
        for one in self._base.authorizations:
            if one.active:
                merged[one.grantee] = (*merged.get(one.grantee, ()), *one.delegates)
        for grantee, delegates in self.changes.granted.items():
            merged[grantee] = (*merged.get(grantee, ()), *delegates)
        denied = self.changes.denied
        return tuple(
            Authorization(grantee, tuple(key for key in dict.fromkeys(delegates) if key not in denied))
            for grantee, delegates in merged.items()
            if grantee not in denied
        )

    def may_join(self, key: bytes) -> bool:
        return key in self.keys or (self.is_open and key not in self.changes.denied)

    def check_allow(self, grantee: bytes, delegates: tuple[bytes, ...]) -> None:
        """Check an allow command before it is journaled. Keys that are allowed already need no room."""
        if NOBODY in (grantee, *delegates):
            raise wire.BadRequest(
                "the key of zeros belongs to nobody; to let everybody join, write open = true in run.toml"
            )
        granted = self.changes.granted
        new = (grantee not in granted) + len({*delegates}.difference(granted.get(grantee, ())))
        if new and sum(1 + len(known) for known in granted.values()) + new > MAX_KEYS:
            raise wire.BadRequest(
                f"commands can allow at most {MAX_KEYS:,} keys: disallow others, or name keys in run.toml"
            )

    def find_forgettable(self, key: bytes) -> bytes | None:
        """Find a disallowed key to drop before `key` is added, one whose ban has no effect; None if there is room."""
        denied = self.changes.denied
        if key in denied or len(denied) < MAX_KEYS:
            return None
        named = {one for given in self._base.authorizations for one in (given.grantee, *given.delegates)}
        if self.is_open or denied <= named:
            raise wire.BadRequest(f"{MAX_KEYS:,} keys are disallowed, which is the limit: allow one of them again")
        return min(denied - named)  # in a closed run it cannot join either way

    def list_waiting(self, now: int) -> tuple[tuple[bytes, int], ...]:
        """Return the keys that were refused lately and may not join yet, the last one first, with their ages in s."""
        ages = ((key, max(0, now - at)) for key, at in reversed(self._refused.items()))
        return tuple((key, age) for key, age in ages if age <= WAITING_SHOWN_S and not self.may_join(key))

    def refuse(self, key: bytes, now: int) -> wire.NotAllowed:
        """Note that a key may not join, for the owner to see; build the error for it, with the way out."""
        self._refused[key] = now
        self._refused.move_to_end(key)
        if len(self._refused) > MAX_WAITING:
            self._refused.popitem(last=False)
        if key in self.changes.denied:
            why = "the owner has disallowed this key; ask them to allow it again, by"
        else:
            why = "the owner has not allowed this key yet; send it to them, and they allow it by"
        return wire.NotAllowed(f"{why} `psyche run allow {key.hex()} --server-addr HOST:PORT --state-dir FOLDER`")
