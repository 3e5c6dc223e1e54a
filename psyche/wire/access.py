"""Who may join a run, in the words of the chain's authorizer: a join authority authorizes grantees and their delegates.

An authorization counts for a key if it is active and its grantee is that key, or the key is one of its delegates.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Final, NamedTuple, TypeAlias

from psyche.core.state.messages import Key, Sized

KEY_BYTES: Final = 32
MAX_DELEGATES: Final = 64  # of one command, which must fit into a record of the journal
MAX_KEYS: Final = 4_096  # grantees and delegates of run.toml; as many of commands; as many disallowed keys
NOBODY: Final = bytes(KEY_BYTES)  # in the authorizer's words a grantee that stands for everybody


@dataclass(frozen=True, slots=True)
class Authorization:
    """The join authority's word for one grantee; keys have 32 bytes."""

    grantee: bytes
    delegates: tuple[bytes, ...] = ()
    active: bool = True


@dataclass(frozen=True, slots=True)
class Access:
    """Who may join as run.toml says it. `join_authority` None: the server's own key. The default lets nobody in."""

    is_open: bool = False
    join_authority: bytes | None = None
    authorizations: tuple[Authorization, ...] = ()

    def add(self, keys: tuple[bytes, ...]) -> "Access":
        """The same, and these keys may join too."""
        return replace(self, authorizations=(*self.authorizations, *map(Authorization, keys)))

    def count_keys(self) -> int:
        """Grantees and delegates."""
        return sum(1 + len(one.delegates) for one in self.authorizations)


OPEN: Final = Access(is_open=True)


@dataclass(frozen=True, slots=True)
class Allow:
    """The owner or the join authority lets a grantee join, with its delegates (M12)."""

    grantee: Key
    delegates: Annotated[tuple[Key, ...], Sized(0, MAX_DELEGATES)] = ()


@dataclass(frozen=True, slots=True)
class Disallow:
    """The owner or the join authority takes that back (M12)."""

    key: Key
    forgotten: Key | None = None  # who makes room on the list of the disallowed; the home says whom


AccessMessage: TypeAlias = Allow | Disallow


class AccessKind(NamedTuple):
    """One kind of message to a TCP home's allow list; its numbers lie above those of `core.rules.apply.KINDS`."""

    number: int
    name: str
    type: type[AccessMessage]


ACCESS_KINDS: Final = (AccessKind(128, "allow", Allow), AccessKind(129, "disallow", Disallow))
