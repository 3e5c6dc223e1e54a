"""What the accounts of coordinator and authorizer say, apart from a run's own account (`core.encoding.account`)."""

from typing import Any, Final, NamedTuple, Self

from solders.pubkey import Pubkey

from psyche.backends.solana.interface.addresses import get_program_id
from psyche.backends.solana.interface.borsh import decode_value
from psyche.backends.solana.interface.idl import DataKind, load_program
from psyche.core.state.limits import RUN_ID_BYTES
from psyche.errors import WireError


class AccountKind(NamedTuple):
    """What an account is: the program that owns it, and the name of its type in the program's IDL."""

    program: str
    name: str

    @property
    def owner(self) -> Pubkey:
        return get_program_id(self.program)

    @property
    def discriminator(self) -> bytes:
        return self._data.discriminator

    @property
    def _data(self) -> DataKind:
        return load_program(self.program).accounts[self.name]

    def check(self, key: Pubkey, owner: Pubkey, data: bytes) -> None:
        """Check that an account is of this kind: anybody can make one with the same bytes under another owner."""
        if owner != self.owner:
            raise WireError(f"account {key}: belongs to {owner}, and a {self.name} must belong to {self.owner}")
        if not data.startswith(self.discriminator):
            raise WireError(
                f"account {key}: of {owner} begins with {data[:8].hex() or 'nothing'}, and a {self.name} must begin "
                f"with {self.discriminator.hex()}"
            )

    def decode(self, raw: bytes, *, with_rest: bool = False) -> dict[str, Any]:
        """Read the fields of an account; `with_rest`: it has room for longer ones."""
        if not raw.startswith(self.discriminator):
            raise WireError(f"{self.name}: {len(raw)} bytes that are no account of this kind")
        return decode_value(self._data.form, raw[len(self.discriminator) :], self.name, with_rest=with_rest)


RUN_STATE: Final = AccountKind("coordinator", "CoordinatorAccount")
INSTANCE: Final = AccountKind("coordinator", "CoordinatorInstance")
EARNED_POINTS: Final = AccountKind("coordinator", "EarnedPoints")
AUTHORIZATION: Final = AccountKind("authorizer", "Authorization")
TREASURER_RUN: Final = AccountKind("treasurer", "Run")
PARTICIPANT: Final = AccountKind("treasurer", "Participant")


class InstanceData(NamedTuple):
    bump: int
    main_authority: Pubkey  # the run's owner
    join_authority: Pubkey  # whose authorizations allow a join
    coordinator_account: Pubkey
    run_id: str
    collected_points: int  # all that was ever moved to earned points

    @classmethod
    def read(cls, raw: bytes) -> Self:
        found = cls(**INSTANCE.decode(raw, with_rest=True))
        if len(found.run_id.encode()) > RUN_ID_BYTES:
            raise WireError(f"CoordinatorInstance.run_id: {found.run_id[:80]!r} must have at most {RUN_ID_BYTES} bytes")
        return found


class EarnedPointsData(NamedTuple):
    bump: int
    coordinator_account: Pubkey
    run_uid: bytes
    signer: Pubkey
    payer: Pubkey  # gets the deposit back
    points: int  # all points ever collected

    @classmethod
    def read(cls, raw: bytes) -> Self:
        return cls(**EARNED_POINTS.decode(raw))


class AuthorizationData(NamedTuple):
    bump: int
    grantor: Pubkey
    grantee: Pubkey  # EVERYBODY stands for every key
    scope: bytes
    active: bool
    delegates: tuple[Pubkey, ...]
    grantor_update_unix_timestamp: int

    @classmethod
    def read(cls, raw: bytes) -> Self:
        return cls(**AUTHORIZATION.decode(raw))
