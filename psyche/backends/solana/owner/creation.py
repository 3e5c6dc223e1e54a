"""Creating a run on a chain, in the fewest transactions, and closing it with all deposits given back."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token.associated import get_associated_token_address

from psyche.backends.solana.interface.addresses import get_instance_address, get_run_address
from psyche.backends.solana.interface.coordinator import Authorities, ChainRun, build_free, build_init
from psyche.backends.solana.interface.tokens import TOKEN_BYTES, build_token_account
from psyche.backends.solana.interface.treasurer import (
    NewRun,
    TreasurerRun,
    build_run_close,
    build_run_create,
    compute_run_index,
)
from psyche.backends.solana.lookup import FoundRun, RunTarget, find_decimals, find_instance, read_run
from psyche.backends.solana.owner.administration import build_steps
from psyche.backends.solana.owner.funds import find_token_deposit
from psyche.backends.solana.owner.rewards import describe_return, find_earners, plan_settlement
from psyche.backends.solana.session import ChainPlan, ChainSession, Step
from psyche.config.load import LoadedRun
from psyche.config.update import check_update, lay_out_changes
from psyche.core.encoding.account import decode_model, encode_model
from psyche.core.state.limits import STATE_BYTES
from psyche.core.state.messages import Update
from psyche.core.state.state import ZERO32, Coordinator, Progress, RunState
from psyche.errors import BackendError, ConfigError

INSTANCE_BYTES: Final = 181
TREASURER_RUN_BYTES: Final = 249


@dataclass(frozen=True, slots=True)
class Creation:
    """What a person says of a new run."""

    run_id: str
    file: LoadedRun | None  # its settings, fitted to a chain; None: they come later
    client_version: str  # what clients must have
    join_authority: Pubkey | None = None  # grants authorizations to join; None: the wallet
    mint: Pubkey | None = None  # the token that a treasurer pays members in; None: no treasurer
    index: int | None = None  # tells the runs of one owner at the treasurer apart; None: it follows from the run id
    first_weights: bytes = ZERO32  # the full digest of the model that it begins with (S11); zero: it is not on record
    texts: Mapping[str, str] = field(default_factory=dict[str, str])  # fields of the metadata, instead of the file's


def find_settings(state: Coordinator, new: Creation) -> Update:
    """Find what is to change in a run that has not begun; what is the same already is None."""
    update = Update() if new.file is None else _find_settings_of_file(state, new.file, new.first_weights)
    metadata = replace(state.metadata if new.file is None else new.file.metadata, **dict(new.texts))
    return replace(update, metadata=None if metadata == state.metadata else metadata)


def _find_settings_of_file(state: Coordinator, file: LoadedRun, digest: bytes) -> Update:
    config, model = file.config, decode_model(encode_model(file.model))
    return Update(
        config=None if config == state.config else config,
        model=None if model == state.model else model,
        progress=None if file.progress in (Progress(), state.progress) else file.progress,
        bootstrap=None if [*file.bootstrap] == state.bootstrap else file.bootstrap,
        first_weights=None if digest in (ZERO32, state.certified.digest) else digest,
    )


async def plan_create(session: ChainSession, new: Creation) -> ChainPlan:
    """Plan the creation of a run, or the rest of one that stopped half-way; no steps: it is complete."""
    run_id = new.run_id
    instance = await find_instance(session.rpc, run_id)
    if instance is None:
        await session.check_programs()
        return await _plan_new(session, new)
    found = await read_run(session.rpc, instance)
    found.check_owner(session.key)
    if found.state.run_state is not RunState.UNINITIALIZED:
        file = "FILE" if new.file is None else shlex.quote(str(new.file.path))
        raise ConfigError(
            f"run {run_id!r}: exists already; "
            f"{session.write_command(f'run update-config --state {file}', run_id)} changes it, and "
            "another run needs another id (--run-id)"
        )
    update = _check(found.state, new)
    says = f"completes run {run_id!r}, which exists without all of its settings"
    if new.file is None or found.state.config.total_steps:  # which no settings leave at 0
        says = f"changes run {run_id!r}, which is not started:\n{lay_out_changes(found.state, update)}"
    return ChainPlan(says, build_steps(found.target, update))


def _check(state: Coordinator, new: Creation) -> Update:
    update = find_settings(state, new)
    check_update(state, update)
    return update


async def _plan_new(session: ChainSession, new: Creation) -> ChainPlan:
    account, owner, rpc = Keypair(), session.key, session.rpc
    run_id, accounts = new.run_id, ChainRun.find(new.run_id, account.pubkey())
    update = _check(Coordinator(run_id=run_id), new)
    join = new.join_authority or owner
    deposit = await rpc.get_deposit(STATE_BYTES)
    total = deposit + await rpc.get_deposit(INSTANCE_BYTES)
    if new.mint is None:
        begin = build_init(owner, run_id, account.pubkey(), Authorities(owner, join), new.client_version, deposit)
        target = RunTarget(accounts, owner, None)
    else:
        await find_decimals(session.rpc, new.mint)  # no other token can pay
        index = compute_run_index(run_id) if new.index is None else new.index
        made = NewRun(index, run_id, new.client_version, join, new.mint)
        begin = build_run_create(owner, owner, account.pubkey(), made, deposit)
        target = _aim(owner, account.pubkey(), made)
        total += await rpc.get_deposit(TREASURER_RUN_BYTES) + await rpc.get_deposit(TOKEN_BYTES)
    steps = (Step("the run's accounts", begin), *build_steps(target, update))
    where = "" if new.mint is None else f", which pays its members in the token {new.mint}"
    where += "" if new.file else "; its settings come later"
    returns = f"the owner's wallet gets it back with {session.write_command('run close', run_id)}"
    return ChainPlan(f"creates run {run_id!r}{where}", steps, total, returns, (account,), is_lasting=True)


def _aim(owner: Pubkey, account: Pubkey, made: NewRun) -> RunTarget:
    """The target of a run that the treasurer is about to make."""
    address = get_run_address(owner, made.index)
    instance = get_instance_address(made.run_id)
    pays = get_associated_token_address(address, made.mint)
    run = TreasurerRun(
        address, made.index, owner, made.join_authority, account, instance, made.mint, 0, pays, bytes(32)
    )
    return RunTarget(ChainRun(instance, account), address, run)


async def plan_close(session: ChainSession, found: FoundRun) -> ChainPlan:
    """Plan the closing of a run: its members' earnings are collected, and paid where it has a treasurer."""
    found.check_owner(session.key)
    run_id, state = found.state.run_id, found.state
    if not state.halted:
        raise BackendError(
            f"run {run_id!r} is going on: pause it with {session.write_command('run pause', run_id)}, wait until "
            f"{session.write_command('run info', run_id, signed=False)} says paused, then close it"
        )
    members = await find_earners(session, found)
    settled = await plan_settlement(session, found, members)
    owner, kept = session.key, settled.kept_lamports
    says = f"closes run {run_id!r} for good: its record is gone, and nobody can go on with it{settled.says}"
    if found.treasurer is None:
        last = Step("close", (build_free(found.accounts, owner, owner),))
    else:
        mint = found.treasurer.collateral_mint
        rest = get_associated_token_address(owner, mint)
        build = build_token_account(owner, owner, mint)
        last = Step("close", (build, build_run_close(found.treasurer, owner, rest)))
        if all(build not in step.instructions for step in settled.steps):  # else it is paid as a member
            kept += await find_token_deposit(session, owner, mint)
    return replace(
        settled, says=says, steps=(*settled.steps, last), kept_lamports=kept,
        returns=describe_return(session, is_own=False),
    )  # fmt: skip
