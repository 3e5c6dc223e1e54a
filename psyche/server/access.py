"""The allow list of a TCP home: what run.toml says, and what its owner's commands have changed since.

It is the home's own and no part of the state's bytes: the changes lie in the journal and its snapshots.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec

from psyche.errors import WireError
from psyche.wire import backend as wire
from psyche.wire.access import MAX_KEYS, NOBODY, Access, AccessMessage, Allow, Authorization, Disallow
from psyche.wire.msgpack import UNREADABLE

_Granted = dict[bytes, tuple[bytes, ...]]


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    granted: dict[wire.Key, tuple[wire.Key, ...]]
    denied: Annotated[tuple[wire.Key, ...], msgspec.Meta(max_length=MAX_KEYS)]


@dataclass(frozen=True, slots=True)
class FirstKeys:
    """Who comes before strangers: asked with `in`, for there may be thousands."""

    authorized: frozenset[bytes]
    commanders: frozenset[bytes]
    holders: frozenset[bytes]  # of slots

    def __contains__(self, key: bytes) -> bool:
        return key in self.authorized or key in self.commanders or key in self.holders


@dataclass(slots=True)
class AccessChanges:
    """What commands have changed: delegates by grantee, and the keys that were disallowed."""

    granted: _Granted = field(default_factory=dict[bytes, tuple[bytes, ...]])
    denied: set[bytes] = field(default_factory=set[bytes])

    def change(self, message: AccessMessage) -> None:
        """Do what a message asks."""
        match message:
            case Allow():
                self.allow(message.grantee, message.delegates)
            case Disallow():
                self.disallow(message.key, message.forgotten)

    def allow(self, grantee: bytes, delegates: tuple[bytes, ...]) -> None:
        """Authorize a grantee; delegates are added to those it has."""
        self.granted[grantee] = tuple(dict.fromkeys((*self.granted.get(grantee, ()), *delegates)))
        self.denied -= {grantee, *delegates}

    def disallow(self, key: bytes, forgotten: bytes | None = None) -> None:
        """Take back whatever lets this key join; with a grantee go its delegates.

        `forgotten`: a key that is disallowed no more, to make room.
        """
        self.granted.pop(key, None)
        for grantee, delegates in self.granted.items():
            self.granted[grantee] = tuple(one for one in delegates if one != key)
        self.denied.discard(forgotten or b"")
        self.denied.add(key)

    def count_granted(self) -> int:
        """Grantees and delegates."""
        return sum(1 + len(delegates) for delegates in self.granted.values())

    def count_new(self, grantee: bytes, delegates: tuple[bytes, ...]) -> int:
        """By how many keys `allow` would make the granted more."""
        return (grantee not in self.granted) + len({*delegates}.difference(self.granted.get(grantee, ())))

    def encode(self) -> bytes:
        """The bytes in a snapshot."""
        return msgspec.msgpack.encode(_Stored(self.granted, tuple(sorted(self.denied))))


def decode_changes(raw: bytes) -> AccessChanges:
    """Read what a snapshot holds; no bytes at all are no changes.

    Raises:
        WireError: the bytes are of another form.
    """
    if not raw:
        return AccessChanges()
    try:
        stored = msgspec.msgpack.decode(raw, type=_Stored)
    except UNREADABLE as error:
        raise WireError(f"snapshot: the allow list cannot be read: {error}") from error
    return AccessChanges(dict(stored.granted), set(stored.denied))


class AllowList:
    """Who may join now.

    Args:
        access: what run.toml says.
        changes: what commands have changed.
        server: the server's key, the join authority where run.toml names none.
    """

    def __init__(self, access: Access, changes: AccessChanges, server: bytes) -> None:
        self.changes = changes
        self.is_open: Final = access.is_open
        self.join_authority: Final = access.join_authority or server
        self._base = access
        self.keys: frozenset[bytes] = frozenset()  # everybody who is authorized
        self.refresh()

    def refresh(self) -> None:
        """Take in what was changed."""
        self.keys = frozenset(key for one in self.get_authorizations() for key in (one.grantee, *one.delegates))

    def get_authorizations(self) -> tuple[Authorization, ...]:
        """Those in force, each grantee once."""
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
        """Whether the key may join: it is authorized, or the run is open and it was not disallowed."""
        return key in self.keys or (self.is_open and key not in self.changes.denied)

    def check_allow(self, grantee: bytes, delegates: tuple[bytes, ...]) -> None:
        """Before a command is journaled. Whoever is allowed already needs no room.

        Raises:
            BadRequest: there is no room for so many more keys, or one of them is nobody's.
        """
        if NOBODY in (grantee, *delegates):
            raise wire.BadRequest(
                "the key of zeros belongs to nobody; to let everybody join, write open = true in run.toml"
            )
        new = self.changes.count_new(grantee, delegates)
        if new and self.changes.count_granted() + new > MAX_KEYS:
            raise wire.BadRequest(
                f"commands can allow {MAX_KEYS:,} keys, no more: disallow others, or name keys in run.toml"
            )

    def find_forgettable(self, key: bytes) -> bytes | None:
        """Before `key` is disallowed: whom to forget for it, as its ban changes nothing; None where there is room.

        Raises:
            BadRequest: there is no room for one more disallowed key.
        """
        denied = self.changes.denied
        if key in denied or len(denied) < MAX_KEYS:
            return None
        named = {one for given in self._base.authorizations for one in (given.grantee, *given.delegates)}
        if self.is_open or denied <= named:
            raise wire.BadRequest(f"{MAX_KEYS:,} keys are disallowed, the most there can be: allow one of them again")
        return min(denied - named)  # in a closed run it cannot join, disallowed or not

    def refuse(self, key: bytes) -> wire.NotAllowed:
        """Why a key may not join, and the way out."""
        why = "was disallowed" if key in self.changes.denied else "is not on the allow list of this run"
        return wire.NotAllowed(
            f"key {key.hex()} {why}: ask the owner to run `psyche server allow {key.hex()}` "
            f"(join authority {self.join_authority.hex()})"
        )
