"""Who may join a run, in the chain authorizer's terms: a join authority authorizes grantees and their delegates.

An authorization counts for a key if it is active and its grantee is that key, or the key is one of its delegates.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Final, TypeAlias

from psyche.core.rules.apply import Kind, Sender
from psyche.core.state.messages import Key, Sized

KEY_BYTES: Final = 32
MAX_DELEGATES: Final = 64  # of one command, which must fit into one journal entry
MAX_KEYS: Final = 4_096  # limit for each: grantees and delegates in run.toml, those of commands, and disallowed keys
MAX_WAITING: Final = 64  # keys that were refused last, of which a backend tells its owners
NOBODY: Final = bytes(KEY_BYTES)  # the authorizer's grantee that means everybody


@dataclass(frozen=True, slots=True)
class Authorization:
    """The join authority's authorization of one grantee; keys have 32 bytes."""

    grantee: bytes
    delegates: tuple[bytes, ...] = ()
    active: bool = True


@dataclass(frozen=True, slots=True)
class Access:
    """Who may join, as set in run.toml. `join_authority` None means the server's own key. The default admits nobody."""

    is_open: bool = False
    join_authority: bytes | None = None
    authorizations: tuple[Authorization, ...] = ()

    def add(self, keys: tuple[bytes, ...]) -> "Access":
        return replace(self, authorizations=(*self.authorizations, *map(Authorization, keys)))

    def count_keys(self) -> int:
        return sum(1 + len(one.delegates) for one in self.authorizations)


OPEN: Final = Access(is_open=True)


@dataclass(frozen=True, slots=True)
class Allow:
    """The owner or the join authority allows a grantee and its delegates to join (M12)."""

    grantee: Key
    delegates: Annotated[tuple[Key, ...], Sized(0, MAX_DELEGATES)] = ()


@dataclass(frozen=True, slots=True)
class Disallow:
    """The owner or the join authority revokes an authorization (M12)."""

    key: Key
    forgotten: Key | None = None  # the key that is dropped from a full list of disallowed keys; chosen by the backend


AccessMessage: TypeAlias = Allow | Disallow


def _leave_record(*_: object) -> bool:
    return False  # the list is the backend's own


ACCESS_KINDS: Final = (  # their numbers lie above those of `core.rules.apply.KINDS`
    Kind(128, "allow", Allow, _leave_record, Sender.OWNER_OR_JOIN_AUTHORITY),
    Kind(129, "disallow", Disallow, _leave_record, Sender.OWNER_OR_JOIN_AUTHORITY),
)
