"""The programs as a chain has them, compared with those that somebody vouches for."""

from collections.abc import Mapping, Sequence

from solders.pubkey import Pubkey

from psyche.backends.solana.interface.addresses import ProgramIds
from psyche.backends.solana.programs.loader import FORMER, UPGRADEABLE, LoadedCode, find_data_address, read_code
from psyche.backends.solana.programs.vouching import NOBODY, Vouching
from psyche.backends.solana.rpc.client import Rpc
from psyche.backends.solana.rpc.replies import ChainAccount
from psyche.errors import BackendError, WireError


async def read_programs(rpc: Rpc, programs: Sequence[Pubkey]) -> list[LoadedCode | None]:
    """Read programs' bytes, and who may change them; None for each that is not there."""
    accounts = await rpc.get_accounts([*programs, *map(find_data_address, programs)])
    heads, data = accounts[: len(programs)], accounts[len(programs) :]
    return [_read(key, head, code) for key, head, code in zip(programs, heads, data, strict=True)]


def _read(key: Pubkey, head: ChainAccount | None, code: ChainAccount | None) -> LoadedCode | None:
    if head is None:
        return None
    if head.owner == FORMER:
        return LoadedCode(head.data, None)
    if head.owner == UPGRADEABLE and code is None:
        raise BackendError(f"program {key} was closed, and nothing can be at its address again: use other program ids")
    if head.owner != UPGRADEABLE or code is None or code.owner != UPGRADEABLE:
        raise BackendError(f"{key} is no program that can be checked: it belongs to {head.owner}; check --program-ids")
    try:
        return read_code(code.data)
    except WireError as error:
        raise BackendError(f"the account {find_data_address(key)} of program {key} {error}; check --rpc") from error


async def check_programs(rpc: Rpc, vouching: Vouching) -> str:
    """Check that a chain has the programs that are vouched for; return who may change them, a sentence."""
    where = f"the chain at {rpc.endpoints[0].name}"
    authorities: dict[str, str] = {}
    for name, key, found in zip(ProgramIds._fields, vouching.ids, await read_programs(rpc, vouching.ids), strict=True):
        if found is None:
            raise BackendError(
                f"{where} does not have Psyche's programs: there is no {name} at {key}; check --rpc. If the run's "
                "owner gave you a file of program ids, name it with --program-ids FILE (or PSYCHE_PROGRAM_IDS); "
                "`psyche dev deploy` puts the programs on a chain (docs/public-chain.md)"
            )
        authorities[name] = _check(where, name, key, found, vouching)
    return describe_authorities(authorities)


def describe_authorities(authorities: Mapping[str, str]) -> str:
    names = {key: [name for name, one in authorities.items() if one == key] for key in authorities.values()}
    return "upgrade authority: " + "; ".join(f"{key} can change {', '.join(of)}" for key, of in names.items())


def _check(where: str, name: str, key: Pubkey, found: LoadedCode, vouching: Vouching) -> str:
    may_change = NOBODY if found.authority is None else str(found.authority)
    digests = [vouching.compute_digest(found.code, size) for size, _ in vouching.builds[name]]
    wanted = [digest for _, digest in vouching.builds[name]]
    if not any(has == digest for has, digest in zip(digests, wanted, strict=True)):
        raise BackendError(
            f"{where} has another {name} at {key}: the SHA-256 of its bytes is {digests[0]}, and {vouching.source} "
            f"vouches for {' or '.join(wanted)}. Its upgrade authority is {may_change}. Ask the run's owner: name the "
            "owner's newest file with --program-ids FILE, or take the version of Psyche that the run was made with"
        )
    vouched = vouching.authorities.get(name, may_change)
    if may_change not in (NOBODY, vouched):
        raise BackendError(
            f"{where}: the upgrade authority of the {name} at {key} is {may_change}, and {vouching.source} names "
            f"{vouched}. Ask the run's owner, and name the owner's newest file with --program-ids FILE"
        )
    return may_change
