"""What the accounts of coordinator and authorizer say, apart from a run's own account (`core.encoding.account`)."""

import struct
from typing import Final, NamedTuple, Self

from solders.pubkey import Pubkey

from psyche.chain.addresses import AUTHORIZER, COORDINATOR, TREASURER
from psyche.chain.discriminators import get_discriminator
from psyche.core.state.limits import RUN_ID_BYTES
from psyche.errors import WireError


class AccountKind(NamedTuple):
    """What an account is: the program that owns it, and the name of its type there."""

    owner: Pubkey
    name: str

    @property
    def discriminator(self) -> bytes:
        """The first bytes of all its accounts."""
        return get_discriminator("account", self.name)

    def check(self, key: Pubkey, owner: Pubkey, data: bytes) -> None:
        """Check that an account is of this kind: anybody can make one with the same bytes under another owner.

        Raises:
            WireError: it is not; the text names account, owner and rule.
        """
        if owner != self.owner:
            raise WireError(f"account {key}: belongs to {owner}, and a {self.name} must belong to {self.owner}")
        if not data.startswith(self.discriminator):
            raise WireError(
                f"account {key}: of {owner} begins with {data[:8].hex() or 'nothing'}, and a {self.name} must begin "
                f"with {self.discriminator.hex()}"
            )


RUN_STATE: Final = AccountKind(COORDINATOR, "CoordinatorAccount")
INSTANCE: Final = AccountKind(COORDINATOR, "CoordinatorInstance")
EARNED_POINTS: Final = AccountKind(COORDINATOR, "EarnedPoints")
AUTHORIZATION: Final = AccountKind(AUTHORIZER, "Authorization")
TREASURER_RUN: Final = AccountKind(TREASURER, "Run")
PARTICIPANT: Final = AccountKind(TREASURER, "Participant")


class InstanceData(NamedTuple):
    """A run's authorities and account."""

    bump: int
    main_authority: Pubkey  # the run's owner
    join_authority: Pubkey  # whose authorizations allow a join
    coordinator_account: Pubkey
    run_id: str
    collected_points: int  # all that was ever moved to earned points

    @classmethod
    def read(cls, raw: bytes) -> Self:
        """Read the account of an instance.

        Raises:
            WireError: it is no instance; the text names the rule.
        """
        _check_kind(raw, "CoordinatorInstance", _INSTANCE.size)
        _, bump, main, join, account, length = _INSTANCE.unpack_from(raw)
        end = _INSTANCE.size + length
        if length > RUN_ID_BYTES or len(raw) < end + _POINTS.size:
            raise WireError(f"CoordinatorInstance: a run id of {length} bytes, at most {RUN_ID_BYTES}")
        try:
            run_id = raw[_INSTANCE.size : end].decode()
        except UnicodeDecodeError as error:
            raise WireError("CoordinatorInstance: the run id is not UTF-8") from error
        return cls(bump, Pubkey(main), Pubkey(join), Pubkey(account), run_id, *_POINTS.unpack_from(raw, end))


class EarnedPointsData(NamedTuple):
    """What one signer has earned in one run."""

    bump: int
    coordinator_account: Pubkey
    run_uid: bytes
    signer: Pubkey
    payer: Pubkey  # gets the deposit back
    points: int  # all points ever collected

    @classmethod
    def read(cls, raw: bytes) -> Self:
        """Read an account of earned points.

        Raises:
            WireError: it is none.
        """
        _check_kind(raw, "EarnedPoints", _EARNED.size)
        _, bump, account, run_uid, signer, payer, points = _EARNED.unpack_from(raw)
        return cls(bump, Pubkey(account), run_uid, Pubkey(signer), Pubkey(payer), points)


class AuthorizationData(NamedTuple):
    """By whom, to whom and for what something is allowed."""

    bump: int
    grantor: Pubkey
    grantee: Pubkey  # EVERYBODY stands for every key
    scope: bytes
    active: bool
    delegates: tuple[Pubkey, ...]
    grantor_update_unix_timestamp: int

    @classmethod
    def read(cls, raw: bytes) -> Self:
        """Read the account of an authorization.

        Raises:
            WireError: it is none; the text names the rule.
        """
        _check_kind(raw, "Authorization", _AUTHORIZATION.size + _DELEGATES.size + _UPDATED.size)
        _, bump, grantor, grantee, length = _AUTHORIZATION.unpack_from(raw)
        listed = _AUTHORIZATION.size + length
        if len(raw) < listed + _DELEGATES.size + _UPDATED.size:
            raise WireError(f"Authorization: a scope of {length} bytes does not fit into {len(raw)}")
        active, count = _DELEGATES.unpack_from(raw, listed)
        start = listed + _DELEGATES.size
        end = start + KEY_BYTES * count
        if len(raw) != end + _UPDATED.size:
            raise WireError(f"Authorization: {count} delegates do not fit into {len(raw)} bytes")
        keys = tuple(Pubkey(raw[at : at + KEY_BYTES]) for at in range(start, end, KEY_BYTES))
        scope = raw[_AUTHORIZATION.size : listed]
        return cls(bump, Pubkey(grantor), Pubkey(grantee), scope, active, keys, *_UPDATED.unpack_from(raw, end))


KEY_BYTES: Final = 32
_AUTHORIZATION: Final = struct.Struct("<8sB32s32sI")
_DELEGATES: Final = struct.Struct("<?I")
_UPDATED: Final = struct.Struct("<q")
_INSTANCE: Final = struct.Struct("<8sB32s32s32sI")
_POINTS: Final = struct.Struct("<Q")
_EARNED: Final = struct.Struct("<8sB32s32s32s32sQ")


def _check_kind(raw: bytes, kind: str, size: int) -> None:
    if len(raw) < size or not raw.startswith(get_discriminator("account", kind)):
        raise WireError(f"{kind}: {len(raw)} bytes that are no account of this kind")
