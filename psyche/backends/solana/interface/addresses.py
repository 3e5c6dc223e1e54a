"""The addresses of programs, and those of their accounts, which follow from seeds."""

from typing import Final, NamedTuple

from solders.pubkey import Pubkey

from psyche.core.encoding.fields import fits_text
from psyche.core.state.limits import RUN_ID_BYTES
from psyche.errors import ConfigError

# The ids in the programs' sources. Nobody has their keys, so only local chains have programs there.
COORDINATOR: Final = Pubkey.from_string("PsycheCoordinator11111111111111111111111111")
AUTHORIZER: Final = Pubkey.from_string("PsycheAuthorizer111111111111111111111111111")
TREASURER: Final = Pubkey.from_string("PsycheTreasurer1111111111111111111111111111")
ASSOCIATED_TOKEN: Final = Pubkey.from_string("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL")
INSTRUCTIONS: Final = Pubkey.from_string("Sysvar1nstructions1111111111111111111111111")  # those of the transaction
EVERYBODY: Final = Pubkey.default()  # the grantee of an authorization that allows every wallet
JOIN_SCOPE: Final = b"CoordinatorJoinRun"  # of authorizations to join runs


class ProgramIds(NamedTuple):
    coordinator: Pubkey
    authorizer: Pubkey
    treasurer: Pubkey


SOURCE_IDS: Final = ProgramIds(COORDINATOR, AUTHORIZER, TREASURER)
_CHOSEN: Final = [SOURCE_IDS]


def use_program_ids(ids: ProgramIds) -> None:
    """Choose the programs that this process speaks to from now on: it speaks to one chain."""
    _CHOSEN[0] = ids


def get_program_ids() -> ProgramIds:
    return _CHOSEN[0]


def get_program_id(name: str) -> Pubkey:
    return getattr(_CHOSEN[0], name)


def parse_key(text: str, option: str) -> Pubkey:
    """Read a public key or an account's address, as `option` gives it."""
    try:
        return Pubkey.from_string(text.strip())
    except ValueError:
        raise ConfigError(
            f"{option} {text.strip()[:48]!r}: must be a public key, 32 bytes in base58, as `solana address` prints it"
        ) from None


def get_instance_address(run_id: str) -> Pubkey:
    """The account that names the authorities of the run with this id."""
    if not run_id or not fits_text(run_id, RUN_ID_BYTES):
        raise ConfigError(f"run id {run_id!r}: must have 1 to {RUN_ID_BYTES} bytes of UTF-8, without zero bytes")
    return _derive("coordinator", b"coordinator", run_id.encode())


def get_earned_points_address(run_uid: bytes, signer: Pubkey) -> Pubkey:
    return _derive("coordinator", b"Earned", run_uid, bytes(signer))


def get_authorization_address(grantor: Pubkey, grantee: Pubkey, scope: bytes = JOIN_SCOPE) -> Pubkey:
    """The authorization by which `grantee` and its delegates may do something, such as join the grantor's runs."""
    return _derive("authorizer", b"Authorization", bytes(grantor), bytes(grantee), scope)


def get_run_address(owner: Pubkey, index: int) -> Pubkey:
    """The treasurer's account of the owner's run with this index, of 64 bits."""
    return _derive("treasurer", b"Run", bytes(owner), index.to_bytes(8, "little"))


def get_participant_address(run: Pubkey, user: Pubkey) -> Pubkey:
    """The record of what the treasurer's run paid this member."""
    return _derive("treasurer", b"Participant", bytes(run), bytes(user))


def _derive(program: str, *seeds: bytes) -> Pubkey:
    return Pubkey.find_program_address(seeds, get_program_id(program))[0]
