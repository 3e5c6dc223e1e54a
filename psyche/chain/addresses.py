"""The addresses of programs, and those of their accounts, which follow from seeds."""

from typing import Final

from solders.pubkey import Pubkey

from psyche.core.encoding.fields import fits_text
from psyche.core.state.limits import RUN_ID_BYTES
from psyche.errors import ConfigError

COORDINATOR: Final = Pubkey.from_string("PsycheCoordinator11111111111111111111111111")
AUTHORIZER: Final = Pubkey.from_string("PsycheAuthorizer111111111111111111111111111")
TREASURER: Final = Pubkey.from_string("PsycheTreasurer1111111111111111111111111111")
ASSOCIATED_TOKEN: Final = Pubkey.from_string("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL")
INSTRUCTIONS: Final = Pubkey.from_string("Sysvar1nstructions1111111111111111111111111")  # those of the transaction
EVERYBODY: Final = Pubkey.default()  # the grantee of an authorization that allows every wallet
JOIN_SCOPE: Final = b"CoordinatorJoinRun"  # of authorizations to join runs


def parse_key(text: str, option: str) -> Pubkey:
    """Read a public key or an account's address, as `option` gives it.

    Raises:
        ConfigError: it is no base58 of 32 bytes.
    """
    try:
        return Pubkey.from_string(text.strip())
    except ValueError:
        raise ConfigError(
            f"{option} {text.strip()[:48]!r}: must be a public key, 32 bytes in base58, as `solana address` prints it"
        ) from None


def get_instance_address(run_id: str) -> Pubkey:
    """The account that names the authorities of the run with this id.

    Raises:
        ConfigError: no run can have this id.
    """
    if not run_id or not fits_text(run_id, RUN_ID_BYTES):
        raise ConfigError(f"run id {run_id!r}: must have 1 to {RUN_ID_BYTES} bytes of UTF-8, without zero bytes")
    return _derive(COORDINATOR, b"coordinator", run_id.encode())


def get_earned_points_address(run_uid: bytes, signer: Pubkey) -> Pubkey:
    """The account of what a signer has earned in a run."""
    return _derive(COORDINATOR, b"Earned", run_uid, bytes(signer))


def get_authorization_address(grantor: Pubkey, grantee: Pubkey, scope: bytes = JOIN_SCOPE) -> Pubkey:
    """The authorization by which `grantee` and its delegates may do something, such as join the grantor's runs."""
    return _derive(AUTHORIZER, b"Authorization", bytes(grantor), bytes(grantee), scope)


def get_run_address(owner: Pubkey, index: int) -> Pubkey:
    """The treasurer's account of the owner's run with this index, of 64 bits."""
    return _derive(TREASURER, b"Run", bytes(owner), index.to_bytes(8, "little"))


def get_participant_address(run: Pubkey, user: Pubkey) -> Pubkey:
    """The record of what the treasurer's run paid this member."""
    return _derive(TREASURER, b"Participant", bytes(run), bytes(user))


def _derive(program: Pubkey, *seeds: bytes) -> Pubkey:
    return Pubkey.find_program_address(seeds, program)[0]
