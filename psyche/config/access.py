"""The table `[access]` of run.toml: who may join (M12)."""

from typing import Annotated, Final

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from psyche.config.table import Table, key
from psyche.config.values import HASH_FORM, read_hex
from psyche.wire.access import MAX_KEYS, NOBODY, Access, Authorization


def _read_key(value: object) -> object:
    """Read a public key. All zeros, which the authorizer takes for everybody, is refused: `open` says that instead."""
    if (key := read_hex(value)) == NOBODY:
        raise PydanticCustomError("everybody", "is nobody's key; to let anybody join, write open = true")
    if key is not None:
        return key
    raise PydanticCustomError("public_key", "must be a public key: 64 hex digits in quotes")


PublicKey = Annotated[bytes, BeforeValidator(_read_key)]
_KEYS: Final = f"at most {MAX_KEYS:,}, each {HASH_FORM}"


class AuthorizationTable(Table):
    """`[[access.authorization]]`: one grantee who may join, with its delegates."""

    grantee: PublicKey = key("public key of the grantee", allowed=HASH_FORM, example="ab" * 32)
    delegates: list[PublicKey] = key(
        "public keys of its machines", default_factory=list[bytes], max_length=MAX_KEYS, allowed=_KEYS
    )
    active: bool = key("false: the entry has no effect", default=True)


class AccessTable(Table):
    """`[access]`: who may join. Only the server uses it; it is not part of the record."""

    open: bool = key("true: anybody may join; false: only keys that are allowed", default=False)
    join_authority: PublicKey | None = key(
        "public key that may allow others; left out: the server's own", default=None, allowed=HASH_FORM
    )
    allow: list[PublicKey] = key(
        "public keys that may join", default_factory=list[bytes], max_length=MAX_KEYS, allowed=_KEYS
    )
    authorization: list[AuthorizationTable] = key(
        "keys that may join with machines of theirs", default_factory=list[AuthorizationTable], max_length=MAX_KEYS,
        allowed=f"at most {MAX_KEYS:,}",
    )  # fmt: skip


def get_access(table: AccessTable) -> Access:
    """The access rules of the table; each key in `allow` becomes an authorization without delegates."""
    listed = [Authorization(key) for key in table.allow]
    listed += [Authorization(one.grantee, tuple(one.delegates), one.active) for one in table.authorization]
    return Access(table.open, table.join_authority, tuple(listed))


def find_access_warnings(access: Access) -> list[str]:
    if not access.is_open:
        return []
    warning = (
        "access.open lets anybody on the internet join: strangers can take slots and places in epochs, delay Warmup "
        "and rounds, cause rollbacks, read the state and the members' addresses, and send plausible nonsense"
    )
    return [warning]
