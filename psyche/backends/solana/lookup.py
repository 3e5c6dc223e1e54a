"""Finding runs on a chain: their accounts, their record, and who owns them."""

from dataclasses import dataclass
from typing import NamedTuple

from solders.pubkey import Pubkey

from psyche.backends.solana.interface.accounts import INSTANCE, RUN_STATE, TREASURER_RUN, InstanceData
from psyche.backends.solana.interface.addresses import get_instance_address, get_program_id
from psyche.backends.solana.interface.coordinator import ChainRun
from psyche.backends.solana.interface.tokens import read_mint
from psyche.backends.solana.interface.treasurer import TreasurerRun
from psyche.backends.solana.rpc.client import Rpc
from psyche.backends.solana.rpc.replies import get_data
from psyche.backends.solana.session import ChainSession, NoRun
from psyche.core.encoding.account import decode_state
from psyche.core.state.state import Coordinator
from psyche.errors import BackendError, ConfigError, WireError


class RunTarget(NamedTuple):
    """What an owner's command needs to know of a run."""

    accounts: ChainRun
    main_authority: Pubkey
    treasurer: TreasurerRun | None  # None: the owner signs for the run directly


@dataclass(frozen=True, slots=True)
class FoundRun:
    accounts: ChainRun
    instance: InstanceData
    state: Coordinator
    lamports: int  # the deposits of both accounts
    slot: int
    treasurer: TreasurerRun | None = None  # None: its owner signs for it directly

    @property
    def target(self) -> RunTarget:
        return RunTarget(self.accounts, self.instance.main_authority, self.treasurer)

    @property
    def owner(self) -> Pubkey:
        """The wallet that may change it."""
        return self.instance.main_authority if self.treasurer is None else self.treasurer.main_authority

    def check_owner(self, wallet: Pubkey) -> None:
        if wallet != self.owner:
            raise ConfigError(
                f"run {self.state.run_id!r}: belongs to {self.owner}, and the wallet here is {wallet}: name the "
                "owner's wallet with --wallet-private-key-path FILE"
            )


async def find_instance(rpc: Rpc, run_id: str, min_slot: int | None = None) -> InstanceData | None:
    address = get_instance_address(run_id)
    data = get_data(INSTANCE, address, await rpc.get_account(address, min_slot))
    return None if data is None else InstanceData.read(data)


async def find_run(session: ChainSession, run_id: str, min_slot: int | None = None) -> FoundRun:
    instance = await find_instance(session.rpc, run_id, min_slot)
    if instance is None:
        await session.check_programs()
        where = session.rpc.endpoints[0].name
        raise NoRun(
            f"there is no run {run_id!r} on the chain at {where}: check --run-id and --rpc; "
            f"{session.write_command('run list', signed=False)} shows its runs"
        )
    return await read_run(session.rpc, instance, min_slot)


async def read_run(rpc: Rpc, instance: InstanceData, min_slot: int | None = None) -> FoundRun:
    address = get_instance_address(instance.run_id)
    account = await rpc.get_account(instance.coordinator_account, min_slot)
    held, main = await rpc.get_accounts([address, instance.main_authority])
    try:
        data = get_data(RUN_STATE, instance.coordinator_account, account)
    except WireError as error:
        raise BackendError(f"run {instance.run_id!r}: {error}; check --rpc") from error
    if account is None or data is None or held is None:
        raise BackendError(f"run {instance.run_id!r}: is being closed: its accounts are gone")
    try:
        state = decode_state(data)
    except WireError as error:
        raise BackendError(
            f"run {instance.run_id!r}: its record cannot be read ({error}); this needs another version of Psyche"
        ) from error
    treasurer = None
    if main is not None and main.owner == get_program_id("treasurer"):
        TREASURER_RUN.check(instance.main_authority, main.owner, main.data)
        treasurer = TreasurerRun.read(instance.main_authority, main.data)
    return FoundRun(
        ChainRun(address, instance.coordinator_account), instance, state, account.lamports + held.lamports,
        account.slot, treasurer,
    )  # fmt: skip


async def list_instances(session: ChainSession) -> list[InstanceData]:
    found = await session.rpc.find_accounts(INSTANCE)
    if not found:
        await session.check_programs()
    return sorted((InstanceData.read(account.data) for _, account in found), key=lambda one: one.run_id)


async def find_decimals(rpc: Rpc, mint: Pubkey) -> int:
    """Find how many digits the amounts of a token have behind the point."""
    account = await rpc.get_account(mint)
    if account is None:
        raise ConfigError(f"token {mint}: there is no such token on this chain")
    return read_mint(account.owner, account.data, mint).decimals
